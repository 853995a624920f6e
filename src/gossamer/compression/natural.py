"""Natural compression: each coordinate is rounded at random to a power of two."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer import kernels
from gossamer.compression.base import Compressor, Followed, Proportional, check_finite
from gossamer.compression.coding.entropy import decode_signed, encode_signed
from gossamer.compression.coding.wire import Reader, float_bytes
from gossamer.compression.layout import Layout
from gossamer.errors import CodecError
from gossamer.kernels import pack, packed_size, unpack
from gossamer.kernels.reference import FURTHEST, LARGEST
from gossamer.registry import compressors
from gossamer.streams import Draw

_WIDTH = 9


@dataclass(frozen=True, eq=False)
class Powers(Proportional):
    """The largest exponent of each row; for each coordinate, a sign and the difference to that exponent."""

    top: Tensor
    """(rows,), int64: the exponent of code 1."""
    codes: Tensor
    """(rows, d), int16, from -254 to 254."""
    factor: Tensor
    """(1,): a factor of all values."""
    kind: ClassVar[int] = 5
    multiplied: ClassVar[str] = "factor"
    symbols: ClassVar[str] = "codes"

    def _dense(self) -> Tensor:
        return (kernels.power_values(self.top, self.codes) * self.factor.double()).to(self.dtype)

    def payload_size(self) -> int:
        """Bytes of the factor, the largest exponent, and 9 bits per coordinate."""
        return self.factor.element_size() + 2 + packed_size(self.shape[1], _WIDTH)

    def _heads(self) -> list[bytes]:
        factor = float_bytes(self.factor[None])[0]
        return [factor + int(top).to_bytes(2, "little", signed=True) for top in self.top.tolist()]

    def fixed(self) -> list[bytes]:
        """For each row its factor and largest exponent, then its codes."""
        packed = pack((self.codes + FURTHEST).cpu().numpy(), _WIDTH)
        return [head + row.tobytes() for head, row in zip(self._heads(), packed, strict=True)]

    def entropy(self) -> list[bytes]:
        """As `fixed`, with entropy-coded codes."""
        codes = self.codes.cpu().numpy()
        return [head + encode_signed(row, FURTHEST) for head, row in zip(self._heads(), codes, strict=True)]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode factor, largest exponent and codes."""
        factor = reader.floats(1, dtype)
        top = int.from_bytes(reader.take(2), "little", signed=True)
        codes = decode_signed(reader.rest(), d) if entropy else unpack(reader.rest(), d, _WIDTH) - FURTHEST
        if np.abs(codes).max() > FURTHEST or top > LARGEST[dtype] or abs(factor[0]) > 1:
            raise CodecError(f"Invalid exponent: code {np.abs(codes).max()} below 2^{top}, times {factor[0]:g}.")
        return cls(torch.tensor([top]), torch.from_numpy(codes.astype(np.int16)[None]), torch.from_numpy(factor))

    @property
    def bits_nominal(self) -> int:
        """9 bits per coordinate: a sign and the exponent of a float32."""
        return _WIDTH * self.shape[1]


@compressors.register("natural")
@dataclass(frozen=True)
class natural(Compressor):
    """Rounds each coordinate to the power of two below or above it, at random so that the mean is kept.

    (Horvath et al., *Natural Compression for Distributed Deep Learning*, 2019.) Unbiased with omega = 1/8. Coordinates
    more than 2^253 times smaller than the largest of the row become zero. The largest power is that of the dtype.
    """

    is_deterministic = False
    is_unbiased = True

    def omega(self, d: int) -> float:
        """1/8 for every d."""
        return 1 / 8

    def alpha(self, d: int) -> float:
        """1 - omega = 7/8."""
        return 1 - self.omega(d)

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Powers:
        """Round each exponent. Blocks make no difference, because no norm is used."""
        found = kernels.powers(x, None, draw.stream, x.dtype)
        return Powers(found.top, found.codes, torch.ones(1, dtype=x.dtype, device=x.device))

    def follow(self, value: Tensor, own: Tensor, draw: Draw, layout: Layout, dtype: torch.dtype) -> Followed:
        """In one pass over memory."""
        found = kernels.powers(value, own, draw.stream, dtype)
        if not found.is_finite:
            check_finite(kernels.difference(value, own, dtype), "The vector to compress")
        assert found.moved is not None
        return Powers(found.top, found.codes, torch.ones(1, dtype=dtype, device=value.device)), found.moved
