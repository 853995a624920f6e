# mypy: disable-error-code="no-untyped-def"
"""Keyed uniform numbers on a GPU: Philox inside the kernels that use them."""

import torch
from torch import Tensor

from gossamer.kernels.cuda.language import EXACT, ceil_div, constexpr, jit, tl
from gossamer.kernels.stream import BESIDE, Stream, per_group

_COUNTERS = 512  # per program


@jit()
def row_words(seeds, clients, row, purpose, t, t_at, counter):
    """Four words of 32 bits for each of these counters of one row's stream."""
    if t_at is not None:
        t = tl.load(t_at)
    seed = tl.load(seeds + row).to(tl.uint64, bitcast=True)
    client = tl.load(clients + row).to(tl.uint32)
    return tl.philox(seed, counter, t.to(tl.uint32), client, purpose.to(tl.uint32))


@jit()
def place(counter, k: constexpr, words: constexpr):
    """The place of a counter's k-th number: 16 counters beside each other give `words` runs of 16 numbers."""
    return counter // 16 * (16 * words) + k * 16 + counter % 16


@jit()
def number32(r0, r1, r2, r3, k: constexpr):
    """The k-th float32 number of four words."""
    r = r0 if k == 0 else (r1 if k == 1 else (r2 if k == 2 else r3))
    return (r >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@jit()
def number64(r0, r1, r2, r3, k: constexpr):
    """The k-th float64 number of four words. Both parts are multiples of 2^-53, so their sum is exact."""
    a = r0 if k == 0 else r2
    b = r1 if k == 0 else r3
    high = (a >> 5).to(tl.int32).to(tl.float64) * 7.450580596923828e-09  # 2^-27
    return high + (b >> 6).to(tl.int32).to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@jit()
def number(r0, r1, r2, r3, k: constexpr, words: constexpr):
    """The k-th number of four words: float32 if each word gives one, float64 if two do."""
    return number32(r0, r1, r2, r3, k) if words == 4 else number64(r0, r1, r2, r3, k)


@jit("purpose", "t")
def _uniform(
    out,
    seeds,
    clients,
    purpose: "tl.uint32",
    t: "tl.uint32",
    t_at,
    width,
    chunks,
    words: constexpr,
    counters: constexpr,
):
    row = (tl.program_id(0) // chunks).to(tl.int64)
    first = (tl.program_id(0) % chunks).to(tl.int64) * counters
    c = tl.arange(0, counters)
    r0, r1, r2, r3 = row_words(seeds, clients, row, purpose, t, t_at, (first + c).to(tl.uint32))
    out += row * width + first * words
    left = width - first * words
    for k in tl.static_range(words):
        at = place(c, k, words)
        tl.store(out + at, number(r0, r1, r2, r3, k, words), at < left)


@jit("purpose", "t")
def _below(
    out,
    high,
    many,
    seeds,
    clients,
    purpose: "tl.uint32",
    t: "tl.uint32",
    t_at,
    width,
    chunks,
    counters: constexpr,
):
    row = (tl.program_id(0) // chunks).to(tl.int64)
    first = (tl.program_id(0) % chunks).to(tl.int64) * counters
    c = tl.arange(0, counters)
    r0, r1, r2, r3 = row_words(seeds, clients, row, purpose, t, t_at, (first + c).to(tl.uint32))
    most = tl.load(high + row % many)
    out += row * width + first * 2
    for k in tl.static_range(2):
        at = place(c, k, 2)
        drawn = (number64(r0, r1, r2, r3, k) * most.to(tl.float64)).to(tl.int64)
        tl.store(out + at, tl.minimum(drawn, most - 1), at < width - first * 2)


def keyed(stream: Stream) -> tuple[Tensor, Tensor, int, int, Tensor | None]:
    """What kernels take of a stream: seeds, clients, purpose, the round as a number, or where it is kept."""
    keys, t = stream.keys, stream.t
    return keys.seeds, keys.clients, stream.purpose, *((0, t) if isinstance(t, Tensor) else (t, None))


def uniform(stream: Stream, width: int, dtype: torch.dtype) -> Tensor:
    """Numbers in [0, 1): see `reference.uniform`."""
    rows, words = len(stream.keys.seeds), per_group(dtype) // BESIDE
    out = torch.empty(rows, width, dtype=dtype, device=stream.keys.seeds.device)
    chunks = ceil_div(width, _COUNTERS * words)
    if out.numel():
        _uniform[(rows * chunks,)](out, *keyed(stream), width, chunks, words, _COUNTERS, **EXACT)
    return out


def below(stream: Stream, high: Tensor, width: int) -> Tensor:
    """Integers below a number for all, or for each client: see `reference.below`."""
    rows, chunks = len(stream.keys.seeds), ceil_div(width, 64)
    out = torch.empty(rows, width, dtype=torch.int64, device=stream.keys.seeds.device)
    if out.numel():
        _below[(rows * chunks,)](out, high, len(high), *keyed(stream), width, chunks, 32, num_warps=1, **EXACT)
    return out
