"""Blocks: which coordinates share a norm."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gossamer.compression.coding.wire import Reader, varint
from gossamer.errors import CodecError

_MOST_TENSORS = 1 << 20


@dataclass(frozen=True)
class Layout:
    """d coordinates in blocks of `size`, the last one shorter; with `tensors`, no block crosses a tensor's boundary.

    Operators see (rows * blocks, size), with zeros in the places that a short block leaves free.
    """

    d: int
    size: int
    tensors: tuple[int, ...] = ()

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """How many coordinates each block holds."""
        lengths: list[int] = []
        for tensor in self.tensors or (self.d,):
            whole, rest = divmod(tensor, self.size)
            lengths += [self.size] * whole + [rest] * (rest > 0)
        return tuple(lengths)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return sum(-(-tensor // self.size) for tensor in self.tensors or (self.d,))

    @cached_property
    def _places(self) -> Tensor | None:
        """Where each coordinate lies among the padded blocks; None where that is its own number."""
        if not self.tensors:
            return None
        starts = np.arange(self.blocks) * self.size
        return torch.from_numpy(np.concatenate([s + np.arange(n) for s, n in zip(starts, self.lengths, strict=True)]))

    def split(self, x: Tensor) -> Tensor:
        """(rows, d) to (rows * blocks, size), padded with zeros."""
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
        """(rows * blocks, size) back to (rows, d): the padding is dropped."""
        flat = parts.reshape(-1, self.blocks * self.size)
        return flat[:, : self.d] if self._places is None else flat[:, self._places.to(parts.device)]

    def spread(self, numbers: Tensor) -> Tensor:
        """(rows, blocks) to (rows, d) or (rows, 1): each block's number at each of its coordinates."""
        if self.blocks == 1:
            return numbers
        if self.tensors:  # without padding: one long tensor among many short ones would take blocks x size numbers
            lengths = torch.tensor(self.lengths, device=numbers.device)
            return numbers.repeat_interleave(lengths, dim=1, output_size=self.d)
        return self.merge(numbers.repeat_interleave(self.size, dim=1).view(-1, self.size))

    def head(self) -> bytes:
        """What the receiver needs beside d: one byte if there is one block alone."""
        if self.blocks == 1:
            return varint(0)
        return varint(self.size) + varint(len(self.tensors)) + b"".join(map(varint, self.tensors))

    @classmethod
    def parse(cls, reader: Reader, d: int) -> "Layout":
        """Read what `head` wrote."""
        size = reader.varint()
        if size == 0:
            return cls(d, d)
        count = reader.varint()
        if count > min(d, _MOST_TENSORS, reader.left):
            raise CodecError(f"{count} tensors cannot share {d} coordinates.")
        tensors = tuple(reader.varint() for _ in range(count))
        if size > max(tensors, default=d) or 0 in tensors or (tensors and sum(tensors) != d):
            raise CodecError(f"Blocks of {size} and tensors of {tensors[:5]} do not fit {d} coordinates.")
        layout = cls(d, size, tensors)
        if not 1 < layout.blocks <= reader.left:  # every block has something of its own in what follows
            raise CodecError(f"{layout.blocks} blocks cannot be described in {reader.left} bytes.")
        return layout
