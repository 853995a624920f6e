"""What numba cannot say of its own: memory fetched ahead, results written past the caches, sums kept in registers,
small matrices transposed.

Each is a few instructions in LLVM's language, and a loop that uses them.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gossamer.kernels.compile import jit

LINE = 64
"""Bytes that a processor reads and writes at once, at multiples of themselves."""
LARGE = 64 << 20
"""Bytes of a result from which it does not stay in the caches."""
_AT_ONCE = LINE // 8
_LANES = 16
_INDEX = ir.IntType(64)


def repeated(builder: Any, number: Any, kind: Any) -> Any:
    """A vector with the same number in all lanes."""
    nothing, first = ir.Constant(kind, ir.Undefined), ir.IntType(32)(0)
    one = builder.insert_element(nothing, number, first)
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(first.type, kind.count), None))


def cast(builder: Any, vector: Any, kind: Any) -> Any:
    """Numbers in another type, rounded if it is the narrower one."""
    if vector.type == kind:
        return vector
    return (builder.fpext if kind.element == ir.DoubleType() else builder.fptrunc)(vector, kind)


# Memory that is read soon.


def _ask_for(context: Any, address: Any) -> Any:
    """Have the processor fetch a line to read; an address that is not ours does no harm."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(fetch, [builder.inttoptr(arguments[0], byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(address), build


_fetch_line: Any = intrinsic(_ask_for)


@jit()
def fetch(address: int, size: int) -> None:
    """Have the processor fetch so many bytes while it goes on."""
    for at in range(address, address + size, LINE):
        _fetch_line(at)


# Results past the caches. A processor reads a line of memory before it writes there. Results that are larger than the
# caches, and are not written in place, need not be read: that saves a quarter of the memory traffic of a large round.


def goes_past(out: Any, over: Any) -> bool:
    """Whether to write a result past the caches: a large array of float64 that does not overwrite `over`."""
    return bool(out.dtype == np.float64 and out.nbytes >= LARGE and out.ctypes.data != over.ctypes.data)


def store_past(builder: Any, vector: Any, place: Any) -> None:
    """Write a vector past the caches, to an aligned place."""
    store = builder.store(vector, place, align=LINE)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))


def _add(context: Any, x: Any, y: Any, s: Any, out: Any) -> Any:
    """Numbers at x (float64) + s times those at y (of the type of s), to `out`: one line of it, past the caches."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at_x, at_y, number, to = arguments
        kinds = ir.VectorType(ir.DoubleType(), _AT_ONCE), ir.VectorType(number.type, _AT_ONCE)
        size = 4 if s == types.float32 else 8
        values = builder.load(builder.inttoptr(at_x, kinds[0].as_pointer()), align=8)
        more = builder.load(builder.inttoptr(at_y, kinds[1].as_pointer()), align=size)
        more = cast(builder, builder.fmul(more, repeated(builder, number, kinds[1])), kinds[0])
        store_past(builder, builder.fadd(values, more), builder.inttoptr(to, kinds[0].as_pointer()))
        return context.get_dummy_value()

    return types.void(x, y, s, out), build


_add_line: Any = intrinsic(_add)


@jit()
def add_past(x: Any, y: Any, s: Any, out: Any) -> None:
    """out = x + s y, past the caches; x and out are float64, s has the type of y."""
    head: Any = min(len(out), (-np.int64(out.ctypes.data) % LINE) // 8)
    whole = head + (len(out) - head) // _AT_ONCE * _AT_ONCE
    for j in range(head):
        out[j] = x[j] + y[j] * s
    at_x, at_y, to = np.int64(x.ctypes.data), np.int64(y.ctypes.data), np.int64(out.ctypes.data)
    for j in range(head, whole, _AT_ONCE):
        _add_line(at_x + j * 8, at_y + j * y.itemsize, s, to + j * 8)
    for j in range(whole, len(out)):
        out[j] = x[j] + y[j] * s


# Sums of squares in 16 lanes, which numba would write to memory after every step.


def _square(context: Any, value: Any, own: Any, blocks: Any, lanes: Any, kinds: Any) -> Any:
    """Add to the lanes (addresses, all of them) the squares of value - own, rounded; `own` 0 is nothing.

    `kinds` are numbers of the types of value, own and the rounded difference.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at_value, at_own, count, at_lanes, _ = arguments
        x, h, e = (ir.VectorType(context.get_value_type(kind), _LANES) for kind in kinds)
        wide = ir.VectorType(ir.DoubleType(), _LANES)
        kept = builder.inttoptr(at_lanes, wide.as_pointer())
        total = cgutils.alloca_once_value(builder, builder.load(kept, align=8))  # type: ignore[no-untyped-call]
        with cgutils.for_range(builder, count) as loop:
            difference = _loaded(builder, at_value, x, loop.index)
            if kinds[1] != types.none:
                own_numbers = _loaded(builder, at_own, h, loop.index)
                common = x if x.element == ir.DoubleType() else h
                difference = builder.fsub(cast(builder, difference, common), cast(builder, own_numbers, common))
            difference = cast(builder, cast(builder, difference, e), wide)
            builder.store(builder.fadd(builder.load(total), builder.fmul(difference, difference)), total)
        builder.store(builder.load(total), kept, align=8)
        return context.get_dummy_value()

    return types.void(value, own, blocks, lanes, kinds), build


