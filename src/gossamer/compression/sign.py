"""Signs: one bit a coordinate."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Message
from gossamer.compression.coding.bits import packed_size, unpack
from gossamer.compression.coding.entropy import decode_unsigned, encode_unsigned
from gossamer.compression.coding.wire import Reader, float_bytes
from gossamer.compression.layout import Layout
from gossamer.errors import CodecError
from gossamer.registry import compressors
from gossamer.streams import Draw


@dataclass(frozen=True, eq=False)
class Signs(Message):
    """One scale a block, and for each coordinate whether it is minus or plus the scale."""

    scale: Tensor
    """(rows, blocks)."""
    negative: Tensor
    """(rows, d), bool."""
    layout: Layout
    kind: ClassVar[int] = 4

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        return self.negative.shape[0], self.negative.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the scale."""
        return self.scale.dtype

    def _dense(self) -> Tensor:
        scale = self.layout.spread(self.scale)
        return torch.where(self.negative, -scale, scale)

    def times(self, factor: float) -> Self:
        """The scales times the factor."""
        return replace(self, scale=self.scale * factor)

    def payload_size(self) -> int:
        """The scales and a bit a coordinate."""
        return len(self.layout.head()) + self.scale.shape[1] * self.scale.element_size() + packed_size(self.shape[1], 1)

    def fixed(self) -> list[bytes]:
        """Each row's scales, then its signs, eight a byte."""
        head, scales = self.layout.head(), float_bytes(self.scale)
        packed = np.packbits(self.negative.cpu().numpy(), axis=1, bitorder="little")
        return [head + scale + row.tobytes() for scale, row in zip(scales, packed, strict=True)]

    def entropy(self) -> list[bytes]:
        """Each row's scales, then its signs: shorter where one sign prevails."""
        head, scales = self.layout.head(), float_bytes(self.scale)
        bits = self.negative.cpu().numpy().astype(np.int64)
        return [head + scale + encode_unsigned(row) for scale, row in zip(scales, bits, strict=True)]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Read scales and signs back."""
        layout = Layout.parse(reader, d)
        scale = reader.floats(layout.blocks, dtype)
        if scale.min() < 0:
            raise CodecError("A scale is negative.")
        bits = decode_unsigned(reader.rest(), d) if entropy else unpack(reader.rest(), d, 1)
        if bits.max() > 1:
            raise CodecError(f"A sign of {bits.max()} cannot be.")
        return cls(torch.from_numpy(scale[None]), torch.from_numpy(bits.astype(bool)[None]), layout)

    @property
    def bits_nominal(self) -> int:
        """One bit a coordinate."""
        return self.shape[1]


@compressors.register("sign")
@dataclass(frozen=True)
class sign(Compressor):
    """C(x) = (||x||_1 / d) sign(x): signs, scaled by the mean magnitude (Karimireddy et al., 2019).

    ||C(x) - x||^2 = ||x||^2 - ||x||_1^2 / d, so alpha is 1 / d at the worst (a vector with one entry) and 1 at the
    best (entries of one size). The sign of zero is plus.
    """

    def alpha(self, d: int) -> float:
        """1 / d."""
        return 1 / d

    @property
    def is_deterministic(self) -> bool:
        """Yes."""
        return True

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Signs:
        """The signs, and the mean magnitude of each block."""
        lengths = torch.tensor(layout.lengths, dtype=x.dtype, device=x.device).repeat(x.shape[0])[:, None]
        mean = (layout.split(x).abs() / lengths).sum(dim=1).view(x.shape[0], -1)
        return Signs(mean, x < 0, layout)
