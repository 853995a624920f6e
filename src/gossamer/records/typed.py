"""JSON to frozen dataclasses: one strict check of types, for everything that is read from a file.

`read_as` checks each field of a dataclass against its annotation. Keys that the class does not have are left out, so
that files of a newer version can be read.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gossamer.errors import DataError

T = TypeVar("T")
Settings: TypeAlias = Mapping[str, object]
"""Settings of a method or a problem, as JSON holds them."""
LARGEST = 1e300
"""Larger numbers cannot be averaged."""
_MOST_BYTES = {".jsonl": 256 << 20, ".json": 32 << 20}
_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


def check_file(path: Path) -> None:
    """Refuse what is not a regular file, or is empty, or too large to read."""
    if path.is_dir():
        raise DataError(f"'{path}' is a folder, though its name is that of a file.")
    if path.exists() and not path.is_file():
        raise DataError(f"'{path}' is not a regular file.")
    try:
        size, most = path.stat().st_size, _MOST_BYTES.get(path.suffix, _MOST_BYTES[".jsonl"])
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    if size == 0:
        raise DataError(f"'{path}' is empty.")
    if size > most:
        raise DataError(f"'{path}' holds {size / 1e6:,.0f} MB; at most {most / 1e6:,.0f} MB are read.")


def read_json(path: Path) -> Any:
    """The JSON in a file; a DataError if there is none."""
    check_file(path)
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        raise DataError(f"'{path}' is not JSON.") from None


def read_as(kind: type[T], table: object, prefix: str = "") -> T:
    """The JSON object `table` as the dataclass `kind`; a DataError names the first field that does not fit."""
    if not isinstance(table, Mapping):
        raise wrong(prefix.rstrip(".") or "content", table, "a table")
    values, one = {}, cast(Any, kind)
    for field in fields(one):
        name = f"{prefix}{field.name}"
        if field.name in table:
            values[field.name] = _value(_hints(one)[field.name], table[field.name], name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise DataError(f"it has no `{name}`.")
    return kind(**values)


def is_number(value: object) -> bool:
    """Whether a value is a finite number that can be averaged; a bool is not a number."""
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST  # type: ignore[operator]


def wrong(name: str, value: object, word: str) -> DataError:
    """The error for a value that is not `word`."""
    if isinstance(value, float) and not math.isfinite(value):
        return DataError(f"its `{name}` is not finite.")
    if type(value) in (int, float) and abs(value) > LARGEST:  # type: ignore[arg-type]
        return DataError(f"its `{name}` is too large.")
    text = json.dumps(value)
    return DataError(f"its `{name}` is {text if len(text) <= 40 else text[:37] + '...'}, which is not {word}.")


_hints = cache(get_type_hints)


def _value(kind: Any, value: object, name: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        (kind,) = (one for one in arguments if one is not NoneType)
        return _value(kind, value, name)
    if is_dataclass(kind):
        return read_as(cast(type[Any], kind), value, f"{name}.")
    if origin is Literal:
        if value not in arguments:
            raise wrong(name, value, f"one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        return _tuple(arguments, value, name)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise wrong(name, value, "a table")
        return {key: _value(arguments[1], one, f"{name}.{key}") for key, one in value.items()}
    if kind in (int, float):
        fits = is_number(value) and (kind is float or isinstance(value, int))
    else:
        fits = isinstance(value, kind)
    if not fits:
        raise wrong(name, value, _WORDS[kind])
    return value


def _tuple(kinds: tuple[Any, ...], value: object, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise wrong(name, value, "a list")
    if kinds[-1] is ...:
        kinds = (kinds[0],) * len(value)
    if len(value) != len(kinds):
        raise wrong(name, value, f"a list of {len(kinds)}")
    return tuple(_value(kind, one, name) for kind, one in zip(kinds, value, strict=True))
