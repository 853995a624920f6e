"""Random dithering: each coordinate is rounded at random to a multiple of a fraction of its block's norm."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer import kernels
from gossamer.compression.base import Compressor, Followed, Proportional, check_magnitude, contraction
from gossamer.compression.coding.entropy import decode_signed, encode_signed
from gossamer.compression.coding.wire import Reader, float_bytes, varint
from gossamer.compression.layout import Layout
from gossamer.errors import CodecError, InputError, check_integer, settle
from gossamer.kernels import pack_rows, packed_size, unpack
from gossamer.registry import compressors
from gossamer.streams import Draw

_MOST_FLOAT32 = 1 << 24
_LARGEST = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float64)}


@dataclass(frozen=True, eq=False)
class Levels(Proportional):
    """One scale per block and one integer in [-highest, highest] per coordinate; a value is their product."""

    scale: Tensor
    """(rows, blocks)."""
    levels: Tensor
    """(rows, d), integers."""
    highest: int
    layout: Layout
    kind: ClassVar[int] = 2
    multiplied: ClassVar[str] = "scale"
    symbols: ClassVar[str] = "levels"

    def _dense(self) -> Tensor:
        return self.levels * self.layout.cut.spread(self.scale)

    def bound(self) -> float:
        """The largest scale, times the highest level."""
        return float(self.scale.max()) * self.highest

    def add_to(self, mixed: Tensor, mixer: kernels.Mixer, a: float) -> Tensor:
        """From the levels, without the values."""
        return mixer.add_levels(mixed, self.scale, self.levels, self.layout.cut, a)

    @property
    def width(self) -> int:
        """Bits per level in fixed width: gsgd_b has 2^b + 1 levels, which takes b + 1 bits."""
        return (2 * self.highest).bit_length()

    def _head(self) -> bytes:
        blocked = self.layout.blocks > 1
        return varint(2 * self.highest + blocked) + (self.layout.head() if blocked else b"")

    def payload_size(self) -> int:
        """Bytes of the scales and the packed levels."""
        scales = self.scale.shape[1] * self.scale.element_size()
        return len(self._head()) + scales + packed_size(self.shape[1], self.width)

    def fixed(self) -> list[bytes]:
        """For each row its scales, then its levels, shifted to start at 0."""
        head, scales = self._head(), float_bytes(self.scale)
        packed = pack_rows(self.levels, self.highest, self.width)
        return [head + scale + row.tobytes() for scale, row in zip(scales, packed, strict=True)]

    def entropy(self) -> list[bytes]:
        """For each row its scales, then its entropy-coded levels."""
        head, scales = self._head(), float_bytes(self.scale)
        levels = self.levels.cpu().numpy()
        return [head + scale + encode_signed(row, self.highest) for scale, row in zip(scales, levels, strict=True)]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode scales and levels."""
        highest, blocked = divmod(reader.varint(), 2)
        if not 1 <= highest <= 1 << 30:
            raise CodecError(f"Invalid highest level {highest}; expected 1 to 2^30.")
        layout = Layout.parse(reader, d) if blocked else Layout(d, d)
        scale = reader.floats(layout.blocks, dtype)
        if min(scales := scale.tolist()) < 0 or max(scales) * highest > _LARGEST[dtype]:
            wrong = min(scales) if min(scales) < 0 else max(scales)
            raise CodecError(f"Invalid scale {wrong:g}; it is negative or too large.")
        if entropy:
            levels = decode_signed(reader.rest(), d, np.int8 if highest < 64 else np.int64)
        else:
            raw = unpack(reader.rest(), d, (2 * highest).bit_length())
            is_small = raw.dtype == np.uint8 and highest < 64
            levels = raw.view(np.int8) - np.int8(highest) if is_small else raw - np.int64(highest)
        if levels.max() > highest or levels.min() < -highest:
            raise CodecError(f"Invalid level {np.abs(levels).max()}; the highest is {highest}.")
        small = torch.from_numpy(levels[None]).to(integer_dtype(highest))
        return cls(torch.from_numpy(scale[None]), small, highest, layout)

    @property
    def bits_nominal(self) -> int:
        """A sign and log2(highest) bits per coordinate: b bits for gsgd_b."""
        return (1 + (self.highest - 1).bit_length()) * self.shape[1]


