"""Random dithering: each coordinate becomes one of a few levels of its block's norm."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Message, check_magnitude, contraction
from gossamer.compression.coding.bits import pack, packed_size, unpack
from gossamer.compression.coding.entropy import decode_signed, encode_signed
from gossamer.compression.coding.wire import Reader, float_bytes, varint
from gossamer.compression.layout import Layout
from gossamer.errors import CodecError, InputError, check_integer, settle
from gossamer.registry import compressors
from gossamer.streams import Draw

_NUMPY = {torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32, torch.int64: np.int64}
_MOST_FLOAT32 = 1 << 24
_LARGEST = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float64)}
_CHUNK = 1 << 18  # coordinates dithered at once: they stay in the cache from the first pass to the last


@dataclass(frozen=True, eq=False)
class Levels(Message):
    """One scale a block and one integer from -highest to highest a coordinate; the value is their product."""

    scale: Tensor
    """(rows, blocks)."""
    levels: Tensor
    """(rows, d), of an integer type."""
    highest: int
    layout: Layout
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
        return self.levels * self.layout.spread(self.scale)

    def times(self, factor: float) -> Self:
        """The scales times the factor."""
        return replace(self, scale=self.scale * factor)

    @property
    def width(self) -> int:
        """Bits for one level in fixed width: gsgd_b has 2^b + 1 levels, which do not fit in b bits."""
        return (2 * self.highest).bit_length()

    def _head(self) -> bytes:
        blocked = self.layout.blocks > 1
        return varint(2 * self.highest + blocked) + (self.layout.head() if blocked else b"")

    def payload_size(self) -> int:
        """The scales and the packed levels."""
        scales = self.scale.shape[1] * self.scale.element_size()
        return len(self._head()) + scales + packed_size(self.shape[1], self.width)

    def fixed(self) -> list[bytes]:
        """Each row's scales, then its levels counted from the lowest."""
        head, scales = self._head(), float_bytes(self.scale)
        packed = pack(self.levels.cpu().numpy() + self.highest, self.width)
        return [head + scale + row.tobytes() for scale, row in zip(scales, packed, strict=True)]

    def entropy(self) -> list[bytes]:
        """Each row's scales, then its levels, entropy-coded."""
        head, scales = self._head(), float_bytes(self.scale)
        levels = self.levels.cpu().numpy()
        return [head + scale + encode_signed(row, self.highest) for scale, row in zip(scales, levels, strict=True)]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Read scales and levels back; a level beyond the highest is refused."""
        highest, blocked = divmod(reader.varint(), 2)
        if not 1 <= highest <= 1 << 30:
            raise CodecError(f"A highest level of {highest} cannot be.")
        layout = Layout.parse(reader, d) if blocked else Layout(d, d)
        scale = reader.floats(layout.blocks, dtype)
        if min(scales := scale.tolist()) < 0 or max(scales) * highest > _LARGEST[dtype]:
            raise CodecError("A scale is negative or too large.")
        if entropy:
            levels = decode_signed(reader.rest(), d)
        else:
            raw = unpack(reader.rest(), d, (2 * highest).bit_length())
            levels = (
                raw.view(np.int8) - np.int8(highest)
                if raw.dtype == np.uint8 and highest < 64
                else raw - np.int64(highest)
            )
        if levels.max() > highest or levels.min() < -highest:
            raise CodecError(f"A level is beyond the highest, {highest}.")
        small = levels.astype(_NUMPY[integer_dtype(highest)], copy=False)
        return cls(torch.from_numpy(scale[None]), torch.from_numpy(small[None]), highest, layout)

    @property
    def bits_nominal(self) -> int:
        """A sign and log2 of the levels, for each coordinate: b bits for gsgd_b."""
        return (1 + (self.highest - 1).bit_length()) * self.shape[1]


@compressors.register("qsgd")
@dataclass(frozen=True)
class qsgd(Compressor):
    """Unbiased random dithering (Alistarh et al., *QSGD*, NeurIPS 2017).

    With u uniform in [0, 1)^d::

        qsgd(x) = ||x|| * sign(x) / levels * floor(levels |x| / ||x|| + u)

    has mean x and omega = min(d / levels^2, sqrt(d) / levels).

    Args:
        levels: Steps between 0 and the norm; 2 levels + 1 values a coordinate.
    """

    levels: int
    checks_by_norm = True
    examples = ({"levels": 16}, {"levels": 3}, {"levels": 1})

    def __post_init__(self) -> None:
        settle(self, levels=check_integer("levels", self.levels, 1, 1 << 30))

    def omega(self, d: int) -> float:
        """min(d / levels^2, sqrt(d) / levels)."""
        return min(d / self.levels**2, math.sqrt(d) / self.levels)

    def alpha(self, d: int) -> float:
        """1 - omega, where omega is below 1."""
        return contraction(self, d, self.omega(d))

    @property
    def is_deterministic(self) -> bool:
        """No: the dither is random."""
        return False

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Levels:
        """Dither each block."""
        return dither(x, draw, layout, self.levels, 1.0)


@compressors.register("gsgd")
@dataclass(frozen=True)
class gsgd(Compressor):
    """gsgd_b, the paper's random dithering (BEER, appendix A): qsgd with 2^(b-1) levels, divided by 1 + omega.

    With u uniform in [0, 1)^d and tau = 1 + min(d / 2^(2(b-1)), sqrt(d) / 2^(b-1))::

        gsgd_b(x) = ||x|| / tau * sign(x) * 2^-(b-1) * floor(2^(b-1) |x| / ||x|| + u)

    is a contraction with alpha = 1 / tau.

    Args:
        bits: The number b; there are 2^b + 1 levels, from -2^(b-1) to 2^(b-1).

    Deviations: none in exact arithmetic. floor(y + u) is taken as floor(y) + [frac(y) + u >= 1] and clamped to the
    highest level, since y + u may round up to the next integer in floating point.
    """

    bits: int
    checks_by_norm = True
    examples = ({"bits": 5}, {"bits": 2}, {"bits": 20})

    def __post_init__(self) -> None:
        settle(self, bits=check_integer("bits", self.bits, 2, 31))

    def tau(self, d: int) -> float:
        """1 + omega of the unbiased operator: the factor that makes it a contraction."""
        return 1 + qsgd(1 << (self.bits - 1)).omega(d)

    def alpha(self, d: int) -> float:
        """1 / tau."""
        return 1 / self.tau(d)

    @property
    def is_deterministic(self) -> bool:
        """No: the dither is random."""
        return False

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Levels:
        """Dither each block."""
        return dither(x, draw, layout, 1 << (self.bits - 1), self.tau(layout.size))


def dither(x: Tensor, draw: Draw, layout: Layout, highest: int, tau: float) -> Levels:
    """||x|| / tau * sign(x) / highest * floor(highest |x| / ||x|| + u), with the norm of each block."""
    if x.dtype == torch.float32 and highest > _MOST_FLOAT32:
        raise InputError(f"float32 tells at most {_MOST_FLOAT32:,} levels apart, got {highest:,}; use float64.")
    u = draw.uniform(x.shape[1], x.dtype)
    norm = block_norms(x, layout)
    scale = norm / (tau * highest)
    check_magnitude(
        norm + scale * (1.001 * highest), x.shape[0], x
    )  # short of the limit, so that no rounding passes it
    # A zero block divides by 1 and keeps its zeros. The reciprocal is not used: 1 / 1e-40 is infinite.
    divisor = layout.spread(norm.where(norm > 0, 1))
    levels = torch.empty(x.shape, dtype=integer_dtype(highest), device=x.device)
    step = max(1, x.shape[1] if x.is_cuda else _CHUNK // x.shape[0])
    for at in range(0, x.shape[1], step):
        part = slice(at, at + step)
        y = x[:, part].abs().div_(divisor if divisor.shape[1] == 1 else divisor[:, part]).mul_(highest)
        whole = y.floor()
        whole += y.sub_(whole).add_(u[:, part]) >= 1
        levels[:, part] = whole.clamp_(max=highest).copysign_(x[:, part])
    return Levels(scale, levels, highest, layout)


def block_norms(x: Tensor, layout: Layout) -> Tensor:
    """||x|| of each block, (rows, blocks), without overflow or underflow of the squares."""
    parts = layout.split(x)
    if x.is_cuda and x.dtype == torch.float32:  # no square is lost in float64, and nothing need be looked at
        wide: Tensor = torch.linalg.vector_norm(parts, dim=1, dtype=torch.float64)
        return wide.to(x.dtype).view(x.shape[0], layout.blocks)
    norms: Tensor = torch.linalg.vector_norm(parts, dim=1)
    doubtful = (norms < 1e-12) | (norms > 1e18)
    if doubtful.any():  # squares may have been lost: take these norms again, in units of the block's largest entry
        again = parts[doubtful]
        largest = again.abs().amax(dim=1, keepdim=True)
        largest = largest.where(largest > 0, 1)
        norms[doubtful] = torch.linalg.vector_norm(again / largest, dim=1) * largest[:, 0]
    return norms.view(x.shape[0], layout.blocks)


def integer_dtype(highest: int) -> torch.dtype:
    """The smallest signed integer type that holds -2 highest .. 2 highest (levels are shifted up to be packed)."""
    return (
        torch.int8
        if highest < 64
        else torch.int16
        if highest < 1 << 14
        else torch.int32
        if highest < 1 << 30
        else torch.int64
    )
