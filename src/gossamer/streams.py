"""Keyed randomness: every draw is a function of (seed, client, purpose, round) alone.

NumPy's Philox is a counter-based generator. Its key holds (seed, client, purpose), and round `t` reads the `t`-th
section of the stream. A client therefore draws the same numbers alone in a process or beside a thousand others, and in
any order of rounds. Several rounds are drawn at once, because creating a generator costs more than drawing a short
vector from it.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import check_integer
from gossamer.kernels import fill_uniform

_WORDS = 4  # 64-bit words per step of the Philox counter
_BLOCK = 1 << 24  # most numbers drawn ahead for one purpose
_ROUNDS = 256  # most rounds drawn ahead


class Streams:
    """The random streams of rows; row r belongs to client `clients[r % n]` in the run with seed `seeds[r // n]`."""

    def __init__(self, seeds: Sequence[int], clients: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.seeds = tuple(check_integer("seed", seed, 0, 2**64 - 1) for seed in seeds)
        self.clients = tuple(clients)
        self.device = torch.device(device)
        self._blocks: dict[tuple[str, int, torch.dtype], tuple[int, Tensor]] = {}

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.seeds) * len(self.clients)

    def at(self, t: int, purpose: str) -> "Draw":
        """The draw of round `t` for one purpose."""
        return Draw(self, purpose, t)

    def uniform(self, purpose: str, t: int, width: int, dtype: torch.dtype) -> Tensor:
        """(rows, width) numbers in [0, 1), determined by seed, client, purpose, round, width and dtype."""
        key = (purpose, width, dtype)
        first, block = self._blocks.get(key, (0, None))
        if block is None or not first <= t < first + block.shape[1]:
            # Blocks double, so that a short run wastes little and a long one creates few generators.
            ahead = 8 if block is None else 2 * block.shape[1]
            rounds = max(1, min(ahead, _ROUNDS, _BLOCK // max(1, self.rows * width)))
            block = None  # free the old block before the new one is drawn
            self._blocks.pop(key, None)
            first, block = t, self._draw(purpose, t, rounds, width, dtype)
            self._blocks[key] = (first, block)
        return block[:, t - first]

    def _draw(self, purpose: str, first: int, rounds: int, width: int, dtype: torch.dtype) -> Tensor:
        numpy_dtype = np.float32 if dtype == torch.float32 else np.float64
        per_step = _WORDS * (8 // numpy_dtype().itemsize)  # a 64-bit word gives one float64 or two float32
        steps = -(-width // per_step)  # a round starts at a counter step, so that it can be reached directly
        # A GPU copies from pinned memory at full speed.
        kept = torch.empty(self.rows, rounds, steps * per_step, dtype=dtype, pin_memory=self.device.type == "cuda")
        drawn = kept.numpy()
        word = zlib.crc32(purpose.encode())
        keys = [(seed, client << 32 | word) for seed in self.seeds for client in self.clients]
        fill_uniform(keys, first * steps, drawn)
        return kept.to(self.device)[:, :, :width]


def keyed_uniform(seed: int, purpose: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`count` numbers in [0, 1) determined by a seed and a purpose; a message can carry the seed instead of them."""
    drawn = np.empty(count)
    fill_uniform([(seed, zlib.crc32(purpose.encode()))], 0, drawn[None])
    return drawn


@dataclass(frozen=True)
class Draw:
    """The randomness for one purpose in one round, as compressors and oracles receive it."""

    streams: Streams
    purpose: str
    t: int

    def uniform(self, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """(rows, width) numbers in [0, 1)."""
        return self.streams.uniform(self.purpose, self.t, width, dtype)

    def seeds(self) -> Tensor:
        """(rows,) integers of 53 bits, as seeds of generators."""
        return (self.uniform(1)[:, 0] * 2**53).long()

    def below(self, high: int | Tensor, width: int) -> Tensor:
        """(rows, width) integers in [0, high), with replacement; `high` may be a tensor with one value per client."""
        if isinstance(high, Tensor):
            high = high.repeat(len(self.streams.seeds))[:, None]
            return torch.minimum((self.uniform(width) * high).long(), high - 1)
        return (self.uniform(width) * high).long().clamp_(max=high - 1)

    def normal(self, width: int) -> Tensor:
        """(rows, width) standard normal numbers, in float64."""
        half = 2.0**-54  # half a step of the uniform numbers, to exclude 0
        normal: Tensor = torch.special.ndtri(self.uniform(width) + half)
        return normal
