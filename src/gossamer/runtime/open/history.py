"""What happened to the clients of a run whose members come and go, one list of events per client.

The numbers of a run follow from its data, its seed and its history alone. So the same history gives the same models,
whether it was recorded from processes on a network, written by hand, or drawn at random.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from gossamer.errors import DataError


@dataclass(frozen=True)
class Begin:
    """The client begins with the start of the run (`via` is None), or with the model of a neighbour."""

    kind: ClassVar[str] = "begin"
    t: int = 0
    via: int | None = None
    number: int = 0
    """Of the edge over which the model came."""


@dataclass(frozen=True)
class Open:
    """An edge opens. Both ends start at the start of the run, or at the model of the end that gives one."""

    kind: ClassVar[str] = "open"
    neighbor: int
    number: int
    start: str
    """`"start"`, `"own"` (this client gives its model) or `"theirs"`."""


@dataclass(frozen=True)
class Step:
    """One round, which applies the next term of each of these edges."""

    kind: ClassVar[str] = "step"
    neighbors: tuple[int, ...]


@dataclass(frozen=True)
class Close:
    """An edge closes, because the neighbour is gone: what the edge has added to the tracker is taken out."""

    kind: ClassVar[str] = "close"
    neighbor: int


@dataclass(frozen=True)
class Gone:
    """The client is lost. It does not know it, so only histories that were made up have this event."""

    kind: ClassVar[str] = "gone"


@dataclass(frozen=True)
class Leave:
    """The client leaves on purpose; the heir takes over what its other edges have added to its tracker."""

    kind: ClassVar[str] = "leave"
    heir: int | None
    neighbors: tuple[int, ...] = ()
    """Whose last packets were applied before."""


@dataclass(frozen=True)
class Release:
    """A neighbour left on purpose; what their edge has added stays, and is now between this client and the heir."""

    kind: ClassVar[str] = "release"
    neighbor: int
    heir: int
    has_packet: bool
    """Whether the neighbour's last packet was still to be applied."""


@dataclass(frozen=True)
class Inherit:
    """A neighbour left on purpose, and this client is its heir."""

    kind: ClassVar[str] = "inherit"
    neighbor: int
    has_packet: bool


@dataclass(frozen=True)
class Forget:
    """A client is gone with which this one shared what a neighbour left behind: it is taken out."""

    kind: ClassVar[str] = "forget"
    number: int
    """Of the edge that it was before."""


Event = Begin | Open | Step | Close | Gone | Leave | Release | Inherit | Forget
History = Mapping[int, list[Event]]
"""The events of each client, in order."""
_KINDS: dict[str, type[Event]] = {
    one.kind: one for one in (Begin, Open, Step, Close, Gone, Leave, Release, Inherit, Forget)
}


_LONGEST = 1 << 20  # bytes of a line, at most


def line(event: Event) -> str:
    """One line of JSON."""
    return json.dumps({"event": event.kind} | asdict(event))


def write_history(path: str | os.PathLike[str], events: Iterable[Event]) -> None:
    """Write the events of one client, one per line."""
    Path(path).write_text("".join(line(event) + "\n" for event in events))


class HistoryFile:
    """The events of one client, written while they happen; another process of the client goes on after the last one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        end = os.pread(self._file, _LONGEST, max(0, size - _LONGEST))
        os.ftruncate(self._file, size - len(end) + end.rfind(b"\n") + 1)  # a line that was cut off

    def note(self, event: Event) -> None:
        """Keep an event, before anything is sent that follows from it."""
        os.write(self._file, (line(event) + "\n").encode())

    def close(self) -> None:
        """Keep no more."""
        os.close(self._file)


def read_history(path: str | os.PathLike[str]) -> list[Event]:
    """The events of one client; a last line that was cut off, as by a kill, is left out."""
    where, events = f"The history '{os.fspath(path)}'", list[Event]()
    try:
        lines = Path(path).read_text(errors="replace").split("\n")
    except OSError as error:
        raise DataError(f"{where} cannot be read: {error.strerror or error}.") from None
    for number, text in enumerate(lines[:-1], start=1):
        try:
            content = json.loads(text)
            kind = _KINDS[content.pop("event")]
            types = {one.name: one.type for one in fields(kind)}
            if set(content) != set(types) or not all(_is(content[name], type) for name, type in types.items()):
                raise ValueError
            values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
            events.append(kind(**values))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{where} has no event in line {number}: {text[:80]!r}.") from None
    return events


def _is(value: object, type: Any) -> bool:
    """Whether JSON has a value of this type; numbers are never negative."""
    if type == tuple[int, ...]:
        return isinstance(value, list) and all(_is(one, int) for one in value)
    if type == int | None:
        return value is None or _is(value, int)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and value >= 0 if type is int else isinstance(value, type)  # type: ignore[operator]
