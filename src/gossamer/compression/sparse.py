"""Sparsification: a few coordinates at full precision; all others become zero."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer import kernels
from gossamer.compression.base import Compressor, Followed, Proportional, check_finite, check_magnitude, contraction
from gossamer.compression.coding.entropy import decode_unsigned, encode_unsigned
from gossamer.compression.coding.wire import Reader, float_bytes, varint, varint_size
from gossamer.compression.layout import Layout
from gossamer.errors import CodecError, InputError, check_bool, check_integer, check_unit, settle
from gossamer.kernels import pack_rows, packed_size, unpack
from gossamer.registry import compressors
from gossamer.streams import Draw, seeded_uniform

_SEED_BYTES = 7


@dataclass(frozen=True, eq=False)
class Sparse(Proportional):
    """k ascending indices per row, and their values."""

    indices: Tensor
    """(rows, k), int64."""
    values: Tensor
    """(rows, k)."""
    d: int
    kind: ClassVar[int] = 3
    multiplied: ClassVar[str] = "values"

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        return self.indices.shape[0], self.d

    def _dense(self) -> Tensor:
        return self.values.new_zeros(self.shape).scatter_(1, self.indices, self.values)

    @property
    def k(self) -> int:
        """The number of coordinates that a row keeps."""
        return self.indices.shape[1]

    def payload_size(self) -> int:
        """Bytes of k, the values and the packed indices."""
        return varint_size(self.k) + self.k * self.values.element_size() + packed_size(self.k, index_width(self.d))

    def fixed(self) -> list[bytes]:
        """For each row k, its values, then its indices of ceil(log2 d) bits."""
        head = varint(self.k)
        packed = pack_rows(self.indices, 0, index_width(self.d))
        return [head + values + row.tobytes() for values, row in zip(float_bytes(self.values), packed, strict=True)]

    def entropy(self) -> list[bytes]:
        """As `fixed`, with entropy-coded gaps between the indices."""
        head = varint(self.k)
        gaps = np.diff(self.indices.cpu().numpy(), axis=1, prepend=-1) - 1
        return [
            head + values + encode_unsigned(row) for values, row in zip(float_bytes(self.values), gaps, strict=True)
        ]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode indices and values."""
        k = reader.varint()
        if not 1 <= k <= d:
            raise CodecError(f"Invalid k = {k}; expected 1 to {d}.")
        values = reader.floats(k, dtype)
        if entropy:
            gaps = decode_unsigned(reader.rest(), k)
            if (gaps >= d).any():
                raise CodecError(f"Invalid gap {gaps.max()} between indices; there are {d} coordinates.")
            indices = np.cumsum(gaps + 1) - 1
        else:
            indices = unpack(reader.rest(), k, index_width(d)).astype(np.int64)
        if indices[-1] >= d or (np.diff(indices) <= 0).any():
            raise CodecError(f"Indices must be ascending and below {d}.")
        return cls(torch.from_numpy(indices[None]), torch.from_numpy(values[None]), d)

    @property
    def bits_nominal(self) -> int:
        """The values alone."""
        return 8 * self.k * self.values.element_size()


