"""Registries of methods, compressors, graphs and so on, by the names that spec files use: `"beer"`, `"gsgd:5"`.

A decorator registers a class or function. Other packages add theirs through entry points (groups `gossamer.methods`,
`gossamer.compressors`, `gossamer.measures` and `gossamer.transports`). Names are compared in lower case, with `-` read
as `_`.
"""

import inspect
import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from gossamer.errors import InputError, unknown

logger = logging.getLogger(__name__)

_LONGEST = 1000

Setting = int | float | str
Thing = TypeVar("Thing", bound=Callable[..., Any])


def normal(name: str) -> str:
    """Normalize a name for comparison: `"CHOCO-SGD"` and `"choco_sgd"` are the same name."""
    return name.strip().lower().replace("-", "_")


class Registry:
    """Factories of one kind (methods, compressors, graphs, ...) by name.

    `home` is the module that registers Gossamer's own entries; it is imported at the first lookup.
    """

    def __init__(self, kind: str, entry_point_group: str | None = None, home: str | None = None) -> None:
        self.kind = kind
        self._group, self._home = entry_point_group, home
        self._things: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[Thing], Thing]:
        """Register the decorated class or function under `name`."""

        def add(thing: Thing) -> Thing:
            known = self._things.get(normal(name))
            if known is not None and known is not thing:
                raise InputError(f"{self.kind.capitalize()} {name!r} is already registered by {known.__module__}.")
            self._things[normal(name)] = thing
            return thing

        return add

    def names(self) -> list[str]:
        """All registered names, including those of other installed packages."""
        self._load()
        return sorted(self._things)

    def get(self, name: str) -> Callable[..., Any]:
        """The factory registered under `name`; an error lists the valid names."""
        if not isinstance(name, str) or normal(name) not in self.names():
            raise unknown(self.kind, name, self.names())
        return self._things[normal(name)]

    def name_of(self, thing: object) -> str:
        """The name under which a factory, or the class of an instance, is registered."""
        self._load()
        for name, known in self._things.items():
            if thing is known or type(thing) is known:
                return name
        return type(thing).__name__

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def build(self, description: object, **more: Any) -> Any:
        """Build an instance from `"gsgd:5"`, `"gsgd:bits=5"` or `{"name": "gsgd", "bits": 5}`; instances pass through.

        Unknown settings are refused, with a list of the valid ones.
        """
        if isinstance(description, str):
            if len(description) > _LONGEST:
                raise InputError(f"The {self.kind} {description[:40]!r}... is longer than {_LONGEST} characters.")
            name, _, rest = description.partition(":")
            positional, keywords = settings_of(rest)
        elif isinstance(description, dict):
            if "name" not in description:
                raise InputError(f"A {self.kind} needs a `name`; got {description!r}.")
            name = description["name"]
            positional, keywords = [], {key: value for key, value in description.items() if key != "name"}
        else:
            return description
        factory = self.get(name)
        keywords = more | keywords
        signature = inspect.signature(factory)
        for key in keywords:
            if key not in signature.parameters:
                raise unknown("setting", key, signature.parameters, owner=f"{self.kind.capitalize()} {normal(name)!r}")
        try:
            given = signature.bind_partial(*positional, **keywords).arguments
        except TypeError as error:
            raise InputError(f"Invalid {self.kind} {description!r}: {error}.") from None
        for key, parameter in signature.parameters.items():
            if key not in given and parameter.default is parameter.empty:
                raise InputError(f"{self.kind.capitalize()} {normal(name)!r} needs the setting `{key}`.")
        return factory(*positional, **keywords)

    def _load(self) -> None:
        if self._home is not None:
            import_module(self._home)
            self._home = None  # once is enough
        if self._group is None:
            return
        group, self._group = self._group, None
        for point in entry_points(group=group):
            if normal(point.name) in self._things:
                continue
            try:
                self._things[normal(point.name)] = point.load()
            except Exception as error:  # a broken package must not break the others
                logger.warning("The %s %r of %r cannot be loaded: %s", self.kind, point.name, point.value, error)


def settings_of(text: str) -> tuple[list[Setting], dict[str, Setting]]:
    """Parse the settings after a name: `40,p=0.2` is one positional and one keyword setting."""
    positional: list[Setting] = []
    keywords: dict[str, Setting] = {}
    for part in text.split(",") if text else []:
        key, named, value = part.partition("=")
        if named and key.strip().isidentifier():
            keywords[key.strip()] = _number(value)
        else:
            positional.append(_number(part))
    return positional, keywords


def _number(text: str) -> Setting:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.strip(), text.strip())


methods = Registry("method", "gossamer.methods", home="gossamer.algorithms")
compressors = Registry("compressor", "gossamer.compressors", home="gossamer.compression")
transports = Registry("transport", "gossamer.transports", home="gossamer.runtime.transport")
graphs = Registry("graph", "gossamer.graphs", home="gossamer.topology")
networks = Registry("graph that changes", home="gossamer.topology")
weights = Registry("weight rule", home="gossamer.topology")
objectives = Registry("objective", home="gossamer.problems")
partitions = Registry("partition", home="gossamer.problems")
datasets = Registry("data set", home="gossamer.problems")
schedules = Registry("schedule", home="gossamer.algorithms")
measures = Registry("measure", "gossamer.measures")
