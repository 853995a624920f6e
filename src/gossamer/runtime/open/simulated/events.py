"""What happens in a made-up history: who is lost, leaves, joins or is frozen, and which links are down.

Times are in units of a usual round. Events are written by hand, or drawn from a seed:

    events = [Lost(3, 500.0), Joins(3, 1000.0)]
    events = draw_events(mixing, rounds=2000, seed=7, lost=3, away=200.0, down=5)
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral

import numpy as np

from gossamer.errors import InputError, check_integer, check_positive
from gossamer.topology import MixingMatrix
from gossamer.topology.plans import uniform


@dataclass(frozen=True)
class Lost:
    """A client is gone without a word; its neighbours notice `gone_after` later."""

    client: int
    at: float


@dataclass(frozen=True)
class Leaves:
    """A client leaves on purpose."""

    client: int
    at: float


@dataclass(frozen=True)
class Joins:
    """A client joins, or comes back, with the model of a neighbour that is present."""

    client: int
    at: float


@dataclass(frozen=True)
class Frozen:
    """A client does nothing for a while."""

    client: int
    begin: float
    end: float


@dataclass(frozen=True)
class Down:
    """A link carries nothing for a while; its packets arrive afterwards."""

    edge: tuple[int, int]
    begin: float
    end: float


Happens = Lost | Leaves | Joins | Frozen | Down


def check_events(mixing: MixingMatrix, events: Sequence[Happens], absent: Sequence[int] = ()) -> None:
    """Refuse events that cannot happen; the sentence has the number of the event, from 1."""
    for i in absent:
        _check_client(mixing, i, "`absent`")
    present = set(range(mixing.clients)) - set(absent)
    if not present:
        raise InputError(f"All {mixing.clients} clients are absent at the start; at least one must be there.")
    for number, event in enumerate(events, start=1):
        _check_event(mixing, event, f"Event {number}, {event},")
    comes_and_goes = [(n, event) for n, event in enumerate(events, start=1) if not isinstance(event, Frozen | Down)]
    for number, event in sorted(comes_and_goes, key=lambda one: one[1].at):
        i, owner = event.client, f"Event {number}, {event}, is not possible:"
        if not isinstance(event, Joins):
            if i not in present:
                raise InputError(f"{owner} client {i} is not there at that time; let it join before.")
            present.discard(i)
            continue
        if i in present:
            raise InputError(f"{owner} client {i} is there already; let it leave or be lost before.")
        if not present.intersection(mixing.neighbors(i)):
            raise InputError(
                f"{owner} none of the neighbours {sorted(mixing.neighbors(i))} of client {i} is there at that time."
            )
        present.add(i)


def _check_event(mixing: MixingMatrix, event: Happens, owner: str) -> None:
    clients = event.edge if isinstance(event, Down) else (event.client,)
    for i in clients if isinstance(clients, tuple) else (clients,):
        _check_client(mixing, i, owner)
    times = [getattr(event, one.name) for one in fields(event)[1:]]
    for one, time in zip(fields(event)[1:], times, strict=True):
        if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < float("inf"):
            raise InputError(f"{owner} must have a number of 0 or more as `{one.name}`, got {time!r}.")
    if len(times) == 2 and times[0] >= times[1]:
        raise InputError(f"{owner} must end after it begins.")
    if isinstance(event, Down) and (len(event.edge) != 2 or event.edge[1] not in mixing.neighbors(event.edge[0])):
        raise InputError(
            f"{owner} must have an edge of the graph; the neighbours of client {event.edge[0]} are "
            f"{sorted(mixing.neighbors(event.edge[0]))}."
        )


def _check_client(mixing: MixingMatrix, i: object, owner: str) -> None:
    is_number = isinstance(i, Integral) and not isinstance(i, bool)
    if not is_number or not 0 <= i < mixing.clients:  # type: ignore[operator]
        raise InputError(f"{owner} must have clients from 0 to {mixing.clients - 1}, got {i!r}.")


def draw_events(
    mixing: MixingMatrix,
    *,
    rounds: int,
    seed: int = 0,
    lost: int = 0,
    leaves: int = 0,
    frozen: int = 0,
    down: int = 0,
    away: float | None = None,
    length: float = 10.0,
    absent: Sequence[int] = (),
) -> list[Happens]:
    """Events at times drawn from a seed, uniformly over the run; the same arguments always give the same events.

    Args:
        mixing: The possible edges.
        rounds: How long the run is.
        seed: Of all draws. Each kind of event has its own, so more of one kind do not change the times of others.
        lost: How many times a client is lost. It is drawn from those that are there; the last one stays.
        leaves: How many times a client leaves on purpose.
        frozen: How many times a client is frozen.
        down: How many times a link is down.
        away: Rounds until a client that was lost or has left comes back; None if it never does. It also stays away if
            no neighbour is there then, or the run is over.
        length: Rounds that a client is frozen, or a link is down.
        absent: The clients that are not there at the start.
    """
    counts = {"lost": lost, "leaves": leaves, "frozen": frozen, "down": down}
    for name, count in counts.items():
        check_integer(name, count, 0)
    check_integer("rounds", rounds, 1)
    check_integer("seed", seed, 0, 2**64 - 1)
    check_positive("length", length)
    if away is not None:
        check_positive("away", away)
    check_events(mixing, (), absent)
    drawn = {
        name: [uniform(seed, f"events: {name}", number, 2) for number in range(count)] for name, count in counts.items()
    }
    edges = sorted({(min(i, j), max(i, j)) for i in range(mixing.clients) for j in mixing.neighbors(i)})
    events: list[Happens] = []
    for when, who in drawn["frozen"]:
        begin = float(when) * rounds
        events.append(Frozen(int(who * mixing.clients), begin, begin + length))
    for when, who in drawn["down"] if edges else ():
        begin = float(when) * rounds
        events.append(Down(edges[int(who * len(edges))], begin, begin + length))
    goes = [(float(when) * rounds, kind, who) for kind in (Lost, Leaves) for when, who in drawn[kind.__name__.lower()]]
    return _come_and_go(mixing, goes, set(absent), rounds, away) + events


def _come_and_go(
    mixing: MixingMatrix,
    goes: Sequence[tuple[float, type[Lost | Leaves], np.float64]],
    absent: set[int],
    rounds: int,
    away: float | None,
) -> list[Happens]:
    """Who goes at these times, and comes back."""
    events: list[Happens] = []
    present, returns = set(range(mixing.clients)) - absent, list[tuple[float, int]]()
    for at, kind, who in [*sorted(goes, key=lambda one: one[0]), (float(rounds), Lost, np.float64(0))]:
        while returns and returns[0][0] <= at:
            back, i = heapq.heappop(returns)
            if back < rounds and present.intersection(mixing.neighbors(i)):
                present.add(i)
                events.append(Joins(i, back))
        if at < rounds and len(present) > 1:
            i = sorted(present)[int(who * len(present))]
            present.discard(i)
            events.append(kind(i, at))
            if away is not None:
                heapq.heappush(returns, (at + away, i))
    return events
