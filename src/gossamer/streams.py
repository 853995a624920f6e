"""Keyed randomness: every draw is a function of (seed, client, purpose, round) alone.

Philox is a counter-based generator: a number is a function of a key and a counter, and needs none of the numbers before
it. The key is the seed; the counter holds the client, the purpose, the round and the place of the number. A client
therefore draws the same numbers alone in a process or beside a thousand others, in any order of rounds, on a CPU or a
GPU. `kernels.reference.uniform` is the definition.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from gossamer.errors import check_integer
from gossamer.kernels import Keys, Stream, below, uniform

STREAMS = "philox4x32-10"
"""Where the numbers come from: part of a run's identity."""


class Streams:
    """The random streams of rows; row r belongs to client `clients[r % n]` in the run with seed `seeds[r // n]`."""

    def __init__(self, seeds: Sequence[int], clients: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.seeds = tuple(check_integer("seed", seed, 0, 2**64 - 1) for seed in seeds)
        self.clients = tuple(clients)
        self.device = torch.device(device)
        each = [seed for seed in self.seeds for _ in self.clients]
        self.keys = Keys.of(each, self.clients * len(self.seeds), self.device)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.seeds) * len(self.clients)

    def at(self, t: int | Tensor, purpose: str) -> "Draw":
        """The draw of round `t` for one purpose."""
        return Draw(self, purpose, t)

    def uniform(self, purpose: str, t: int, width: int, dtype: torch.dtype) -> Tensor:
        """(rows, width) numbers in [0, 1), determined by seed, client, purpose, round and dtype."""
        return self.at(t, purpose).uniform(width, dtype)


@cache
def _number(purpose: str) -> int:
    return zlib.crc32(purpose.encode())


@cache
def _one(number: int, device: torch.device) -> Tensor:
    return torch.tensor([number], device=device)


def seeded_uniform(seeds: Tensor, purpose: str, count: int) -> Tensor:
    """(rows, count) numbers determined by a seed per row and a purpose; a message can carry the seed instead."""
    return uniform(Stream(Keys(seeds, torch.zeros_like(seeds)), _number(purpose), 0), count, torch.float64)


@dataclass(frozen=True)
class Draw:
    """The randomness for one purpose in one round, as compressors and oracles receive it."""

    streams: Streams
    purpose: str
    t: int | Tensor

    @cached_property
    def stream(self) -> Stream:
        """As kernels take it."""
        return Stream(self.streams.keys, _number(self.purpose), self.t)

    def uniform(self, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """(rows, width) numbers in [0, 1)."""
        return uniform(self.stream, width, dtype)

    def seeds(self) -> Tensor:
        """(rows,) integers of 53 bits, as seeds of generators."""
        return (self.uniform(1)[:, 0] * 2**53).long()

    def below(self, high: int | Tensor, width: int) -> Tensor:
        """(rows, width) integers in [0, high), with replacement; `high` may be a tensor with one value per client."""
        most = high if isinstance(high, Tensor) else _one(high, self.streams.device)
        return below(self.stream, most, width)

    def normal(self, width: int) -> Tensor:
        """(rows, width) standard normal numbers, in float64."""
        half = 2.0**-54  # half a step of the uniform numbers, to exclude 0
        normal: Tensor = torch.special.ndtri(self.uniform(width) + half)
        return normal
