"""The exchange of a process: encode, send, receive, decode, and add up in the order of the clients."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from gossamer.algorithms.base import State
from gossamer.algorithms.surrogate import Outgoing, Slots
from gossamer.compression import packet
from gossamer.compression.base import Codec, Message
from gossamer.compression.dense import Dense
from gossamer.errors import CodecError
from gossamer.kernels import Mixer, is_loaded, make_mixer
from gossamer.runtime.exchange.edges import Edges, per_edge
from gossamer.runtime.transport.base import Transport, failed
from gossamer.topology import Mixing, MixingMatrix
from gossamer.topology.rounds import RoundWeights

_MOST_MIXERS = 64
_GROWTH = 1000.0  # times as large as any message before (and as 1): more than a slightly too large step size does
_FIELDS = ("run", "round", "exchange", "client", "messages")


class PacketExchange:
    """What one client sends and receives. Sums are added in the order of the clients, as the simulator does."""

    def __init__(
        self, mixing: Mixing, rank: int, transport: Transport, device: torch.device, codec: Codec, run: int
    ) -> None:
        self.mixing, self.rank, self.transport, self.codec, self.run = mixing, rank, transport, codec, run
        self.device, self.rho = device, mixing.rho
        self.edges = None if isinstance(mixing, MixingMatrix) else Edges(mixing, [rank], device)
        self.packets = 0
        self.bytes = 0
        """Bytes sent on one link so far; where packets differ between neighbours, their mean."""
        self.bytes_total = 0
        """Bytes sent on all links so far."""
        self.bits_nominal = 0
        self.stop: int | None = None
        """The round at which every client is to stop, once one of them was told to."""
        self.is_pause = False
        """Whether all go on after that round: they have waited for each other, and nobody asked for an end."""
        self._paused = 0
        self.growth = Growth(rank)
        self._weights: dict[int, float] = {}
        self._receivers: list[int] = []
        self._mixers: dict[tuple[tuple[float, ...], bool], Mixer] = {}
        self._number = 0
        self.t = 0

    def begin(self, t: int) -> None:
        """Round t begins."""
        self.t = self.transport.round = t
        self._number = 0
        if self.edges is not None or not self._weights:
            self._weights, self._receivers = self._weights_at(t)
        if self.edges is not None:
            self.edges.begin(t)

    def adopt(self, state: State) -> State:
        """On a schedule each edge has its own surrogate."""
        return state if self.edges is None else per_edge(state, self.edges)

    def _weights_at(self, t: int) -> tuple[dict[int, float], list[int]]:
        """The clients that this one receives from, and itself, in order, with their weights; and those it sends to."""
        w = self.mixing.at(t)
        senders = w.neighbors(self.rank)
        receivers = w.receivers(self.rank) if isinstance(w, RoundWeights) else senders
        return {j: float(w.sparse[self.rank, j]) for j in sorted([*senders, self.rank])}, receivers

    def agree_to_stop(self, at: int, *, pause: bool = False) -> None:
        """Stop at the earliest round that anybody asked for; an end counts more than a pause."""
        if pause and (at <= self._paused or (self.stop is not None and not self.is_pause)):
            return  # packets that are still under way after a pause carry the word that led to it
        if self.stop is None or self.is_pause != pause or at < self.stop:
            self.stop, self.is_pause = at, pause

    def go_on(self) -> None:
        """Begin again after a pause."""
        if self.is_pause and self.stop is not None:
            self._paused, self.stop, self.is_pause = self.stop, None, False

    def __call__(self, *messages: Outgoing | None) -> "_Pending":
        """Send at once, and receive when somebody waits."""
        present = [message for message in messages if message is not None]
        if present and isinstance(present[0], Slots):
            self._send_slots([message for message in present if isinstance(message, Slots)])
        elif present and self._receivers:
            sent = [message for message in present if not isinstance(message, Slots)]
            size = self._send(sent, self._receivers)
            self._count([size] * len(self._receivers), sum(int(message.bits_nominal_of_rows()[0]) for message in sent))
        self.packets += 1 if present and self.mixing.clients > 1 else 0
        slots = [] if self.edges is None else self.edges.active(0)
        posted = Posted(self.t, self._number, messages, self._weights, slots, time.perf_counter())
        self._number += 1 if present else 0
        return _Pending(self, posted)

    def _send(self, messages: Sequence[Message], to: Sequence[int]) -> int:
        """Send one packet; its length, without a request to stop, which is not the method's and is not counted."""
        stop = None if self.stop is None else 2 * self.stop + self.is_pause  # a signal handler may set it at any time
        (data,) = packet.encode(
            messages,
            run=self.run,
            round=self.t,
            exchange=self._number,
            clients=[self.rank],
            codec=self.codec,
            stop=stop,
        )
        self.transport.send(data, to)
        return len(data) - packet.stop_size(stop)

    def _send_slots(self, slots: Sequence[Slots]) -> None:
        assert self.edges is not None
        sizes, nominal = [], 0
        for turn, k in enumerate(self.edges.active(0)):
            messages = [one.messages[turn] for one in slots]
            sizes.append(self._send(messages, [self.edges.neighbors[0][k]]))
            nominal += sum(int(message.bits_nominal_of_rows()[0]) for message in messages)
        if sizes:
            self._count(sizes, nominal // len(sizes))

    def _count(self, sizes: Sequence[int], nominal: int) -> None:
        """One packet for each neighbour."""
        self.bytes += sum(sizes) // len(sizes)
        self.bytes_total += sum(sizes)
        self.bits_nominal += nominal

    def collect(self, sent: "Posted") -> list[Message | None]:
        """For each message sent, those of the neighbours and the client itself as rows, in the order of the clients."""
        present = [number for number, message in enumerate(sent.messages) if message is not None]
        own: list[Message] = [sent.messages[number] for number in present]  # type: ignore[misc]
        every = [own if j == self.rank else self._receive(j, sent, own[0], len(own)) for j in sent.weights if own]
        self.growth.note(
            sent.t, {j: max(one.bound() for one in theirs) for j, theirs in zip(sent.weights, every, strict=False)}
        )
        rows: list[Message | None] = [None] * len(sent.messages)
        for place, number in enumerate(present):
            mine = [theirs[place] for theirs in every]
            on_host = self.device.type == "cpu"
            rows[number] = packet.joined(mine if on_host else [Dense(one.dense().to(self.device)) for one in mine])
        return rows

    def mixer(self, weights: Mapping[int, float]) -> Mixer:
        """What multiplies such rows by the client's row of W."""
        key = (tuple(weights.values()), is_loaded())
        if key not in self._mixers:
            if len(self._mixers) >= _MOST_MIXERS:
                self._mixers = {}
            row = csr_array(np.array([list(weights.values())]))
            self._mixers[key] = make_mixer(row, self.device) if self.device.type == "cpu" else Mixer(row, self.device)
        return self._mixers[key]

    def collect_slots(self, sent: "Posted") -> tuple[Tensor, ...]:
        """Each neighbour's message, for messages in slots."""
        assert self.edges is not None
        present = [number for number, message in enumerate(sent.messages) if message is not None]
        slots: list[Slots] = [sent.messages[number] for number in present]  # type: ignore[misc]
        first = slots[0].messages[0]
        heard = [torch.zeros((), dtype=torch.float64, device=self.device)] * len(sent.messages)
        for number in present:
            heard[number] = torch.zeros(1, self.edges.slots, first.shape[1], dtype=first.dtype, device=self.device)
        for k in sent.slots:
            theirs = self._receive(self.edges.neighbors[0][k], sent, first, len(present))
            for number, message in zip(present, theirs, strict=True):
                heard[number][0, k] = message.dense()[0].to(self.device)
        return tuple(heard)

    def _receive(self, j: int, sent: "Posted", like: Message, many: int) -> Sequence[Message]:
        """The messages in the next packet of a neighbour, which must be the one that is expected now."""
        try:
            data = self.transport.receive(j, sent.left_at)
            read = packet.decode(data, d=like.shape[1], dtype=like.dtype)
            found = (read.run, read.round, read.exchange, read.client, len(read.messages))
            expected = (self.run, sent.t, sent.number % packet.EXCHANGES, j, many)
            for name, value, wanted in zip(_FIELDS, found, expected, strict=True):
                if value != wanted:
                    raise CodecError(f"{name} {wanted} was expected, but the packet is of {name} {value}.")
        except CodecError as error:
            self.transport.fail(f"Rank {self.rank} got a bad packet from its neighbour {j} in round {sent.t}: {error}")
            raise failed(self.transport) from None
        if read.stop is not None:
            self.agree_to_stop(read.stop // 2, pause=bool(read.stop % 2))
        return read.messages


class Posted(NamedTuple):
    """An exchange as it was sent: what the neighbours' packets are added to, and how."""

    t: int
    number: int
    """Which exchange of the round it is."""
    messages: tuple[Outgoing | None, ...]
    weights: Mapping[int, float]
    slots: Sequence[int]
    left_at: float


class _Pending:
    """An exchange under way; the neighbours' packets are asked for when they are needed."""

    def __init__(self, exchange: PacketExchange, sent: Posted) -> None:
        self._exchange, self._sent = exchange, sent
        self._rows: list[Message | None] | None = None
        self._sums: tuple[Tensor, ...] | None = None

    def wait(self) -> tuple[Tensor, ...]:
        """The weighted sums; each neighbour's message, for messages in slots."""
        if self._sums is None and any(isinstance(message, Slots) for message in self._sent.messages):
            self._sums = self._exchange.collect_slots(self._sent)
        elif self._sums is None:
            mixer, nothing = self._exchange.mixer(self._sent.weights), torch.zeros((), dtype=torch.float64)
            sums = [nothing if rows is None else mixer(rows.dense()) for rows in self._heard()]
            self._sums = tuple(one.to(self._exchange.device) for one in sums)
        return self._sums

    def add(self, number: int, mixed: Tensor, a: float) -> Tensor:
        """H W + a Q W."""
        rows = self._heard()[number]
        return mixed if rows is None else rows.add_to(mixed, self._exchange.mixer(self._sent.weights), a)

    def _heard(self) -> list[Message | None]:
        if self._rows is None:
            self._rows = self._exchange.collect(self._sent)
        return self._rows


class Growth:
    """Notices the neighbour whose messages suddenly grow: if our model diverges then, lr is not the reason."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.found: tuple[int, float, int] | None = None
        """The neighbour, the largest value in its messages, and the round."""
        self._level = 1.0

    def note(self, t: int, sizes: Mapping[int, float]) -> None:
        """The largest value in the messages of each client, our own among them."""
        grown = {j: size for j, size in sizes.items() if size > _GROWTH * self._level}
        if grown and self.rank not in grown and self.found is None:
            j = max(grown, key=lambda j: grown[j])
            self.found = (j, grown[j], t)
        self._level = max([self._level, *sizes.values()])
