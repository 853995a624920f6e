"""Blocks of coordinates that share a norm, as kernels see them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Blocks:
    """Consecutive blocks of these lengths."""

    lengths: tuple[int, ...]

    @cached_property
    def ends(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where each block ends."""
        return np.cumsum(self.lengths, dtype=np.int64)

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """Runs of blocks of one length: the first block, how many there are, and where they begin."""
        changes = [0, *(b for b in range(1, len(self.lengths)) if self.lengths[b] != self.lengths[b - 1])]
        begins = [0, *self.ends.tolist()]
        return [(b, after - b, begins[b]) for b, after in zip(changes, [*changes[1:], len(self.lengths)], strict=True)]

    def spread(self, numbers: Tensor) -> Tensor:
        """Repeat each block's number, (rows, blocks), at its coordinates: (rows, d), or (rows, 1) for one block."""
        if len(self.lengths) == 1:
            return numbers
        lengths = torch.tensor(self.lengths, device=numbers.device)
        return numbers.repeat_interleave(lengths, dim=1, output_size=int(self.ends[-1]))
