"""Spec files: one TOML file describes problem, graph, methods, rounds and seeds.

This module reads a file into a `Spec` and checks its keys and their types. Names of methods, compressors and so on are
looked up when the experiment is prepared, before anything runs.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gossamer.errors import InputError, check_choice, check_integer, unknown

Table = dict[str, Any]

LISTED = ("lr", "gamma", "compressor")
"""Settings of a method that may be lists: each value is a run of its own."""
MOST_COMBINATIONS = 200


class Combination(NamedTuple):
    """One run of a spec: a method without lists, a graph, and what tells it from the others of its table."""

    method: Table
    graph: Table
    suffix: str


@dataclass(frozen=True)
class Spec:
    """A checked spec file."""

    rounds: int
    problem: Table
    """`objective`, and that objective's settings."""
    graph: Table
    """`name`, that graph's settings, and `weights`; the first of `graphs`, if there are several."""
    methods: list[Table]
    """Each with a `name`, its settings, and optionally a `label`, `rounds` and `local`, which replace the spec's."""
    graphs: list[Table] = field(default_factory=list)
    """All graphs, if there are several: every method runs on each."""
    name: str = "run"
    seeds: list[int] = field(default_factory=lambda: [0])
    batch_size: int | None = None
    eval_every: int | None = None
    x0: str | None = None
    codec: Literal["fixed", "entropy", "auto"] | None = None
    surrogates: Literal["float64", "float32"] = "float64"
    local: Table | None = None
    """`optimizer`, `steps` and that optimiser's settings: local steps in place of a gradient."""
    measures: list[str] = field(default_factory=list)
    """Names of what is measured beside the usual columns."""
    text: str = ""
    """The text of the file, for the records."""

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds, 1)
        if not self.methods:
            raise InputError("A spec needs at least one [[methods]] table.")
        for number, method in enumerate(self.methods, 1):
            _check_method(number, method)
        for key, table in (("objective", self.problem), *(("name", graph) for graph in self.graphs or [self.graph])):
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

    def combinations(self) -> list[Combination]:
        """Every method with every value of its lists, on every graph; an InputError if there are too many."""
        many = sum(math.prod(len(_values(table, key)) for key in LISTED) for table in self.methods)
        graphs = self.graphs or [self.graph]
        if many * len(graphs) > MOST_COMBINATIONS:
            raise InputError(
                f"The spec has {many * len(graphs):,} combinations of lr, gamma, compressor and graph; at most "
                f"{MOST_COMBINATIONS} are run at once. Split it."
            )
        names = _graph_names(graphs)
        return [
            Combination(
                {**table, **{key: value for key, value in zip(LISTED, chosen, strict=True) if key in table}},
                graph,
                _suffix(table, chosen, name),
            )
            for table in self.methods
            for graph, name in zip(graphs, names, strict=True)
            for chosen in product(*(_values(table, key) for key in LISTED))
        ]


def _check_method(number: int, method: Any) -> None:
    """Refuse what is no method with a name."""
    if not isinstance(method, dict) or not isinstance(method.get("name"), str):
        raise InputError(f'Method {number} of the spec needs a `name`, such as name = "beer".')
    if "rounds" in method:
        check_integer("rounds", method["rounds"], 1)
    local = method.get("local", False)
    if not isinstance(local, dict) and local is not False:
        raise InputError(f"`local` of a method must be a table, or false for none, got {local!r}.")
    if not isinstance(method.get("label", "-"), str) or not method.get("label", "-").strip():
        raise InputError(f"`label` must be a non-empty string, got {method['label']!r}.")
    for key in LISTED:
        if method.get(key) == []:
            raise InputError(f"`{key}` must hold at least one value, got an empty list.")


def _values(table: Table, key: str) -> list[Any]:
    """What a setting is to be: the elements of a list, or the one value."""
    value = table.get(key)
    return value if isinstance(value, list) else [value]


def _suffix(table: Table, chosen: tuple[Any, ...], graph: str) -> str:
    """The values that come from lists, in words: "lr=0.1 gsgd:5 ring"."""
    words = [
        _words(value) if key == "compressor" else f"{key}={_words(value)}"
        for key, value in zip(LISTED, chosen, strict=True)
        if len(_values(table, key)) > 1
    ]
    return " ".join([*words, *([graph] if graph else [])])


def _words(value: object) -> str:
    """A value of a setting, as short as in a spec."""
    if isinstance(value, Mapping):
        rest = ",".join(f"{key}={one}" for key, one in value.items() if key != "name")
        return f"{value.get('name', '')}:{rest}" if rest else str(value.get("name", ""))
    return str(value)


def _graph_names(graphs: list[Table]) -> list[str]:
    """Graphs in words: names, with their settings where names are alike; nothing if there is one graph."""
    if len(graphs) == 1:
        return [""]
    plain = [str(graph["name"]) for graph in graphs]
    return [name if plain.count(name) == 1 else _words(graph) for name, graph in zip(plain, graphs, strict=True)]


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
    "local": (dict, "a table"),
    "measures": (list, "a list of names"),
    "problem": (dict, "a table"),
    "graph": (dict, "a table"),
    "methods": (list, "a list of tables"),
}
_REQUIRED = ("rounds", "problem", "graph", "methods")


def parse_spec(table: Mapping[str, Any]) -> Spec:
    """Make a Spec from a table; unknown, missing and mistyped keys are refused."""
    graphs = _graphs(table.get("graph"))
    if graphs:
        table = {**table, "graph": graphs[0]}
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
    return Spec(**table, graphs=graphs)


def _graphs(graph: object) -> list[Table]:
    """The graphs of `[[graph]]`, or of a `[graph]` whose name is a list; none if there is one graph."""
    if not isinstance(graph, list) and not (isinstance(graph, dict) and isinstance(graph.get("name"), list)):
        return []
    tables = graph if isinstance(graph, list) else [graph]
    if any(not isinstance(table, dict) for table in tables):
        raise InputError(f"`graph` must be a table or a list of tables, got {graph!r}.")
    found = [{**table, "name": name} for table in tables for name in _values(table, "name")]
    if not found:
        raise InputError("The spec needs at least one graph.")
    return found
