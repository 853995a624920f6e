"""Signs and powers of two on a CPU, a row at a time."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.kernels.blocks import Blocks
from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.cpu.philox import fill, place
from gossamer.kernels.pool import split
from gossamer.kernels.reference import FURTHEST, LARGEST, Powered, Signed
from gossamer.kernels.stream import Stream

_CHUNK = 2048  # coordinates at once: they stay in the first cache


@jit()
def _mean(value: Any, own: Any, kind: Any) -> Any:
    """The mean of |value - own|, summed in float64 by 16 lanes."""
    lanes, many = np.zeros(16), np.float64(len(value))
    for j in range(len(value)):
        if own is None:
            e = kind.dtype.type(value[j])
        else:
            e = kind.dtype.type(value[j] - own[j])
        lanes[j % 16] += abs(np.float64(e)) / many
    half = 8
    while half:
        for k in range(half):
            lanes[k] += lanes[k + half]
        half //= 2
    return kind.dtype.type(lanes[0])


@jit()
def _sign_rows(value: Any, own: Any, ends: Any, scale: Any, negative: Any, moved: Any, begin: int, end: int) -> bool:
    is_finite, zero = True, scale.dtype.type(0)
    for i in range(begin, end):
        low = 0
        for b in range(len(ends)):
            high = ends[b]
            if own is None:
                scale[i, b] = _mean(value[i, low:high], None, scale)
            else:
                scale[i, b] = _mean(value[i, low:high], own[i, low:high], scale)
            s = scale[i, b]
            is_finite &= np.isfinite(s)
            for j in range(low, high):
                if own is None:
                    e = scale.dtype.type(value[i, j])
                else:
                    e = scale.dtype.type(value[i, j] - own[i, j])
                negative[i, j] = e < zero
                if own is not None:
                    moved[i, j] = own[i, j] + (-s if e < zero else s)
            low = high
    return is_finite


def signs(value: Tensor, own: Tensor | None, blocks: Blocks, dtype: torch.dtype) -> Signed:
    """Signs and mean magnitudes: see `reference.signs`."""
    x = value.numpy()
    scale, scales = empty((len(x), len(blocks.lengths)), dtype)
    negative, flags = empty(x.shape, torch.bool)
    moved, to = (None, None) if own is None else empty(x.shape, own.dtype)
    given = x, None if own is None else own.numpy(), blocks.ends, scales, flags, to
    is_finite = split(len(x), x.size, lambda begin, end: bool(_sign_rows(*given, begin, end)))
    return Signed(scale, negative, moved, is_finite)


@jit()
def _power_rows(
    value: Any, own: Any, seeds: Any, clients: Any, where: Any, highest: int, like: Any, top: Any, codes: Any,
    moved: Any, begin: int, end: int,
) -> bool:  # fmt: skip
    d, is_finite, per = value.shape[1], True, 64 if like.itemsize == 4 else 32
    purpose, t = where[0], np.uint32(where[1][0])
    u, powers = np.empty(_CHUNK, like.dtype), np.empty(d, np.int64)
    for i in range(begin, end):
        above = -1100
        for start in range(0, d, _CHUNK):
            stop = min(d, start + _CHUNK)
            fill(seeds[i], clients[i], purpose, t, start // per, (stop - start + per - 1) // per, u)
            for j in range(start, stop):
                if own is None:
                    e = like.dtype.type(value[i, j])
                else:
                    e = like.dtype.type(value[i, j] - own[i, j])
                is_finite &= np.isfinite(e)
                mantissa, exponent = math.frexp(abs(np.float64(e)))
                power = min(exponent - 1 + (u[j - start] < 2 * mantissa - 1), highest)
                powers[j] = -(1 << 20) if e == 0 else power
                above = max(above, powers[j])
        top[i] = above
        for j in range(d):
            if own is None:
                e = like.dtype.type(value[i, j])
            else:
                e = like.dtype.type(value[i, j] - own[i, j])
            code = above - powers[j] + 1
            code = code if code <= FURTHEST else 0
            codes[i, j] = -code if e < 0 else code
            if own is not None:
                size = np.float64(0) if code == 0 else math.ldexp(1.0, above + 1 - code)
                moved[i, j] = own[i, j] + np.float64(like.dtype.type(-size if e < 0 else size))
    return is_finite


def powers(value: Tensor, own: Tensor | None, stream: Stream, dtype: torch.dtype) -> Powered:
    """Powers of two: see `reference.powers`."""
    x = value.numpy()
    where, like = place(stream), empty((1,), dtype)[1]
    top, tops = empty((len(x),), torch.int64)
    codes, symbols = empty(x.shape, torch.int16)
    moved, to = (None, None) if own is None else empty(x.shape, own.dtype)
    given = x, None if own is None else own.numpy(), *stream.keys.arrays, where, LARGEST[dtype], like
    outs = tops, symbols, to
    is_finite = split(len(x), x.size, lambda begin, end: bool(_power_rows(*given, *outs, begin, end)))
    return Powered(top, codes, moved, is_finite)
