"""Events in a TOML file."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from gossamer.errors import InputError, unknown
from gossamer.runtime.open.simulated.events import Down, Frozen, Happens, Joins, Leaves, Lost, check_events, draw_events
from gossamer.topology import MixingMatrix

_EVENTS: dict[str, type[Happens]] = {"lost": Lost, "leaves": Leaves, "joins": Joins, "frozen": Frozen, "down": Down}
_SETTINGS = ("patience", "gone_after", "delay", "jitter", "seed", "absent")
_RANDOM = ("seed", "lost", "leaves", "frozen", "down", "away", "length")


def read_events(path: Path, mixing: MixingMatrix, rounds: int) -> Any:
    """The arguments of `timetable` in a TOML file with one table [[event]] per event.

        patience = 3.0

        [[event]]
        lost = 3
        at = 500

        [[event]]
        down = [0, 1]
        begin = 100
        end = 120

    In place of events, a table [random] has the arguments of `draw_events`, which draws them from its seed:

        [random]
        seed = 7
        lost = 2
        away = 200
    """
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"The events file '{path}' cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"The events file '{path}' is not TOML: {error}.") from None
    rows, random = tables.pop("event", []), tables.pop("random", None)
    for name in tables:
        if name not in _SETTINGS:
            raise unknown("setting", name, [*_SETTINGS, "event", "random"], owner=f"The events file '{path}'")
    absent = tables.get("absent", [])
    if not isinstance(absent, list):
        raise InputError(f"`absent` in '{path}' must be a list of clients such as [2, 5], got {absent!r}.")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"The events in '{path}' must be tables [[event]], got {rows!r}.")
    if random is not None and rows:
        raise InputError(f"The events file '{path}' has [[event]] and [random]; write the events, or have them drawn.")
    events = [_event(row, number, path) for number, row in enumerate(rows, start=1)]
    if random is not None:
        events = _drawn(random, path, mixing, rounds, absent)
    check_events(mixing, events, absent)
    return {**tables, "events": events}


def _drawn(random: Any, path: Path, mixing: MixingMatrix, rounds: int, absent: list[int]) -> list[Happens]:
    if not isinstance(random, dict):
        raise InputError(f"`random` in '{path}' must be a table [random], got {random!r}.")
    for name in random:
        if name not in _RANDOM:
            raise unknown("setting", name, _RANDOM, owner=f"[random] in '{path}'")
    return draw_events(mixing, rounds=rounds, absent=absent, **random)


def _event(row: dict[str, object], number: int, path: Path) -> Happens:
    owner = f"Event {number} in '{path}'"
    kinds = [name for name in _EVENTS if name in row]
    if len(kinds) != 1:
        raise InputError(f"{owner} must have one of {', '.join(_EVENTS)}, got {', '.join(row) or 'nothing'}.")
    _, *times = (one.name for one in fields(_EVENTS[kinds[0]]))
    if set(row) != {kinds[0], *times}:
        raise InputError(f"{owner} must have {kinds[0]}, {', '.join(times)}, got {', '.join(row)}.")
    given: Any = row[kinds[0]]
    who: Any = tuple(given) if isinstance(given, list) else given
    if (kinds[0] == "down") != (isinstance(who, tuple) and len(who) == 2):
        what = "an edge such as [0, 1]" if kinds[0] == "down" else "a client such as 3"
        raise InputError(f"{owner} must have {what} as `{kinds[0]}`, got {given!r}.")
    values: Any = [float(value) if type(value) is int else value for value in (row[name] for name in times)]
    return _EVENTS[kinds[0]](who, *values)
