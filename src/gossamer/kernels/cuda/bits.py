# mypy: disable-error-code="no-untyped-def"
"""Bit packing on a GPU: what crosses to the host is what a packet holds."""

import torch
from torch import Tensor

from gossamer.kernels.cuda.language import ceil_div, constexpr, jit, tl
from gossamer.kernels.reference import packed_size

_SIZE = 1024  # bytes or values per program


@jit("count", "length")
def _pack(values, out, shift, count, length, chunks, width: constexpr, size: constexpr):
    """Byte b holds bits 8 b to 8 b + 7 of the row, the lowest first."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    b = (tl.program_id(0) % chunks).to(tl.int64) * size + tl.arange(0, size)
    first = b * 8 // width
    byte = tl.zeros((size,), tl.int64)
    for k in tl.static_range(8 // width + 2):
        j = first + k
        up = j * width - b * 8  # where the value's lowest bit is in this byte
        bits = tl.load(values + row * count + j, (j < count) & (up < 8) & (b < length), -shift).to(tl.int64) + shift
        byte |= tl.where(up >= 0, bits << tl.maximum(up, 0), bits >> tl.maximum(-up, 0))
    tl.store(out + row * length + b, (byte & 255).to(tl.uint8), b < length)


@jit("count", "length")
def _unpack(packed, out, shift, count, length, chunks, width: constexpr, size: constexpr):
    row = (tl.program_id(0) // chunks).to(tl.int64)
    j = (tl.program_id(0) % chunks).to(tl.int64) * size + tl.arange(0, size)
    first, down = j * width // 8, j * width % 8
    value = tl.zeros((size,), tl.int64)
    for k in tl.static_range((width + 6) // 8 + 1):
        byte = tl.load(packed + row * length + first + k, (first + k < length) & (j < count), 0).to(tl.int64)
        up = 8 * k - down
        value |= tl.where(up >= 0, byte << tl.maximum(up, 0), byte >> tl.maximum(-up, 0))
    value = (value & ((1 << width) - 1)) - shift
    tl.store(out + row * count + j, value.to(out.dtype.element_ty), j < count)


def pack_rows(values: Tensor, shift: int, width: int) -> Tensor:
    """(rows, bytes): each row of values + shift, all below 2**width, as `reference.pack` packs it; width up to 56."""
    rows, count = values.shape
    length = packed_size(count, width)
    out = torch.empty(rows, length, dtype=torch.uint8, device=values.device)
    chunks = ceil_div(length, _SIZE)
    _pack[(rows * chunks,)](values.contiguous(), out, shift, count, length, chunks, width, _SIZE)
    return out


def unpack_rows(packed: Tensor, count: int, shift: int, width: int, dtype: torch.dtype) -> Tensor:
    """(rows, count): what `pack_rows` packed."""
    rows, length = packed.shape
    out = torch.empty(rows, count, dtype=dtype, device=packed.device)
    chunks = ceil_div(count, _SIZE)
    _unpack[(rows * chunks,)](packed.contiguous(), out, shift, count, length, chunks, width, _SIZE)
    return out
