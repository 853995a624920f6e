"""Random dithering: each coordinate becomes one of a few levels of the row's norm."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Message
from gossamer.compression.bits import pack, packed_size, unpack
from gossamer.compression.dense import floats_from_bytes, floats_to_bytes
from gossamer.errors import CodecError, check_integer, settle
from gossamer.registry import compressors
from gossamer.streams import Draw


@dataclass(frozen=True, eq=False)
class Levels(Message):
    """One scale a row and one integer in [-2^(bits-1), 2^(bits-1)] a coordinate; the value is their product."""

    scale: Tensor
    levels: Tensor
    bits: int
    kind: ClassVar[int] = 2

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        return self.levels.shape[0], self.levels.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the scale, and of the product."""
        return self.scale.dtype

    def _dense(self) -> Tensor:
        return self.levels * self.scale[:, None]

    @property
    def parameter(self) -> int:
        """The bits b of gsgd_b."""
        return self.bits

    @property
    def width(self) -> int:
        """Bits for one level in fixed width: 2^b + 1 levels do not fit in b bits."""
        return self.bits + 1

    def payload_size(self) -> int:
        """The scale and the packed levels."""
        return self.scale.element_size() + packed_size(self.shape[1], self.width)

    def payloads(self) -> list[bytes]:
        """Each row's scale, then its levels counted from the lowest."""
        lowest = -(1 << (self.bits - 1))
        packed = pack(self.levels.cpu().numpy().astype("int64") - lowest, self.width)
        scales = floats_to_bytes(self.scale[:, None])
        return [scale + row.tobytes() for scale, row in zip(scales, packed, strict=True)]

    @classmethod
    def parse(cls, payload: bytes, parameter: int, d: int, dtype: torch.dtype) -> Self:
        """Read scale and levels back; a level above the highest is refused."""
        if not 1 <= parameter <= 31:
            raise CodecError(f"Levels of {parameter} bits do not exist: 1 to 31 do.")
        scale = floats_from_bytes(payload[: dtype.itemsize], 1, dtype)
        half = 1 << (parameter - 1)
        if scale < 0 or not torch.isfinite(scale * half):
            raise CodecError(f"A scale of {scale.item()} is negative or too large.")
        raw = unpack(payload[dtype.itemsize :], d, parameter + 1)
        if len(raw) and raw.max() > 2 * half:
            raise CodecError(f"A level of {int(raw.max()) - half} is above the highest, {half}.")
        return cls(scale, torch.from_numpy(raw - half).to(integer_dtype(half))[None], parameter)

    @property
    def bits_paper(self) -> int:
        """B bits a coordinate."""
        return self.bits * self.shape[1]


@compressors.register("gsgd")
@dataclass(frozen=True)
class gsgd(Compressor):
    """gsgd_b, the paper's random dithering (BEER, appendix A; Alistarh et al., QSGD, 2017).

    With u uniform in [0, 1)^d and tau = 1 + min(d / 2^(2(b-1)), sqrt(d) / 2^(b-1))::

        gsgd_b(x) = ||x|| / tau * sign(x) * 2^-(b-1) * floor(2^(b-1) |x| / ||x|| + u)

    is a contraction with alpha = 1 / tau.

    Args:
        bits: b. There are 2^b + 1 levels, from -2^(b-1) to 2^(b-1).

    Deviations: none in exact arithmetic. floor(y + u) is taken as floor(y) + [frac(y) + u >= 1] and clamped to the
    highest level, since y + u may round up to the next integer in floating point.
    """

    bits: int
    examples = ({"bits": 5}, {"bits": 2}, {"bits": 20})

    def __post_init__(self) -> None:
        settle(self, bits=check_integer("bits", self.bits, 2, 31))

    def tau(self, d: int) -> float:
        """1 + the variance bound of the unbiased operator: the factor that makes it a contraction."""
        levels = 1 << (self.bits - 1)
        return 1 + min(d / levels**2, math.sqrt(d) / levels)

    def alpha(self, d: int) -> float:
        """1 / tau."""
        return 1 / self.tau(d)

    @property
    def is_deterministic(self) -> bool:
        """No: the dither is random."""
        return False

    def compress(self, x: Tensor, draw: Draw) -> Levels:
        """Dither each row."""
        d = x.shape[1]
        highest = 1 << (self.bits - 1)
        u = draw.uniform(d, x.dtype)
        norm = row_norms(x)
        # A zero row divides by 1 and keeps its zeros; the reciprocal is not used, for 1 / 1e-40 is infinite.
        y = x.abs() / norm.where(norm > 0, 1)[:, None] * highest
        whole = y.floor()
        level = (whole + (y - whole + u >= 1)).clamp_(max=highest) * x.sign()
        scale = norm / (self.tau(d) * highest)
        return Levels(scale, level.to(integer_dtype(highest)), self.bits)


def row_norms(x: Tensor) -> Tensor:
    """||x|| of each row, without overflow or underflow of the squares: rows are scaled by their largest entry first."""
    largest = x.abs().amax(dim=1)
    largest = largest.where(largest > 0, 1)
    norms: Tensor = torch.linalg.vector_norm(x / largest[:, None], dim=1)
    return norms * largest


def integer_dtype(highest: int) -> torch.dtype:
    """The smallest signed integer type that holds -highest .. highest."""
    return next(t for t in (torch.int8, torch.int16, torch.int32, torch.int64) if highest <= torch.iinfo(t).max)
