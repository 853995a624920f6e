"""All values, at full precision or at half of it."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Proportional
from gossamer.compression.coding.wire import Reader, float_bytes
from gossamer.compression.layout import Layout
from gossamer.errors import CodecError
from gossamer.registry import compressors
from gossamer.streams import Draw


@dataclass(frozen=True, eq=False)
class Dense(Proportional):
    """Every coordinate at full precision."""

    values: Tensor
    kind: ClassVar[int] = 1
    multiplied: ClassVar[str] = "values"
    symbols: ClassVar[str] = "values"

    def _dense(self) -> Tensor:
        return self.values

    def payload_size(self) -> int:
        """4 or 8 bytes per coordinate."""
        return self.shape[1] * self.values.element_size()

    def fixed(self) -> list[bytes]:
        """The values of each row, little-endian."""
        return float_bytes(self.values)

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode the values."""
        return cls(torch.from_numpy(reader.floats(d, dtype)[None]))

    @property
    def bits_nominal(self) -> int:
        """32 or 64 bits per coordinate."""
        return 8 * self.payload_size()


@compressors.register("identity")
@dataclass(frozen=True)
class identity(Compressor):
    """C(x) = x: alpha = 1, and full-precision messages."""

    is_deterministic = True
    is_unbiased = True

    def alpha(self, d: int) -> float:
        """1: nothing is lost."""
        return 1.0

    def omega(self, d: int) -> float:
        """0."""
        return 0.0

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Dense:
        """The rows themselves, without a copy: the library never modifies a tensor in place."""
        return Dense(x)


@dataclass(frozen=True, eq=False)
class Half(Proportional):
    """Every coordinate in float16, divided by a power of two that brings the largest of its row to [1, 2)."""

    scale: Tensor
    """(rows, 1)."""
    values: Tensor
    """(rows, d), float16."""
    kind: ClassVar[int] = 8
    multiplied: ClassVar[str] = "scale"
    symbols: ClassVar[str] = "values"

    def _dense(self) -> Tensor:
        return self.values.to(self.scale.dtype) * self.scale

    def payload_size(self) -> int:
        """2 bytes per coordinate, and the scale."""
        return self.scale.element_size() + 2 * self.shape[1]

    def fixed(self) -> list[bytes]:
        """The scale of each row, then its values, little-endian."""
        values = self.values.cpu().numpy().astype("<f2", copy=False)
        return [scale + row.tobytes() for scale, row in zip(float_bytes(self.scale), values, strict=True)]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode scale and values."""
        scale = reader.floats(1, dtype)
        values = np.frombuffer(reader.take(2 * d), "<f2").astype(np.float16)
        if scale[0] < 0 or not (np.abs(values) <= 2).all():
            raise CodecError(f"Invalid scale {scale[0]:g}, or values that are not in [-2, 2].")
        return cls(torch.from_numpy(scale[None]), torch.from_numpy(values[None]))

    @property
    def bits_nominal(self) -> int:
        """16 bits per coordinate."""
        return 16 * self.shape[1]


@compressors.register("float16")
@dataclass(frozen=True)
class float16(Compressor):
    """Rounds every coordinate to float16, relative to the largest: half the bytes of float32.

    A vector is divided by a power of two, so that the largest value is in [1, 2). A value is then off by at most 2^-11
    of its size or, near zero, 2^-25; so alpha = 1 - 2^-22 - d 2^-50.
    """

    is_deterministic = True

    def alpha(self, d: int) -> float:
        """1 - 2^-22 - d 2^-50."""
        return 1 - 2.0**-22 - d * 2.0**-50

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Half:
        """Divide by a power of two, and round."""
        largest = x.abs().amax(dim=1, keepdim=True)
        scale = torch.exp2(torch.frexp(largest).exponent.to(x.dtype) - 1)
        return Half(scale, (x / scale).to(torch.float16))
