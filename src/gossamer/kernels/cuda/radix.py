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
_FOLLOWED = 1024  # coordinates per program, where surrogates are moved
_SHORT = 4096  # coordinates of a block that one program can hold


@jit()
def _bits(x, at, mask):
    """The bits of |x|, as an integer of their order."""
    return _bits_of(tl.load(x + at, mask, 0.0))


@jit()
def _bits_of(x):
    v = tl.abs(x)
    return v.to(tl.int32, bitcast=True) if v.dtype == tl.float32 else v.to(tl.int64, bitcast=True)


@jit()
def _next(counts, k):
    """The digit of the k-th largest, given how many have each; its rank among those; and whether it is the last one."""
    digit = tl.arange(0, 16)
    least = tl.sum(tl.where(digit[None, :] >= digit[:, None], counts[None, :], 0), 1)  # have at least this digit
    best = tl.max(tl.where(least >= k, digit, 0))
    rank = k - tl.sum(tl.where(digit > best, counts, 0))
    return best, rank, tl.sum(tl.where(digit == best, counts, 0)) == rank


@jit("step")
def _advance(counts, found, rows, step):
    """One more digit of the k-th largest of a row, and its rank among those that share all digits so far.

    Once all that share them are to be taken, it is done: the digits that follow are zeros, and below all of them.
    """
    row = tl.program_id(0)
    prefix, k, is_done = tl.load(found + row), tl.load(found + rows + row), tl.load(found + 2 * rows + row)
    best, rank, is_last = _next(tl.load(counts + (step * rows + row) * 16 + tl.arange(0, 16)).to(tl.int64), k)
    is_open = is_done == 0
    tl.store(found + row, prefix * 16 + tl.where(is_open, best, 0))
    tl.store(found + rows + row, tl.where(is_open, rank, k))
    tl.store(found + 2 * rows + row, tl.where(is_open & ~is_last, 0, 1).to(tl.int64))


@jit()
def _limit(found, row, rows, zero):
    """What is above the limit is taken, and as many of those that are equal to it as there is room for."""
    limit, room, is_done = tl.load(found + row), tl.load(found + rows + row), tl.load(found + 2 * rows + row)
    return (limit - is_done).to(zero.dtype), tl.where(is_done == 0, room, 0)


@jit()
def _digits(v, is_like, deep: constexpr, wide: constexpr):
    """How many of (deep, wide) numbers have each last digit, among those that are alike."""
    one = tl.full((deep, wide), 1, tl.int64)
    packed = tl.sum(tl.where(is_like, one << ((v & 15) * 4).to(tl.int64), 0), 0)
    digit = tl.arange(0, 16)
    return tl.sum(((packed[None, :] >> (digit[:, None] * 4).to(tl.int64)) & 15).to(tl.int32), 1)


@jit("step", "shift")
def _count(x, counts, found, d, rows, step, shift, chunks, deep: constexpr, wide: constexpr):
    """How many have each next digit, among those with the leading digits found so far."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    first = (tl.program_id(0) % chunks).to(tl.int64) * (deep * wide)
    if tl.load(found + 2 * rows + row) == 0:
        o = tl.arange(0, deep)[:, None] * wide + tl.arange(0, wide)[None, :]
        mask = o < tl.minimum(d - first, deep * wide).to(tl.int32)
        v = _bits(x, row * d + first + o, mask) >> shift
        digits = _digits(v, mask & (v >> 4 == tl.load(found + row).to(v.dtype)), deep, wide)
        tl.atomic_add(counts + (step.to(tl.int64) * rows + row) * 16 + tl.arange(0, 16), digits, digits > 0)


@jit()
def _tally(x, found, tally, d, rows, chunks, size: constexpr):
    """How many in each chunk are above the limit, and how many are equal to it."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    o = tl.arange(0, size)
    mask = o < tl.minimum(d - chunk * size, size).to(tl.int32)
    v = _bits(x, row * d + chunk * size + o, mask)
    limit, _ = _limit(found, row, rows, tl.zeros((), v.dtype))
    both = tl.sum(tl.where(mask & (v > limit), 1, 0) + tl.where(mask & (v == limit), 65536, 0))
    tl.store(tally + row * chunks + chunk, (both & 65535).to(tl.int64))
    tl.store(tally + (rows + row) * chunks + chunk, (both >> 16).to(tl.int64))


