"""Entropy coding of integers: a symbol model that takes one byte or a few more, and an ANS coder (constriction).

The magnitude of an integer ("size") is split into a bucket, which the model codes, and extra bits within the bucket,
which are sent as they are. Sizes below 32 are buckets of their own; above that there are four buckets per power of two.
If most integers are zero, the gaps between the others are coded instead of the zeros.

A model is a table of integer frequencies that sender and receiver build from the same bytes, one of

- one byte: the number of one of 250 fixed tables, bell curves of five shapes and fifty widths, for short messages;
- one byte per bucket: the histogram itself, with four bits of precision per frequency.

Tables are computed with integers and the four exact operations of IEEE 754 only, so every machine builds the same ones.
"""

from enum import Enum
from functools import cache, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.compression.coding.wire import Reader, varint
from gossamer.errors import CodecError

Integers = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_DIRECT = 32  # each size below this has its own bucket
_PER_OCTAVE = 4
_BUCKETS = _DIRECT + _PER_OCTAVE * 27  # sizes below 2^32
_TOTAL = 1 << 16  # sum of the frequencies of a table
_SPARSE, _HISTOGRAM = 254, 255  # first bytes that are not the number of a table
_FEW = 1 / 32  # fraction of non-zero integers below which they are looked for in whole words
_SPARSE_BELOW = 0.25  # fraction of non-zero integers below which gaps are coded


class Style(Enum):
    """How a symbol combines a bucket and a sign."""

    UNSIGNED = 0  # no sign
    SIGNED = 1  # a sign for every bucket except that of zero
    NONZERO = 2  # a sign for every bucket; sizes are reduced by one


def encode_unsigned(values: Integers) -> bytes:
    """Encode a row of non-negative integers. The decoder must know their number."""
    return _finish([_Section.of(values, None, Style.UNSIGNED)])


def decode_unsigned(data: bytes, count: int) -> npt.NDArray[np.int64]:
    """Decode what `encode_unsigned` wrote."""
    (sizes,) = _decode(Reader(data), count, Style.UNSIGNED)
    return sizes


def encode_signed(values: Integers, highest: int) -> bytes:
    """Encode a row of integers in [-highest, highest]. The decoder must know their number."""
    nonzero = np.count_nonzero(values)
    if nonzero >= _SPARSE_BELOW * len(values):
        return _finish([_Section.of_signed(values, highest)])
    if nonzero == 0:
        return bytes([_SPARSE]) + varint(0)
    places = np.flatnonzero(values) if nonzero >= _FEW * len(values) else _nonzero(values)
    kept = values[places].astype(np.int64)
    gaps = np.diff(places, prepend=-1) - 1
    sections = [_Section.of(gaps, None, Style.UNSIGNED), _Section.of(np.abs(kept) - 1, kept < 0, Style.NONZERO)]
    return bytes([_SPARSE]) + varint(len(kept)) + _finish(sections)


def _nonzero(values: Integers) -> npt.NDArray[np.int64]:
    """The places of what is not zero. Few are: numbers are looked at eight bytes at a time."""
    per_word = 8 // values.itemsize
    words = len(values) // per_word
    if words == 0 or not values.flags.c_contiguous:
        return np.flatnonzero(values)
    whole = values[: words * per_word]
    some = np.flatnonzero(whole.view(np.uint64))
    word, within = np.nonzero(whole.reshape(words, per_word)[some])
    return np.concatenate([some[word] * per_word + within, words * per_word + np.flatnonzero(values[len(whole) :])])


def decode_signed(data: bytes, count: int, kind: Any = np.int64) -> Integers:
    """Decode what `encode_signed` wrote, as integers of a type that holds the highest; a larger one is an error."""
    if data[:1] != bytes([_SPARSE]):
        (signed,) = _decode(Reader(data), count, Style.SIGNED)
        return _narrowed(signed, kind)
    values, reader = np.zeros(count, kind), Reader(data, 1)
    kept = reader.varint()
    if kept >= max(1, _SPARSE_BELOW * count):
        raise CodecError(f"Invalid number of non-zero integers {kept}; expected fewer than a quarter of {count}.")
    if kept == 0:
        reader.end()
        return values
    gaps, signed = _decode(reader, kept, Style.UNSIGNED, Style.NONZERO)
    places = np.cumsum(gaps + 1) - 1
    if places[-1] >= count or (gaps >= count).any():
        raise CodecError(f"Invalid index {places[-1]} of a non-zero integer; there are {count} integers.")
    values[places] = _narrowed(signed, kind)
    return values


