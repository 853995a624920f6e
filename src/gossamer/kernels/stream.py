"""What a random number depends on: the seed, the client, the purpose and the round."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

BESIDE = 16
"""Counters side by side: their numbers are laid out in runs of 16, which vector units and GPUs write at once."""


@dataclass(frozen=True)
class Keys:
    """The seed and the client of each row."""

    seeds: Tensor
    """(rows,), int64 with the bits of an unsigned number."""
    clients: Tensor
    """(rows,), int64."""

    @classmethod
    def of(cls, seeds: Any, clients: Any, device: torch.device | str = "cpu") -> "Keys":
        """For lists of unsigned integers."""
        return cls(
            torch.from_numpy(np.asarray(seeds, np.uint64).view(np.int64)).to(device),
            torch.from_numpy(np.asarray(clients, np.int64)).to(device),
        )

    @cached_property
    def arrays(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Seeds as uint64 and clients as uint32."""
        return self.seeds.cpu().numpy().view(np.uint64), self.clients.cpu().numpy().astype(np.uint32)


class Stream(NamedTuple):
    """The random numbers of rows for one purpose in one round."""

    keys: Keys
    purpose: int
    """A number below 2^32."""
    t: int | Tensor
    """The round; a tensor on the device where a CUDA graph is to be replayed with another round."""


def per_group(dtype: torch.dtype) -> int:
    """Numbers that 16 counters give: four 32-bit words are four float32 numbers or two float64 numbers."""
    return BESIDE * (4 if dtype == torch.float32 else 2)