def _loaded(builder: Any, address: Any, kind: Any, block: Any) -> Any:
    size = 8 if kind.element == ir.DoubleType() else 4
    place = builder.add(address, builder.mul(block, _INDEX(size * _LANES)))
    return builder.load(builder.inttoptr(place, kind.as_pointer()), align=size)


_add_squares: Any = intrinsic(_square)


@jit()
def square_blocks(value: Any, own: Any, e: Any, lanes: Any) -> int:
    """Add to the 16 lanes the squares of value - own, rounded to the type of e, as far as whole blocks of 16 go.

    Returns where that is.
    """
    blocks, to = len(value) // _LANES, np.int64(lanes.ctypes.data)
    if blocks == 0:
        return 0
    if own is None:
        _add_squares(np.int64(value.ctypes.data), np.int64(0), blocks, to, (value[0], None, e[0]))
    else:
        places = np.int64(value.ctypes.data), np.int64(own.ctypes.data)
        _add_squares(places[0], places[1], blocks, to, (value[0], own[0], e[0]))
    return blocks * _LANES


# Products with sparse rows of bytes. A byte stands for a number of a table. Matrices are stored column by column of the
# rows, (columns, lanes), with lanes filled up to a multiple of 16.


def _entry(builder: Any, arguments: Any, kind: Any, k: Any) -> tuple[Any, Any]:
    """Of entry k: the address of its column in the matrix, and its number in all lanes."""
    matrix, stride, indices, values, table = arguments
    short, byte = (builder.inttoptr(at, ir.IntType(n).as_pointer()) for at, n in ((indices, 16), (values, 8)))
    column = builder.zext(builder.load(builder.gep(short, [k])), _INDEX)
    value = builder.zext(builder.load(builder.gep(byte, [k])), _INDEX)
    numbers = builder.inttoptr(table, kind.element.as_pointer())
    place = builder.add(matrix, builder.mul(column, stride))
    return (
        builder.inttoptr(place, kind.as_pointer()),
        repeated(builder, builder.load(builder.gep(numbers, [value])), kind),
    )


_SUMS = 4  # side by side, since one addition has to wait for another


def _gather(
    context: Any, out: Any, count: Any, like: Any, matrix: Any, stride: Any, indices: Any, values: Any, table: Any
) -> Any:
    """Add to 16 numbers at `out` the sum over `count` entries of their number times their column."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, many, _, *data = arguments
        kind, size = ir.VectorType(context.get_value_type(like), _LANES), 4 if like == types.float32 else 8
        place = builder.inttoptr(to, kind.as_pointer())
        zero = ir.Constant(kind, None)
        sums: list[Any] = [cgutils.alloca_once_value(builder, zero) for _ in range(_SUMS)]  # type: ignore[no-untyped-call]

        def add(k: Any, total: Any) -> None:
            column, number = _entry(builder, data, kind, k)
            product = builder.fmul(number, builder.load(column, align=size))
            builder.store(builder.fadd(builder.load(total), product), total)

        whole = builder.udiv(many, _INDEX(_SUMS))
        with cgutils.for_range(builder, whole) as loop:
            first = builder.mul(loop.index, _INDEX(_SUMS))
            for number, total in enumerate(sums):
                add(builder.add(first, _INDEX(number)), total)
        with cgutils.for_range_slice(builder, builder.mul(whole, _INDEX(_SUMS)), many, _INDEX(1)) as (k, _):
            add(k, sums[0])
        one, two, three, four = (builder.load(total) for total in sums)
        found = builder.fadd(builder.fadd(one, two), builder.fadd(three, four))
        builder.store(builder.fadd(builder.load(place, align=size), found), place, align=size)
        return context.get_dummy_value()

    return types.void(out, count, like, matrix, stride, indices, values, table), build


def _scatter(
    context: Any, given: Any, count: Any, like: Any, matrix: Any, stride: Any, indices: Any, values: Any, table: Any
) -> Any:
    """Add to the column of each of `count` entries its number times the 16 numbers that are given."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, many, _, *data = arguments
        kind, size = ir.VectorType(context.get_value_type(like), _LANES), 4 if like == types.float32 else 8
        own = builder.load(builder.inttoptr(at, kind.as_pointer()), align=size)
        with cgutils.for_range(builder, many) as loop:
            column, number = _entry(builder, data, kind, loop.index)
            before = builder.load(column, align=size)
            builder.store(builder.fadd(before, builder.fmul(number, own)), column, align=size)
        return context.get_dummy_value()

    return types.void(given, count, like, matrix, stride, indices, values, table), build


