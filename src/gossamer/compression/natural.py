"""Natural compression: each coordinate is rounded at random to a power of two."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Proportional
from gossamer.compression.coding.entropy import decode_signed, encode_signed
from gossamer.compression.coding.wire import Reader, float_bytes
from gossamer.compression.layout import Layout
from gossamer.errors import CodecError
from gossamer.kernels import pack, packed_size, unpack
from gossamer.registry import compressors
from gossamer.streams import Draw

_FURTHEST = 254  # code 0 is zero; code c is the c-th power of two, counted down from the largest of the row
_WIDTH = 9
_LARGEST = {torch.float32: 127, torch.float64: 1023}


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
        # 2^e is computed in float64, because ldexp in float32 ends at 2^-126.
        exponent = self.top[:, None] + 1 - self.codes.abs()
        power = torch.ldexp(self.codes.sign().double(), exponent) * self.factor.double()
        return power.to(self.dtype)

    def payload_size(self) -> int:
        """Bytes of the factor, the largest exponent, and 9 bits per coordinate."""
        return self.factor.element_size() + 2 + packed_size(self.shape[1], _WIDTH)

    def _heads(self) -> list[bytes]:
        factor = float_bytes(self.factor[None])[0]
        return [factor + int(top).to_bytes(2, "little", signed=True) for top in self.top.tolist()]

    def fixed(self) -> list[bytes]:
        """For each row its factor and largest exponent, then its codes."""
        packed = pack((self.codes + _FURTHEST).cpu().numpy(), _WIDTH)
        return [head + row.tobytes() for head, row in zip(self._heads(), packed, strict=True)]

    def entropy(self) -> list[bytes]:
        """As `fixed`, with entropy-coded codes."""
        codes = self.codes.cpu().numpy()
        return [head + encode_signed(row, _FURTHEST) for head, row in zip(self._heads(), codes, strict=True)]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode factor, largest exponent and codes."""
        factor = reader.floats(1, dtype)
        top = int.from_bytes(reader.take(2), "little", signed=True)
        codes = decode_signed(reader.rest(), d) if entropy else unpack(reader.rest(), d, _WIDTH) - _FURTHEST
        if np.abs(codes).max() > _FURTHEST or top > _LARGEST[dtype] or abs(factor[0]) > 1:
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
        mantissa, exponent = torch.frexp(x.double().abs())  # |x| = mantissa 2^exponent, mantissa in [1/2, 1)
        up = draw.uniform(x.shape[1], x.dtype) < 2 * mantissa - 1
        power = (exponent - 1 + up).clamp(max=_LARGEST[x.dtype]).long()
        power = power.where(x != 0, torch.iinfo(torch.int16).min)
        top = power.amax(dim=1).clamp(min=-1100)
        code = top[:, None] - power + 1
        code = code.where((code <= _FURTHEST) & (x != 0), 0) * x.sign().long()
        return Powers(top, code.to(torch.int16), torch.ones(1, dtype=x.dtype, device=x.device))
