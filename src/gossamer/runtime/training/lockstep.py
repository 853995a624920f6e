"""All ranks in step: how they begin with one model, and what they do together between two rounds."""

import functools
import math
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.dsgd import DSGD
from gossamer.compression.base import Codec
from gossamer.errors import InputError, check_integer, check_positive
from gossamer.fingerprint import digest
from gossamer.records.checkpoint import common
from gossamer.records.typed import Settings
from gossamer.runtime.gradients.oracle import SameOracle
from gossamer.runtime.processes.client import Client
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.training.averaging import Average
from gossamer.runtime.training.training import TrainingLoop
from gossamer.runtime.transport.base import Open
from gossamer.runtime.tuning.caution import warn_of_gamma
from gossamer.topology import MixingMatrix

_GOSSIP_SHRINKS = 1000.0  # how much closer the models come by gossip alone, unless told otherwise


class Lockstep:
    """The processes of a run, one per rank, which all take the same number of rounds.

    Args:
        method: The same on all ranks.
        mixing: Of as many clients as there are ranks.
        x: (1, d): this rank's model.
        facts: What all ranks must have in common.
        initial: Whether all ranks must begin with the same model, or take that of rank 0.
        timeout: Seconds after which a silent neighbour is an error.
        seed: Of the compressor's randomness.
        codec: How packets are written.
        transport: The name of a transport, or a function that opens one.
    """

    def __init__(
        self,
        method: Algorithm,
        mixing: MixingMatrix,
        x: Tensor,
        facts: Settings,
        *,
        initial: Literal["check", "broadcast"],
        timeout: float,
        seed: int,
        codec: Codec,
        transport: str | Open,
    ) -> None:
        ranks = self._ranks = Ranks(check_positive("timeout", timeout))
        if ranks.rank == 0:
            warn_of_gamma(method, x.shape[1], mixing.rho)
        if ranks.size != mixing.clients:
            raise InputError(
                f"The mixing matrix is of {mixing.clients} clients, but {ranks.size} processes were started: "
                "one process per client."
            )
        ranks.agree({**facts, "`initial`": initial})
        if initial == "broadcast":
            x = ranks.broadcast(x)
        else:
            ranks.agree(
                {"the initial model": digest(x)},
                "call torch.manual_seed with the same seed before you make the model, or pass initial='broadcast'",
                show=False,
            )
        run = zlib.crc32(str(ranks.share(os.urandom(8).hex())[0]).encode())
        self._mixing, self._transport = mixing, transport
        self._gossips = self._joins = 0
        self.client = Client(
            method, mixing, ranks.rank, x, ranks=ranks, seed=seed, codec=codec, run=run, transport=transport
        )

    def idle(self, training: TrainingLoop) -> None:
        """Rounds without data, until the last rank has come to the end of its own."""
        self._joins += 1
        client, exchange = self.client, self.client.exchange
        if exchange.stop is None and self._ranks.is_last(f"join {self._joins} of run {client.run}"):
            client.ask_to_stop(pause=True)
        while exchange.stop is None or client.t < exchange.stop:
            training.idle()
        exchange.go_on()

    def average(
        self, own: Tensor, modules: Sequence[nn.Module], how: Literal["exact", "gossip"], rounds: int | None
    ) -> Average:
        """The average of all ranks' models and buffers: by a collective, or by so many rounds of gossip."""
        mean = self._ranks.mean if how == "exact" else functools.partial(self._gossip, rounds=rounds)
        return Average(self._ranks, own, modules, mean)

    def common(self, usable: Callable[[], list[int]]) -> int | None:
        """The latest step of which all ranks have a checkpoint, from those that each of them finds."""
        return common(self._ranks.share_or_refuse(usable))

    def _gossip(self, x: Tensor, rounds: int | None) -> Tensor:
        """W x, so many times over: DSGD where every gradient is zero."""
        slowest = 1 - self._mixing.rho
        enough = 1 if slowest < 1e-12 else math.ceil(math.log(_GOSSIP_SHRINKS) / -math.log(slowest))
        many = enough if rounds is None else check_integer("rounds", rounds, 1)
        self._gossips += 1
        run, channel = self.client.run ^ self._gossips, 1 + self._gossips % 4096
        how: Any = {"ranks": self._ranks, "run": run, "channel": channel, "transport": self._transport}
        client = Client(DSGD(lr=1.0), self._mixing, self._ranks.rank, x, **how)
        for _ in range(many):
            client.step(SameOracle(), 0.0)
        client.close()
        mixed: Tensor = client.state.x
        return mixed
