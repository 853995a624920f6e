"""Compressors built from other compressors: scaled to a contraction, or applied to blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Followed, Message
from gossamer.compression.layout import Layout
from gossamer.errors import InputError, check_integer, settle
from gossamer.registry import compressors
from gossamer.streams import Draw


def _compressor(value: Any) -> Compressor:
    """A compressor from an instance or a description such as `"qsgd:16"`."""
    built = compressors.build(value)
    if not isinstance(built, Compressor):
        raise InputError(f"`operator` must be a compressor such as qsgd(16), got {value!r}.")
    return built


@compressors.register("scaled")
@dataclass(frozen=True)
class scaled(Compressor):
    """C(x) = C'(x) / (1 + omega), which turns an unbiased C' into a contraction (BEER, section 2.2).

    alpha = 1 / (1 + omega); `scaled(qsgd(16))` is `gsgd(5)`.

    Args:
        operator: An unbiased compressor.
    """

    operator: Compressor
    examples = (
        {"operator": "qsgd:16"},
        {"operator": "natural"},
        {"operator": {"name": "rand_k", "k": 3, "unbiased": True}},
    )

    def __post_init__(self) -> None:
        settle(self, operator=_compressor(self.operator))
        if not self.operator.is_unbiased:
            raise InputError(f"`scaled` takes an unbiased compressor, such as qsgd(16), but {self.operator} is biased.")

    def alpha(self, d: int) -> float:
        """1 / (1 + omega)."""
        omega = self.operator.omega(d)
        assert omega is not None
        return 1 / (1 + omega)

    @property
    def is_deterministic(self) -> bool:
        """As the operator."""
        return self.operator.is_deterministic

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Message:
        """The message of the operator, divided by 1 + omega."""
        return self.operator.compress(x, draw, layout).times(self.alpha(layout.size))


@compressors.register("blockwise")
@dataclass(frozen=True)
class blockwise(Compressor):
    """An operator applied to blocks of coordinates, each with its own norm. alpha and omega are those of one block.

    At a million coordinates gsgd(5) has alpha = 1/63; in blocks of 256 it has 1/2.

    Args:
        operator: The compressor applied to each block.
        size: Coordinates per block; the last block may be shorter.
        tensors: The sizes of the model's tensors, in the order in which they are flattened; no block crosses a tensor
            boundary.
    """

    operator: Compressor
    size: int = 256
    tensors: Sequence[int] = ()
    examples = (
        {"operator": "gsgd:5", "size": 256},
        {"operator": "gsgd:5", "size": 3},
        {"operator": "top_k:2", "size": 4},
        {"operator": "sign", "size": 5},
        {"operator": "rand_k:2", "size": 4},
        {"operator": {"name": "scaled", "operator": "qsgd:4"}, "size": 50},
    )

    def __post_init__(self) -> None:
        if not isinstance(self.tensors, Sequence) or isinstance(self.tensors, str):
            raise InputError(f"`tensors` must be a list of sizes, got {self.tensors!r}.")
        settle(
            self,
            operator=_compressor(self.operator),
            size=check_integer("size", self.size, 1),
            tensors=tuple(check_integer("tensors", tensor, 1) for tensor in self.tensors),
        )
        inner = self.operator
        while isinstance(inner, scaled):
            inner = inner.operator
        if isinstance(inner, blockwise):
            raise InputError(f"Blocks of blocks are not supported: {inner} is already blockwise.")

    def _size(self, d: int) -> int:
        return min(self.size, max(self.tensors, default=d), d)

    def alpha(self, d: int) -> float:
        """alpha of one block."""
        return self.operator.alpha(self._size(d))

    @property
    def is_unbiased(self) -> bool:
        """As the operator."""
        return self.operator.is_unbiased

    def omega(self, d: int) -> float | None:
        """omega of one block."""
        return self.operator.omega(self._size(d))

    @property
    def is_deterministic(self) -> bool:
        """As the operator."""
        return self.operator.is_deterministic

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Message:
        """The message of the operator, with one norm per block."""
        return self.operator.compress(x, draw, self._cut(layout.d))

    def follow(self, value: Tensor, own: Tensor, draw: Draw, layout: Layout, dtype: torch.dtype) -> Followed:
        """As the operator does, with one norm per block."""
        return self.operator.follow(value, own, draw, self._cut(layout.d), dtype)

    def _cut(self, d: int) -> Layout:
        if self.tensors and sum(self.tensors) != d:
            raise InputError(f"`tensors` sum to {sum(self.tensors)} coordinates, but the vector has {d}.")
        return _blocks(d, self._size(d), tuple(self.tensors))


@lru_cache(maxsize=64)
def _blocks(d: int, size: int, tensors: tuple[int, ...]) -> Layout:
    """Kept, because the places of many blocks take longer to find than to use."""
    return Layout(d, size, tensors)
