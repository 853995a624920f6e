"""What members of an open run say to each other, and what follows from it for their edges."""

import hashlib
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Codec
from gossamer.errors import CodecError, InputError
from gossamer.runtime.open.control import (
    NOBODY,
    Ask,
    Closed,
    Done,
    Handover,
    Left,
    Refused,
    Said,
    Start,
    Status,
    Term,
    View,
)
from gossamer.runtime.open.history import Begin, Close, Event, Forget, HistoryFile, Inherit, Leave, Open, Release
from gossamer.runtime.open.member import Debt, Member, check_open
from gossamer.runtime.open.neighborhood import Neighborhood
from gossamer.runtime.open.terms import Contents
from gossamer.runtime.open.view import Members
from gossamer.runtime.processes.client import packet_capacity
from gossamer.runtime.transport.base import Account
from gossamer.runtime.transport.curve import CurveOpener
from gossamer.topology import Mixing

_LINKS = int.from_bytes(b"open", "little")
"""The run that links know. Whether the settings are the same is told by `Ask`, which can be answered by a sentence."""
_DELIVER_SECONDS = 3.0
logger = logging.getLogger("gossamer.open")


@dataclass
class Neighbor:
    """What is known of a possible neighbour."""

    told: Status | None = None
    """What we last said of ourselves."""
    packets: deque[Contents] = field(default_factory=deque)
    """Its next packets, not applied yet: one, and another if it has applied the first term and we have not."""
    is_late: bool = False
    is_done: bool = False
    refused: str = ""
    """Why it will not open an edge."""
    handed: dict[int, Debt] = field(default_factory=dict)
    """What it hands over, by number."""


