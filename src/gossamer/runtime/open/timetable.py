"""Histories that were made up: who is slow, who leaves and joins, and which links are down, in units of a usual round.

    events = [Lost(3, 500.0), Joins(3, 1000.0)]
    history = timetable(mixing, rounds=2000, events=events)

Only the times are simulated here, by a queue of what happens next; `replay` then computes the models.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gossamer.errors import InputError
from gossamer.runtime.open.history import (
    Begin,
    Close,
    Event,
    Forget,
    Gone,
    Inherit,
    Leave,
    Open,
    Release,
    Step,
)
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


@dataclass
class _Edge:
    """One end of an open edge."""

    number: int
    said: int = 0
    applied: int = 0
    came: int = 0
    """The neighbour's last packet that has arrived."""
    rounds: deque[int] = field(default_factory=deque)
    """Those of its packets that have arrived and are not applied yet."""
    is_late: bool = False


@dataclass
class _Client:
    number: int
    events: list[Event] = field(default_factory=list)
    edges: dict[int, _Edge] = field(default_factory=dict)
    t: int = 0
    is_present: bool = False
    life: int = 0
    """Grows when it begins or ends: what was planned for an earlier life does not happen."""
    asked: float | None = None
    """Since when it waits for packets."""
    leaves: bool = False
    debts: set[int] = field(default_factory=set)


def timetable(
    mixing: MixingMatrix,
    *,
    rounds: int,
    events: Sequence[Happens] = (),
    absent: Sequence[int] = (),
    patience: float | None = None,
    gone_after: float = 20.0,
    delay: float = 0.5,
    jitter: float = 0.0,
    seed: int = 0,
) -> dict[int, list[Event]]:
    """The history of every client. A round takes 1 unit of time, and a packet `delay`.

    Args:
        mixing: The possible edges.
        rounds: How many rounds each client takes; one that joins goes on from its neighbour's.
        events: What happens, in units of a usual round.
        absent: The clients that are not there at the start.
        patience: How long a step waits for a late edge; None waits until the neighbour is gone.
        gone_after: How long after it was lost a client is known to be gone.
        delay: How long a packet travels.
        jitter: Up to how much longer, drawn from the seed for every packet.
        seed: Of the jitter.
    """
    return _Timetable(mixing, rounds, events, patience, gone_after, delay, jitter, seed).run(absent)


