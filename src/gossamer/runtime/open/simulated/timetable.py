"""From events to histories: what each client does, and when.

    events = [Lost(3, 500.0), Joins(3, 1000.0)]
    history = timetable(mixing, rounds=2000, events=events)

Only the times are simulated here, by a queue of what happens next; `replay` then computes the models.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx

from gossamer.errors import check_integer, check_nonnegative, check_positive
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
from gossamer.runtime.open.simulated.events import Down, Frozen, Happens, check_events
from gossamer.topology import MixingMatrix
from gossamer.topology.plans import uniform


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
    arrives: float = 0.0
    """When the last packet that was sent arrives; none overtakes another."""


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
    returns: bool = False
    """Whether it joins again as soon as it has left."""
    debts: dict[int, int] = field(default_factory=dict)
    """The other ends of debts, by number."""
    """The clients with which it shares what somebody left behind."""


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
        rounds: How many rounds each client takes; one that joins goes on from its neighbour's. One that joins after its
            neighbours have taken theirs has nothing to do, and one that leaves after its own stays.
        events: What happens, in units of a usual round.
        absent: The clients that are not there at the start.
        patience: How long a step waits for a late edge; None waits until the neighbour is gone.
        gone_after: How long after it was lost a client is known to be gone.
        delay: How long a packet travels.
        jitter: Up to how much longer, drawn from the seed for every packet.
        seed: Of the jitter.
    """
    check_integer("rounds", rounds, 1)
    check_integer("seed", seed, 0, 2**64 - 1)
    for name, value in (("gone_after", gone_after), ("delay", delay), ("jitter", jitter)):
        check_nonnegative(name, value)
    if patience is not None:
        check_positive("patience", patience)
    check_events(mixing, events, absent)
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
        self.frozen = sorted((one for one in events if isinstance(one, Frozen)), key=lambda one: one.begin)
        self.down = sorted((one for one in events if isinstance(one, Down)), key=lambda one: one.begin)
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
        for frozen in self.frozen:
            self._plan(frozen.end, "wakes", frozen.client)
        while self._queue:
            now, _, kind, facts = heapq.heappop(self._queue)
            getattr(self, f"_on_{kind.lower()}")(now, *facts)
        return {i: client.events for i, client in self.clients.items() if client.events}

    def _plan(self, at: float, kind: str, *facts: int) -> None:
        heapq.heappush(self._queue, (at, next(self._count), kind, facts))

    def _appear(self, client: _Client, begin: Begin) -> None:
        client.is_present, client.leaves, client.returns, client.t, client.asked = True, False, False, begin.t, None
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
        if self._is_done(i):
            for other in [self.clients[j] for j in client.edges]:  # one that leaves does not wait for it any more
                if other.leaves and other.asked is not None:
                    self._try(now, other)
            return
        client.asked = now
        if not self._try(now, client) and self.patience is not None:
            self._plan(now + self.patience, "impatient", i, life, client.t)

    def _on_wakes(self, now: float, i: int) -> None:
        """Packets may have come while it was frozen."""
        if self.clients[i].asked is not None:
            self._try(now, self.clients[i])

    def _on_impatient(self, now: float, i: int, life: int, t: int) -> None:
        client = self.clients[i]
        if client.life != life or client.t != t or client.asked is None:
            return
        awake = self._awake(i, now)
        if awake > now:
            self._plan(awake, "impatient", i, life, t)
            return
        for edge in client.edges.values():
            edge.is_late |= edge.said > edge.applied and edge.came <= edge.applied
        self._try(now, client, is_patient=False)

    def _try(self, now: float, client: _Client, *, is_patient: bool = True) -> bool:
        """Take the step if nothing must be waited for."""
        if self._awake(client.number, now) > now:
            return False
        if client.leaves:
            self._give_up(client)
        waiting = {j: edge for j, edge in client.edges.items() if edge.said > edge.applied}
        if any(edge.came <= edge.applied and (client.leaves or not edge.is_late) for edge in waiting.values()):
            return False
        is_deserted = bool(client.edges) and all(edge.is_late for edge in client.edges.values())
        if is_patient and is_deserted and all(edge.came <= edge.applied for edge in waiting.values()):
            return False  # or it would run ahead alone
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
                edge.arrives = max(edge.arrives, self._arrival(now, client.number, j))
                self._plan(edge.arrives, "packet", client.number, j, edge.number, client.t)
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
        if client.asked is not None:
            self._try(now, client)

    def _on_lost(self, now: float, i: int) -> None:
        if not self.clients[i].is_present:
            return  # it came too late
        client = self._end(i)
        client.events.append(Gone())
        for j, edge in list(client.edges.items()):
            self._plan(now + self.gone_after, "gone", j, i, edge.number)
        client.edges = {}
        self._forget()

    def _end(self, i: int) -> _Client:
        client = self.clients[i]
        client.is_present, client.asked = False, None
        client.life += 1
        client.debts = {}
        return client

    def _on_gone(self, now: float, i: int, j: int, number: int) -> None:
        """Client i knows that its neighbour j is gone."""
        client = self.clients[i]
        edge = client.edges.get(j)
        if edge is None or edge.number != number or not client.is_present:
            return
        del client.edges[j]
        client.events.append(Close(j))
        self._forget()
        if client.asked is not None:
            self._try(now, client)

    def _forget(self) -> None:
        """Where the graph has fallen apart, what was shared with clients out of reach is taken out."""
        if not any(client.debts for client in self.clients.values()):
            return
        known: nx.Graph[int] = nx.Graph((client.number, j) for client in self.clients.values() for j in client.edges)
        parts = {i: part for part in nx.connected_components(known) for i in part}
        for client in self.clients.values():
            here = parts.get(client.number, set())
            for number in [number for number, other in client.debts.items() if other not in here]:
                del client.debts[number]
                client.events.append(Forget(number))

    def _on_leaves(self, now: float, i: int) -> None:
        """It goes once it has the packets that are under way; it sends no others."""
        client = self.clients[i]
        client.leaves = client.is_present
        if client.is_present and client.asked is not None:
            self._try(now, client)

    def _is_done(self, i: int) -> bool:
        return self.clients[i].t == self.rounds

    def _give_up(self, client: _Client) -> None:
        """Who leaves does not wait for those that have taken all their rounds and send no more."""
        for j, edge in list(client.edges.items()):
            mine = self.clients[j].edges.get(client.number)
            if self._is_done(j) and mine is not None and edge.said > edge.applied == edge.came == mine.said:
                del client.edges[j], self.clients[j].edges[client.number]
                client.events.append(Close(j))
                self.clients[j].events.append(Close(client.number))
                self._forget()

    def _depart(self, now: float, client: _Client, applied: tuple[int, ...]) -> None:
        """A neighbour takes over. It may be lost already without their knowing it; the others will then forget it."""
        heir = next((j for j in sorted(client.edges) if not self._is_done(j)), None)
        client.events.append(Leave(heir, applied))
        there = [j for j in sorted(client.edges) if client.number in self.clients[j].edges]
        for j in there:
            other = self.clients[j]
            mine = other.edges.pop(client.number)
            has_packet = mine.applied < client.edges[j].applied
            if heir is None:
                other.events.append(Close(client.number))
            elif heir == j:
                other.events.append(Inherit(client.number, has_packet))
                other.debts |= {edge.number: k for k, edge in client.edges.items() if k != j}
            else:
                other.events.append(Release(client.number, heir, has_packet))
                other.debts[mine.number] = heir
        self._end(client.number)
        client.edges = {}
        self._forget()
        for j in there:
            if self.clients[j].asked is not None:
                self._try(now, self.clients[j])
        if client.returns:
            self._plan(now, "joins", client.number)

    def _on_joins(self, now: float, i: int) -> None:
        client = self.clients[i]
        client.returns = client.is_present and client.leaves
        near = [self.clients[j] for j in self.graph.neighbors(i)]
        there = [one.number for one in near if one.is_present and not one.leaves and not self._is_done(one.number)]
        if client.is_present or not there:
            return
        for other in self.clients.values():  # it comes back before it was known to be gone
            if other.edges.pop(i, None) is not None:
                other.events.append(Close(i))
            for debt in [debt for debt, end in other.debts.items() if end == i]:
                del other.debts[debt]
                other.events.append(Forget(debt))
        first = self.clients[there[0]]
        number = next(self._numbers)
        self._appear(client, Begin(first.t, first.number, number))
        for j in there:
            number = number if j == there[0] else next(self._numbers)
            for one, neighbor, how in ((client, j, "theirs"), (self.clients[j], i, "own")):
                one.edges[neighbor] = _Edge(number)
                one.events.append(Open(neighbor, number, how))
        self._plan(now, "ready", i, client.life)
        for other in near:  # also those that leave, and no longer wait for packets of its earlier life
            if other.asked is not None:
                self._try(now, other)
