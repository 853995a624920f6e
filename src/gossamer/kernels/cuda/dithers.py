# mypy: disable-error-code="no-untyped-def"
"""Random dithering on a GPU: Philox, levels and the moved surrogate in one pass."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.kernels.blocks import Blocks
from gossamer.kernels.cuda.generated import squares_of
from gossamer.kernels.cuda.language import EXACT, ceil_div, constexpr, jit, power_of_2, tl
from gossamer.kernels.cuda.norms import Norms, difference, divided, finish, norms, whole_in
from gossamer.kernels.cuda.words import keyed, number, place, row_words
from gossamer.kernels.reference import Dithered
from gossamer.kernels.stream import BESIDE, Stream, per_group

_COUNTERS = 256  # per program
_TILE = 2048  # coordinates of whole blocks per program
_LARGEST = 8192  # coordinates of a block that one program can hold
_ROOM = 1.001  # for rounding, in what the largest value may be


@jit()
def _level(e, n, u, highest):
    """Sign(e) floor(highest |e| / n + u), at most `highest`; a zero block is divided by 1."""
    y = divided(tl.abs(e), tl.where(n > 0, n, 1.0)) * highest
    whole = tl.floor(y)
    up = (y - whole) + u >= 1
    whole = tl.minimum(tl.where(up, whole + 1, whole), highest)
    return tl.where(e < 0, -whole, whole)


@jit("purpose", "t")
def _follow(
    value,
    own,
    norm,
    scale,
    levels,
    moved,
    which,
    seeds,
    clients,
    purpose: "tl.uint32",
    t: "tl.uint32",
    t_at,
    highest: "tl.float64",
    d,
    chunks,
    blocks,
    size,
    words: constexpr,
    counters: constexpr,
):
    """Levels, given the norms. A block is the whole row (size 0), `size` coordinates, or as `which` says."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    first = (tl.program_id(0) % chunks).to(tl.int64) * counters
    c = tl.arange(0, counters)
    r0, r1, r2, r3 = row_words(seeds, clients, row, purpose, t, t_at, (first + c).to(tl.uint32))
    begin = row * d + first * words
    left = tl.minimum(d - first * words, counters * words).to(tl.int32)
    kind = norm.dtype.element_ty
    top = tl.full((), highest, kind)
    norm += row * blocks
    scale += row * blocks
    n, s = tl.load(norm), tl.load(scale)
    for k in tl.static_range(words):
        o = place(c, k, words)
        mask = o < left
        if which is not None:
            block = tl.load(which + first * words + o, mask, 0)
            n, s = tl.load(norm + block), tl.load(scale + block)
        elif size is not None:
            block = tl.minimum((first * words + o) // size, blocks - 1)
            n, s = tl.load(norm + block), tl.load(scale + block)
        e, h = difference(value, own, begin + o, mask, kind)
        level = _level(e, n, number(r0, r1, r2, r3, k, words), top)
        tl.store(levels + begin + o, level.to(levels.dtype.element_ty), mask)
        if moved is not None:
            tl.store(moved + begin + o, (h + level * s).to(moved.dtype.element_ty), mask)


@jit("purpose", "t")
def _follow_blocks(
    value,
    own,
    norm,
    scale,
    reach,
    levels,
    moved,
    seeds,
    clients,
    purpose: "tl.uint32",
    t: "tl.uint32",
    t_at,
    highest: "tl.float64",
    divisor: "tl.float64",
    room: "tl.float64",
    d,
    chunks,
    blocks,
    size: constexpr,
    tile: constexpr,
    words: constexpr,
    counters: constexpr,
):
    """Norms and levels of `tile` blocks in one pass. A block's size is a multiple of what 16 counters give."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    one = (tl.program_id(0) % chunks).to(tl.int64) * tile
    b, c = tl.arange(0, tile)[:, None], tl.arange(0, counters)[None, :]
    kind = norm.dtype.element_ty
    start = row * d + one * size
    top = tl.full((), highest, kind)
    total = tl.zeros((tile, counters), tl.float64)
    for k in tl.static_range(words):
        o = place(c, k, words)
        mask = (o < size) & (b * size + o < d - one * size)
        e, _ = difference(value, own, start + b * size + o, mask, kind)
        total += e.to(tl.float64) * e.to(tl.float64)
    n = tl.sqrt(tl.sum(total, 1)).to(kind)
    s = divided(n, tl.full((), divisor, kind))
    many = tl.arange(0, tile)
    at, is_there = row * blocks + one + many, one + many < blocks
    tl.store(norm + at, n, is_there)
    tl.store(scale + at, s, is_there)
    tl.store(reach + at, n + s * tl.full((), room, kind), is_there)
    counter = one * (size // words) + b * (size // words) + c
    r0, r1, r2, r3 = row_words(seeds, clients, row, purpose, t, t_at, counter.to(tl.uint32))
    for k in tl.static_range(words):
        o = place(c, k, words)
        mask = (o < size) & (b * size + o < d - one * size)
        at = start + b * size + o
        e, h = difference(value, own, at, mask, kind)
        level = _level(e, n[:, None], number(r0, r1, r2, r3, k, words), top)
        tl.store(levels + at, level.to(levels.dtype.element_ty), mask)
        if moved is not None:
            tl.store(moved + at, (h + level * s[:, None]).to(moved.dtype.element_ty), mask)


class Places(NamedTuple):
    """How kernels find the block of a coordinate: `size` coordinates each, or by a table; neither for a whole row."""

    size: int | None
    which: Tensor | None


@cache  # for good: a recorded round reads the table again
def places_of(blocks: Blocks, device: torch.device) -> Places:
    """Blocks as kernels see them."""
    lengths = blocks.lengths
    if len(lengths) == 1:
        return Places(None, None)
    if set(lengths[:-1]) == {lengths[0]} and lengths[-1] <= lengths[0]:
        return Places(lengths[0], None)
    many = torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(torch.tensor(lengths))
    return Places(None, many.to(device))


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
    """Levels of value - own: see `reference.dither`."""
    value, own = value.contiguous(), None if own is None else own.contiguous()
    size = places_of(blocks, value.device).size
    fits = size is not None and size % per_group(dtype) == 0 and size <= _LARGEST and dtype == torch.float32
    if fits:
        assert size is not None
        return _in_one_pass(value, own, stream, blocks, size, highest, tau, kind)
    found = _norms(value, own, blocks, tau * highest, _ROOM * highest, dtype)
    told = follow(value, own, found.norm, found.scale, stream, blocks, highest, kind)
    return told._replace(reach=found.reach)


def _norms(value: Tensor, own: Tensor | None, blocks: Blocks, divisor: float, top: float, dtype: torch.dtype) -> Norms:
    part = squares_of(value, own)
    if part is None or dtype != torch.float32 or len(blocks.lengths) > 1:
        return norms(value, own, blocks, divisor, top, dtype)
    return finish(part, None, None, whole_in(part.shape[1], part.device), 1, divisor, top, dtype)


def follow(
    value: Tensor,
    own: Tensor | None,
    norm: Tensor,
    scale: Tensor,
    stream: Stream,
    blocks: Blocks,
    highest: int,
    kind: torch.dtype,
) -> Dithered:
    """Levels and the moved surrogate, given the norms."""
    (rows, d), (size, which) = value.shape, places_of(blocks, value.device)
    levels = torch.empty(rows, d, dtype=kind, device=value.device)
    moved = None if own is None else torch.empty_like(own)
    words = per_group(norm.dtype) // BESIDE
    chunks = ceil_div(d, _COUNTERS * words)
    _follow[(rows * chunks,)](
        value, own, norm, scale, levels, moved, which, *keyed(stream), highest, d, chunks, norm.shape[1], size,
        words, _COUNTERS, num_warps=4, **EXACT,
    )  # fmt: skip
    return Dithered(norm, scale, levels, moved)


def _in_one_pass(
    value: Tensor,
    own: Tensor | None,
    stream: Stream,
    blocks: Blocks,
    size: int,
    highest: int,
    tau: float,
    kind: torch.dtype,
) -> Dithered:
    (rows, d), many = value.shape, len(blocks.lengths)
    found = Norms(*torch.empty(3, rows, many, device=value.device))
    levels = torch.empty(rows, d, dtype=kind, device=value.device)
    moved = None if own is None else torch.empty_like(own)
    tile = max(1, _TILE // power_of_2(size))
    chunks = ceil_div(many, tile)
    numbers = (highest, tau * highest, _ROOM * highest)
    _follow_blocks[(rows * chunks,)](
        value, own, *found, levels, moved, *keyed(stream), *numbers, d, chunks, many, size, tile, 4,
        power_of_2(size) // 4, num_warps=4, **EXACT,
    )  # fmt: skip
    return Dithered(found.norm, found.scale, levels, moved, reach=found.reach)