def _narrowed(values: Integers, kind: Any) -> Integers:
    """The same in another type of integers."""
    if values.dtype == kind:
        return values
    highest = int(np.iinfo(kind).max)
    if values.size and max(int(values.max()), -int(values.min())) > highest:
        raise CodecError(f"Invalid integer {np.abs(values).max()}; expected at most {highest} in size.")
    return values.astype(kind)


# --- buckets ---


def _extra_bits(bucket: int) -> int:
    """The number of extra bits within the bucket."""
    return 0 if bucket < _DIRECT else (bucket - _DIRECT) // _PER_OCTAVE + 3


def _lowest(bucket: int) -> int:
    """The smallest size in a bucket."""
    if bucket < _DIRECT:
        return bucket
    octave, part = divmod(bucket - _DIRECT, _PER_OCTAVE)
    return (_PER_OCTAVE + part) << (octave + 3)


def _bucket_of(sizes: Integers) -> Integers:
    if len(sizes) == 0 or sizes.max() < _DIRECT:
        return sizes
    exponent = np.frexp(sizes.astype(np.float64))[1] - 1  # exact below 2^53
    part = (sizes.astype(np.int64) >> np.maximum(exponent - 2, 0)) - _PER_OCTAVE
    return np.where(sizes < _DIRECT, sizes, _DIRECT + _PER_OCTAVE * (exponent - 5) + part)


