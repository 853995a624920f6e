"""Lines of a step on a CPU: a small machine whose registers are blocks of numbers that stay in the first cache."""

from functools import lru_cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.lines import Leaf, Op, Program
from gossamer.kernels.pool import split

Array = np.ndarray[Any, Any]
carray: Any = numba.carray  # type: ignore[attr-defined]

_BLOCK = 512
_CODES = {"load": 0, "column": 2, "scalar": 4, "add": 5, "sub": 6, "mul": 7, "div": 8, "to": 9}
_STORE = 10  # and 11 for float32


def _as_pointer(context: Any, address: Any) -> Any:
    """A number as an address."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), build


_pointer: Any = intrinsic(_as_pointer)


@jit()
def _operate(code: int, a: Any, b: Any, out: Any) -> None:
    if code == 5:
        for j in range(len(out)):
            out[j] = a[j] + b[j]
    elif code == 6:
        for j in range(len(out)):
            out[j] = a[j] - b[j]
    elif code == 7:
        for j in range(len(out)):
            out[j] = a[j] * b[j]
    elif code == 8:
        for j in range(len(out)):
            out[j] = a[j] / b[j]
    else:
        for j in range(len(out)):
            out[j] = a[j]


@jit()
def _copy(source: Any, out: Any) -> None:
    for j in range(len(out)):
        out[j] = source[j]


@jit()
def _round(out: Any) -> None:
    for j in range(len(out)):
        out[j] = np.float64(np.float32(out[j]))


@jit()
def _run(program: Any, addresses: Any, scalars: Any, d: int, begin: int, end: int) -> None:
    """All operations on the numbers from `begin` to `end`, block by block, each block within one row."""
    registers = np.empty((program[-1, 0], _BLOCK))
    start = begin
    while start < end:
        row, at = start // d, start % d
        many = min(_BLOCK, end - start, d - at)
        for p in range(len(program) - 1):
            code, a, b, to, is_single = program[p]
            out = registers[to, :many]
            if code == 0:
                _copy(carray(_pointer(addresses[a] + start * 8), (many,), np.float64), out)
            elif code == 1:
                _copy(carray(_pointer(addresses[a] + start * 4), (many,), np.float32), out)
            elif code == 2:
                out[:] = carray(_pointer(addresses[a] + row * 8), (1,), np.float64)[0]
            elif code == 3:
                out[:] = np.float64(carray(_pointer(addresses[a] + row * 4), (1,), np.float32)[0])
            elif code == 4:
                scalar = carray(_pointer(scalars[a]), (1,), np.float64)[0]
                out[:] = np.float64(np.float32(scalar)) if is_single else scalar
            elif code == 10:
                _copy(registers[to, :many], carray(_pointer(addresses[a] + start * 8), (many,), np.float64))
            elif code == 11:
                _copy(registers[to, :many], carray(_pointer(addresses[a] + start * 4), (many,), np.float32))
            else:
                _operate(code, registers[a, :many], registers[b, :many], out)
            if is_single and 5 <= code < 10:
                _round(out)
        start += many


@lru_cache(maxsize=256)
def _assembled(ops: tuple[Op, ...], outputs: tuple[int, ...], tensors: int, columns: int) -> Array:
    """Instructions (code, a, b, register, is_single); the last row holds the number of registers."""
    last = {place: number for number, op in enumerate(ops) if op.name not in ("load", "column", "scalar")
            for place in (op.a, op.b)}  # fmt: skip
    free: list[int] = []
    where: dict[int, int] = {}
    many, code = 0, []
    for number, op in enumerate(ops):
        is_leaf = op.name in ("load", "column", "scalar")
        a, b = (op.a + (tensors if op.name == "column" else 0), 0) if is_leaf else (where[op.a], where[op.b])
        if not free:
            free.append(many)
            many += 1
        to = where[number] = free.pop()
        single = op.is_single and op.name in ("load", "column")
        code.append((_CODES[op.name] + single, a, b, to, op.is_single and op.name not in ("load", "column")))
        if number in outputs:
            place = tensors + columns + outputs.index(number)
            code.append((_STORE + op.is_single, place, 0, to, False))
        free += [where[part] for part in {op.a, op.b} if not is_leaf and last.get(part) == number]
        if number not in last:
            free.append(to)
    return np.array([*code, (many, 0, 0, 0, 0)], np.int64)


def _cell(scalar: Leaf) -> Array:
    """Where a scalar is found; a tensor may have another value when the kernel runs again."""
    is_kept = isinstance(scalar, Tensor) and scalar.dtype == torch.float64
    return scalar.numpy() if is_kept else np.array(float(scalar))  # type: ignore[union-attr]


def lines(program: Program) -> list[Tensor]:
    """The outputs of a program: see `reference.lines`."""
    first = program.tensors[0]
    made = [empty(tuple(first.shape), torch.float32 if program.ops[k].is_single else torch.float64)
            for k in program.outputs]  # fmt: skip
    kept = [*program.tensors, *(column.contiguous() for column in program.columns), *(tensor for tensor, _ in made)]
    addresses = np.array([tensor.data_ptr() for tensor in kept], np.int64)
    numbers = [_cell(scalar) for scalar in program.scalars]  # read when the kernel runs
    scalars = np.array([number.ctypes.data for number in numbers], np.int64)
    code = _assembled(program.ops, program.outputs, len(program.tensors), len(program.columns))
    d = first.shape[1]
    blocks, whole = -(-first.numel() // _BLOCK), first.numel()
    step, width = _BLOCK, d if program.columns else whole

    def run(begin: int, end: int) -> None:
        assert kept  # addresses alone would not keep their memory
        assert len(numbers) == len(scalars)
        _run(code, addresses, scalars, width, begin * step, min(end * step, whole))

    split(blocks, whole, run)
    return [tensor for tensor, _ in made]
