"""Keyed randomness: every draw is a function of (seed, client, purpose, round) alone.

NumPy's Philox is a counter-based generator: its key holds (seed, client, purpose), and round `t` reads the `t`-th
stretch of the stream, so a client draws the same numbers whether it runs alone in a process or beside a thousand
others, in whatever order rounds are asked for. Rounds are drawn a block at a time, because making a generator costs
more than drawing a short vector from it.
"""

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import check_integer

_WORDS = 4  # 64-bit words that Philox yields for one step of its counter
_BLOCK = 1 << 24  # numbers kept drawn ahead for one purpose, at the most
_WORTH_THREADS = 1 << 20  # numbers in a block from which drawing rows side by side pays
_ROUNDS = 256  # rounds drawn ahead, at the most


class Streams:
    """The streams of some rows; row r belongs to the client `clients[r % n]` in the run with seed `seeds[r // n]`."""

    def __init__(self, seeds: Sequence[int], clients: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.seeds = tuple(check_integer("seed", seed, 0, 2**64 - 1) for seed in seeds)
        self.clients = tuple(clients)
        self.device = torch.device(device)
        self._blocks: dict[tuple[str, int, torch.dtype], tuple[int, Tensor]] = {}

    @property
    def rows(self) -> int:
        """How many rows draw from these streams."""
        return len(self.seeds) * len(self.clients)

    def at(self, t: int, purpose: str) -> "Draw":
        """What the rows draw in round `t` for one purpose."""
        return Draw(self, purpose, t)

    def uniform(self, purpose: str, t: int, width: int, dtype: torch.dtype) -> Tensor:
        """(rows, width) numbers in [0, 1), the same for the same seed, client, purpose, round, width and dtype."""
        key = (purpose, width, dtype)
        first, block = self._blocks.get(key, (0, None))
        if block is None or not first <= t < first + block.shape[1]:
            # Blocks double, so that a short run draws little in vain and a long one makes few generators.
            ahead = 8 if block is None else 2 * block.shape[1]
            many = max(1, min(ahead, _ROUNDS, _BLOCK // max(1, self.rows * width)))
            block = None  # the old one need not stay while the new one is drawn
            self._blocks.pop(key, None)
            first, block = t, self._draw(purpose, t, many, width, dtype)
            self._blocks[key] = (first, block)
        return block[:, t - first]

    def _draw(self, purpose: str, first: int, rounds: int, width: int, dtype: torch.dtype) -> Tensor:
        numpy_dtype = np.float32 if dtype == torch.float32 else np.float64
        per_step = _WORDS * (8 // numpy_dtype().itemsize)  # a 64-bit word makes one float64 or two float32
        steps = -(-width // per_step)  # a round begins at a step of the counter, so that it can be reached directly
        # Pinned memory is what a GPU copies from at full speed.
        kept = torch.empty(self.rows, rounds, steps * per_step, dtype=dtype, pin_memory=self.device.type == "cuda")
        drawn = kept.numpy()
        word = zlib.crc32(purpose.encode())
        keys = [(seed, client << 32 | word) for seed in self.seeds for client in self.clients]

        def fill(row: int) -> None:
            key = np.array(keys[row], np.uint64)
            generator = np.random.Generator(np.random.Philox(key=key, counter=first * steps))
            generator.random(out=drawn[row], dtype=numpy_dtype)

        threads = min(torch.get_num_threads(), self.rows) if drawn.size >= _WORTH_THREADS else 1
        if threads > 1:
            with ThreadPoolExecutor(threads) as pool:  # NumPy lets go of the interpreter while it draws
                list(pool.map(fill, range(self.rows)))
        else:
            for row in range(self.rows):
                fill(row)
        return kept.to(self.device)[:, :, :width]


def keyed_uniform(seed: int, purpose: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`count` numbers in [0, 1) that a seed and a purpose stand for: what a message can carry in place of them."""
    key = np.array([seed, zlib.crc32(purpose.encode())], np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random(count)


@dataclass(frozen=True)
class Draw:
    """One purpose in one round: what a compressor or an oracle is handed when it needs randomness."""

    streams: Streams
    purpose: str
    t: int

    def uniform(self, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """(rows, width) numbers in [0, 1)."""
        return self.streams.uniform(self.purpose, self.t, width, dtype)

    def seeds(self) -> Tensor:
        """(rows,) integers of 53 bits, to seed a generator with."""
        return (self.uniform(1)[:, 0] * 2**53).long()

    def below(self, high: int | Tensor, width: int) -> Tensor:
        """(rows, width) integers in [0, high), with replacement; `high` may differ from client to client."""
        if isinstance(high, Tensor):
            high = high.repeat(len(self.streams.seeds))[:, None]
            return torch.minimum((self.uniform(width) * high).long(), high - 1)
        return (self.uniform(width) * high).long().clamp_(max=high - 1)

    def normal(self, width: int) -> Tensor:
        """(rows, width) standard normal numbers, in float64."""
        half = 2.0**-54  # half a step of the uniform numbers: keeps 0 out
        normal: Tensor = torch.special.ndtri(self.uniform(width) + half)
        return normal
