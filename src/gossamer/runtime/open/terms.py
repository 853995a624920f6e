"""Surrogates of edges that open, close and may be late.

Each end of an edge sends packets 1, 2, 3, ... over it. Packet k of one end and packet k of the other make term k:
w_ij (what j said to i - what i said to j), after these packets. An end applies the term when it has both, once and in
order. The two ends may do so in different rounds, but their terms are opposite to the last bit. An end sends packet
k + 1 after it has applied term k, so at most one packet of each end is under way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.algorithms.base import State
from gossamer.algorithms.round import Round
from gossamer.algorithms.surrogate import Arriving, Outgoing, Speaks, Surrogate
from gossamer.compression import packet
from gossamer.compression.base import Codec, Compressor, Message
from gossamer.compression.partial import Partial
from gossamer.errors import CodecError, InputError
from gossamer.kernels import move


@dataclass
class Edge:
    """One end of an open edge."""

    neighbor: int
    weight: float
    number: int
    """Chosen anew whenever the edge opens: packets of an earlier opening are not of this one."""
    said: int = 0
    """Packets sent."""
    applied: int = 0
    """Terms applied."""

    @property
    def is_waiting(self) -> bool:
        """Whether a packet was sent whose term is not applied yet."""
        return self.said > self.applied


class Contents(NamedTuple):
    """What a packet says."""

    round: int
    """The sender's round."""
    messages: Mapping[str, Message]
    """By surrogate."""


class Spoken(NamedTuple):
    """The messages of one surrogate, by neighbour."""

    name: str
    messages: dict[int, Message]


@dataclass(frozen=True)
class EdgeTerms:
    """H for each open edge, in the order of the neighbours. All in float64.

    Memory: 3 d numbers per open edge. An edge that closes gives its rows back.
    """

    name: str
    exchange: "TermExchange" = field(repr=False)
    sent: Tensor
    """(edges, d): what each neighbour believes of this client, by what was sent to it."""
    heard: Tensor
    """(edges, d): what this client believes of each neighbour."""
    flow: Tensor
    """(edges, d): the sum of the terms of each edge."""
    pulled: Tensor
    """(1, d): the sum of the terms that were applied in turn `turn`."""
    turn: int = 0
    arriving: Arriving | None = None
    """Not used: what arrives is given to the exchange before each step."""

    @property
    def pull(self) -> Tensor:
        """The sum of the terms that arrived for this step."""
        if self.turn != self.exchange.turn:
            raise InputError(
                f"The packets of the surrogate {self.name!r} were not asked for; call round.arrived first."
            )
        return self.pulled

    def settled(self) -> "EdgeTerms":
        """After the terms that arrived for this step."""
        exchange = self.exchange
        if self.turn == exchange.turn:
            return self
        heard, rows = self.heard.clone(), []
        for row, edge in enumerate(exchange.edges.values()):
            if edge.neighbor in exchange.arrived:
                message = exchange.arrived[edge.neighbor].messages.get(self.name)
                rows.append(row)
                if message is not None:
                    heard[row] = move(self.heard[row : row + 1], message.dense().to(heard.device))[0]
        weights = exchange.weights()[rows]
        terms = weights[:, None] * (heard[rows] - self.sent[rows])
        flow = self.flow.clone()
        flow[rows] += terms
        pulled = terms.sum(dim=0, keepdim=True)
        return replace(self, heard=heard, flow=flow, pulled=pulled, turn=exchange.turn, arriving=None)

    def follow(
        self, value: Tensor, round: Round, compressor: Compressor, a: float, where: Speaks | None
    ) -> tuple["EdgeTerms", Outgoing, Tensor | None]:
        """Each edge with nothing under way follows the value."""
        if a != 1:
            raise InputError(f"Clients may come and go only where the memory step is 1, got {a:g}.")
        sent, messages = self.sent.clone(), dict[int, Message]()
        for row, edge in enumerate(self.exchange.edges.values()):
            if edge.is_waiting:
                continue
            own = self.sent[row : row + 1]
            q = round.compress(compressor, value - own, f"{self.name}.{len(messages)}")
            if where is not None:
                q = Partial(q, where(value - own))
            sent[row] = move(own, q.dense())[0]
            messages[edge.neighbor] = q
        spoken: Any = Spoken(self.name, messages)
        return replace(self, sent=sent), spoken, None

    def estimate(self) -> "EdgeTerms":
        """As settled: the memory step is 1."""
        return self.settled()

    def opened(self, row: int, known: Tensor) -> "EdgeTerms":
        """With one more edge, both of whose ends start at the same vector."""
        start = known.to(self.sent).view(1, -1)
        added = {"sent": start, "heard": start, "flow": torch.zeros_like(start)}
        grown: Any = {
            name: torch.cat([getattr(self, name)[:row], new, getattr(self, name)[row:]]) for name, new in added.items()
        }
        return replace(self, **grown)

    def closed(self, row: int) -> "EdgeTerms":
        """Without an edge."""
        every = {name: getattr(self, name) for name in ("sent", "heard", "flow")}
        rest: Any = {name: torch.cat([old[:row], old[row + 1 :]]) for name, old in every.items()}
        return replace(self, **rest)


