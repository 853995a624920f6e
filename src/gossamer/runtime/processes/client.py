"""One client in a process of its own: a session over the packet exchange."""

import time
from typing import Any

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.round import Oracle
from gossamer.compression.base import Codec, Compressor
from gossamer.compression.dense import identity
from gossamer.compression.packet import MOST_HEADER
from gossamer.errors import GossamerError, NonFiniteError, RunError
from gossamer.records.checkpoint import Checkpoint
from gossamer.registry import transports
from gossamer.runtime.exchange.packets import PacketExchange
from gossamer.runtime.exchange.rows import network_of
from gossamer.runtime.processes.contract import Sent
from gossamer.runtime.session import Session, UnderWay
from gossamer.runtime.transport.base import UNKNOWN, Open, Opening, Transport, failed
from gossamer.streams import Streams
from gossamer.topology import Mixing, MixingSchedule

_HEAR_SECONDS = 0.5
_LEAST_CAPACITY = 1024


class Client(UnderWay):
    """A client under way: call `step` for the next round, with that round's oracle and step size."""

    def __init__(
        self,
        method: Algorithm,
        mixing: Mixing,
        rank: int,
        x: Tensor,
        *,
        ranks: Any = None,
        seed: int = 0,
        codec: Codec = "auto",
        run: int = 0,
        channel: int = 0,
        transport: str | Open = "gloo",
    ) -> None:
        mixing = network_of(method, mixing)
        self.rank, self.run = rank, run
        neighbors = sorted(mixing.graph.neighbors(rank))
        opening = Opening(rank, neighbors, packet_capacity(method, x.shape[1], x.dtype, codec), run, channel, ranks)
        open_transport: Open = transports.get(transport) if isinstance(transport, str) else transport
        self.transport: Transport = open_transport(opening)
        self.exchange = PacketExchange(mixing, rank, self.transport, x.device, codec, run)
        self.session = Session(method, self.exchange, Streams([seed], [rank], x.device), x)
        self.reach = mixing.diameter * method.rounds_between_exchanges
        """Rounds a stop request needs to reach every client; on a schedule, about."""
        self.is_closed = False

    @property
    def stop(self) -> int | None:
        """The round at which every client is to stop, once one of them was told to."""
        return self.exchange.stop

    @property
    def should_stop(self) -> bool:
        """Whether this is the round after which all clients stop, because one was asked to."""
        return self.stop is not None and self.t >= self.stop and not self.exchange.is_pause

    @property
    def mixing(self) -> Mixing:
        """The graph with its weights."""
        return self.exchange.mixing

    @property
    def codec(self) -> Codec:
        """How packets are written."""
        return self.exchange.codec

    @property
    def sent(self) -> Sent:
        """What was sent so far."""
        sent = self.exchange
        return Sent(sent.packets, sent.bytes, sent.bytes_total, sent.bits_nominal)

    @property
    def compression_error(self) -> Tensor | None:
        """The share of its messages that the compressor left out, when it was last measured."""
        return self.session.compression_error

    def listen(self) -> None:
        """Nobody asks for anything between two rounds."""

    def step(self, oracle: Oracle, lr: float | Tensor, *, measure: bool = False) -> None:
        """One round; with `measure`, how much the compressor left out is noted on the way."""
        try:
            self.session.take(self.session.look_ahead(oracle, lr, measure=measure))
        except NonFiniteError:
            self._diverged()
            raise failed(self.transport) from None
        except RunError:
            if self.transport.failure is None or self.transport.failure.since == UNKNOWN:
                raise
            self._blame_growth()
            raise failed(self.transport) from None

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts from which `restore` goes on; the exchange under way is waited for."""
        sent = self.exchange
        names = ("packets", "bytes", "bytes_total", "bits_nominal")
        facts = {"t": self.t} | {name: getattr(sent, name) for name in names}
        return self.session.save(), facts | {"links": self.accounts()}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be where a client with the same settings was when it was saved."""
        facts, sent = checkpoint.facts, self.exchange
        self.session.restore(facts["t"], checkpoint.tensors)
        sent.packets, sent.bytes, sent.bits_nominal = facts["packets"], facts["bytes"], facts["bits_nominal"]
        sent.bytes_total = facts["bytes_total"]
        for numbers in facts["links"]:
            self.transport.accounts[int(numbers["neighbor"])].restore(numbers)

    def accounts(self) -> list[dict[str, float]]:
        """What went over each link."""
        return [account.numbers() for account in self.transport.accounts.values()]

    def ask_to_stop(self, *, pause: bool = False) -> None:
        """Stop all clients at one round: the first of which everyone can still be told in time."""
        # The request goes one hop per exchange, so the farthest client hears of it in round t + reach; or one later, if
        # a signal brings it when the packet of round t has already left.
        mixing, reach = self.exchange.mixing, self.reach
        if isinstance(mixing, MixingSchedule):
            reach = mixing.reach(self.t, self.method.rounds_between_exchanges)
        self.exchange.agree_to_stop(self.t + reach + 2, pause=pause)

    def close(self) -> None:
        """Wait for the exchange under way and take leave of the neighbours; no thread is left, even if that fails."""
        self.is_closed = True
        try:
            if self.transport.failure is None:
                self.session.settle()
            self.transport.close()
        except BaseException:
            self.transport.abort()
            raise

    def abort(self) -> None:
        """End at once, after a failure."""
        self.is_closed = True
        self.transport.abort()

    def give_up(self, error: BaseException) -> None:
        """Tell the neighbours why no more packets will come, and end at once."""
        sentence = str(error).strip().split("\n")[0]
        if not isinstance(error, GossamerError):
            sentence = f"Rank {self.rank} stopped in round {self.t}: {type(error).__name__}: {sentence}"
        self.transport.fail(sentence)
        self.abort()

    def _diverged(self) -> None:
        """Note that the run is over, and why."""
        if self.exchange.growth.found is None:
            sentence = f"{self._begin()}the model of client {self.rank} is no longer finite; {self.method.remedy()}."
            self.transport.fail(sentence, diverged=True, round=self.t + 1)
        else:
            self._blame_growth()

    def _blame_growth(self) -> None:
        """Name the client whose messages grew first, as far as we know or are told."""
        if self.exchange.growth.found is not None:
            j, size, since = self.exchange.growth.found
            self.transport.fail(
                f"{self._begin()}the messages of client {j} grew to {size:.1e} in round {since + 1}, and the models of "
                f"its neighbours are no longer finite; check the data and the gradients of client {j}.",
                diverged=True,
                round=self.t + 1,
                since=since,
            )
        # Clients farther away diverge in the same round and blame those between: whoever knows better tells us now.
        time.sleep(_HEAR_SECONDS)

    def _begin(self) -> str:
        return f"{self.method.info.title} with seed {self.streams.seeds[0]} diverged in round {self.t + 1}: "


def packet_capacity(method: Algorithm, d: int, dtype: torch.dtype, codec: Codec) -> int:
    """The longest packet that a neighbour may send: receives are posted before anyone knows how long it will be."""
    compressor = getattr(method, "compressor", None)
    compressor = compressor if isinstance(compressor, Compressor) else identity()
    payload = compressor(torch.zeros(1, d, dtype=dtype), seed=0).payload_size()
    room = method.info.messages * (payload + MOST_HEADER) + _LEAST_CAPACITY
    return 2 * room if codec == "entropy" else room
