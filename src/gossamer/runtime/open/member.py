"""One client of a run whose members come and go, as a machine without a network and without a clock.

It is told which edges open and close and which packets have come, and gives packets in return. Processes on a network
and the replay of a history drive the same machine, so both give the same numbers.

What each edge has added to the tracker is kept (`EdgeTerms.flow`). The tracker is the client's own gradient plus the
flows of its open edges, and the flows at the two ends of an edge are opposite. So when each end takes its flow out, the
mean of the trackers is again the mean gradient of those who are present.

Memory: an open edge takes three vectors in float64 for each surrogate of the method (`EdgeTerms`), so BEER and MoTEF
keep 6 d numbers per open edge and CHOCO-SGD 3 d, beside the method's own state. A closed edge takes none.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, State
from gossamer.algorithms.round import Oracle
from gossamer.compression.base import Codec
from gossamer.errors import InputError
from gossamer.runtime.open.terms import Contents, Edge, EdgeTerms, TermExchange
from gossamer.runtime.session import Session, UnderWay
from gossamer.streams import Streams
from gossamer.topology import Mixing, MixingMatrix

Flows = dict[str, Tensor]
"""What an edge has added, by tracker."""


def check_open(method: Algorithm, mixing: Mixing) -> MixingMatrix:
    """Refuse a method or a network with which clients cannot come and go."""
    if method.flows is None:
        remedies = {"stale": "set order='stale'", "stored": "set tracker='stored'"}
        choices = [choice for one in fields(method) for choice in get_args(one.type)]  # type: ignore[arg-type]
        fits = (remedy for choice, remedy in remedies.items() if choice in choices)
        remedy = next(fits, "use BEER, MoTEF or CHOCO-SGD in stale order")
        raise InputError(f"Clients cannot come and go with {method.info.title}, which has no rule for that; {remedy}.")
    if not isinstance(mixing, MixingMatrix):
        raise InputError("Clients can come and go on a fixed graph of possible edges only, got a schedule.")
    return mixing


class Debt(NamedTuple):
    """What was between a client that left on purpose and another one, and is between its heir and that one now."""

    client: int
    """The other end."""
    flows: Flows


class Member(UnderWay):
    """A client: open edges, then call `step` with the packets that have come. It begins in round t with model x."""

    def __init__(
        self,
        method: Algorithm,
        mixing: Mixing,
        client: int,
        x: Tensor,
        *,
        t: int = 0,
        seed: int = 0,
        codec: Codec = "auto",
        run: int = 0,
    ) -> None:
        matrix = check_open(method, mixing)
        self.client = client
        self.weights = {j: float(matrix.sparse[min(client, j), max(client, j)]) for j in matrix.neighbors(client)}
        """The weight of every possible edge, the same to the last bit at both ends; W may differ from its transpose by
        rounding errors. Open edges take their weight from the client's own."""
        self.exchange = TermExchange(client, codec, run, matrix.rho)
        self.session = Session(method, self.exchange, Streams([seed], [client], x.device), x.clone())
        self._known = {
            name: value.own for name, value in vars(method.init(x)).items() if hasattr(value, "settled")
        }  # what the ends of an edge believe where both are at the start of the run
        self.session.t = t
        self.debts: dict[int, Debt] = {}
        """By the number of the edge that it was before."""
        self.bytes = 0
        """Sent so far, over all edges."""

    @property
    def edges(self) -> Mapping[int, Edge]:
        """The open edges, by neighbour."""
        return self.exchange.edges

    @property
    def waiting(self) -> list[int]:
        """The neighbours whose next packet a step can apply."""
        return [edge.neighbor for edge in self.edges.values() if edge.is_waiting]

    def open(self, neighbor: int, number: int, model: Tensor | None) -> None:
        """Open an edge. Both ends give the same number and the same model; None is the start of the run."""
        if neighbor not in self.weights or neighbor in self.edges:
            raise InputError(f"Client {self.client} has no edge to client {neighbor} that could open.")
        self.exchange.edges[neighbor] = Edge(neighbor, self.weights[neighbor], number)
        self.exchange.edges = dict(sorted(self.exchange.edges.items()))
        row = list(self.edges).index(neighbor)
        for name, value in self._surrogates().items():
            # The surrogate "h" is that of the models; those of trackers start at zero.
            known = self._known[name] if model is None else model if value.name == "h" else torch.zeros_like(model)
            self._set(name, value.opened(row, known))

    def read(self, neighbor: int, data: bytes, after: int = 0) -> Contents:
        """A neighbour's next packet, for `step`, or the one after it; a CodecError if it is not that."""
        return self.exchange.read(neighbor, data, after)

    def step(
        self, oracle: Oracle, lr: float | Tensor, packets: Mapping[int, Contents], *, measure: bool = False
    ) -> dict[int, bytes]:
        """One round with these neighbours' next packets; a packet for each edge with nothing under way.

        A client that stood still goes on from the round of its neighbours, so that all come to the last round together.
        """
        self.session.t = max([self.t, *(packet.round for packet in packets.values())])
        self.exchange.take(packets)
        self.session.take(self.session.look_ahead(oracle, lr, measure=measure))
        self.bytes += sum(len(data) for data in self.exchange.outbox.values())
        return self.exchange.outbox

    def close(self, neighbor: int) -> None:
        """The neighbour is gone: take what the edge has added out of the tracker."""
        for tracker, flow in self._flow(neighbor).items():
            self._add(tracker, -flow)
        self._drop(neighbor)

    def absorb(self, packets: Mapping[int, Contents]) -> None:
        """Apply terms without a round: the trackers get what their edges add, and the model nothing."""
        self.exchange.take(packets)
        for name, value in self._surrogates().items():
            self._set(name, value.settled())
        for flow in self.method.flows or ():
            self._add(flow.tracker, flow.factor * getattr(self.state, flow.surrogate).pull)

    def hand_over(self, heir: int | None) -> dict[int, Debt]:
        """What the heir takes over when this client leaves, by the numbers of the edges.

        Every edge must have nothing under way. What is between this client and clients that are no neighbours is
        taken out by them.
        """
        if self.waiting:
            raise InputError(f"Client {self.client} cannot leave while packets of {self.waiting} are under way.")
        return {edge.number: Debt(j, self._flow(j)) for j, edge in self.edges.items() if j != heir}

    def inherit(self, neighbor: int, left: Mapping[int, Debt]) -> None:
        """Take over what a neighbour leaves behind: v - own of that neighbour, edge by edge."""
        self.close(neighbor)
        for number, debt in left.items():
            self.debts[number] = debt
            for tracker, flow in debt.flows.items():
                self._add(tracker, flow)

    def release(self, neighbor: int, heir: int) -> None:
        """A neighbour left and the heir took over: what the edge has added stays, now between us and the heir."""
        self.debts[self.edges[neighbor].number] = Debt(heir, self._flow(neighbor))
        self._drop(neighbor)

    def forget(self, number: int) -> None:
        """The other end of a debt is gone, or has forgotten it: take it out."""
        for tracker, flow in self.debts.pop(number).flows.items():
            self._add(tracker, -flow)

    def _flow(self, neighbor: int) -> Flows:
        """What an edge has added, by tracker."""
        row = list(self.edges).index(neighbor)
        flows = self.method.flows or ()
        return {f.tracker: f.factor * getattr(self.state, f.surrogate).flow[row : row + 1] for f in flows}

    def _add(self, tracker: str, change: Tensor) -> None:
        self.session.state = replace(self.state, **{tracker: getattr(self.state, tracker) + change})

    def _drop(self, neighbor: int) -> None:
        row = list(self.edges).index(neighbor)
        for name, value in self._surrogates().items():
            self._set(name, value.closed(row))
        del self.exchange.edges[neighbor]

    def _surrogates(self) -> dict[str, EdgeTerms]:
        state: State = self.state
        every = {one.name: getattr(state, one.name) for one in fields(state)}
        return {name: value for name, value in every.items() if isinstance(value, EdgeTerms)}

    def _set(self, name: str, value: EdgeTerms) -> None:
        self.session.state = replace(self.state, **{name: value})
