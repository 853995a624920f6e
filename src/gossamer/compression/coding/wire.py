"""Wire primitives: varints, floats, and a reader that never reads past the end."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.errors import CodecError

_NATIVE: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype("f4"), torch.float64: np.dtype("f8")}
_LITTLE_ENDIAN: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype("<f4"), torch.float64: np.dtype("<f8")}


def varint(value: int) -> bytes:
    """Encode a non-negative integer in 7 bits per byte, lowest first; the top bit marks that more bytes follow."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def varint_size(value: int) -> int:
    """The length of `varint(value)` in bytes."""
    return max(1, -(-value.bit_length() // 7))


def varint_sizes(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """`varint_size` of many values."""
    wide = np.asarray(values, np.int64)
    sizes = np.ones(wide.shape, np.int64)
    for shift in range(7, 63, 7):
        sizes += wide >> shift > 0
    return sizes


class Reader:
    """Reads bytes from left to right; reading past the end raises a CodecError."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    @property
    def left(self) -> int:
        """The number of bytes not read yet."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        start, end = self.at, self.at + count
        if end > len(self.data):
            raise CodecError(f"The packet is {end - len(self.data)} bytes too short.")
        self.at = end
        return self.data[start:end]

    def rest(self) -> bytes:
        """All remaining bytes."""
        return self.take(self.left)

    def varint(self) -> int:
        """The next varint, of at most 63 bits and in its shortest form."""
        value = 0
        for shift in range(0, 63, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                if byte == 0 and shift:
                    raise CodecError(f"The integer {value} in the packet is not in its shortest form.")
                return value
        raise CodecError("An integer in the packet has more than 63 bits.")

    def floats(self, count: int, dtype: torch.dtype) -> npt.NDArray[Any]:
        """The next `count` finite floats."""
        values = np.frombuffer(self.take(count * dtype.itemsize), _LITTLE_ENDIAN[dtype]).astype(_NATIVE[dtype])
        if not (math.isfinite(values[0]) if count == 1 else np.isfinite(values).all()):
            raise CodecError("A value in the packet is NaN or infinite.")
        return values

    def end(self) -> None:
        """Refuse remaining bytes."""
        if self.left:
            raise CodecError(f"{self.left} unexpected bytes follow the end of a message.")


def float_bytes(values: Tensor) -> list[bytes]:
    """The bytes of each row of (rows, k) floats, little-endian."""
    array = values.cpu().numpy().astype(_LITTLE_ENDIAN[values.dtype], copy=False)
    return [row.tobytes() for row in array]
