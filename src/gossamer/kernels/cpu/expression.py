"""Lines of a step on a CPU: a small machine whose registers are blocks of numbers that stay in the first cache."""

from functools import lru_cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.cpu.addresses import fetch, pointer
from gossamer.kernels.lines import Leaf, Op, Program
from gossamer.kernels.pool import is_recording, split

Array = np.ndarray[Any, Any]
carray: Any = numba.carray  # type: ignore[attr-defined]

_BLOCK = 512
_ROWS = 8  # from which they are shared out evenly enough; of fewer rows, blocks are
_CODES = {"add": 0, "sub": 1, "mul": 2, "div": 3, "to": 4}
_WIDEN, _NARROW, _COLUMN = 5, 6, 8  # from float32, to float32; 8 and 9: one number per row, of float64 and float32
_REGISTER, _MEMORY, _SCALAR = 0, 1, 2  # where an operand is


@jit()
def _operate(code: int, a: Any, b: Any, out: Any) -> None:
    if code == 0:
        for j in range(len(out)):
            out[j] = a[j] + b[j]
    elif code == 1:
        for j in range(len(out)):
            out[j] = a[j] - b[j]
    elif code == 2:
        for j in range(len(out)):
            out[j] = a[j] * b[j]
    elif code == 3:
        for j in range(len(out)):
            out[j] = a[j] / b[j]
    else:
        for j in range(len(out)):
            out[j] = a[j]


@jit()
def _operate_scalar(code: int, a: Any, s: float, is_first: bool, out: Any) -> None:
    """With a scalar as the second operand, or as the first."""
    if code == 0:
        for j in range(len(out)):
            out[j] = a[j] + s
    elif code == 2:
        for j in range(len(out)):
            out[j] = a[j] * s
    elif code == 1:
        for j in range(len(out)):
            out[j] = s - a[j] if is_first else a[j] - s
    else:
        for j in range(len(out)):
            out[j] = s / a[j] if is_first else a[j] / s


@jit()
def _copy(source: Any, out: Any) -> None:
    for j in range(len(out)):
        out[j] = source[j]


@jit()
def _round(out: Any) -> None:
    for j in range(len(out)):
        out[j] = np.float64(np.float32(out[j]))


@jit(inline="always")
def _scalar(address: int, is_single: int) -> Any:
    number = carray(pointer(address), (1,), np.float64)[0]
    return np.float64(np.float32(number)) if is_single else number


