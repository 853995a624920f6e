"""Sparsification: a few coordinates as they are, the rest zero."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Message
from gossamer.compression.bits import pack, packed_size, unpack
from gossamer.compression.dense import floats_from_bytes, floats_to_bytes
from gossamer.errors import CodecError, InputError, check_integer, check_unit, settle
from gossamer.registry import compressors
from gossamer.streams import Draw


@dataclass(frozen=True, eq=False)
class Sparse(Message):
    """k indices a row, rising, and their values."""

    indices: Tensor
    values: Tensor
    d: int
    kind: ClassVar[int] = 3

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        return self.indices.shape[0], self.d

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    def _dense(self) -> Tensor:
        return self.values.new_zeros(self.shape).scatter_(1, self.indices, self.values)

    @property
    def parameter(self) -> int:
        """K."""
        return self.indices.shape[1]

    def payload_size(self) -> int:
        """The packed indices and the values."""
        k = self.parameter
        return packed_size(k, index_width(self.d)) + k * self.values.element_size()

    def payloads(self) -> list[bytes]:
        """Each row's indices, ceil(log2 d) bits each, then its values."""
        packed = pack(self.indices.cpu().numpy(), index_width(self.d))
        return [row.tobytes() + values for row, values in zip(packed, floats_to_bytes(self.values), strict=True)]

    @classmethod
    def parse(cls, payload: bytes, parameter: int, d: int, dtype: torch.dtype) -> Self:
        """Read indices and values back; indices that do not rise or are not below d are refused."""
        if not 1 <= parameter <= d:
            raise CodecError(f"{parameter} of {d} coordinates cannot be kept.")
        split = packed_size(parameter, index_width(d))
        indices = unpack(payload[:split], parameter, index_width(d))
        if indices[-1] >= d or (np.diff(indices) <= 0).any():
            raise CodecError(f"Indices must rise and stay below {d}.")
        values = floats_from_bytes(payload[split:], parameter, dtype)
        return cls(torch.from_numpy(indices)[None], values[None], d)

    @property
    def bits_paper(self) -> int:
        """The values alone."""
        return 8 * self.parameter * self.values.element_size()


@compressors.register("top_k")
@dataclass(frozen=True)
class top_k(Compressor):
    """top_k: keeps the k coordinates of largest magnitude (BEER, appendix A; Stich et al., 2018). alpha = k / d.

    Ties go to the lowest index, on every device.

    Args:
        k: How many coordinates to keep; more than a vector has keeps them all.
        fraction: Instead of k: the share of the coordinates to keep, in (0, 1]; at least one is kept.
    """

    k: int | None = None
    fraction: float | None = None
    examples = ({"k": 3}, {"k": 1}, {"fraction": 0.25})

    def __post_init__(self) -> None:
        if self.fraction is None and isinstance(self.k, float):  # top_k(0.1) and "top_k:0.1" are shares
            settle(self, k=None, fraction=self.k)
        if (self.k is None) == (self.fraction is None):
            raise InputError(f"`top_k` takes either `k` or `fraction`, got k={self.k}, fraction={self.fraction}.")
        if self.k is not None:
            settle(self, k=check_integer("k", self.k, 1))
        if self.fraction is not None:
            settle(self, fraction=check_unit("fraction", self.fraction))

    def kept(self, d: int) -> int:
        """How many of d coordinates are kept."""
        if self.k is not None:
            return min(self.k, d)
        assert self.fraction is not None
        return max(1, round(self.fraction * d))

    def alpha(self, d: int) -> float:
        """K / d."""
        return self.kept(d) / d

    @property
    def is_deterministic(self) -> bool:
        """Yes."""
        return True

    def compress(self, x: Tensor, draw: Draw) -> Sparse:
        """Keep the largest of each row."""
        rows, d = x.shape
        k = self.kept(d)
        size = x.abs()
        # torch.topk breaks ties as it likes, so it gives only the k-th largest size; among its equals the first win.
        threshold = size.topk(k, dim=1).values[:, -1:]
        above = size > threshold
        equal = size == threshold
        room = k - above.sum(dim=1, keepdim=True)
        kept = above | (equal & (equal.cumsum(dim=1) <= room))
        indices = kept.nonzero()[:, 1].view(rows, k)
        return Sparse(indices, x.gather(1, indices), d)


def index_width(d: int) -> int:
    """Bits that an index below d takes."""
    return (d - 1).bit_length()
