"""Large results in memory that is used again: fresh pages cost more than the arithmetic that fills them."""

import math
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]

_LARGE = 1 << 20  # bytes from which memory is kept
_NUMPY: dict[torch.dtype, Any] = {
    kind: torch.empty(0, dtype=kind).numpy().dtype
    for kind in (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64)
}
_kept: dict[int, list[Array]] = {}


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Array]:
    """A tensor on the CPU with any content, and its array. Memory is used again once nothing refers to it any more."""
    kind = _NUMPY[dtype]
    size = math.prod(shape) * kind.itemsize
    array = np.empty(shape, kind) if size < _LARGE else _block(size).view(kind).reshape(shape)
    return torch.from_numpy(array), array


def _block(size: int) -> Array:
    blocks = _kept.setdefault(size, [])
    for block in blocks:
        if sys.getrefcount(block) == 3:  # the list, `block` and the call: no array or tensor uses it
            return block
    for other in [known for known in _kept if known != size]:  # give back what nobody uses
        _kept[other] = [block for block in _kept[other] if sys.getrefcount(block) > 3]
        if not _kept[other]:
            del _kept[other]
    blocks.append(np.empty(size, np.uint8))
    return blocks[-1]


def clear() -> None:
    """Forget all blocks; memory that a tensor still uses goes with the tensor."""
    _kept.clear()
