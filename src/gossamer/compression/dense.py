"""No compression: the numbers themselves."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Message
from gossamer.errors import CodecError
from gossamer.registry import compressors
from gossamer.streams import Draw

_LITTLE_ENDIAN = {torch.float32: "<f4", torch.float64: "<f8"}


@dataclass(frozen=True, eq=False)
class Dense(Message):
    """Every coordinate, as it is."""

    values: Tensor
    kind: ClassVar[int] = 1

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    def _dense(self) -> Tensor:
        return self.values

    @property
    def parameter(self) -> int:
        """None is needed."""
        return 0

    def payload_size(self) -> int:
        """4 or 8 bytes a coordinate."""
        return self.shape[1] * self.values.element_size()

    def payloads(self) -> list[bytes]:
        """The values of each row, little-endian."""
        return floats_to_bytes(self.values)

    @classmethod
    def parse(cls, payload: bytes, parameter: int, d: int, dtype: torch.dtype) -> Self:
        """Read the values back."""
        return cls(floats_from_bytes(payload, d, dtype)[None])

    @property
    def bits_paper(self) -> int:
        """32 or 64 bits a coordinate."""
        return 8 * self.payload_size()


@compressors.register("identity")
@dataclass(frozen=True)
class identity(Compressor):
    """C(x) = x: alpha = 1, and full-precision messages."""

    def alpha(self, d: int) -> float:
        """1: nothing is lost."""
        return 1.0

    @property
    def is_deterministic(self) -> bool:
        """Yes."""
        return True

    def compress(self, x: Tensor, draw: Draw) -> Dense:
        """The rows themselves; no copy, since nothing in the library changes a tensor in place."""
        return Dense(x)


def floats_to_bytes(values: Tensor) -> list[bytes]:
    """Each row of (rows, k) floats as little-endian bytes."""
    array = values.detach().cpu().numpy().astype(_LITTLE_ENDIAN[values.dtype], copy=False)
    return [row.tobytes() for row in array]


def floats_from_bytes(payload: bytes, count: int, dtype: torch.dtype) -> Tensor:
    """The `count` finite floats in `payload`."""
    if len(payload) != count * dtype.itemsize:
        raise CodecError(f"{count} values of {dtype} take {count * dtype.itemsize} bytes, got {len(payload)}.")
    array = np.frombuffer(payload, _LITTLE_ENDIAN[dtype]).astype(_LITTLE_ENDIAN[dtype][1:])
    if not np.isfinite(array).all():
        raise CodecError("A value in the payload is NaN or infinite.")
    return torch.from_numpy(array)
