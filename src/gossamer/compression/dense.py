"""No compression: all values at full precision."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Proportional
from gossamer.compression.coding.wire import Reader, float_bytes
from gossamer.compression.layout import Layout
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
