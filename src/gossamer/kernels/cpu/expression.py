"""Lines of a step on a CPU: vector instructions are written for each expression, and compiled once.

LLVM is called directly, because that takes some hundredths of a second, while a function of numba's takes half of one.
"""

import ctypes
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils
from torch import Tensor

from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import clock
from gossamer.kernels.cpu.vectors import LARGE, LINE, cast, repeated, store_past
from gossamer.kernels.lines import Leaf, Op, Program
from gossamer.kernels.pool import is_recording, split

Array = np.ndarray[Any, Any]
Kernel = Callable[[int, int, int, int, int], None]

_ROWS, _PIECE = 8, 4096  # of fewer rows, pieces of so many numbers are shared out: rows would be too uneven
_LANES = 16  # numbers at once
_DOUBLE, _SINGLE, _INDEX = ir.DoubleType(), ir.FloatType(), ir.IntType(64)
_OPERATIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_lock = threading.Lock()


def _number(is_single: bool) -> Any:
    return _SINGLE if is_single else _DOUBLE


class _Writer:
    """Writes `void lines(void **places, double **scalars, long width, long begin, long end)` for some operations.

    `places` has the tensors, the columns and the outputs; rows are `width` long. All numbers of a block are loaded
    before any is stored, so that an output may be written over a tensor.
    """

    def __init__(
        self, ops: tuple[Op, ...], outputs: tuple[int, ...], tensors: int, columns: int, is_past: bool
    ) -> None:
        self.ops, self.outputs, self.is_past = ops, outputs, is_past
        self.first_column, self.first_output = tensors, tensors + columns
        self.module = ir.Module("lines")
        kind = ir.FunctionType(ir.VoidType(), [_INDEX] * 5)
        self.function = ir.Function(self.module, kind, "lines")
        self.builder = ir.IRBuilder(self.function.append_basic_block())

    def written(self) -> str:
        """The module in LLVM's language."""
        build, (places, scalars, width, begin, end) = self.builder, self.function.args
        places, scalars = (build.inttoptr(one, _INDEX.as_pointer()) for one in (places, scalars))
        addresses = [self._element(places, k) for k in range(self.first_output + len(self.outputs))]
        fixed: dict[int, Any] = {}
        for k, op in enumerate(self.ops):
            if op.name == "scalar":
                number = self._element(build.inttoptr(self._element(scalars, op.a), _DOUBLE.as_pointer()), 0)
                fixed[k] = build.fptrunc(number, _SINGLE) if op.is_single else number
        last = build.add(build.sdiv(build.sub(end, _INDEX(1)), width), _INDEX(1))
        with cgutils.for_range_slice(build, build.sdiv(begin, width), last, _INDEX(1)) as (row, _):
            own = {
                k: self._element(self._array(addresses[self.first_column + op.a], _number(op.is_single)), row)
                for k, op in enumerate(self.ops)
                if op.name == "column"
            }
            first, after = build.mul(row, width), build.mul(build.add(row, _INDEX(1)), width)
            first = build.select(build.icmp_signed("<", first, begin), begin, first)
            after = build.select(build.icmp_signed("<", end, after), end, after)
            begun = self._aligned(first, after) if self.is_past else first
            whole = build.sub(after, build.srem(build.sub(after, begun), _INDEX(_LANES)))
            for low, high, lanes in ((first, begun, 1), (begun, whole, _LANES), (whole, after, 1)):
                with cgutils.for_range_slice(build, low, high, _INDEX(lanes)) as (at, _):
                    self._block(addresses, fixed | own, at, lanes)
        build.ret_void()
        return str(self.module)

    def _aligned(self, first: Any, after: Any) -> Any:
        """The next multiple of `_LANES`, or the end."""
        build = self.builder
        up = build.mul(build.sdiv(build.add(first, _INDEX(_LANES - 1)), _INDEX(_LANES)), _INDEX(_LANES))
        return build.select(build.icmp_signed("<", after, up), after, up)

    def _element(self, array: Any, k: Any) -> Any:
        """array[k]."""
        return self.builder.load(self.builder.gep(array, [_INDEX(k) if isinstance(k, int) else k]))

    def _array(self, address: Any, kind: Any) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    def _block(self, addresses: list[Any], known: dict[int, Any], at: Any, lanes: int) -> None:
        """All operations on some numbers, from `at` on."""
        build, values = self.builder, list[Any]()
        for k, op in enumerate(self.ops):
            kind = ir.VectorType(_number(op.is_single), lanes)
            if k in known:
                values.append(repeated(build, known[k], kind))
            elif op.name == "load":
                values.append(build.load(self._place(addresses[op.a], kind, at), align=self._size(op)))
            elif op.name == "to":
                values.append(cast(build, values[op.a], kind))
            else:
                operands = (cast(build, values[part], kind) for part in (op.a, op.b))
                values.append(getattr(build, _OPERATIONS[op.name])(*operands))
        for k, output in enumerate(self.outputs):
            to = self._place(addresses[self.first_output + k], values[output].type, at)
            if self.is_past and lanes > 1:
                store_past(build, values[output], to)
            else:
                build.store(values[output], to, align=self._size(self.ops[output]))

    @staticmethod
    def _size(op: Op) -> int:
        return 4 if op.is_single else 8

    def _place(self, address: Any, kind: Any, at: Any) -> Any:
        place = self.builder.gep(self._array(address, kind.element), [at])
        return self.builder.bitcast(place, kind.as_pointer())