class TermExchange:
    """What one client sends and receives over edges that open and close."""

    def __init__(self, client: int, codec: Codec, run: int, rho: float) -> None:
        self.client, self.codec, self.run, self.rho = client, codec, run, rho
        self.edges: dict[int, Edge] = {}
        """The open edges, by neighbour, in order."""
        self.names: tuple[str, ...] = ()
        """The surrogates of the method, in the order of their messages in a packet."""
        self.arrived: dict[int, Contents] = {}
        self.outbox: dict[int, bytes] = {}
        self.turn = 0
        """Grows with every step."""
        self.t = 0
        self._like: Tensor | None = None

    def adopt(self, state: State) -> State:
        """Every surrogate in the form that this exchange moves; there are no edges yet."""
        self._like = state.x

        def split(value: object) -> object:
            if not isinstance(value, Surrogate):
                return value
            self.names += (value.name,)
            none = value.own.new_zeros(0, value.own.shape[1])
            return EdgeTerms(value.name, self, none, none, none, torch.zeros_like(value.own))

        return replace(state, **{one.name: split(getattr(state, one.name)) for one in fields(state)})

    def weights(self) -> Tensor:
        """The weight of each open edge."""
        assert self._like is not None
        return torch.tensor(
            [edge.weight for edge in self.edges.values()], dtype=torch.float64, device=self._like.device
        )

    def begin(self, t: int) -> None:
        """Round t begins; `take` has been called."""
        self.t, self.outbox = t, {}

    def read(self, neighbor: int, data: bytes, after: int = 0) -> Contents:
        """The messages of a neighbour's next packet but `after`; a CodecError if it is not that."""
        assert self._like is not None
        term = (self.edges[neighbor].applied + 1 + after) % packet.EXCHANGES
        read = packet.decode(data, d=self._like.shape[1], dtype=self._like.dtype)
        found, expected = (read.run, read.client, read.exchange), (self.run, neighbor, term)
        for name, value, wanted in zip(("run", "client", "term"), found, expected, strict=True):
            if value != wanted:
                raise CodecError(f"{name} {wanted} was expected, but the packet is of {name} {value}.")
        if len(read.messages) > len(self.names):
            raise CodecError(f"a packet has at most {len(self.names)} messages, got {len(read.messages)}.")
        return Contents(read.round, dict(zip(self.names, read.messages, strict=False)))

    def take(self, arrived: Mapping[int, Contents]) -> None:
        """The packets whose terms the next step applies."""
        for neighbor in arrived:
            if not self.edges[neighbor].is_waiting:
                raise InputError(f"The term of client {neighbor} lacks our own packet.")
        self.turn += 1
        self.arrived = dict(sorted(arrived.items()))
        for neighbor in arrived:
            self.edges[neighbor].applied += 1

    def __call__(self, *messages: Outgoing | None) -> "TermExchange":
        """One packet for each edge with nothing under way."""
        given: Sequence[Any] = messages
        spoken = [one for one in given if isinstance(one, Spoken)]
        if [one.name for one in spoken] != list(self.names[: len(spoken)]) or len(spoken) < sum(
            message is not None for message in messages
        ):
            raise InputError("Clients may come and go only where every message is that of a surrogate, in their order.")
        for neighbor in spoken[0].messages if spoken else ():
            edge = self.edges[neighbor]
            edge.said += 1
            (self.outbox[neighbor],) = packet.encode(
                [one.messages[neighbor] for one in spoken],
                run=self.run,
                round=self.t,
                exchange=edge.said,
                clients=[self.client],
                codec=self.codec,
            )
        return self

    def wait(self) -> tuple[Tensor, ...]:
        """Only surrogates can be late."""
        raise InputError("Clients may come and go only with methods that use surrogates alone, such as BEER.")

    def add(self, number: int, mixed: Tensor, a: float) -> Tensor:
        """Only for surrogates of a fixed graph."""
        raise InputError("Clients may come and go only with methods that use surrogates alone, such as BEER.")