@jit()
def _run(program: Any, addresses: Any, sizes: Any, scalars: Any, d: int, begin: int, end: int) -> None:
    """All operations on the numbers from `begin` to `end`, block by block, each block within one row."""
    space = np.empty((program[-1, 0], _BLOCK))
    start, base = begin, np.int64(space.ctypes.data)
    while start < end:
        many = min(_BLOCK, end - start, d - start % d)
        for p in range(len(sizes)):  # what the next block reads
            fetch(addresses[p] + (start + many) * sizes[p], many * sizes[p])
        for p in range(len(program) - 1):
            code, in_a, a, in_b, b, in_out, to, is_single = program[p]
            place = base + to * (8 * _BLOCK) if in_out == 0 else addresses[to] + start * 8
            out = carray(pointer(place), (many,), np.float64)
            from_a = base + a * (8 * _BLOCK) if in_a == 0 else addresses[a] + start * 8 if in_a == 1 else base
            if code == 5:
                _copy(carray(pointer(addresses[a] + start * 4), (many,), np.float32), out)
            elif code == 6:
                _copy(carray(pointer(from_a), (many,), np.float64),
                      carray(pointer(addresses[to] + start * 4), (many,), np.float32))  # fmt: skip
            elif code == 8:
                out[:] = carray(pointer(addresses[a] + start // d * 8), (1,), np.float64)[0]
            elif code == 9:
                out[:] = np.float64(carray(pointer(addresses[a] + start // d * 4), (1,), np.float32)[0])
            else:
                from_b = base + b * (8 * _BLOCK) if in_b == 0 else addresses[b] + start * 8 if in_b == 1 else base
                one, two = carray(pointer(from_a), (many,), np.float64), carray(pointer(from_b), (many,), np.float64)
                if in_a == 2:
                    _operate_scalar(code, two, _scalar(scalars[a], is_single), True, out)
                elif in_b == 2:
                    _operate_scalar(code, one, _scalar(scalars[b], is_single), False, out)
                else:
                    _operate(code, one, two, out)
                if is_single:
                    _round(out)
        start += many
    space[0, 0] = 0.0  # it must live until here: an address alone does not keep it


_LEAVES = ("load", "column", "scalar")


class _Assembler:
    """Turns operations into instructions (code, where and which a, where and which b, where and which out, single)."""

    def __init__(self, ops: tuple[Op, ...], outputs: tuple[int, ...], tensors: int, columns: int) -> None:
        self.ops, self.outputs, self.tensors = ops, outputs, tensors
        self.first_output = tensors + columns
        self.code: list[tuple[int, ...]] = []
        self.where: dict[int, tuple[int, int]] = {}
        self.free: list[int] = []
        self.many = 0
        self.last = {part: n for n, op in enumerate(ops) if op.name not in _LEAVES for part in (op.a, op.b)}

    def register(self) -> int:
        """One that is not in use."""
        if not self.free:
            self.free.append(self.many)
            self.many += 1
        return self.free.pop()

    def leaf(self, number: int, op: Op) -> None:
        """Numbers of float64 and scalars are used where they are; others are brought into a register."""
        if op.name == "scalar":
            self.where[number] = (_SCALAR, op.a)
        elif op.name == "load" and not op.is_single:
            self.where[number] = (_MEMORY, op.a)
        else:
            to = self.register()
            self.where[number] = (_REGISTER, to)
            is_column = op.name == "column"
            code = _COLUMN + op.is_single if is_column else _WIDEN
            self.code.append((code, 1, op.a + (self.tensors if is_column else 0), 1, 0, _REGISTER, to, 0))

    def operation(self, number: int, op: Op) -> None:
        """Into a register, or straight into memory where that holds float64."""
        is_output = number in self.outputs
        place = self.first_output + self.outputs.index(number) if is_output else 0
        if is_output and not op.is_single:
            self.where[number] = (_MEMORY, place)
        else:
            self.where[number] = (_REGISTER, self.register())
        where = self.where[number]
        self.code.append((_CODES[op.name], *self.where[op.a], *self.where[op.b], *where, int(op.is_single)))
        if is_output and op.is_single:
            self.code.append((_NARROW, *where, _REGISTER, 0, _MEMORY, place, 0))
        done = {part for part in (op.a, op.b) if self.last[part] == number}
        done |= set() if number in self.last else {number}
        self.free += [self.where[part][1] for part in done if self.where[part][0] == _REGISTER]

    def assembled(self) -> Array:
        """The instructions; the last row holds the number of registers."""
        for number, op in enumerate(self.ops):
            (self.leaf if op.name in _LEAVES else self.operation)(number, op)
        return np.array([*self.code, (max(1, self.many), 0, 0, 0, 0, 0, 0, 0)], np.int64)


@lru_cache(maxsize=256)
def _assembled(ops: tuple[Op, ...], outputs: tuple[int, ...], tensors: int, columns: int) -> Array:
    return _Assembler(ops, outputs, tensors, columns).assembled()


def _cell(scalar: Leaf) -> Array:
    """Where a scalar is found; a tensor may have another value when the kernel runs again."""
    is_kept = isinstance(scalar, Tensor) and scalar.dtype == torch.float64
    return scalar.numpy() if is_kept else np.array(float(scalar))  # type: ignore[union-attr]


def _done_with(program: Program, output: int) -> list[Array]:
    """The tensors of an output's type that are not read any more when the output is written.

    float32 is read into registers before its first use, float64 where it is used.
    """
    found, is_single = [], program.ops[output].is_single
    for number, op in enumerate(program.ops[:output]):
        readers = (k for k, one in enumerate(program.ops) if one.name not in _LEAVES and number in (one.a, one.b))
        if op.name == "load" and op.is_single == is_single and max(readers, default=0) < output + is_single:
            found.append(program.tensors[op.a].numpy())
    return found


def lines(program: Program) -> list[Tensor]:
    """The outputs of a program: see `reference.lines`."""
    first = program.tensors[0]
    made = [empty(tuple(first.shape), torch.float32 if program.ops[k].is_single else torch.float64,
                  _done_with(program, k)) for k in program.outputs]  # fmt: skip
    kept = [*program.tensors, *(column.contiguous() for column in program.columns), *(tensor for tensor, _ in made)]
    addresses = np.array([tensor.data_ptr() for tensor in kept], np.int64)
    numbers = [_cell(scalar) for scalar in program.scalars]  # read when the kernel runs
    sizes = np.array([tensor.element_size() for tensor in program.tensors], np.int64)
    scalars = np.array([number.ctypes.data for number in numbers], np.int64)
    code = _assembled(program.ops, program.outputs, len(program.tensors), len(program.columns))
    (rows, d), whole = first.shape, first.numel()
    parts, step = (rows, d) if rows >= _ROWS or is_recording() else (-(-whole // _BLOCK), _BLOCK)
    width = d if program.columns else whole

    def run(begin: int, end: int) -> None:
        assert kept  # addresses alone would not keep their memory
        assert len(numbers) == len(scalars)
        _run(code, addresses, sizes, scalars, width, begin * step, min(end * step, whole))

    split(parts, whole, run)
    return [tensor for tensor, _ in made]