@dataclass(frozen=True, eq=False)
class Seeded(Proportional):
    """k values for each block of a row, and the seed that determines their places."""

    seed: Tensor
    """(rows,), int64."""
    values: Tensor
    """(rows, kept): k values of each block, or all values of a shorter block."""
    k: int
    layout: Layout
    kind: ClassVar[int] = 6
    multiplied: ClassVar[str] = "values"

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        return self.values.shape[0], self.layout.d

    def _dense(self) -> Tensor:
        places = seeded_places(self.seed, self.k, self.layout)
        return self.values.new_zeros(self.shape).scatter_(1, places, self.values)

    def _head(self) -> bytes:
        return varint(self.k) + self.layout.head()

    def payload_size(self) -> int:
        """Bytes of k, the layout, the seed and the values."""
        return len(self._head()) + _SEED_BYTES + self.values.shape[1] * self.values.element_size()

    def fixed(self) -> list[bytes]:
        """For each row k, the layout, its seed and its values."""
        head, values = self._head(), float_bytes(self.values)
        return [head + s.to_bytes(_SEED_BYTES, "little") + v for s, v in zip(self.seed.tolist(), values, strict=True)]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode seed and values."""
        k = reader.varint()
        layout = Layout.parse(reader, d)
        if not 1 <= k <= layout.size:
            raise CodecError(f"Invalid k = {k}; expected 1 to {layout.size}.")
        seed = int.from_bytes(reader.take(_SEED_BYTES), "little")
        kept = sum(min(k, length) for length in layout.lengths)
        return cls(torch.tensor([seed]), torch.from_numpy(reader.floats(kept, dtype)[None]), k, layout)

    @property
    def bits_nominal(self) -> int:
        """The values alone."""
        return 8 * self.values.shape[1] * self.values.element_size()


@dataclass(frozen=True)
class Keeps(Compressor):
    """The settings of compressors that keep k coordinates."""

    k: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if self.fraction is None and isinstance(self.k, float):  # top_k(0.1) and "top_k:0.1" mean a fraction
            settle(self, k=None, fraction=self.k)
        if (self.k is None) == (self.fraction is None):
            name = type(self).__name__
            raise InputError(f"`{name}` takes either `k` or `fraction`, got k={self.k}, fraction={self.fraction}.")
        if self.k is not None:
            settle(self, k=check_integer("k", self.k, 1))
        if self.fraction is not None:
            settle(self, fraction=check_unit("fraction", self.fraction))

    def kept(self, d: int) -> int:
        """The number of coordinates kept out of d: at least one, at most all."""
        wanted = self.k if self.k is not None else round((self.fraction or 0) * d)
        return min(max(1, wanted), d)

    def alpha(self, d: int) -> float:
        """The fraction of coordinates that is kept."""
        return self.kept(d) / d


@compressors.register("top_k")
@dataclass(frozen=True)
class top_k(Keeps):
    """top_k: keeps the k coordinates of largest magnitude (BEER, appendix A; Stich et al., 2018). alpha = k / d.

    Ties go to the lowest index, on every device.

    Args:
        k: How many coordinates to keep; more than a vector has keeps them all.
        fraction: Instead of k: the share of the coordinates to keep, in (0, 1]; at least one is kept.
    """

    is_deterministic = True
    examples = ({"fraction": 0.1}, {"k": 3}, {"k": 1}, {"fraction": 0.25})

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Sparse:
        """Keep the largest of each block."""
        indices = kernels.largest(x, layout.cut, self.kept(layout.size))
        return Sparse(indices, x.gather(1, indices), layout.d)

    def follow(self, value: Tensor, own: Tensor, draw: Draw, layout: Layout, dtype: torch.dtype) -> Followed:
        """The surrogate moves where a value is kept."""
        difference = kernels.difference(value, own, dtype)
        check_finite(difference, "The vector to compress")
        kept = kernels.keep(difference, own, layout.cut, self.kept(layout.size))
        q = Sparse(kept.places, kept.values, layout.d)
        if kept.dense is not None:
            q.__dict__["_rebuilt"] = kept.dense  # what `dense` keeps
        return q, kept.moved


@compressors.register("rand_k")
@dataclass(frozen=True)
class rand_k(Keeps):
    """rand_k: keeps k coordinates drawn at random; a seed is sent instead of their indices. alpha = k / d.

    Args:
        k: How many coordinates to keep.
        fraction: Instead of k: the share of the coordinates to keep, in (0, 1]; at least one is kept.
        unbiased: Multiply the kept values by d / k, so that the mean is x and omega = d / k - 1.
    """

    unbiased: bool = False
    is_deterministic = False
    examples = ({"fraction": 0.1}, {"k": 3}, {"k": 3, "unbiased": True}, {"fraction": 0.6, "unbiased": True}, {"k": 1})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool("unbiased", self.unbiased)

    def alpha(self, d: int) -> float:
        """k / d; if unbiased, 1 - omega, where omega must be below 1."""
        omega = self.omega(d)
        return super().alpha(d) if omega is None else contraction(self, d, omega)

    @property
    def is_unbiased(self) -> bool:
        """As set by `unbiased`."""
        return self.unbiased

    def omega(self, d: int) -> float | None:
        """d / k - 1 if unbiased, else None."""
        return d / self.kept(d) - 1 if self.unbiased else None

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Seeded:
        """Draw a seed for each row; the places in each block follow from it."""
        k, seed = self.kept(layout.size), draw.seeds()
        places = seeded_places(seed, k, layout)
        values = x.gather(1, places)
        if self.unbiased:
            share = torch.tensor([[n / min(k, n) for n in layout.lengths]], dtype=x.dtype, device=x.device)
            values = values * layout.cut.spread(share).expand(1, layout.d)[0, places]
            check_magnitude(values, x.shape[0])
        return Seeded(seed, values, k, layout)


def seeded_places(seed: Tensor, k: int, layout: Layout) -> Tensor:
    """(rows, kept): in each block, the ascending places of the k largest random numbers drawn with the row's seed."""
    return kernels.largest(seeded_uniform(seed, "rand_k", layout.d), layout.cut, k)


def index_width(d: int) -> int:
    """Bits of an index below d."""
    return (d - 1).bit_length()
