"""Blocks of coordinates that share a norm."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from gossamer.compression.coding.wire import Reader, varint
from gossamer.errors import CodecError
from gossamer.kernels import Blocks

_MOST_TENSORS = 1 << 20


@dataclass(frozen=True)
class Layout:
    """d coordinates in blocks of `size`; the last may be shorter. With `tensors`, no block crosses a tensor boundary.

    Compressors see (rows * blocks, size), with short blocks padded with zeros.
    """

    d: int
    size: int
    tensors: tuple[int, ...] = ()

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The number of coordinates in each block."""
        lengths: list[int] = []
        for tensor in self.tensors or (self.d,):
            whole, rest = divmod(tensor, self.size)
            lengths += [self.size] * whole + [rest] * (rest > 0)
        return tuple(lengths)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return sum(-(-tensor // self.size) for tensor in self.tensors or (self.d,))

    @cached_property
    def _places(self) -> Tensor | None:
        """The place of each coordinate among the padded blocks; None if it is the coordinate's own index."""
        if not self.tensors:
            return None
        starts = np.arange(self.blocks) * self.size
        return torch.from_numpy(np.concatenate([s + np.arange(n) for s, n in zip(starts, self.lengths, strict=True)]))

    def split(self, x: Tensor) -> Tensor:
        """Split (rows, d) into (rows * blocks, size), padded with zeros."""
        rows = x.shape[0]
        if self.blocks * self.size == self.d:
            return x.reshape(rows * self.blocks, self.size)
        padded = x.new_zeros(rows, self.blocks * self.size)
        if self._places is None:
            padded[:, : self.d] = x
        else:
            padded[:, self._places.to(x.device)] = x
        return padded.view(rows * self.blocks, self.size)

    def merge(self, parts: Tensor) -> Tensor:
        """Join (rows * blocks, size) to (rows, d), without the padding."""
        flat = parts.reshape(-1, self.blocks * self.size)
        return flat[:, : self.d] if self._places is None else flat[:, self._places.to(parts.device)]

    @cached_property
    def cut(self) -> Blocks:
        """The blocks as kernels take them."""
        return Blocks(self.lengths)

    @staticmethod
    @lru_cache(maxsize=64)
    def whole(d: int) -> "Layout":
        """All coordinates as one block."""
        return Layout(d, d)

    def head(self) -> bytes:
        """The bytes that describe the layout to a receiver that knows d: one byte for a single block."""
        if self.blocks == 1:
            return varint(0)
        return varint(self.size) + varint(len(self.tensors)) + b"".join(map(varint, self.tensors))

    @classmethod
    def parse(cls, reader: Reader, d: int) -> "Layout":
        """Decode what `head` wrote."""
        size = reader.varint()
        if size == 0:
            return cls(d, d)
        count = reader.varint()
        if count > min(d, _MOST_TENSORS, reader.left):
            raise CodecError(f"Invalid number of tensors {count} for {d} coordinates.")
        tensors = tuple(reader.varint() for _ in range(count))
        if size > max(tensors, default=d) or 0 in tensors or (tensors and sum(tensors) != d):
            raise CodecError(f"Blocks of {size} and tensors of {tensors[:5]} do not match {d} coordinates.")
        layout = cls(d, size, tensors)
        if not 1 < layout.blocks <= reader.left:  # every block takes at least one byte of what follows
            raise CodecError(f"Invalid number of blocks {layout.blocks} for {reader.left} remaining bytes.")
        return layout
