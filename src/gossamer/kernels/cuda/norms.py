# mypy: disable-error-code="no-untyped-def"
"""Norms of blocks on a GPU: sums of squares in float64, in pieces that different programs add up."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.kernels.blocks import Blocks
from gossamer.kernels.cuda.language import EXACT, ceil_div, constexpr, jit, power_of_2, tl

_LEAST_PIECE = 4096  # coordinates that one program adds up
_MOST_PIECES = 2048  # of a row
_AT_ONCE = 2048  # coordinates of a step
_FINISHED = 256  # norms or pieces that one program finishes


class Pieces(NamedTuple):
    """Pieces of blocks; each is added up by one program. All tables are on the device."""

    bounds: Tensor
    """(pieces + 1,): where each begins, and where the last ends."""
    first: Tensor
    """(blocks + 1,): the first piece of each block."""
    block: Tensor
    """(pieces,): the block of each."""
    many: int
    longest: int
    are_blocks: bool
    """Whether each block is one piece."""
    are_aligned: bool
    """Whether they begin at multiples of 16, so that memory can be read in larger parts."""


@cache  # for good: a recorded round reads the tables again
def pieces_of(blocks: Blocks, device: torch.device) -> Pieces:
    """Blocks in pieces."""
    lengths = np.asarray(blocks.lengths, np.int64)
    size = max(_LEAST_PIECE, power_of_2(ceil_div(int(lengths.sum()), _MOST_PIECES)))
    counts = -(-lengths // size)
    first = np.concatenate([[0], np.cumsum(counts)])
    block = np.repeat(np.arange(len(lengths)), counts)
    starts = np.cumsum(lengths) - lengths
    bounds = np.append(starts[block] + (np.arange(first[-1]) - first[block]) * size, lengths.sum())
    a, b, c = (torch.from_numpy(table.astype(np.int64)).to(device) for table in (bounds, first, block))
    are_aligned = not (bounds[:-1] % 16).any()
    return Pieces(a, b, c, int(first[-1]), int(min(size, lengths.max())), bool((counts == 1).all()), are_aligned)


@cache
def whole_in(pieces: int, device: torch.device) -> Pieces:
    """A whole row in so many pieces that were added up elsewhere."""
    first = torch.tensor([0, pieces], device=device)
    return Pieces(first, first, first, pieces, 0, pieces == 1, False)


@jit()
def difference(value, own, at, mask, kind: constexpr):
    """Value - own, rounded to `kind`; and own."""
    e = tl.load(value + at, mask, 0.0)
    h = e
    if own is not None:
        h = tl.load(own + at, mask, 0.0)
        e = e - h
    return e.to(kind), h


@jit()
def _squares(
    value,
    own,
    part,
    peak,
    shrink,
    bounds,
    block,
    d,
    pieces,
    blocks,
    kind: constexpr,
    size: constexpr,
    step: constexpr,
):
    """Sums of squares of pieces, which begin at multiples of `step`.

    With `peak`, the largest size, too. With `shrink`, only where it is not 1.
    """
    row = (tl.program_id(0) // pieces).to(tl.int64)
    piece = tl.program_id(0) % pieces
    low, high = tl.load(bounds + piece), tl.load(bounds + piece + 1)
    divisor = tl.full((), 1.0, tl.float64)
    if shrink is not None:
        divisor = tl.load(shrink + row * blocks + tl.load(block + piece))
        if divisor == 1.0:
            high = low
    total, most = tl.zeros((size,), tl.float64), tl.zeros((size,), tl.float64)
    value += row * d
    if own is not None:
        own += row * d
    for begin in range(low, high, size):
        o = tl.arange(0, size)
        at = tl.multiple_of(begin, step) + o
        e, _ = difference(value, own, at, o < tl.minimum(high - begin, size).to(tl.int32), kind)
        e = e.to(tl.float64)
        if peak is not None:
            most = tl.maximum(most, tl.abs(e))
        if shrink is not None:
            e = e / divisor
        total += e * e
    out = row * pieces + piece
    if peak is not None:
        tl.store(peak + out, tl.max(most))
    if shrink is None or divisor != 1.0:
        tl.store(part + out, tl.sum(total))


@jit()
def _finish(
    part,
    peak,
    shrink,
    norm,
    scale,
    reach,
    divisor: "tl.float64",
    top: "tl.float64",
    first,
    pieces,
    blocks,
    kind: constexpr,
    size: constexpr,
):
    """Norms and scales of blocks, one program for each; with `peak`, what to divide by where squares are doubtful."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    out = tl.program_id(0).to(tl.int64)
    low, high = tl.load(first + tl.program_id(0) % blocks), tl.load(first + tl.program_id(0) % blocks + 1)
    total, most = tl.zeros((size,), tl.float64), tl.zeros((size,), tl.float64)
    for begin in range(low, high, size):
        at = begin + tl.arange(0, size)
        total += tl.load(part + row * pieces + at, at < high, 0.0)
        if peak is not None:
            most = tl.maximum(most, tl.load(peak + row * pieces + at, at < high, 0.0))
    _write(tl.sum(total), tl.max(most), peak, shrink, norm, scale, reach, divisor, top, out, True, kind)


