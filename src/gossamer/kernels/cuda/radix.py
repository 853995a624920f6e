# mypy: disable-error-code="no-untyped-def"
"""The k largest of each block on a GPU: the bits of the k-th largest size, four at a time, then an ordered selection.

Sizes have the order of their bits.
"""

import torch
from torch import Tensor

from gossamer.kernels.blocks import Blocks
from gossamer.kernels.cuda.language import EXACT, ceil_div, constexpr, jit, power_of_2, tl
from gossamer.kernels.reference import Kept, kept_at

_DEEP = 8  # numbers that a thread counts before it puts its counts together: at most 15 fit four bits
_WIDE = 256
_SIZE = _DEEP * _WIDE  # coordinates per program
_SHORT = 4096  # coordinates of a block that one program can hold


@jit()
def _bits(x, at, mask):
    """The bits of |x|, as an integer of their order."""
    v = tl.abs(tl.load(x + at, mask, 0.0))
    return v.to(tl.int32, bitcast=True) if v.dtype == tl.float32 else v.to(tl.int64, bitcast=True)


@jit()
def _next(counts, k):
    """The digit of the k-th largest, given how many have each; its rank among those; and whether it is the last one."""
    digit = tl.arange(0, 16)
    least = tl.sum(tl.where(digit[None, :] >= digit[:, None], counts[None, :], 0), 1)  # have at least this digit
    best = tl.max(tl.where(least >= k, digit, 0))
    rank = k - tl.sum(tl.where(digit > best, counts, 0))
    return best, rank, tl.sum(tl.where(digit == best, counts, 0)) == rank


@jit()
def _found(counts, row, rows, k, steps, prefix):
    """The leading digits of the k-th largest of a row after some steps, and its rank among those that have them.

    Once all that have them are to be taken, it is done: the digits that follow are zeros, and below all of them.
    """
    is_done = k < 0
    for step in range(steps):
        best, rank, is_last = _next(tl.load(counts + (step * rows + row) * 16 + tl.arange(0, 16)), k)
        prefix = prefix * 16 + tl.where(is_done, 0, best)
        k = tl.where(is_done, k, rank)
        is_done = is_done | is_last
    return prefix, k, is_done


@jit()
def _limit(counts, row, rows, k, steps, zero):
    """What is above the limit is taken, and as many of those that are equal to it as there is room for."""
    limit, room, is_done = _found(counts, row, rows, k, steps, zero)
    return tl.where(is_done, limit - 1, limit), tl.where(is_done, 0, room)


@jit()
def _digits(v, is_like, deep: constexpr, wide: constexpr):
    """How many of (deep, wide) numbers have each last digit, among those that are alike."""
    one = tl.full((deep, wide), 1, tl.int64)
    packed = tl.sum(tl.where(is_like, one << ((v & 15) * 4).to(tl.int64), 0), 0)
    digit = tl.arange(0, 16)
    return tl.sum(((packed[None, :] >> (digit[:, None] * 4).to(tl.int64)) & 15).to(tl.int32), 1)


@jit("k", "steps", "shift")
def _count(x, counts, d, rows, k, steps, shift, chunks, deep: constexpr, wide: constexpr):
    """How many have each next digit, among those with the leading digits found so far."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    first = (tl.program_id(0) % chunks).to(tl.int64) * (deep * wide)
    o = tl.arange(0, deep)[:, None] * wide + tl.arange(0, wide)[None, :]
    mask = o < tl.minimum(d - first, deep * wide).to(tl.int32)
    kind: constexpr = tl.int32 if x.dtype.element_ty == tl.float32 else tl.int64
    prefix, _, is_done = _found(counts, row, rows, k, steps, tl.zeros((), kind))
    if not is_done:
        v = _bits(x, row * d + first + o, mask) >> shift
        found = _digits(v, mask & (v >> 4 == prefix), deep, wide)
        tl.atomic_add(counts + (steps.to(tl.int64) * rows + row) * 16 + tl.arange(0, 16), found, found > 0)


@jit("k", "steps")
def _tally(x, counts, tally, d, rows, k, steps, chunks, size: constexpr):
    """How many in each chunk are larger than the k-th largest, and how many are equal."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    o = tl.arange(0, size)
    mask = o < tl.minimum(d - chunk * size, size).to(tl.int32)
    v = _bits(x, row * d + chunk * size + o, mask)
    limit, _ = _limit(counts, row, rows, k, steps, tl.zeros((), v.dtype))
    tl.store(tally + row * chunks + chunk, tl.sum((mask & (v > limit)).to(tl.int64)))
    tl.store(tally + (rows + row) * chunks + chunk, tl.sum((mask & (v == limit)).to(tl.int64)))


@jit()
def _take(out, v, mask, limit, room, larger, alike, here, start, size: constexpr):
    """Write the places of the largest, in order. `here` are equal to the limit; `larger` and `alike` were before."""
    takes = mask & (v > limit)
    if here > 0:
        equal = mask & (v == limit)
        takes = takes | (equal & (alike + tl.cumsum(equal.to(tl.int32), 0) <= room))
    place = larger + tl.minimum(alike, room) + tl.cumsum(takes.to(tl.int32), 0) - 1
    tl.store(out + place, start + tl.arange(0, size), takes)
    return takes, place


