"""Compile a kernel with numba."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def jit(**options: Any) -> Callable[[Kernel], Kernel]:
    """Compile a function when it is first called; it releases the interpreter, and divides as IEEE says."""

    def wrap(function: Kernel) -> Kernel:
        compiled: Kernel = numba.njit(nogil=True, error_model="numpy", **options)(function)
        return compiled

    return wrap
