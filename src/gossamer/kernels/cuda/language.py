"""Triton, where it is installed. Without it the functions of this folder cannot be called, but read and imported."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

triton: Any = None
tl: Any = None
try:
    import triton  # type: ignore[no-redef]
    import triton.language as tl  # type: ignore[no-redef]
except ImportError:  # a CPU build of torch comes without it
    pass

if TYPE_CHECKING or tl is None:
    constexpr: TypeAlias = Any
else:
    constexpr = tl.constexpr
"""The annotation of what is known when a kernel is compiled."""


_times: list[float] = []


def seconds() -> float:
    """Seconds that Triton compiled so far."""
    return sum(_times)


def _note(*, times: Any, cache_hit: bool, **_: Any) -> None:
    if not cache_hit:
        _times.append(times.total / 1e6)


if triton is not None and triton.knobs.compilation.listener is None:
    triton.knobs.compilation.listener = _note


def jit(*unspecialised: str) -> Callable[[Any], Any]:
    """Compile when first called with new types; the named integers do not lead to versions of their own.

    Kernels are to be called with `**EXACT`.
    """
    if triton is None:
        return lambda function: function
    return lambda function: triton.jit(function, do_not_specialize=unspecialised)


EXACT = {"enable_fp_fusion": False}
"""No product is fused into a sum: each operation is rounded as on a CPU."""


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_2(least: int) -> int:
    """The smallest power of 2 that is not below `least`."""
    return 1 << max(0, least - 1).bit_length()
