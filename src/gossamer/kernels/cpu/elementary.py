"""exp and log1p for numba kernels: plain arithmetic in a fixed order, which LLVM turns into vector instructions.

They are vectorised where a library's functions would be called one number at a time, and give the same bits on every
processor and at every position of an array.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

_LOG2E, _LN2 = math.log2(math.e), math.log(2)
# ln 2 in two parts: the first has so few bits that its product with an exponent is exact.
_HIGH32 = np.float32(0.693359375)
_LOW32 = np.float32(_LN2 - 0.693359375)
_HIGH64 = float.fromhex("0x1.62e42fee00000p-1")
_LOW64 = float.fromhex("0x1.a39ef35793c76p-33")
# Adding and subtracting it rounds to an integer, whose bits are then the lowest of the sum.
_ROUND32, _ROUND64 = np.float32(3 << 22), float(3 << 51)
# Taylor series, highest power first, of exp and of log a = 2 atanh s = 2 s + 2 s^3 / 3 + ..., s = (a - 1) / (a + 1).
_EXP32 = tuple(np.float32(1 / math.factorial(k)) for k in range(7, -1, -1))
_EXP64 = tuple(1 / math.factorial(k) for k in range(13, -1, -1))
_LOG32 = tuple(np.float32(2 / k) for k in range(9, 0, -2))
_LOG64 = tuple(2 / k for k in range(21, 0, -2))

Function = Callable[[Any], Any]


def exp(x: Any) -> Any:
    """The exponential of x <= 0, to 2 units in the last place; never below the smallest normal number. NaN stays."""
    raise NotImplementedError


def log1p(x: Any) -> Any:
    """The logarithm of 1 + x, 0 <= x <= 1, to 4 units in the last place. NaN stays."""
    raise NotImplementedError


@overload(exp)
def _exp(x: Any) -> Function:
    def exp32(x: Any) -> Any:
        x = np.float32(-87) if x < np.float32(-87) else x
        whole = x * np.float32(_LOG2E) + _ROUND32
        power = whole - _ROUND32
        rest = (x - power * _HIGH32) - power * _LOW32
        value = _EXP32[0]
        for factor in _EXP32[1:]:
            value = value * rest + factor
        return value * np.int32((np.float32(whole).view(np.int32) << 23) + (127 << 23)).view(np.float32)

    def exp64(x: Any) -> Any:
        x = -708.0 if x < -708.0 else x
        whole = x * _LOG2E + _ROUND64
        power = whole - _ROUND64
        rest = (x - power * _HIGH64) - power * _LOW64
        value = _EXP64[0]
        for factor in _EXP64[1:]:
            value = value * rest + factor
        return value * np.int64((np.float64(whole).view(np.int64) << 52) + (1023 << 52)).view(np.float64)

    return exp32 if x == types.float32 else exp64


@overload(log1p)
def _log1p(x: Any) -> Function:
    def log32(x: Any) -> Any:
        is_large = x > np.float32(0.414)  # then 1 + x = 2 a with a <= 1, else 1 + x = a; either way |s| < 0.172
        s = (x - np.float32(1)) / (x + np.float32(3)) if is_large else x / (x + np.float32(2))
        square, value = s * s, _LOG32[0]
        for factor in _LOG32[1:]:
            value = value * square + factor
        return value * s + (np.float32(_LN2) if is_large else np.float32(0))

    def log64(x: Any) -> Any:
        is_large = x > 0.414
        s = (x - 1.0) / (x + 3.0) if is_large else x / (x + 2.0)
        square, value = s * s, _LOG64[0]
        for factor in _LOG64[1:]:
            value = value * square + factor
        return value * s + (_LN2 if is_large else 0.0)

    return log32 if x == types.float32 else log64
