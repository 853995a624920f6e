"""Dithering on a CPU: differences, norms, levels and moved surrogates, a row at a time."""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.kernels.blocks import Blocks
from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.cpu.philox import fill, place
from gossamer.kernels.cpu.vectors import add_past, goes_past, square_blocks
from gossamer.kernels.pool import split
from gossamer.kernels.reference import Dithered
from gossamer.kernels.stream import Stream

Array = np.ndarray[Any, Any]

_CHUNK = 2048  # coordinates at once: they stay in the first cache


@jit()
def _difference(value: Any, own: Any, out: Any) -> None:
    """value - own, rounded to the type of a message."""
    if own is None:
        for j in range(len(out)):
            out[j] = value[j]
    else:
        for j in range(len(out)):
            out[j] = value[j] - own[j]


@jit()
def _add_squares(e: Any, lanes: Any) -> None:
    """Add e^2 to the 16 lanes, from the first on."""
    whole = len(e) // 16 * 16
    for j in range(0, whole, 16):
        for k in range(16):
            lanes[k] += np.float64(e[j + k]) * np.float64(e[j + k])
    for j in range(whole, len(e)):
        lanes[j - whole] += np.float64(e[j]) * np.float64(e[j])


@jit()
def _squares(value: Any, own: Any, shrink: Any, e: Any) -> Any:
    """The sum of ((value - own) / shrink)^2 in float64 by 16 lanes."""
    lanes, begun = np.zeros(16), 0
    if shrink is None:
        begun = square_blocks(value, own, e, lanes)
    for start in range(begun, len(value), _CHUNK):
        stop = min(len(value), start + _CHUNK)
        if own is None:
            _difference(value[start:stop], None, e[: stop - start])
        else:
            _difference(value[start:stop], own[start:stop], e[: stop - start])
        if shrink is not None:
            for j in range(stop - start):
                e[j] /= shrink
        _add_squares(e[: stop - start], lanes)
    half = 8
    while half:
        for k in range(half):
            lanes[k] += lanes[k + half]
        half //= 2
    return lanes[0]


@jit()
def _norm(value: Any, own: Any, e: Any) -> Any:
    """||value - own||, rounded to the type of a message."""
    total = _squares(value, own, None, e)
    if e.itemsize == 4 or 1e-280 < total < 1e280:
        return e.dtype.type(np.sqrt(total))
    largest = 0.0
    for j in range(len(value)):
        if own is None:
            largest = max(largest, abs(np.float64(value[j])))
        else:
            largest = max(largest, abs(np.float64(value[j] - own[j])))
    if not 0.0 < largest < np.inf:
        return e.dtype.type(np.sqrt(total))
    return e.dtype.type(np.sqrt(_squares(value, own, largest, e)) * largest)


@jit()
def _round_at_random(e: Any, u: Any, by: Any, highest: Any, levels: Any) -> None:
    """sign(e) floor(highest |e| / by + u); e is left with its sign and size lost: the levels as floats."""
    one, zero = e.dtype.type(1), e.dtype.type(0)
    for j in range(len(e)):
        y = abs(e[j]) / by * highest
        w = np.floor(y)
        w = min(w + (one if (y - w) + u[j] >= one else zero), highest)
        w = (-w if e[j] < zero else w) + zero
        e[j] = w
        levels[j] = w


@jit()
def _moved(own: Any, w: Any, s: Any, out: Any, is_past: bool) -> None:
    if is_past:
        add_past(own, w, s, out)
    elif own.ctypes.data == out.ctypes.data:
        for j in range(len(out)):  # in place: said so, the loop is compiled for it
            out[j] += w[j] * s
    else:
        for j in range(len(out)):
            out[j] = own[j] + w[j] * s


@jit()
def _dither_rows(
    value: Any, own: Any, seeds: Any, clients: Any, where: Any, ends: Any, sizes: Any, norm: Any, scale: Any,
    levels: Any, moved: Any, is_past: bool, begin: int, end: int,
) -> bool:  # fmt: skip
    """Norms, levels and moved surrogates of some rows; whether all numbers are finite."""
    d, is_finite, zero = value.shape[1], True, norm.dtype.type(0)
    highest, divisor, room = sizes[0], sizes[1], sizes[2]
    per, purpose, t = 64 if norm.itemsize == 4 else 32, where[0], np.uint32(where[1][0])
    u, e = np.empty(_CHUNK, norm.dtype), np.empty(_CHUNK, norm.dtype)
    for i in range(begin, end):
        low = 0
        for b in range(len(ends)):
            high = ends[b]
            if own is None:
                norm[i, b] = _norm(value[i, low:high], None, e)
            else:
                norm[i, b] = _norm(value[i, low:high], own[i, low:high], e)
            scale[i, b] = norm[i, b] / divisor
            is_finite &= np.isfinite(norm[i, b] + scale[i, b] * room)
            low = high
        b = 0
        for start in range(0, d, _CHUNK):
            stop = min(d, start + _CHUNK)
            fill(seeds[i], clients[i], purpose, t, start // per, (stop - start + per - 1) // per, u)
            if own is None:
                _difference(value[i, start:stop], None, e[: stop - start])
            else:
                _difference(value[i, start:stop], own[i, start:stop], e[: stop - start])
            low = start
            while low < stop:
                high, by = min(stop, ends[b]), norm[i, b]
                at, to = low - start, high - start
                by = by if by > zero else norm.dtype.type(1)
                _round_at_random(e[at:to], u[at:to], by, highest, levels[i, low:high])
                if own is not None:
                    _moved(own[i, low:high], e[at:to], scale[i, b], moved[i, low:high], is_past)
                low = high
                b += high == ends[b]
    return is_finite


@cache
def _sizes(highest: int, tau: float, dtype: torch.dtype) -> Array:
    """The highest level, the divisor of a norm, and how far a level may reach, with room for rounding."""
    return np.array([highest, tau * highest, 1.001 * highest], torch.empty(0, dtype=dtype).numpy().dtype)


def dither(
    value: Tensor,
    own: Tensor | None,
    stream: Stream,
    blocks: Blocks,
    highest: int,
    tau: float,
    dtype: torch.dtype,
    kind: torch.dtype,
) -> Dithered:
    """Levels of each block: see `reference.dither`."""
    x = value.numpy()
    shape = rows, _ = x.shape
    where, sizes = place(stream), _sizes(highest, tau, dtype)
    numbers, norm_and_scale = empty((2, rows, len(blocks.lengths)), dtype)
    levels, symbols = empty(shape, kind)
    moved, to = (None, None) if own is None else empty(shape, own.dtype, [own.numpy()])
    given = x, None if own is None else own.numpy(), *stream.keys.arrays, where, blocks.ends, sizes
    outs = norm_and_scale[0], norm_and_scale[1], symbols, to, own is not None and goes_past(to, own.numpy())
    is_finite = split(rows, x.size, lambda begin, end: bool(_dither_rows(*given, *outs, begin, end)))
    return Dithered(numbers[0], numbers[1], levels, moved, is_finite)
