"""A compressor of another package, with a message kind of its own: 16-bit brain floats and one scale per row."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.compression import Compressor, Layout, Message
from gossamer.compression.coding.wire import Reader
from gossamer.compression.packet import message_kinds
from gossamer.errors import CodecError
from gossamer.streams import Draw


@dataclass(frozen=True, eq=False)
class Brain(Message):
    scale: Tensor
    """(rows, 1), in the type of the numbers."""
    codes: Tensor
    """(rows, d), bfloat16."""
    kind: ClassVar[int] = 64

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.scale.dtype

    def _dense(self) -> Tensor:
        return self.scale * self.codes.to(self.dtype)

    def times(self, factor: float) -> Self:
        return type(self)(self.scale * factor, self.codes)

    def payload_size(self) -> int:
        return self.scale.element_size() + 2 * self.shape[1]

    def fixed(self) -> list[bytes]:
        codes = self.codes.cpu().view(torch.int16).numpy()
        scales = self.scale.cpu().numpy()
        return [scale.tobytes() + row.tobytes() for scale, row in zip(scales, codes, strict=True)]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        scale = torch.from_numpy(reader.floats(1, dtype)[None])
        codes = torch.from_numpy(np.frombuffer(reader.take(2 * d), np.int16).copy())[None].view(torch.bfloat16)
        if not (codes.float().abs() <= 1).all():
            raise CodecError("A brain float is above 1 or not a number.")
        return cls(scale, codes)

    @property
    def bits_nominal(self) -> int:
        return 16 * self.shape[1]


message_kinds[Brain.kind] = Brain


@dataclass(frozen=True)
class brain(Compressor):
    """C(x) = s bfloat16(x / s) with s the largest magnitude: an error of at most 2^-8 per coordinate."""

    is_deterministic = True

    def alpha(self, d: int) -> float:
        return 1 - 2.0**-14

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Brain:
        scale = x.abs().amax(dim=1, keepdim=True)
        return Brain(scale, (x / scale.where(scale > 0, 1)).to(torch.bfloat16))