@lru_cache(maxsize=1)
def _machine() -> Any:
    """This processor, as LLVM sees it."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    features = binding.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3, jit=True)


@lru_cache(maxsize=256)
def _compiled(
    ops: tuple[Op, ...], outputs: tuple[int, ...], tensors: int, columns: int, is_past: bool
) -> tuple[Kernel, Any]:
    """The kernel, which releases the interpreter, and what owns its memory."""
    with _lock, clock.running():
        module = binding.parse_assembly(_Writer(ops, outputs, tensors, columns, is_past).written())
        module.verify()
        engine = binding.create_mcjit_compiler(module, _machine())
        engine.finalize_object()
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)
        return kind(engine.get_function_address("lines")), engine


def _cell(scalar: Leaf) -> Array:
    """Where a scalar is found; a tensor may have another value when the kernel runs again."""
    is_kept = isinstance(scalar, Tensor) and scalar.dtype == torch.float64
    return scalar.numpy() if is_kept else np.array(float(scalar))  # type: ignore[union-attr]


def lines(program: Program) -> list[Tensor]:
    """The outputs of a program: see `reference.lines`."""
    (rows, d), whole = program.tensors[0].shape, program.tensors[0].numel()
    made = []
    for k in program.outputs:
        kind = torch.float32 if program.ops[k].is_single else torch.float64
        over = [tensor.numpy() for tensor in program.tensors if tensor.dtype == kind]
        made.append(empty((rows, d), kind, over)[0])
    kept = [*program.tensors, *(column.contiguous() for column in program.columns), *made]
    numbers = [_cell(scalar) for scalar in program.scalars]  # read when the kernel runs
    places = np.array([tensor.data_ptr() for tensor in kept], np.int64)
    scalars = np.array([number.ctypes.data for number in numbers], np.int64)
    read = {tensor.data_ptr() for tensor in program.tensors}
    is_past = all(one.nbytes >= LARGE and one.data_ptr() % LINE == 0 and one.data_ptr() not in read for one in made)
    counts = len(program.tensors), len(program.columns)
    kernel, owner = _compiled(program.ops, program.outputs, *counts, is_past)
    parts, step = (rows, d) if rows >= _ROWS or is_recording() else (-(-whole // _PIECE), _PIECE)
    given = places.ctypes.data, scalars.ctypes.data, d if program.columns else whole

    alive = kept, numbers, places, scalars, owner

    def run(begin: int, end: int) -> None:
        assert alive  # addresses alone would not keep their memory
        kernel(*given, begin * step, min(end * step, whole))

    split(parts, whole, run)
    return made