class _Timetable:
    def __init__(
        self,
        mixing: MixingMatrix,
        rounds: int,
        events: Sequence[Happens],
        patience: float | None,
        gone_after: float,
        delay: float,
        jitter: float,
        seed: int,
    ) -> None:
        self.graph, self.rounds, self.patience, self.gone_after = mixing, rounds, patience, gone_after
        self.delay, self.jitter, self.seed = delay, jitter, seed
        self.clients = {i: _Client(i) for i in range(mixing.clients)}
        self.frozen = [one for one in events if isinstance(one, Frozen)]
        self.down = [one for one in events if isinstance(one, Down)]
        self.happens = [one for one in events if not isinstance(one, Frozen | Down)]
        self._queue: list[tuple[float, int, str, tuple[int, ...]]] = []
        self._count, self._numbers, self._packets = itertools.count(), itertools.count(1), itertools.count()

    def run(self, absent: Sequence[int]) -> dict[int, list[Event]]:
        present = [i for i in self.clients if i not in absent]
        for i in present:
            self._appear(self.clients[i], Begin())
        for i, j in itertools.combinations(present, 2):
            if j in self.graph.neighbors(i):
                self._connect(self.clients[i], self.clients[j], "start", "start")
        for i in present:
            self._plan(0.0, "ready", i, self.clients[i].life)
        for one in self.happens:
            self._plan(one.at, type(one).__name__, one.client)
        while self._queue:
            now, _, kind, facts = heapq.heappop(self._queue)
            getattr(self, f"_on_{kind.lower()}")(now, *facts)
        return {i: client.events for i, client in self.clients.items() if client.events}

    def _plan(self, at: float, kind: str, *facts: int) -> None:
        heapq.heappush(self._queue, (at, next(self._count), kind, facts))

    def _appear(self, client: _Client, begin: Begin) -> None:
        client.is_present, client.leaves, client.t, client.asked = True, False, begin.t, None
        client.life += 1
        client.events.append(begin)

    def _connect(self, one: _Client, other: _Client, start: str, theirs: str) -> int:
        number = next(self._numbers)
        for client, neighbor, how in ((one, other, start), (other, one, theirs)):
            client.edges[neighbor.number] = _Edge(number)
            client.events.append(Open(neighbor.number, number, how))
        return number

    def _awake(self, client: int, at: float) -> float:
        for one in self.frozen:
            if one.client == client and one.begin <= at < one.end:
                at = one.end
        return at

    def _on_ready(self, now: float, i: int, life: int) -> None:
        """A client has computed its gradient and asks for packets."""
        client = self.clients[i]
        if client.life != life:
            return
        awake = self._awake(i, now)
        if awake > now:
            self._plan(awake, "ready", i, life)
            return
        if client.t == self.rounds:
            client.asked = None
            return
        client.asked = now
        if not self._try(now, client) and self.patience is not None:
            self._plan(now + self.patience, "impatient", i, life, client.t)

    def _on_impatient(self, now: float, i: int, life: int, t: int) -> None:
        client = self.clients[i]
        if client.life != life or client.t != t or client.asked is None:
            return
        for edge in client.edges.values():
            edge.is_late |= edge.said > edge.applied and edge.came <= edge.applied
        self._try(now, client)

    def _try(self, now: float, client: _Client) -> bool:
        """Take the step if nothing must be waited for."""
        waiting = {j: edge for j, edge in client.edges.items() if edge.said > edge.applied}
        if any(edge.came <= edge.applied and (client.leaves or not edge.is_late) for edge in waiting.values()):
            return False
        there = tuple(j for j, edge in sorted(waiting.items()) if edge.came > edge.applied)
        for j in there:
            client.edges[j].applied += 1
            client.edges[j].is_late = False
            client.t = max(client.t, client.edges[j].rounds.popleft())
        client.asked = None
        if client.leaves:
            self._depart(now, client, there)
            return True
        client.events.append(Step(there))
        for j, edge in client.edges.items():
            if edge.said == edge.applied:
                edge.said += 1
                self._plan(self._arrival(now, client.number, j), "packet", client.number, j, edge.number, client.t)
        client.t += 1
        self._plan(now + 1.0, "ready", client.number, client.life)
        return True

    def _arrival(self, now: float, i: int, j: int) -> float:
        at = now
        for one in self.down:
            if set(one.edge) == {i, j} and one.begin <= at < one.end:
                at = one.end
        at += self.delay
        if self.jitter:
            at += self.jitter * float(uniform(self.seed, "delays of packets", next(self._packets), 1)[0])
        return at

    def _on_packet(self, now: float, i: int, j: int, number: int, t: int) -> None:
        client = self.clients[j]
        edge = client.edges.get(i)
        if edge is None or edge.number != number:
            return
        edge.came += 1
        edge.rounds.append(t)
        if client.asked is not None and self._awake(j, now) == now:
            self._try(now, client)

    def _on_lost(self, now: float, i: int) -> None:
        client = self._end(i)
        client.events.append(Gone())
        for j, edge in list(client.edges.items()):
            self._plan(now + self.gone_after, "gone", j, i, edge.number)
        client.edges = {}
        for other in self.clients.values():
            if i in other.debts:
                self._plan(now + self.gone_after, "forget", other.number, i, other.life)

    def _end(self, i: int) -> _Client:
        client = self.clients[i]
        if not client.is_present:
            raise InputError(f"Client {i} is not there to be lost or to leave.")
        client.is_present = False
        client.life += 1
        client.debts = set()
        return client

    def _on_gone(self, now: float, i: int, j: int, number: int) -> None:
        """Client i knows that its neighbour j is gone."""
        client = self.clients[i]
        edge = client.edges.get(j)
        if edge is None or edge.number != number or not client.is_present:
            return
        del client.edges[j]
        client.events.append(Close(j))
        if client.asked is not None:
            self._try(now, client)

    def _on_forget(self, now: float, i: int, j: int, life: int) -> None:
        client = self.clients[i]
        if client.life == life and j in client.debts:
            client.debts.discard(j)
            client.events.append(Forget(j))

    def _on_leaves(self, now: float, i: int) -> None:
        """It goes once it has the packets that are under way; it sends no others."""
        client = self.clients[i]
        if not client.is_present:
            raise InputError(f"Client {i} is not there to be lost or to leave.")
        client.leaves = True
        if client.asked is not None:
            self._try(now, client)

    def _depart(self, now: float, client: _Client, applied: tuple[int, ...]) -> None:
        heir = min(client.edges, default=None)
        client.events.append(Leave(heir, applied))
        for j, edge in sorted(client.edges.items()):
            other = self.clients[j]
            mine = other.edges.pop(client.number)
            has_packet = mine.applied < edge.applied
            if heir == j:
                other.events.append(Inherit(client.number, has_packet))
                other.debts |= set(client.edges) - {j}
            elif heir is not None:
                other.events.append(Release(client.number, heir, has_packet))
                other.debts.add(heir)
        for other in self.clients.values():
            if client.number in other.debts:
                other.debts.discard(client.number)
                other.events.append(Forget(client.number))
        neighbors = list(client.edges)
        self._end(client.number)
        client.edges = {}
        for j in neighbors:
            if self.clients[j].asked is not None:
                self._try(now, self.clients[j])

    def _on_joins(self, now: float, i: int) -> None:
        client = self.clients[i]
        if client.is_present:
            raise InputError(f"Client {i} is there already.")
        there = [j for j in sorted(self.graph.neighbors(i)) if self.clients[j].is_present]
        if not there:
            raise InputError(f"Client {i} cannot join at {now:g}: none of its neighbours is there.")
        for j in there:
            if i in self.clients[j].edges:  # it comes back before it was known to be gone
                del self.clients[j].edges[i]
                self.clients[j].events.append(Close(i))
        first = self.clients[there[0]]
        number = next(self._numbers)
        self._appear(client, Begin(first.t, first.number, number))
        for j in there:
            other = self.clients[j]
            number = number if j == there[0] else next(self._numbers)
            for one, neighbor, how in ((client, j, "theirs"), (other, i, "own")):
                one.edges[neighbor] = _Edge(number)
                one.events.append(Open(neighbor, number, how))
        self._plan(now, "ready", i, client.life)
        for j in there:
            if self.clients[j].asked is not None:
                self._try(now, self.clients[j])
