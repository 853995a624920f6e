"""What numba cannot say of its own: memory fetched ahead, results written past the caches, sums kept in registers.

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
    """Whether a result is to be written past the caches: a large array of float64, not in the place of `over`."""
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
