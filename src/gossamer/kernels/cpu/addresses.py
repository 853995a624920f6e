"""Addresses in numba kernels: as pointers, and to have the processor fetch what lies there."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gossamer.kernels.compile import jit

_LINE = 64  # bytes that a processor fetches at once


def _as_pointer(context: Any, address: Any) -> Any:
    """A number as an address."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), build


def _ask_for(context: Any, address: Any) -> Any:
    """Have the processor fetch a line to read; an address that is not ours does no harm."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(fetch, [builder.inttoptr(arguments[0], byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(address), build


pointer: Any = intrinsic(_as_pointer)
_fetch_line: Any = intrinsic(_ask_for)


@jit()
def fetch(address: int, size: int) -> None:
    """Have the processor fetch so many bytes while it goes on."""
    for at in range(address, address + size, _LINE):
        _fetch_line(at)
