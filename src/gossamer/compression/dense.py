"""No compression: the numbers themselves."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Message
from gossamer.compression.coding.wire import Reader, float_bytes
from gossamer.compression.layout import Layout
from gossamer.registry import compressors
from gossamer.streams import Draw


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

    def times(self, factor: float) -> Self:
        """Every value times the factor."""
        return type(self)(self.values * factor)

    def payload_size(self) -> int:
        """4 or 8 bytes a coordinate."""
        return self.shape[1] * self.values.element_size()

    def fixed(self) -> list[bytes]:
        """The values of each row, little-endian."""
        return float_bytes(self.values)

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Read the values back."""
        return cls(torch.from_numpy(reader.floats(d, dtype)[None]))

    @property
    def bits_nominal(self) -> int:
        """32 or 64 bits a coordinate."""
        return 8 * self.payload_size()


@compressors.register("identity")
@dataclass(frozen=True)
class identity(Compressor):
    """C(x) = x: alpha = 1, and full-precision messages."""

    def alpha(self, d: int) -> float:
        """1: nothing is lost."""
        return 1.0

    def omega(self, d: int) -> float:
        """0."""
        return 0.0

    @property
    def is_deterministic(self) -> bool:
        """Yes."""
        return True

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Dense:
        """The rows themselves; no copy, since nothing in the library changes a tensor in place."""
        return Dense(x)