def _turn(context: Any, source: Any, step: Any, to: Any, to_step: Any, like: Any) -> Any:
    """Transpose a square of 16 rows and columns, whose rows are so many bytes apart."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        begin, apart, out, out_apart, _ = arguments
        kind, size = ir.VectorType(context.get_value_type(like), _LANES), 4 if like == types.float32 else 8

        def row(address: Any, bytes_apart: Any, k: int) -> Any:
            return builder.inttoptr(builder.add(address, builder.mul(bytes_apart, _INDEX(k))), kind.as_pointer())

        rows = [builder.load(row(begin, apart, k), align=size) for k in range(_LANES)]
        places, half = ir.VectorType(ir.IntType(32), _LANES), _LANES // 2
        cards = [k // 2 + _LANES * (k % 2) for k in range(_LANES)]
        mixes = [ir.Constant(places, cards), ir.Constant(places, [half + card for card in cards])]
        for _ in range(4):  # log2 of 16: rows k and k + 8 are merged like a pack of cards
            halves = zip(rows[:half], rows[half:], strict=True)
            rows = [builder.shuffle_vector(a, b, mix) for a, b in halves for mix in mixes]
        for k in range(_LANES):
            builder.store(rows[k], row(out, out_apart, k), align=size)
        return context.get_dummy_value()

    return types.void(source, step, to, to_step, like), build


_gather_lanes: Any = intrinsic(_gather)
_scatter_lanes: Any = intrinsic(_scatter)
_turn_square: Any = intrinsic(_turn)


@jit()
def transpose(a: Any, out: Any) -> None:
    """Write the transpose of a, (m, n), into the beginning of `out`'s rows, (n, at least m)."""
    m, n, size, zero = a.shape[0], a.shape[1], a.itemsize, a.dtype.type(0)
    whole_m, whole_n = m // _LANES * _LANES, n // _LANES * _LANES
    source, to, apart, to_apart = np.int64(a.ctypes.data), np.int64(out.ctypes.data), a.strides[0], out.strides[0]
    for i in range(0, whole_m, _LANES):
        for j in range(0, whole_n, _LANES):
            _turn_square(source + i * apart + j * size, apart, to + j * to_apart + i * size, to_apart, zero)
    for i in range(m):
        for j in range(whole_n if i < whole_m else 0, n):
            out[j, i] = a[i, j]


@jit()
def add_sparse_product(out: Any, matrix: Any, indices: Any, values: Any, table: Any) -> None:
    """out += the sum over a row's entries of their numbers times their columns of the matrix."""
    stride, size = matrix.strides[0], _LANES * matrix.itemsize
    at, columns = np.int64(out.ctypes.data), np.int64(matrix.ctypes.data)
    data = np.int64(indices.ctypes.data), np.int64(values.ctypes.data), np.int64(table.ctypes.data)
    for b in range(matrix.shape[1] // _LANES):
        shift = b * size
        _gather_lanes(at + shift, len(indices), table[0], columns + shift, stride, data[0], data[1], data[2])


@jit()
def add_outer_product(matrix: Any, given: Any, indices: Any, values: Any, table: Any) -> None:
    """Each entry's column of the matrix += its number times what is given."""
    stride, size = matrix.strides[0], _LANES * matrix.itemsize
    at, columns = np.int64(given.ctypes.data), np.int64(matrix.ctypes.data)
    data = np.int64(indices.ctypes.data), np.int64(values.ctypes.data), np.int64(table.ctypes.data)
    for b in range(matrix.shape[1] // _LANES):
        shift = b * size
        _scatter_lanes(at + shift, len(indices), table[0], columns + shift, stride, data[0], data[1], data[2])