_ZIGZAG = np.array([2 * v if v >= 0 else -2 * v - 1 for v in [*range(_DIRECT), *range(-_DIRECT, 0)]], np.int32)
"""The symbol of each small signed value; negative values index the table from its end."""
_ZAGZIG = np.array([-(s + 1) // 2 if s % 2 else s // 2 for s in range(2 * _DIRECT - 1)], np.int8)
"""The value of each symbol."""


def _groups(buckets: Integers, counts: Integers) -> list[tuple[int, Integers]]:
    """For each bucket with extra bits, in ascending order: the indices of its members."""
    if len(counts) <= _DIRECT:
        return []
    order = np.argsort(buckets.astype(np.uint8), kind="stable")
    ends = np.cumsum(counts)
    return [(b, order[ends[b] - counts[b] : ends[b]]) for b in range(_DIRECT, len(counts)) if counts[b]]


class _Section(NamedTuple):
    """A sequence of symbols coded with one model, and their extra bits."""

    symbols: npt.NDArray[np.int32]
    counts: Integers  # of each bucket
    extras: list[tuple[int, npt.NDArray[np.int32]]]  # for each bucket with extra bits: how many, and their values
    style: Style

    @classmethod
    def of(cls, sizes: Integers, negative: npt.NDArray[np.bool_] | None, style: Style) -> "_Section":
        buckets = _bucket_of(sizes)
        symbols = buckets if negative is None else 2 * buckets + (negative if style is Style.NONZERO else -1 * negative)
        counts = np.bincount(buckets)
        groups = _groups(buckets, counts)
        extras = [(_extra_bits(b), (sizes[places] - _lowest(b)).astype(np.int32)) for b, places in groups]
        return cls(symbols.astype(np.int32), counts, extras, style)

    @classmethod
    def of_signed(cls, values: Integers, highest: int) -> "_Section":
        """As `of`, for signed values that include zeros, with a fast path for small ones."""
        if highest >= _DIRECT:
            return cls.of(np.abs(values.astype(np.int64)), values < 0, Style.SIGNED)
        symbols = _ZIGZAG[values]
        both = np.bincount(symbols, minlength=2 * highest + 1)
        counts = both[0::2].copy()
        counts[1:] += both[1::2]
        return cls(symbols, counts, [], Style.SIGNED)


# --- models ---

_SHAPES, _WIDTHS = 5, 50
_ROOT_2 = 1.4142135623730951


@cache
def _tables() -> npt.NDArray[np.int64]:
    """The frequency of every bucket (columns) in every bell curve (rows)."""
    widths = np.array([2.0 ** (j // 2 - 5) * (_ROOT_2 if j % 2 else 1.0) for j in range(_WIDTHS)])
    weights = np.zeros((_SHAPES * _WIDTHS, _BUCKETS))
    # A size is a real number y rounded at random: to floor(y) with probability 1 - frac(y), else to the next integer.
    fine, coarse = ((i + 0.5) / 1024 for i in range(1024)), (1 + (i + 0.5) / 16 for i in range(16 * (_DIRECT - 1)))
    for y, step in [*((y, 1 / 1024) for y in fine), *((y, 1 / 16) for y in coarse)]:
        density, whole = _density(y, widths) * step, int(y)
        weights[:, whole] += density * (1 - (y - whole))
        weights[:, whole + 1] += density * (y - whole)
    for bucket in range(_DIRECT, _BUCKETS):
        width = 1 << _extra_bits(bucket)
        weights[:, bucket] += _density(_lowest(bucket) + width / 2, widths) * width
    total = np.add.accumulate(weights, axis=1)[:, -1:]  # sequential, so the same rounding everywhere
    return _normalized(np.floor(weights / total * 2.0**40).astype(np.int64) + 1)


def _density(y: float, widths: Floats) -> Floats:
    """Five shapes, from heavy to light tails: 1/(1 + y^2/...)^(1, 2, 4, 16) and 1/(1 + y/...)^16."""
    z = y / widths
    bases = [(power, 1 / (1 + z * z / (2 * power - 1))) for power in (1, 2, 4, 16)]
    # A power by repeated products, which are exact operations of IEEE 754.
    return np.concatenate([reduce(np.multiply, [base] * power) for power, base in [*bases, (16, 1 / (1 + z / 16))]])


def _normalized(weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Turn rows of integer weights into frequencies that sum to _TOTAL; non-zero weights stay non-zero."""
    total = weights.sum(axis=1, keepdims=True)
    frequency = np.where(weights > 0, np.maximum(1, weights * _TOTAL // total), 0)
    frequency[np.arange(len(frequency)), frequency.argmax(axis=1)] += _TOTAL - frequency.sum(axis=1)
    return frequency


_STEPS = np.array([0] + [(16 + byte % 16) << (byte // 16) for byte in range(1, 256)], np.int64)
"""The weight of each byte of a histogram: zero, then weights 3 to 6 % apart."""


@cache
def _costs() -> Floats:
    """Bits of a symbol of each bucket (rows) with each table (columns), without its sign."""
    return np.ascontiguousarray(-np.log2(_tables() / _TOTAL).T)


_MEMO = 4096
_N_LOG_N = np.array([0.0] + [n * np.log2(n) for n in range(1, _MEMO)])


def _entropy(counts: Integers) -> float:
    """The fewest bits for the symbols if their counts are known."""
    total = int(counts.sum())
    if total < _MEMO:
        return float(_N_LOG_N[total] - _N_LOG_N[counts].sum())
    present = counts[counts > 0]
    return float((present * np.log2(total / present)).sum())


_SHORT, _FITTING = 200, 3.0


def _choose(symbols: Integers, counts: Integers) -> tuple[bytes, npt.NDArray[np.int64] | int]:
    """The model that needs fewer bits: its bytes, and the number of its table or its frequencies."""
    by_table = counts.astype(np.float64) @ _costs()[: len(counts)]
    best = int(by_table.argmin())
    # A histogram takes 8 (1 + buckets) bits, which it cannot save on a short message that fits one of the tables.
    if by_table[best] < _FITTING * len(symbols) and len(symbols) < _SHORT:
        return bytes([best]), best
    used = int(counts.nonzero()[0][-1]) + 1
    if by_table[best] <= _entropy(counts) + 8 * (1 + used):
        return bytes([best]), best
    counts = counts[:used]
    scaled = counts * (float(_STEPS[-1]) / float(counts.max()))
    codes = np.searchsorted((_STEPS[1:-1] + _STEPS[2:]) / 2, scaled) + 1
    codes[counts == 0] = 0
    return bytes([_HISTOGRAM, len(counts)]) + codes.astype(np.uint8).tobytes(), _normalized(_STEPS[codes][None])[0]


def _read_model(reader: Reader, style: Style) -> tuple[Any, int]:
    """The model that `_choose` wrote, and its number of buckets."""
    first = reader.take(1)[0]
    if first < _SHAPES * _WIDTHS:
        return _model_of_table(first, style), _BUCKETS
    if first != _HISTOGRAM:
        raise CodecError(f"Unknown symbol model {first}.")
    codes = np.frombuffer(reader.take(reader.take(1)[0]), np.uint8)
    if len(codes) == 0 or len(codes) > _BUCKETS or codes[-1] == 0:
        raise CodecError(f"Invalid histogram of {len(codes)} buckets; expected 1 to {_BUCKETS}, the last one non-zero.")
    return _model(_normalized(_STEPS[codes][None])[0], style), len(codes)


@cache
def _model_of_table(number: int, style: Style) -> Any:
    return _model(_tables()[number], style)


def _model(frequencies: npt.NDArray[np.int64], style: Style) -> Any:
    """A constriction model. Its probabilities are exact in float64, so it is the same on every machine."""
    import constriction

    p = frequencies / _TOTAL
    if style is not Style.UNSIGNED:
        p = np.repeat(p / 2, 2)
        if style is Style.SIGNED:
            p = np.concatenate([2 * p[:1], p[2:]])
    if len(p) == 1:
        p = np.array([p[0], 0.0])  # a model needs at least two symbols
    return constriction.stream.model.Categorical(p, perfect=False)


# --- the coder ---


def _finish(sections: list[_Section]) -> bytes:
    """The bytes of the models, then one ANS stream. The coder is a stack, so sections are pushed in reverse order."""
    import constriction

    chosen = [_choose(section.symbols, section.counts) for section in sections]
    coder = constriction.stream.stack.AnsCoder()
    for section, (_, table) in zip(reversed(sections), reversed(chosen), strict=True):
        for bits, extra in reversed(section.extras):
            _push_bits(coder, extra, bits)
        model = _model_of_table(table, section.style) if isinstance(table, int) else _model(table, section.style)
        coder.encode_reverse(section.symbols, model)
    words: npt.NDArray[np.uint32] = coder.get_compressed()
    return b"".join(head for head, _ in chosen) + words.astype("<u4").tobytes().rstrip(b"\0")


def _decode(reader: Reader, count: int, *styles: Style) -> list[Integers]:
    """What `_finish` wrote: `count` integers in each style, with nothing after them."""
    import constriction

    models = [_read_model(reader, style) for style in styles]
    data = reader.rest()
    if data.endswith(b"\0"):
        raise CodecError("The coded integers end in a zero byte.")
    words = np.frombuffer(data + b"\0" * (-len(data) % 4), "<u4").astype(np.uint32)
    coder = constriction.stream.stack.AnsCoder(words)
    integers = [_pop(coder, *model, count, style) for model, style in zip(models, styles, strict=True)]
    if not coder.is_empty():
        raise CodecError("The coded integers continue after the last one.")
    return integers


def _pop(coder: Any, model: Any, buckets: int, count: int, style: Style) -> Integers:
    """Decode `count` integers, with signs if the style has them."""
    symbols: npt.NDArray[np.int32] = coder.decode(model, count)
    if style is Style.SIGNED and symbols.max() < min(len(_ZAGZIG), 2 * buckets - 1):
        return _ZAGZIG[symbols]
    bucket = symbols if style is Style.UNSIGNED else (symbols + (style is Style.SIGNED)) >> 1
    largest = int(bucket.max())
    if largest >= buckets:
        raise CodecError(f"Invalid bucket {largest}; the model has {buckets}.")
    sizes = bucket.astype(np.int64)
    for b, places in _groups(bucket, np.bincount(bucket)) if largest >= _DIRECT else []:
        sizes[places] = _lowest(b) + _pop_bits(coder, len(places), _extra_bits(b))
    if style is Style.UNSIGNED:
        return sizes
    sizes += style is Style.NONZERO
    return np.where(symbols & 1, -sizes, sizes)


_WORD = 16  # bits coded at once; a model allows at most 24


def _push_bits(coder: Any, values: npt.NDArray[np.int32], bits: int) -> None:
    import constriction

    if bits > _WORD:
        _push_bits(coder, values & ((1 << _WORD) - 1), _WORD)
        _push_bits(coder, values >> _WORD, bits - _WORD)
    else:
        coder.encode_reverse(values, constriction.stream.model.Uniform(1 << bits))


def _pop_bits(coder: Any, count: int, bits: int) -> npt.NDArray[np.int64]:
    import constriction

    if bits > _WORD:
        high = _pop_bits(coder, count, bits - _WORD)
        return high << _WORD | _pop_bits(coder, count, _WORD)
    popped: npt.NDArray[np.int32] = coder.decode(constriction.stream.model.Uniform(1 << bits), count)
    return popped.astype(np.int64)