@jit("count")
def _finish_many(
    part,
    peak,
    shrink,
    norm,
    scale,
    reach,
    divisor: "tl.float64",
    top: "tl.float64",
    count,
    kind: constexpr,
    size: constexpr,
):
    """As `_finish`, where each block is one piece: many blocks for each program."""
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    total = tl.load(part + at, at < count, 0.0)
    most = tl.load(peak + at, at < count, 0.0) if peak is not None else total
    _write(total, most, peak, shrink, norm, scale, reach, divisor, top, at, at < count, kind)


@jit()
def _write(total, most, peak, shrink, norm, scale, reach, divisor, top, at, mask, kind: constexpr):
    root = tl.sqrt(total)
    if peak is not None:
        is_safe = (total > 1e-280) & (total < 1e280)
        tl.store(shrink + at, tl.where(is_safe | (most == 0) | (most == float("inf")), 1.0, most), mask)
    elif shrink is not None:
        root = root * tl.load(shrink + at, mask, 1.0)
    n = root.to(kind)
    s = divided(n, tl.full((), divisor, kind))
    tl.store(norm + at, n, mask)
    tl.store(scale + at, s, mask)
    tl.store(reach + at, n + s * tl.full((), top, kind), mask)


@jit()
def divided(a, b):
    """a / b as IEEE has it."""
    if a.dtype == tl.float32:
        return tl.math.div_rn(a, b)
    else:
        return a / b


class Norms(NamedTuple):
    """(rows, blocks) each: norms, norms divided by a number, and numbers that are finite if all levels' values are."""

    norm: Tensor
    scale: Tensor
    reach: Tensor


def norms(value: Tensor, own: Tensor | None, blocks: Blocks, divisor: float, top: float, dtype: torch.dtype) -> Norms:
    """The norms of value - own; `top` is how often a scale fits into the largest value."""
    pieces, (rows, d), many = pieces_of(blocks, value.device), value.shape, len(blocks.lengths)
    part = torch.empty(rows, pieces.many, dtype=torch.float64, device=value.device)
    is_wide = dtype == torch.float64
    peak = torch.empty_like(part) if is_wide else None
    shrink = torch.empty(rows, many, dtype=torch.float64, device=value.device) if is_wide else None
    size = min(_AT_ONCE, power_of_2(pieces.longest))
    warps, step = max(1, min(8, size // 256)), 16 if pieces.are_aligned and d % 16 == 0 else 1

    def add_up(peak: Tensor | None, shrink: Tensor | None) -> None:
        _squares[(rows * pieces.many,)](
            value, own, part, peak, shrink, pieces.bounds, pieces.block, d, pieces.many, many, _KINDS[dtype], size,
            step, num_warps=warps, **EXACT,
        )  # fmt: skip

    add_up(peak, None)
    found = finish(part, peak, shrink, pieces, many, divisor, top, dtype)
    if is_wide:  # where squares may have been too small or too large
        add_up(None, shrink)
        found = finish(part, None, shrink, pieces, many, divisor, top, dtype)
    return found


def finish(
    part: Tensor,
    peak: Tensor | None,
    shrink: Tensor | None,
    pieces: Pieces,
    blocks: int,
    divisor: float,
    top: float,
    dtype: torch.dtype,
) -> Norms:
    """Norms and scales from the sums of pieces."""
    found = Norms(*torch.empty(3, len(part), blocks, dtype=dtype, device=part.device))
    given = (part, peak, shrink, *found, divisor, top)
    count = found.norm.numel()
    if pieces.are_blocks:
        _finish_many[(ceil_div(count, _FINISHED),)](*given, count, _KINDS[dtype], _FINISHED, **EXACT)
    else:
        size = min(_FINISHED, power_of_2(pieces.many))
        warps = max(1, size // 64)
        told = (pieces.first, pieces.many, blocks, _KINDS[dtype], size)
        _finish[(count,)](*given, *told, num_warps=warps, **EXACT)
    return found


_KINDS: dict[torch.dtype, Any] = {}
if tl is not None:
    _KINDS |= {torch.float32: tl.float32, torch.float64: tl.float64}
