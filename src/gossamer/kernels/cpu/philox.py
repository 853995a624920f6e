"""Keyed random numbers on a CPU."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.pool import split
from gossamer.kernels.stream import Stream, per_group

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_SHIFT = np.uint64(32)


@jit(inline="always")
def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    for _ in range(10):
        p0, p1 = _M0 * np.uint64(c0), _M1 * np.uint64(c2)
        c0, c1, c2, c3 = (
            np.uint32(p1 >> _SHIFT) ^ c1 ^ k0,
            np.uint32(p1),
            np.uint32(p0 >> _SHIFT) ^ c3 ^ k1,
            np.uint32(p0),
        )
        k0, k1 = np.uint32(k0 + _W0), np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@jit()
def fill(seed: Any, client: Any, purpose: Any, t: Any, group: int, groups: int, out: Any) -> None:
    """The numbers of some groups of 16 counters, from `group` on; `out` has room for all of them."""
    k0, k1 = np.uint32(seed), np.uint32(seed >> _SHIFT)
    if out.itemsize == 4:
        step = np.float32(2.0**-24)
        for g in range(groups):
            for i in range(16):
                c0 = np.uint32((group + g) * 16 + i)
                a, b, c, d = _philox(c0, t, client, purpose, k0, k1)
                at = 64 * g + i
                out[at] = np.float32(a >> np.uint32(8)) * step
                out[at + 16] = np.float32(b >> np.uint32(8)) * step
                out[at + 32] = np.float32(c >> np.uint32(8)) * step
                out[at + 48] = np.float32(d >> np.uint32(8)) * step
    else:
        high, low = np.float64(2.0**-27), np.float64(2.0**-53)
        for g in range(groups):
            for i in range(16):
                c0 = np.uint32((group + g) * 16 + i)
                a, b, c, d = _philox(c0, t, client, purpose, k0, k1)
                at = 32 * g + i
                # Both parts are multiples of 2^-53, so their sum is exact.
                out[at] = np.float64(a >> np.uint32(5)) * high + np.float64(b >> np.uint32(6)) * low
                out[at + 16] = np.float64(c >> np.uint32(5)) * high + np.float64(d >> np.uint32(6)) * low


def place(stream: Stream) -> tuple[Any, Any]:
    """The purpose and the round of a stream as arrays; a round that is a tensor is read when the kernel runs."""
    t = stream.t.numpy().reshape(1) if isinstance(stream.t, Tensor) else np.array([stream.t], np.int64)
    return np.uint32(stream.purpose), t


@jit()
def _uniform_rows(seeds: Any, clients: Any, place: Any, per: int, out: Any, begin: int, end: int) -> None:
    width, purpose, t = out.shape[1], place[0], np.uint32(place[1][0])
    whole = width // per
    rest = np.empty(per, out.dtype)
    for i in range(begin, end):
        if whole:
            fill(seeds[i], clients[i], purpose, t, 0, whole, out[i])
        if whole * per < width:
            fill(seeds[i], clients[i], purpose, t, whole, 1, rest)
            for j in range(whole * per, width):
                out[i, j] = rest[j - whole * per]


def uniform(stream: Stream, width: int, dtype: torch.dtype) -> Tensor:
    """Numbers in [0, 1): see `reference.uniform`."""
    seeds, clients = stream.keys.arrays
    out, view = empty((len(seeds), width), dtype)
    where, per = place(stream), per_group(dtype)
    split(len(seeds), view.size, lambda begin, end: _uniform_rows(seeds, clients, where, per, view, begin, end))
    return out


@jit()
def _below_rows(seeds: Any, clients: Any, place: Any, high: Any, out: Any, begin: int, end: int) -> None:
    width, purpose, t = out.shape[1], place[0], np.uint32(place[1][0])
    u = np.empty((width + 31) // 32 * 32)
    for i in range(begin, end):
        fill(seeds[i], clients[i], purpose, t, 0, len(u) // 32, u)
        most = high[i % len(high)]
        for j in range(width):
            out[i, j] = min(np.int64(u[j] * most), most - 1)


def below(stream: Stream, high: Tensor, width: int) -> Tensor:
    """Integers below a number per row: see `reference.below`."""
    seeds, clients = stream.keys.arrays
    out, view = empty((len(seeds), width), torch.int64)
    where, most = place(stream), high.numpy()
    split(len(seeds), view.size, lambda begin, end: _below_rows(seeds, clients, where, most, view, begin, end))
    return out