@compressors.register("qsgd")
@dataclass(frozen=True)
class qsgd(Compressor):
    """Unbiased random dithering (Alistarh et al., *QSGD*, NeurIPS 2017).

    With u uniform in [0, 1)^d::

        qsgd(x) = ||x|| * sign(x) / levels * floor(levels |x| / ||x|| + u)

    has mean x and omega = min(d / levels^2, sqrt(d) / levels).

    Args:
        levels: Steps between 0 and the norm; a coordinate takes one of 2 levels + 1 values.
    """

    levels: int
    is_deterministic = False
    is_unbiased = True
    checks_by_norm = True
    examples = ({"levels": 16}, {"levels": 3}, {"levels": 1})

    def __post_init__(self) -> None:
        settle(self, levels=check_integer("levels", self.levels, 1, 1 << 30))

    def omega(self, d: int) -> float:
        """min(d / levels^2, sqrt(d) / levels)."""
        return min(d / self.levels**2, math.sqrt(d) / self.levels)

    def alpha(self, d: int) -> float:
        """1 - omega, if omega is below 1."""
        return contraction(self, d, self.omega(d))

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Levels:
        """Dither each block."""
        return _dithered(x, None, draw, layout, self.levels, 1.0, x.dtype)[0]

    def follow(self, value: Tensor, own: Tensor, draw: Draw, layout: Layout, dtype: torch.dtype) -> Followed:
        """In one pass over memory."""
        return _follow(value, own, draw, layout, self.levels, 1.0, dtype)


@compressors.register("gsgd")
@dataclass(frozen=True)
class gsgd(Compressor):
    """gsgd_b, the paper's random dithering (BEER, appendix A): qsgd with 2^(b-1) levels, divided by 1 + omega.

    With u uniform in [0, 1)^d and tau = 1 + min(d / 2^(2(b-1)), sqrt(d) / 2^(b-1))::

        gsgd_b(x) = ||x|| / tau * sign(x) * 2^-(b-1) * floor(2^(b-1) |x| / ||x|| + u)

    is a contraction with alpha = 1 / tau.

    Args:
        bits: b; there are 2^b + 1 levels, from -2^(b-1) to 2^(b-1).

    Deviations: none in exact arithmetic. floor(y + u) is computed as floor(y) + [frac(y) + u >= 1] and clamped to the
    highest level, because y + u may round up to the next integer in floating point.
    """

    bits: int
    is_deterministic = False
    checks_by_norm = True
    examples = ({"bits": 5}, {"bits": 2}, {"bits": 20})

    def __post_init__(self) -> None:
        settle(self, bits=check_integer("bits", self.bits, 2, 31))

    def tau(self, d: int) -> float:
        """1 + omega of the unbiased operator, by which it is divided."""
        return 1 + qsgd(1 << (self.bits - 1)).omega(d)

    def alpha(self, d: int) -> float:
        """1 / tau."""
        return 1 / self.tau(d)

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Levels:
        """Dither each block."""
        return _dithered(x, None, draw, layout, 1 << (self.bits - 1), self.tau(layout.size), x.dtype)[0]

    def follow(self, value: Tensor, own: Tensor, draw: Draw, layout: Layout, dtype: torch.dtype) -> Followed:
        """In one pass over memory."""
        return _follow(value, own, draw, layout, 1 << (self.bits - 1), self.tau(layout.size), dtype)


def _dithered(
    value: Tensor, own: Tensor | None, draw: Draw, layout: Layout, highest: int, tau: float, dtype: torch.dtype
) -> tuple[Levels, Tensor | None]:
    """||x|| / tau * sign(x) / highest * floor(highest |x| / ||x|| + u) on each block of x = value - own; own + that."""
    if dtype == torch.float32 and highest > _MOST_FLOAT32:
        raise InputError(f"float32 allows at most {_MOST_FLOAT32:,} levels, got {highest:,}; use float64.")
    kind = integer_dtype(highest)
    found = kernels.dither(value, own, draw.stream, layout.cut, highest, tau, dtype, kind)
    if not found.is_finite:  # or it is not known yet; 1.001 leaves room for rounding
        reach = found.norm + found.scale * (1.001 * highest) if found.reach is None else found.reach
        check_magnitude(reach, len(value), lambda: value if own is None else (value - own).to(dtype))
    return Levels(found.scale, found.levels, highest, layout), found.moved


def _follow(
    value: Tensor, own: Tensor, draw: Draw, layout: Layout, highest: int, tau: float, dtype: torch.dtype
) -> Followed:
    levels, moved = _dithered(value, own, draw, layout, highest, tau, dtype)
    assert moved is not None
    return levels, moved


def integer_dtype(highest: int) -> torch.dtype:
    """The smallest signed type that holds [-2 highest, 2 highest]; levels are shifted by `highest` to be packed."""
    limits = ((64, torch.int8), (1 << 14, torch.int16), (1 << 30, torch.int32))
    return next((dtype for limit, dtype in limits if highest < limit), torch.int64)