@jit("k", "steps")
def _select(
    x,
    own,
    counts,
    tally,
    before,
    out,
    values,
    dense,
    moved,
    d,
    rows,
    k,
    steps,
    chunks,
    size: constexpr,
):
    """The places of the k largest of long rows; with `own`, also their values, rows of them alone, and own + those."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    o = tl.arange(0, size)
    mask = o < tl.minimum(d - chunk * size, size).to(tl.int32)
    at = row * d + chunk * size + o
    v = _bits(x, at, mask)
    limit, room = _limit(counts, row, rows, k, steps, tl.zeros((), v.dtype))
    larger = tl.load(before + row * chunks + chunk)
    alike = tl.load(before + (rows + row) * chunks + chunk)
    here = tl.load(tally + (rows + row) * chunks + chunk)
    takes, place = _take(out + row * k, v, mask, limit, room, larger, alike, here, chunk * size, size)
    if own is not None:
        q = tl.where(takes, tl.load(x + at, mask, 0.0), 0.0)
        tl.store(values + row * k + place, q, takes)
        tl.store(dense + at, q, mask)
        tl.store(moved + at, (tl.load(own + at, mask, 0.0) + q).to(moved.dtype.element_ty), mask)


@jit("k", "begin", "column")
def _select_short(
    x,
    out,
    d,
    begin,
    column,
    kept,
    k,
    length,
    many,
    steps: constexpr,
    deep: constexpr,
    wide: constexpr,
):
    """The places of the k largest of short blocks, each held by one program."""
    row = (tl.program_id(0) // many).to(tl.int64)
    block = (tl.program_id(0) % many).to(tl.int64)
    start = begin + block * length
    v = _bits(x, row * d + start + tl.arange(0, deep * wide), tl.arange(0, deep * wide) < length)
    mask = tl.arange(0, deep * wide) < length
    tile, inside = tl.reshape(v, (deep, wide)), tl.reshape(mask, (deep, wide))
    limit, room = tl.zeros((), v.dtype), k
    for step in tl.static_range(steps):
        rest = tile >> (4 * (steps - 1 - step))
        best, room, _ = _next(_digits(rest, inside & (rest >> 4 == limit), deep, wide), room)
        limit = limit * 16 + best
    _take(out + row * kept + column + block * k, v, mask, limit, room, 0, 0, 1, start, deep * wide)


def largest(x: Tensor, blocks: Blocks, k: int) -> Tensor:
    """(rows, kept): see `reference.largest`."""
    x, rows = x.contiguous(), len(x)
    kept = sum(min(k, length) for length in blocks.lengths)
    out = torch.empty(rows, kept, dtype=torch.int64, device=x.device)
    steps, column = 2 * x.element_size(), 0
    for first, count, begin in blocks.runs:
        length = blocks.lengths[first]
        most = min(k, length)
        if length <= _SHORT:
            wide = max(16, power_of_2(length) // _DEEP)
            _select_short[(rows * count,)](
                x, out, x.shape[1], begin, column, kept, most, length, count, steps, _DEEP, wide
            )  # fmt: skip
        else:
            part = x[:, begin : begin + count * length].reshape(-1, length)
            places = _of_rows(part, most, steps).view(rows, count, most)
            starts = torch.arange(count, device=x.device)[:, None] * length + begin
            out[:, column : column + count * most] = (places + starts).view(rows, -1)
        column += count * most
    return out


def _of_rows(x: Tensor, k: int, steps: int) -> Tensor:
    out = torch.empty(len(x), k, dtype=torch.int64, device=x.device)
    _find(x, k, steps, out)
    return out


def _find(x: Tensor, k: int, steps: int, out: Tensor, own: Tensor | None = None, *made: Tensor) -> None:
    rows, d = x.shape
    chunks = ceil_div(d, _SIZE)
    counts = torch.zeros(steps, rows, 16, dtype=torch.int32, device=x.device)
    grid = (rows * chunks,)
    for step in range(steps):
        _count[grid](x, counts, d, rows, k, step, 4 * (steps - 1 - step), chunks, _DEEP, _WIDE)
    tally = torch.empty(2, rows, chunks, dtype=torch.int64, device=x.device)
    _tally[grid](x, counts, tally, d, rows, k, steps, chunks, _SIZE)
    before = tally.cumsum(dim=2) - tally
    more = made or (None, None, None)
    _select[grid](x, own, counts, tally, before, out, *more, d, rows, k, steps, chunks, _SIZE, num_warps=8, **EXACT)


def keep(x: Tensor, own: Tensor, blocks: Blocks, k: int) -> Kept:
    """The k largest of each block, and the surrogate moved by them: see `reference.keep`."""
    if len(blocks.lengths) > 1 or x.shape[1] <= _SHORT:
        return kept_at(x, own, largest(x, blocks, k))
    x, own, k = x.contiguous(), own.contiguous(), min(k, x.shape[1])
    places = torch.empty(len(x), k, dtype=torch.int64, device=x.device)
    values, dense, moved = x.new_empty(len(x), k), torch.empty_like(x), torch.empty_like(own)
    _find(x, k, 2 * x.element_size(), places, own, values, dense, moved)
    return Kept(places, values, moved, dense)
