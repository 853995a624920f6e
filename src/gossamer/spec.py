"""Spec files: one TOML file describes problem, graph, methods, rounds and seeds.

This module reads a file into a `Spec` and checks its keys and their types. Names of methods, compressors and so on are
looked up when the experiment is prepared, before anything runs.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gossamer.errors import InputError, check_choice, check_integer, unknown

Table = dict[str, Any]


@dataclass(frozen=True)
class Spec:
    """A checked spec file."""

    rounds: int
    problem: Table
    """`objective`, and that objective's settings."""
    graph: Table
    """`name`, that graph's settings, and `weights`."""
    methods: list[Table]
    """Each with a `name`, its settings, and optionally a `label` and `rounds`."""
    name: str = "run"
    seeds: list[int] = field(default_factory=lambda: [0])
    batch_size: int | None = None
    eval_every: int | None = None
    x0: str | None = None
    codec: Literal["fixed", "entropy", "auto"] | None = None
    surrogates: Literal["float64", "float32"] = "float64"
    measures: list[str] = field(default_factory=list)
    """Names of what is measured beside the usual columns."""
    text: str = ""
    """The text of the file, for the records."""

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds, 1)
        if not self.methods:
            raise InputError("A spec needs at least one [[methods]] table.")
        for number, method in enumerate(self.methods, 1):
            if not isinstance(method, dict) or not isinstance(method.get("name"), str):
                raise InputError(f'Method {number} of the spec needs a `name`, such as name = "beer".')
            if "rounds" in method:
                check_integer("rounds", method["rounds"], 1)
            if not isinstance(method.get("label", "-"), str) or not method.get("label", "-").strip():
                raise InputError(f"`label` must be a non-empty string, got {method['label']!r}.")
        for key, table in (("objective", self.problem), ("name", self.graph)):
            if not isinstance(table.get(key), str):
                where = "[problem]" if key == "objective" else "[graph]"
                raise InputError(f"{where} of the spec needs `{key}`, a string.")
        for seed in self.seeds:
            check_integer("seeds", seed, 0)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"`seeds` must be one or more different integers, got {self.seeds}.")
        if self.codec is not None:
            check_choice("codec", self.codec, ("fixed", "entropy", "auto"))
        check_choice("surrogates", self.surrogates, ("float64", "float32"))
        for name, value in (("batch_size", self.batch_size), ("eval_every", self.eval_every)):
            if value is not None:
                check_integer(name, value, 1)


def load_spec(path: Path) -> Spec:
    """Read the spec in a TOML file; error messages begin with the file's name."""
    text, table = read_toml(path)
    try:
        return replace(parse_spec({"name": path.stem} | table), text=text)
    except InputError as error:
        raise InputError(f"In '{path}': {error}") from None


_MOST_BYTES = 1 << 18
_MOST_PARTS = 16
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_MOST_PARTS}}}")


def read_toml(path: Path) -> tuple[str, Table]:
    """Text and content of a TOML file; a file that is too large or nested too deeply is refused before parsing.

    A key of 200,000 parts, in a file of 400 kB, would take 22 GB: tomllib keeps each prefix of a dotted key.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InputError(
                f"The spec '{path}' is larger than {_MOST_BYTES:,} bytes; keep large matrices in .csv or .npy files."
            )
        text = content.decode().replace("\r\n", "\n")
        if (key := _LONG_KEY.search(text)) is not None:
            line = text.count("\n", 0, key.start()) + 1
            raise InputError(f"The spec '{path}' has a key of more than {_MOST_PARTS} parts in line {line}.")
        return text, tomllib.loads(text)
    except OSError as error:
        raise InputError(f"The spec '{path}' cannot be read: {error.strerror or error}.") from None
    except RecursionError:
        raise InputError(f"The spec '{path}' is nested too deeply.") from None
    except InputError:
        raise
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise InputError(f"The spec '{path}' is not TOML: {str(error).rstrip('.')}.") from None


_KEYS: dict[str, tuple[type, str]] = {
    "name": (str, "a string"),
    "rounds": (int, "an integer"),
    "seeds": (list, "a list of integers"),
    "batch_size": (int, "an integer"),
    "eval_every": (int, "an integer"),
    "x0": (str, "a string"),
    "codec": (str, "a string"),
    "surrogates": (str, "a string"),
    "measures": (list, "a list of names"),
    "problem": (dict, "a table"),
    "graph": (dict, "a table"),
    "methods": (list, "a list of tables"),
}
_REQUIRED = ("rounds", "problem", "graph", "methods")


def parse_spec(table: Mapping[str, Any]) -> Spec:
    """Make a Spec from a table; unknown, missing and mistyped keys are refused."""
    for key, value in table.items():
        if key == "omegas":
            raise InputError('The key `omegas` was replaced: write `measures = ["omegas"]` for `omegas = true`.')
        if key not in _KEYS:
            raise unknown("key", key, _KEYS, owner="The spec")
        kind, words = _KEYS[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"`{key}` must be {words}, got {value!r}.")
        if key == "measures" and any(not isinstance(name, str) for name in table["measures"]):
            raise InputError(f"`measures` must be {words}, got {value!r}.")
    for key in _REQUIRED:
        if key not in table:
            raise InputError(f"The spec needs the key `{key}`.")
    return Spec(**table)
