"""Bit packing on a CPU."""

from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.kernels import reference
from gossamer.kernels.compile import jit
from gossamer.kernels.reference import Bytes


@jit()
def _pack_rows(values: Any, width: int, out: Any) -> None:
    for i in range(len(values)):
        held, bits, at = np.uint64(0), 0, 0
        for j in range(values.shape[1]):
            value = np.uint64(values[i, j])
            held |= value << np.uint64(bits)
            bits += width
            if bits >= 64:  # a whole word; what did not fit begins the next
                for k in range(8):
                    out[i, at + k] = np.uint8(held >> np.uint64(8 * k))
                at += 8
                bits -= 64
                held = value >> np.uint64(width - bits) if bits else np.uint64(0)
        while bits > 0:
            out[i, at] = np.uint8(held)
            held >>= np.uint64(8)
            bits -= 8
            at += 1


def pack(values: npt.NDArray[np.integer], width: int) -> Bytes:
    """Bytes of (rows, count) values: see `reference.pack`."""
    out = np.empty((len(values), reference.packed_size(values.shape[1], width)), np.uint8)
    _pack_rows(values, width, out)
    return out


@jit()
def _unpack_row(data: Any, width: int, out: Any) -> None:
    held, bits, at, mask = np.uint64(0), 0, 0, (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    for j in range(len(out)):
        if bits >= width:
            out[j] = held & mask
            held >>= np.uint64(width)
            bits -= width
            continue
        value, have = held, bits
        word, took = np.uint64(0), 0
        while took < 8 and at < len(data):
            word |= np.uint64(data[at]) << np.uint64(8 * took)
            at += 1
            took += 1
        value |= word << np.uint64(have)
        out[j] = value & mask
        used = width - have
        held, bits = word >> np.uint64(used) if used < 64 else np.uint64(0), 8 * took - used


def unpack(payload: bytes, count: int, width: int) -> npt.NDArray[np.integer]:
    """The values that `pack` wrote: see `reference.unpack`."""
    reference.check_packed(payload, count, width)
    out: npt.NDArray[np.integer] = np.empty(count, np.uint8 if width <= 8 else np.int64)
    _unpack_row(np.frombuffer(payload, np.uint8), width, out)
    return out
