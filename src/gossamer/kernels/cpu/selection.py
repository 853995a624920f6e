"""The largest numbers of a row on a CPU."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.kernels.blocks import Blocks
from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.pool import split
from gossamer.kernels.reference import Kept


@jit()
def _kth(x: Any, k: int) -> Any:
    """The k-th largest number, k from 1 on; x is put in another order."""
    low, high, at = 0, len(x) - 1, len(x) - k
    while low < high:
        pivot = x[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while x[i] < pivot:
                i += 1
            while x[j] > pivot:
                j -= 1
            if i <= j:
                x[i], x[j] = x[j], x[i]
                i += 1
                j -= 1
        if at <= j:
            high = j
        elif at >= i:
            low = i
        else:
            break
    return x[at]


@jit()
def _largest_rows(x: Any, ends: Any, k: int, out: Any, begin: int, end: int) -> None:
    spare = np.empty(x.shape[1], x.dtype)
    for i in range(begin, end):
        low = at = 0
        for b in range(len(ends)):
            high = ends[b]
            kept = min(k, high - low)
            for j in range(low, high):
                spare[j - low] = abs(x[i, j])
            threshold, above = _kth(spare[: high - low], kept), 0
            for j in range(low, high):
                above += abs(x[i, j]) > threshold
            room = kept - above
            for j in range(low, high):
                size = abs(x[i, j])
                if size > threshold or (size == threshold and room > 0):
                    room -= size == threshold
                    out[i, at] = j
                    at += 1
            low = high


def largest(x: Tensor, blocks: Blocks, k: int) -> Tensor:
    """The places of the k numbers of largest size of each block: see `reference.largest`."""
    numbers = x.numpy()
    out, places = empty((len(numbers), sum(min(k, length) for length in blocks.lengths)), torch.int64)
    split(len(numbers), numbers.size, lambda begin, end: _largest_rows(numbers, blocks.ends, k, places, begin, end))
    return out


@jit()
def _keep_rows(x: Any, own: Any, places: Any, values: Any, moved: Any, dense: Any, begin: int, end: int) -> None:
    zero = x.dtype.type(0)
    for i in range(begin, end):
        for j in range(x.shape[1]):
            moved[i, j] = own[i, j]
            dense[i, j] = zero
        for k in range(places.shape[1]):
            j = places[i, k]
            values[i, k] = dense[i, j] = x[i, j]
            moved[i, j] += x[i, j]


def keep(x: Tensor, own: Tensor, blocks: Blocks, k: int) -> Kept:
    """The numbers that `largest` finds, and own + them: see `reference.keep`."""
    found, numbers, before = largest(x, blocks, k), x.numpy(), own.numpy()
    places = found.numpy()
    kept, values = empty(places.shape, x.dtype)
    moved, to = empty(numbers.shape, own.dtype, [before])
    whole, dense = empty(numbers.shape, x.dtype)
    given = numbers, before, places, values, to, dense
    split(len(numbers), numbers.size, lambda begin, end: _keep_rows(*given, begin, end))
    return Kept(found, kept, moved, whole)
