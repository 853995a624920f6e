"""W times rows on a CPU, from values or from the symbols of a message."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.kernels import reference
from gossamer.kernels.blocks import Blocks
from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.cpu.vectors import add_past, goes_past
from gossamer.kernels.pool import split

Array = np.ndarray[Any, Any]

_CHUNK = 2048  # coordinates at once: their sums stay in the first cache
_NO_ENDS = np.empty(0, np.int64)


@jit()
def _add_scaled(sums: Any, q: Any, s: Any, w: float) -> None:
    if s is None:
        for j in range(len(q)):
            sums[j] += w * np.float64(q[j])
    else:
        for j in range(len(q)):
            sums[j] += w * np.float64(s.dtype.type(q[j]) * s[0])


@jit()
def _start_three(sums: Any, q: Any, start: int, at: Any, s: Any, b: int, w: Any) -> None:
    """The sum over the first three neighbours at once: on a ring there are no more, the client itself included."""
    one, two, three = q[at[0], start:], q[at[1], start:], q[at[2], start:]
    u, v, x = w[0], w[1], w[2]
    if s is None:
        for j in range(len(sums)):
            sums[j] = ((0.0 + u * np.float64(one[j])) + v * np.float64(two[j])) + x * np.float64(three[j])
    else:
        a, c, d, kind = s[at[0], b], s[at[1], b], s[at[2], b], s.dtype.type
        for j in range(len(sums)):
            sums[j] = (0.0 + u * np.float64(kind(one[j]) * a)) + v * np.float64(kind(two[j]) * c)
            sums[j] += x * np.float64(kind(three[j]) * d)


@jit()
def _add_sums(mixed: Any, sums: Any, a: float, out: Any, is_past: bool) -> None:
    if mixed is not None and is_past:
        add_past(mixed, sums, a, out)
    elif mixed is not None and mixed.ctypes.data == out.ctypes.data:
        for j in range(len(out)):  # in place: said so, the loop is compiled for it
            out[j] += a * sums[j]
    elif mixed is None:
        for j in range(len(out)):
            out[j] = sums[j]
    elif a == 1.0:
        for j in range(len(out)):
            out[j] = mixed[j] + sums[j]
    else:
        for j in range(len(out)):
            out[j] = mixed[j] + a * sums[j]


@jit()
def _add_rows(
    indptr: Any, indices: Any, weights: Any, clients: int, q: Any, scale: Any, ends: Any, mixed: Any, a: Any, out: Any,
    is_past: bool, begin: int, end: int,
) -> None:  # fmt: skip
    """mixed + a W q for some rows; q is `scale` times q where there is a scale, and there may be no `mixed`."""
    n, d, sums, at = len(indptr) - 1, q.shape[1], np.empty(_CHUNK, np.float64), np.empty(3, np.int64)
    for i in range(begin, end):
        first, first_block = i // n * clients, 0
        for start in range(0, d, _CHUNK):
            stop = min(d, start + _CHUNK)
            while scale is not None and ends[first_block] <= start:
                first_block += 1
            k, last = indptr[i - first], indptr[i - first + 1]
            if last - k >= 3 and (scale is None or ends[first_block] >= stop):
                for m in range(3):
                    at[m] = first + indices[k + m]
                _start_three(sums[: stop - start], q, start, at, scale, first_block, weights[k:])
                k += 3
            else:
                sums[: stop - start] = 0.0
            while k < last:
                row, w = first + indices[k], weights[k]
                if scale is None:
                    _add_scaled(sums, q[row, start:stop], None, w)
                else:
                    b, low = first_block, start
                    while low < stop:
                        high = min(stop, ends[b])
                        _add_scaled(sums[low - start : high - start], q[row, low:high], scale[row, b : b + 1], w)
                        low = high
                        b += 1
                k += 1
            if mixed is None:
                _add_sums(None, sums[: stop - start], a, out[i, start:stop], False)
            else:
                _add_sums(mixed[i, start:stop], sums[: stop - start], a, out[i, start:stop], is_past)


class Mixer(reference.Mixer):
    """W times rows: see `reference.Mixer`."""

    def __init__(self, w: Any, device: torch.device) -> None:
        super().__init__(w, device)
        parts = self.w.indptr.astype(np.int64), self.w.indices.astype(np.int64), self.w.data.astype(np.float64)
        self._parts = *parts, self.clients

    def __call__(self, q: Tensor) -> Tensor:
        """Sum_j w_ij q_j for each row i."""
        return self._add(None, q, None, _NO_ENDS, 1.0)

    def add(self, mixed: Tensor, q: Tensor, a: float = 1.0) -> Tensor:
        """H W + a Q W."""
        return self._add(mixed, q, None, _NO_ENDS, a)

    def add_levels(self, mixed: Tensor, scale: Tensor, levels: Tensor, blocks: Blocks, a: float = 1.0) -> Tensor:
        """The same for Q = scale times levels, without Q."""
        return self._add(mixed, levels, scale, blocks.ends, a)

    def _add(self, mixed: Tensor | None, q: Tensor, scale: Tensor | None, ends: Array, a: float) -> Tensor:
        symbols = q.numpy()
        s, before = None if scale is None else scale.numpy(), None if mixed is None else mixed.numpy()
        kind, over = (torch.float64, []) if mixed is None else (mixed.dtype, [mixed.numpy()])
        rows = len(symbols) // self.clients * self.w.shape[0]
        out, to = empty((rows, symbols.shape[1]), kind, over)
        given = *self._parts, symbols, s, ends, before, float(a), to, before is not None and goes_past(to, before)
        split(rows, symbols.size, lambda begin, end: _add_rows(*given, begin, end), (symbols, to))
        return out
