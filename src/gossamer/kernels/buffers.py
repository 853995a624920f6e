"""Large results in memory that is used again: fresh pages cost more than the arithmetic that fills them."""

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]

_LARGE = 1 << 20  # bytes from which memory is kept
_LINE = 64  # bytes; to a multiple of which it is aligned
_NUMPY: dict[torch.dtype, Any] = {
    kind: torch.empty(0, dtype=kind).numpy().dtype
    for kind in (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)
}
_kept: dict[int, list[Array]] = {}


def empty(shape: tuple[int, ...], dtype: torch.dtype, over: Sequence[Array] = ()) -> tuple[Tensor, Array]:
    """A tensor on the CPU with any content, and its array. Memory is used again once nothing refers to it any more.

    As far as this kernel is concerned, any of `over` could be written over.
    """
    kind, noted = _NUMPY[dtype], _noted.get()
    if noted is not None and noted.given is not None:
        array = noted.given[len(noted.arrays)]
        if (array.shape, array.dtype) != (shape, kind):
            raise ValueError(f"memory for {array.shape} {array.dtype} was prepared, but {shape} {kind} is asked for")
    else:
        size = math.prod(shape) * kind.itemsize
        array = np.empty(shape, kind) if size < _LARGE else _block(size).view(kind).reshape(shape)
    if noted is not None:
        noted.arrays.append(array)
        noted.over.append([one.ctypes.data for one in over])
    return torch.from_numpy(array), array


class Noted:
    """The memory that kernels asked for, in its order; or that they are to be given."""

    def __init__(self, given: Sequence[Array] | None = None) -> None:
        self.given, self.arrays = given, list[Array]()
        self.over: list[list[int]] = []
        """The addresses of what each could have been written over."""


_noted: ContextVar[Noted | None] = ContextVar("noted", default=None)


@contextlib.contextmanager
def noting(noted: Noted) -> Iterator[None]:
    """Note what `empty` returns inside; nothing of it is used twice."""
    token = _noted.set(noted)
    try:
        yield
    finally:
        _noted.reset(token)


def _block(size: int) -> Array:
    blocks = _kept.setdefault(size, [])
    for block in blocks:
        if sys.getrefcount(block) == 3:  # the list, `block` and the call: no array or tensor uses it
            return _aligned(block, size)
    for other in [known for known in _kept if known != size]:  # give back what nobody uses
        _kept[other] = [block for block in _kept[other] if sys.getrefcount(block) > 3]
        if not _kept[other]:
            del _kept[other]
    blocks.append(np.empty(size + _LINE, np.uint8))
    return _aligned(blocks[-1], size)


def _aligned(block: Array, size: int) -> Array:
    begin = -block.ctypes.data % _LINE
    return block[begin : begin + size]


def clear() -> None:
    """Forget all blocks; memory that a tensor still uses goes with the tensor."""
    _kept.clear()
