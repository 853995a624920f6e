"""One client in a process of its own: the simulator's step with one row, and an exchange that really sends."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, Oracle, Round, State, map_state
from gossamer.compression import packet
from gossamer.compression.base import Codec, Compressor, Message
from gossamer.compression.dense import identity
from gossamer.errors import CodecError, GossamerError, NonFiniteError, RunError
from gossamer.records.checkpoint import Checkpoint, pack, unpack
from gossamer.runtime.exchange.rows import network_of
from gossamer.runtime.processes.nccl import NcclLinks
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.transport.gloo import LEAST_CAPACITY, UNKNOWN, Links
from gossamer.streams import Streams
from gossamer.topology import MixingMatrix

Transport = Literal["gloo", "nccl"]

_GROWTH = 1000.0  # times as large as any message before: not what a step size that is a little too long does
_HEAR_SECONDS = 0.5
_HEADER = 160  # bytes around the messages of a packet, at the most


class Client:
    """The state of one client under way: call `step` for the next round, with that round's oracle and step size."""

    def __init__(
        self,
        method: Algorithm,
        mixing: MixingMatrix,
        ranks: Ranks,
        x: Tensor,
        *,
        seed: int = 0,
        codec: Codec = "auto",
        run: int = 0,
        channel: int = 0,
        transport: Transport = "gloo",
    ) -> None:
        self.method, self.ranks, self.codec, self.run = method, ranks, codec, run
        self.rank = ranks.rank
        self.streams = Streams([seed], [self.rank], x.device)
        mixing = network_of(method, mixing)
        neighbors = mixing.neighbors(self.rank)
        self.weights = {j: float(mixing.sparse[self.rank, j]) for j in sorted([*neighbors, self.rank])}
        capacity = _capacity(method, x.shape[1], x.dtype, codec)
        if transport == "nccl":
            ranks.open_device_group(x.device)
            self.links: Links = NcclLinks(ranks, neighbors, capacity, run, channel, x.device)
        else:
            self.links = Links(ranks, neighbors, capacity, run, channel)
        self.reach = mixing.diameter * method.rounds_between_exchanges
        """Rounds in which a word goes from any client to any other."""
        self.rho = mixing.rho
        self.t = 0
        self.state: State = method.init(x)
        self.packets = 0
        self.bytes = 0
        self.bits_nominal = 0
        self.stop: int | None = None
        """The round at which every client is to stop, once one of them was told to."""
        self.compression_error: Tensor | None = None
        self._growth = _Growth(self.rank)
        self.is_closed = False

    def step(self, oracle: Oracle, lr: float | Tensor, *, measure: bool = False) -> None:
        """One round; with `measure`, how much the compressor left out is noted on the way."""
        self.links.round = self.t
        errors: list[Tensor] | None = [] if measure else None
        round = Round(
            t=self.t,
            lr=lr,
            oracle=oracle,
            random=lambda purpose: self.streams.at(self.t, purpose),
            exchange=self._exchange,
            dtype=self.state.x.dtype,
            rho=self.rho,
            errors=errors,
        )
        try:
            state = self.method.step(self.state, round)
            if not torch.isfinite(state.x.sum()) and not torch.isfinite(state.x).all():
                raise NonFiniteError("The model is no longer finite.", [0])
        except NonFiniteError:
            self._diverged()
            raise self.links.error() from None
        except RunError:
            if self.links.failure is None or self.links.failure.since == UNKNOWN:
                raise
            self._blame_growth()
            raise self.links.error() from None
        self.state = state
        self.t += 1
        if errors is not None:
            self.compression_error = torch.stack(errors).mean(dim=0) if errors else None

    def settle(self) -> None:
        """Wait for the exchange under way."""
        self.state = map_state(self.state, lambda x: x)

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts from which `restore` goes on; the exchange under way is waited for."""
        self.settle()
        facts = {"t": self.t, "packets": self.packets, "bytes": self.bytes, "bits_nominal": self.bits_nominal}
        return pack(self.state), facts | {"links": self.links.numbers()}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be where a client with the same settings was when it was saved."""
        self.state = unpack(self.state, checkpoint.tensors, self.streams.device)
        facts = checkpoint.facts
        self.t, self.packets, self.bytes = facts["t"], facts["packets"], facts["bytes"]
        self.bits_nominal = facts["bits_nominal"]
        self.links.restore(facts["links"])

    def ask_to_stop(self) -> None:
        """Stop all clients at one round: the first that everyone can still hear of in time."""
        # The wish goes one hop an exchange, so the farthest client hears of it in round t + reach; or one later, if a
        # signal brings it when the packet of round t has left already.
        self._agree_to_stop(self.t + self.reach + 2)

    def close(self) -> None:
        """Wait for the exchange under way and take leave of the neighbours; no thread is left, even if that fails."""
        self.is_closed = True
        try:
            if self.links.failure is None:
                self.settle()
            self.links.close()
        except BaseException:
            self.links.abort()
            raise

    def abort(self) -> None:
        """End at once, after a failure."""
        self.is_closed = True
        self.links.abort()

    def give_up(self, error: BaseException) -> None:
        """Tell the neighbours why no more packets will come, and end at once."""
        sentence = str(error).strip().split("\n")[0]
        if not isinstance(error, GossamerError):
            sentence = f"Rank {self.rank} stopped in round {self.t}: {type(error).__name__}: {sentence}"
        self.links.fail(sentence)
        self.abort()

    def _agree_to_stop(self, at: int) -> None:
        self.stop = at if self.stop is None else min(self.stop, at)

    def _exchange(self, *messages: Message | None) -> "_Pending":
        sent = [message for message in messages if message is not None]
        if sent and self.links.links:
            (bytes_,) = packet.encode(
                sent, run=self.run, round=self.t, clients=[self.rank], codec=self.codec, stop=self.stop
            )
            self.links.send(bytes_)
            self.packets += 1
            # A wish to stop is not the method's, so a run that goes on counts what an undisturbed one does.
            self.bytes += len(bytes_) - packet.stop_size(self.stop)
            self.bits_nominal += int(sum(message.bits_nominal_of_rows()[0] for message in sent))
        return _Pending(self, self.t, messages, time.perf_counter())

    def collect(self, t: int, messages: Sequence[Message | None], left_at: float) -> tuple[Tensor, ...]:
        """Sum_j w_ij q_j of each message, in the order of the clients, whatever the order of arrival."""
        present = [number for number, message in enumerate(messages) if message is not None]
        zero = torch.zeros((), dtype=torch.float64, device=self.streams.device)
        sums: list[Tensor] = [zero] * len(messages)
        sizes: dict[int, float] = {}
        for j in self.weights if present else ():
            theirs: Sequence[Message | None]
            theirs = messages if j == self.rank else self._receive(j, t, messages, present, left_at)
            for number in present:
                q = theirs[number].dense()  # type: ignore[union-attr]
                sizes[j] = max(sizes.get(j, 0.0), float(torch.linalg.vector_norm(q, torch.inf)))
                part = q.to(self.streams.device).double() * self.weights[j]
                sums[number] = part if sums[number] is zero else sums[number].add_(part)
        self._growth.note(t, sizes)
        return tuple(sums)

    def _receive(
        self, j: int, t: int, messages: Sequence[Message | None], present: Sequence[int], left_at: float
    ) -> Sequence[Message | None]:
        own = messages[present[0]]
        assert own is not None
        buffer = self.links.receive(j, left_at)
        try:
            raw = buffer.numpy()
            length = packet.length(raw[:_HEADER].tobytes())
            read = packet.decode(raw[:length].tobytes(), d=own.shape[1], dtype=own.dtype)
            expected = {"run": self.run, "round": t, "client": j, "messages": len(present)}
            found = {"run": read.run, "round": read.round, "client": read.client, "messages": len(read.messages)}
            for name, value in expected.items():
                if found[name] != value:
                    raise CodecError(f"{name} {value} was expected, but the packet is of {name} {found[name]}.")
        except CodecError as error:
            self.links.fail(f"Rank {self.rank} got a bad packet from its neighbour {j} in round {t}: {error}")
            raise self.links.error() from None
        self.links.release(j, buffer, length)
        if read.stop is not None:
            self._agree_to_stop(read.stop)
        ordered: list[Message | None] = [None] * len(messages)
        for number, message in zip(present, read.messages, strict=True):
            ordered[number] = message
        return ordered

    def _diverged(self) -> None:
        """Note that the run is over, and why."""
        if self._growth.found is None:
            sentence = f"{self._begin()}the model of client {self.rank} is no longer finite; {self.method.remedy()}."
            self.links.fail(sentence, diverged=True, round=self.t + 1)
        else:
            self._blame_growth()

    def _blame_growth(self) -> None:
        """Name the client whose messages grew first, as far as we know or are told."""
        if self._growth.found is not None:
            j, size, since = self._growth.found
            self.links.fail(
                f"{self._begin()}the messages of client {j} grew to {size:.1e} in round {since + 1}, and the models of "
                f"its neighbours are no longer finite; check the data and the gradients of client {j}.",
                diverged=True,
                round=self.t + 1,
                since=since,
            )
        # Clients farther away diverge in the same round and blame those between: whoever knows better tells us now.
        time.sleep(_HEAR_SECONDS)

    def _begin(self) -> str:
        return f"{self.method.title} with seed {self.streams.seeds[0]} diverged in round {self.t + 1}: "


class _Growth:
    """Notices the neighbour whose messages grow all at once: if our model diverges then, it is not because of lr."""

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


class _Pending:
    """An exchange under way; the neighbours' packets are asked for when they are needed."""

    def __init__(self, client: Client, t: int, messages: Sequence[Message | None], left_at: float) -> None:
        self._client, self._t, self._messages, self._left_at = client, t, messages, left_at
        self._sums: tuple[Tensor, ...] | None = None

    def wait(self) -> tuple[Tensor, ...]:
        """The weighted sums."""
        if self._sums is None:
            self._sums = self._client.collect(self._t, self._messages, self._left_at)
        return self._sums


def _capacity(method: Algorithm, d: int, dtype: torch.dtype, codec: Codec) -> int:
    """The longest packet that a neighbour may send: receives are posted before anyone knows how long it will be."""
    compressor = getattr(method, "compressor", None)
    compressor = compressor if isinstance(compressor, Compressor) else identity()
    payload = compressor(torch.zeros(1, d, dtype=dtype), seed=0).payload_size()
    room = method.messages * (payload + _HEADER) + LEAST_CAPACITY
    return 2 * room if codec == "entropy" else room