class Conversation:
    """A member and its neighbours: edges open, close and are handed over by what they say."""

    def __init__(
        self,
        method: Algorithm,
        mixing: Mixing,
        x: Tensor,
        opener: CurveOpener,
        *,
        silence: float,
        join: int | None = None,
        seed: int = 0,
        codec: Codec = "auto",
        facts: str = "",
        history: str | os.PathLike[str] | None = None,
    ) -> None:
        self.client = opener.me.client
        self._matrix = check_open(method, mixing)
        if self.client >= mixing.clients:
            raise InputError(f"The graph has {mixing.clients} clients, and the key is that of client {self.client}.")
        common = f"{method!r}|{x.shape[1]}|{x.dtype}|{seed}|{codec}|{facts}".encode() + self._matrix.matrix.tobytes()
        self._digest = hashlib.sha256(common).digest()[:16]
        self._first = hashlib.sha256(x.detach().cpu().contiguous().numpy().tobytes()).digest()[:16]
        self.run = int.from_bytes(self._digest[:4], "little")
        self._make: Callable[[Tensor, int], Member] = lambda x, t: Member(
            method, mixing, self.client, x, t=t, seed=seed, codec=codec, run=self.run
        )
        self.member = self._make(x, 0)
        self._x0 = x
        self.waits_for_model, self.began_at_start, self.via = join is not None, join is None, join
        if join is not None and join not in self._matrix.neighbors(self.client):
            raise InputError(
                f"Client {self.client} can join with the model of a neighbour only: one of "
                f"{self._matrix.neighbors(self.client)}, got {join}."
            )
        self.has_begun = self.is_over = False
        """Whether rounds have begun: from then on the model is this client's own."""
        self._history = None if history is None else HistoryFile(history)
        self.members = Members(self.client, mixing.clients)
        self.neighbors = {j: Neighbor() for j in self.member.weights}
        longest = max(packet_capacity(method, x.shape[1], x.dtype, codec), 8 * x.shape[1]) + 64
        self.accounts = {j: Account(j) for j in self.neighbors}
        """What went to each possible neighbour and came from it: packets of edges, and nothing else."""
        self.links = Neighborhood(opener, self.neighbors, longest, _LINKS, silence)
        self._silence, self._reached = silence, set[int]()
        self.cut_off: set[int] = set()
        """Clients that were in reach once, and are now in another part of the graph."""
        if join is None:
            self.note(Begin())

    def there(self, neighbors: Sequence[int]) -> dict[int, Contents]:
        """The next packet of each of these neighbours that has sent one."""
        return {j: self.neighbors[j].packets.popleft() for j in neighbors if self.neighbors[j].packets}

    def leave(self) -> None:
        """Hand over what the edges have added to the tracker; every packet under way has come."""
        member, waiting = self.member, tuple(self.member.waiting)
        member.absorb(self.there(waiting))
        there = [j for j in member.edges if not self.neighbors[j].is_done and self.links.is_connected(j)]
        heir = min(there, key=self.links.silence, default=None)
        left = {} if heir is None else member.hand_over(heir)
        self.note(Leave(heir, waiting))
        if heir is not None:
            number = member.edges[heir].number
            for debt, (j, flows) in left.items():
                for tracker, flow in enumerate(flows.values()):
                    values = flow.to(torch.float64).cpu().numpy().tobytes()
                    self.links.send(heir, Handover(number, debt, j, tracker, values))
            self.links.send(heir, Left(member.edges[heir].number, heir))
            if not self.links.deliver(heir, _DELIVER_SECONDS):  # it must know before the others rely on it
                heir = None
        for j, edge in member.edges.items():
            if j != heir:
                self.links.send(j, Left(edge.number, NOBODY if heir is None else heir))
        taker = "nobody" if heir is None else f"client {heir}"
        logger.info("Client %d leaves after round %d; %s takes over.", self.client, member.t, taker)

    def end(self) -> None:
        """Say no more."""
        self.is_over = True
        self.links.close()
        if self._history is not None:
            self._history.close()
            self._history = None

    def take(self, j: int, said: Said | None) -> None:  # noqa: PLR0912 (one branch per message)
        """What came from a neighbour; None where its process is another one now."""
        edge, known = self.member.edges.get(j), self.neighbors[j]
        if said is None:
            if edge is not None:
                self.close(j, self.links.banned.get(j, "was started again"))
            self.neighbors[j] = Neighbor()
            self.ask(j)
        elif isinstance(said, Ask):
            self._asked(j, said)
        elif isinstance(said, Start):
            self._started(j, said)
        elif isinstance(said, View):
            self._learn(j, said.records)
        elif isinstance(said, Refused):
            known.refused = said.sentence
            logger.error("There is no edge to client %d: %s", j, said.sentence)
            is_alone = self.member.t == 0 and not self.member.edges
            if self.waits_for_model or (is_alone and all(self.neighbors[k].refused for k in self.links.links)):
                raise InputError(f"Client {self.client} cannot take part: {said.sentence}")
        elif edge is None or edge.number != said.edge:
            return  # of an edge that is closed
        elif isinstance(said, Term):
            self._term(j, said.packet)
        elif isinstance(said, Closed):
            self.close(j, "closed the edge", tell=False)
            self.ask(j)
        elif isinstance(said, Handover):
            self._handed(j, said)
        elif isinstance(said, Left):
            self._left(j, said.heir)
        elif isinstance(said, Done):
            known.is_done = True

    def look(self) -> None:
        """Ask those for an edge to whom there is a connection now."""
        for j in self.links.look():
            self.neighbors[j] = Neighbor()
        for j, known in self.neighbors.items():
            if known.told is None and j not in self.member.edges:
                self.ask(j)
        if self.member.debts:
            self._settle_debts()

    def _status(self) -> Status:
        if self.waits_for_model:
            return Status.WANTS
        return Status.BEGINS if self.began_at_start and self.member.t == 0 else Status.RUNS

    def ask(self, j: int) -> None:
        """Ask for an edge, or say where we stand now; as soon as there is a connection."""
        is_possible = not self.is_over and self.links.is_connected(j) and self.via in (None, j)
        self.neighbors[j].told = self._status() if is_possible else None
        if is_possible:
            self.links.send(j, Ask(self._status(), self._digest, self._first))

    def _asked(self, j: int, ask: Ask) -> None:
        known = self.neighbors[j]
        sentence = ""
        if ask.digest != self._digest:
            sentence = "has other settings (method, data, seed, versions, ...); start all clients with the same ones."
        elif ask.status == self._status() == Status.BEGINS and ask.first != self._first:
            sentence = "begins with another model; make it after torch.manual_seed with the same seed on all clients."
        if sentence:
            self.links.send(j, Refused(f"client {self.client} {sentence}"))
            return
        if known.told is None:
            self.ask(j)
        if j not in self.member.edges and not self.is_over and self._gives(ask.status, j):
            self._give(j, with_model=ask.status != Status.BEGINS or self._status() != Status.BEGINS)

    def _gives(self, theirs: Status, j: int) -> bool:
        """Whether this end opens the edge: the one that has a model, and of two such the smaller client."""
        mine = self._status()
        if mine == Status.WANTS:
            return False
        if theirs == Status.WANTS or (theirs == Status.BEGINS) != (mine == Status.BEGINS):
            return theirs != Status.RUNS
        return self.client < j

    def _give(self, j: int, *, with_model: bool) -> None:
        number, x = secrets.randbits(63), self.member.state.x
        self._open(j, number, x if with_model else None, "own" if with_model else "start")
        model = x.cpu().numpy().tobytes() if with_model else None
        self.links.send(j, Start(number, self.member.t, model))
        self._share(j)

    def _started(self, j: int, start: Start) -> None:
        if self.is_over:
            return
        if j in self.member.edges:
            if j > self.client:
                return  # both ends opened it, and the smaller client's counts
            self.close(j, "opened the edge, too", tell=False)
        if start.model is None:
            if not self.began_at_start:  # we cannot know what the start of the run was
                self.links.send(j, Closed(start.edge))
                self.ask(j)
                return
            self._open(j, start.edge, None, "start")
        else:
            model = self._model(start.model)
            if model is None:
                self.links.ban(j, "sent a model that is not finite or has another size")
                return
            if self.waits_for_model or not self.has_begun:
                for other in list(self.member.edges):  # with clients that begin, as we did
                    self.close(other, "begins, and we go on with a model")
                self.member = self._make(model, start.t)
                self.note(Begin(start.t, j, start.edge))
                self.waits_for_model, self.began_at_start, self.via = False, False, None
                logger.info(
                    "Client %d takes the model of client %d and goes on from round %d.", self.client, j, self.member.t
                )
            self._open(j, start.edge, model, "theirs")
        self._share(j)

    def _model(self, data: bytes) -> Tensor | None:
        x = self._x0
        kind = np.float64 if x.dtype == torch.float64 else np.float32
        if len(data) != x.shape[1] * np.dtype(kind).itemsize:
            return None
        model = torch.from_numpy(np.frombuffer(data, kind).copy())[None].to(x)
        return model if bool(torch.isfinite(model).all()) else None

    def _open(self, j: int, number: int, model: Tensor | None, start: str) -> None:
        known = self.neighbors[j]
        known.is_late, known.is_done, known.handed = False, False, {}
        known.packets.clear()
        self.member.open(j, number, model)
        self.note(Open(j, number, start))
        logger.info("The edge to client %d is open in round %d.", j, self.member.t)
        self._changed()

    def close(self, j: int, reason: str, *, tell: bool = True) -> None:
        """The edge is closed for good: what it has added to the tracker is taken out."""
        number, t = self.member.edges[j].number, self.member.t
        self.member.close(j)
        self.note(Close(j))
        self.neighbors[j] = Neighbor()
        logger.warning("The edge to client %d closed in round %d: it %s.", j, t, reason)
        if tell:
            self.links.send(j, Closed(number))
            self.ask(j)
        self._changed()

    def _term(self, j: int, data: bytes) -> None:
        known = self.neighbors[j]
        if len(known.packets) == 2:
            self.links.ban(j, "sent a packet before the last one was answered")
            return
        try:
            known.packets.append(self.member.read(j, data, len(known.packets)))
        except CodecError as error:
            self.links.ban(j, f"sent a bad packet: {error}")
            return
        known.is_late = False
        self.accounts[j].packets_received += 1
        self.accounts[j].bytes_received += len(data)

    def send_terms(self, packets: Mapping[int, bytes]) -> None:
        """Send each of these neighbours the next packet of its edge."""
        for j, data in packets.items():
            self.links.send(j, Term(self.member.edges[j].number, data))
            self.accounts[j].packets_sent += 1
            self.accounts[j].bytes_sent += len(data)

    def _handed(self, j: int, said: Handover) -> None:
        flows, d = self.member.method.flows or (), self._x0.shape[1]
        fits = said.tracker < len(flows) and len(said.values) == 8 * d and said.client in self._matrix.neighbors(j)
        values = (
            torch.from_numpy(np.frombuffer(said.values, np.float64).copy())[None].to(self._x0.device) if fits else None
        )
        if values is None or not bool(torch.isfinite(values).all()):
            self.links.ban(j, "handed over what is not finite or has another size")
            return
        debt = self.neighbors[j].handed.setdefault(said.debt, Debt(said.client, {}))
        debt.flows[flows[said.tracker].tracker] = values

    def _left(self, j: int, heir: int) -> None:
        member, known = self.member, self.neighbors[j]
        if heir == NOBODY:
            self.close(j, "has left", tell=False)
            return
        packets = self.there([j] if j in member.waiting else [])
        has_packet = bool(packets)
        member.absorb(packets)
        if heir == self.client:
            member.inherit(j, known.handed)
            self.note(Inherit(j, has_packet))
        else:
            member.release(j, heir)
            self.note(Release(j, heir, has_packet))
        self.neighbors[j] = Neighbor()
        logger.info("Client %d has left in round %d.", j, self.member.t)
        self._changed()

    def _share(self, j: int) -> None:
        """Tell a new neighbour all that is known of the members."""
        self.links.send(j, View(self.members.records()))

    def _changed(self) -> None:
        """Tell the neighbours which edges this client has now."""
        mine = self.members.state(self.member.edges, self.member.debts)
        for j in self.member.edges if mine is not None else ():
            self.links.send(j, View(self.members.records()))
        self._look_around()

    def _learn(self, j: int, records: bytes) -> None:
        try:
            news = self.members.learn(records)
        except CodecError as error:
            self.links.ban(j, f"sent bad records of the members: {error}")
            return
        for other in self.member.edges if news else ():  # also j, whose record of this client may have been an old one
            self.links.send(other, View(news))
        if news:
            self._look_around()

    def _look_around(self) -> None:
        """Notice where the graph has fallen apart."""
        self._settle_debts()
        here = self.members.reachable()
        # A neighbour of this part with a closed edge is gone; clients behind it are cut off.
        gone = {j for i in here for j in self._matrix.neighbors(i)} - here
        self._reached |= here
        cut_off = self._reached - here - (gone if len(here) > 1 else set())  # who is alone may be the one that is gone
        if cut_off > self.cut_off:
            logger.warning(
                "The graph has fallen apart in round %d: this part has clients %s; clients %s are out of reach.",
                self.member.t,
                sorted(here),
                sorted(cut_off),
            )
        elif self.cut_off and not cut_off:
            logger.info("The graph is whole again in round %d: clients %s.", self.member.t, sorted(here))
        self.cut_off = cut_off

    def _settle_debts(self) -> None:
        """Take out what was shared with clients that are gone, or that have taken it out."""
        overdue = self.members.overdue({n: debt.client for n, debt in self.member.debts.items()}, self._silence)
        for number in overdue:
            self.member.forget(number)
            self.note(Forget(number))
        if overdue:
            self._changed()

    def note(self, event: Event) -> None:
        """Keep the history."""
        if self._history is not None:
            self._history.note(event)
