"""Sign compression: one bit per coordinate."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer import kernels
from gossamer.compression.base import Compressor, Followed, Proportional, check_finite
from gossamer.compression.coding.entropy import decode_unsigned, encode_unsigned
from gossamer.compression.coding.wire import Reader, float_bytes
from gossamer.compression.layout import Layout
from gossamer.errors import CodecError
from gossamer.kernels import packed_size, unpack
from gossamer.registry import compressors
from gossamer.streams import Draw


@dataclass(frozen=True, eq=False)
class Signs(Proportional):
    """One scale per block; each coordinate is plus or minus that scale."""

    scale: Tensor
    """(rows, blocks)."""
    negative: Tensor
    """(rows, d), bool."""
    layout: Layout
    kind: ClassVar[int] = 4
    multiplied: ClassVar[str] = "scale"
    symbols: ClassVar[str] = "negative"

    def _dense(self) -> Tensor:
        scale = self.layout.cut.spread(self.scale)
        return torch.where(self.negative, -scale, scale)

    def payload_size(self) -> int:
        """Bytes of the scales, and one bit per coordinate."""
        return len(self.layout.head()) + self.scale.shape[1] * self.scale.element_size() + packed_size(self.shape[1], 1)

    def fixed(self) -> list[bytes]:
        """For each row its scales, then its signs, eight per byte."""
        head, scales = self.layout.head(), float_bytes(self.scale)
        packed = np.packbits(self.negative.cpu().numpy(), axis=1, bitorder="little")
        return [head + scale + row.tobytes() for scale, row in zip(scales, packed, strict=True)]

    def entropy(self) -> list[bytes]:
        """For each row its scales, then its entropy-coded signs; shorter if one sign is more frequent."""
        head, scales = self.layout.head(), float_bytes(self.scale)
        bits = self.negative.cpu().numpy().astype(np.int64)
        return [head + scale + encode_unsigned(row) for scale, row in zip(scales, bits, strict=True)]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode scales and signs."""
        layout = Layout.parse(reader, d)
        scale = reader.floats(layout.blocks, dtype)
        if scale.min() < 0:
            raise CodecError(f"Invalid scale {scale.min():g}; expected 0 or more.")
        bits = decode_unsigned(reader.rest(), d) if entropy else unpack(reader.rest(), d, 1)
        if bits.max() > 1:
            raise CodecError(f"Invalid sign symbol {bits.max()}; expected 0 or 1.")
        return cls(torch.from_numpy(scale[None]), torch.from_numpy(bits.astype(bool)[None]), layout)

    @property
    def bits_nominal(self) -> int:
        """One bit per coordinate."""
        return self.shape[1]


@compressors.register("sign")
@dataclass(frozen=True)
class sign(Compressor):
    """C(x) = (||x||_1 / d) sign(x): signs, scaled by the mean magnitude (Karimireddy et al., 2019).

    ||C(x) - x||^2 = ||x||^2 - ||x||_1^2 / d, so alpha is 1 / d in the worst case (one non-zero entry) and 1 in the best
    (entries of equal magnitude). Zero counts as positive.
    """

    is_deterministic = True

    def alpha(self, d: int) -> float:
        """1 / d."""
        return 1 / d

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Signs:
        """The signs, and the mean magnitude of each block."""
        found = kernels.signs(x, None, layout.cut, x.dtype)
        return Signs(found.scale, found.negative, layout)

    def follow(self, value: Tensor, own: Tensor, draw: Draw, layout: Layout, dtype: torch.dtype) -> Followed:
        """In one pass over memory."""
        found = kernels.signs(value, own, layout.cut, dtype)
        if not found.is_finite:
            check_finite(kernels.difference(value, own, dtype), "The vector to compress")
        assert found.moved is not None
        return Signs(found.scale, found.negative, layout), found.moved