@jit()
def _take(out, v, mask, limit, room, larger, alike, here, start, size: constexpr):
    """Write the places of the largest, in order. `here` are equal to the limit; `larger` and `alike` were before."""
    takes = mask & (v > limit)
    if here > 0:
        equal = mask & (v == limit)
        takes = takes | (equal & (alike + tl.cumsum(equal.to(tl.int32), 0) <= room))
    place = larger + tl.minimum(alike, room) + tl.cumsum(takes.to(tl.int32), 0) - 1
    tl.store(out + place, start + tl.arange(0, size), takes)
    return takes


@jit("k")
def _select(x, found, tally, before, out, last, d, rows, k, chunks, size: constexpr):
    """The places of the k largest of long rows; `last` is the last of those that are equal to the limit, if any is."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = (tl.program_id(0) % chunks).to(tl.int64)
    o = tl.arange(0, size)
    mask = o < tl.minimum(d - chunk * size, size).to(tl.int32)
    v = _bits(x, row * d + chunk * size + o, mask)
    limit, room = _limit(found, row, rows, tl.zeros((), v.dtype))
    larger = tl.load(before + row * chunks + chunk)
    alike = tl.load(before + (rows + row) * chunks + chunk)
    here = tl.load(tally + (rows + row) * chunks + chunk)
    takes = _take(out + row * k, v, mask, limit, room, larger, alike, here, chunk * size, size)
    if (here > 0) & (alike < room):
        tl.atomic_max(last + row, tl.max(tl.where(takes & (v == limit), chunk * size + o, -1)))


@jit()
def _follow(x, own, found, last, dense, moved, d, rows, chunks, size: constexpr):
    """The k largest of long rows in their places, with zeros elsewhere; and own moved by them."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    first = (tl.program_id(0) % chunks).to(tl.int64) * size
    o = tl.arange(0, size)
    mask = o < tl.minimum(d - first, size).to(tl.int32)
    at = row * d + first + o
    e, h = tl.load(x + at, mask, 0.0), tl.load(own + at, mask, 0.0)
    v = _bits_of(e)
    limit, _ = _limit(found, row, rows, tl.zeros((), v.dtype))
    until = tl.minimum(tl.maximum(tl.load(last + row) - first, -1), size).to(tl.int32)
    q = tl.where((v > limit) | ((v == limit) & (o <= until)), e, 0.0)
    tl.store(dense + at, q, mask)
    tl.store(moved + at, (h + q).to(moved.dtype.element_ty), mask)


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
    return _find(x, k, steps)[0]


def _find(x: Tensor, k: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, k): the places; and what finds them again: the digits of the k-th largest, and the last tie."""
    rows, d = x.shape
    chunks = ceil_div(d, _SIZE)
    counts = torch.zeros(steps, rows, 16, dtype=torch.int32, device=x.device)
    found = torch.zeros(3, rows, dtype=torch.int64, device=x.device)  # digits, rank, whether it is done
    found[1] = k
    grid = (rows * chunks,)
    for step in range(steps):
        _count[grid](x, counts, found, d, rows, step, 4 * (steps - 1 - step), chunks, _DEEP, _WIDE)
        _advance[(rows,)](counts, found, rows, step, num_warps=1)
    tally = torch.empty(2, rows, chunks, dtype=torch.int64, device=x.device)
    _tally[grid](x, found, tally, d, rows, chunks, _SIZE)
    before = tally.cumsum(dim=2) - tally
    out = torch.empty(rows, k, dtype=torch.int64, device=x.device)
    last = torch.full((rows,), -1, device=x.device)
    _select[grid](x, found, tally, before, out, last, d, rows, k, chunks, _SIZE)
    return out, found, last


def keep(x: Tensor, own: Tensor, blocks: Blocks, k: int) -> Kept:
    """The k largest of each block, and the surrogate moved by them: see `reference.keep`."""
    if len(blocks.lengths) > 1 or x.shape[1] <= _SHORT:
        return kept_at(x, own, largest(x, blocks, k))
    x, own, (rows, d) = x.contiguous(), own.contiguous(), x.shape
    chunks = ceil_div(d, _FOLLOWED)
    places, found, last = _find(x, min(k, d), 2 * x.element_size())
    dense, moved = torch.empty_like(x), torch.empty_like(own)
    _follow[(rows * chunks,)](x, own, found, last, dense, moved, d, rows, chunks, _FOLLOWED, **EXACT)
    return Kept(places, x.gather(1, places), moved, dense)
