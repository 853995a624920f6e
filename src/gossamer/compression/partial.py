"""Messages that only some clients send. The packets of the others hold a `Silence`, which has no payload."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.compression.base import Codec, Message, Payload
from gossamer.compression.coding.wire import Reader


@dataclass(frozen=True, eq=False)
class Silence(Message):
    """A zero vector, encoded in 0 bytes."""

    rows: int
    d: int
    type: torch.dtype
    kind: ClassVar[int] = 7

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        return self.rows, self.d

    @property
    def dtype(self) -> torch.dtype:
        """The type of the zeros."""
        return self.type

    def _dense(self) -> Tensor:
        return torch.zeros(self.rows, self.d, dtype=self.type)

    def times(self, factor: float) -> Self:
        """Zero stays zero."""
        return self

    def payload_size(self) -> int:
        """0."""
        return 0

    def fixed(self) -> list[bytes]:
        """Empty payloads."""
        return [b""] * self.rows

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode an empty payload."""
        return cls(1, d, dtype)

    @property
    def bits_nominal(self) -> int:
        """0."""
        return 0


@dataclass(frozen=True, eq=False)
class Partial(Message):
    """A message of which only the rows in `sent` are sent; neighbours receive a `Silence` for the others."""

    message: Message
    sent: Tensor
    """(rows,): whether each row is sent."""
    kind: ClassVar[int] = 0  # never in a packet

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        return self.message.shape

    @property
    def dtype(self) -> torch.dtype:
        """The type of the message."""
        return self.message.dtype

    def _dense(self) -> Tensor:
        dense = self.message.dense()
        return torch.where(self.sent[:, None], dense, torch.zeros_like(dense))

    def times(self, factor: float) -> Self:
        """Multiply the message."""
        return type(self)(self.message.times(factor), self.sent)

    def payload_size(self) -> int:
        """Bytes of a row that is sent."""
        return self.message.payload_size()

    def payload_sizes(self) -> npt.NDArray[np.int64]:
        """As the message, and 0 for rows that are not sent."""
        return np.where(self.sent.cpu().numpy(), self.message.payload_sizes(), 0)

    def fixed(self) -> list[bytes]:
        """As the message, and empty for rows that are not sent."""
        return [row if sent else b"" for row, sent in zip(self.message.fixed(), self.sent.tolist(), strict=True)]

    def payloads(self, codec: Codec) -> list[Payload]:
        """As the message, and empty for rows that are not sent."""
        rows = zip(self.message.payloads(codec), self.sent.tolist(), strict=True)
        return [row if sent else (False, b"") for row, sent in rows]

    def kinds(self) -> list[int]:
        """The kind of the message, or of `Silence`."""
        return [self.message.kind if sent else Silence.kind for sent in self.sent.tolist()]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Not used: a packet holds the message or a `Silence`."""
        raise NotImplementedError

    @property
    def bits_nominal(self) -> int:
        """Bits of a row that is sent."""
        return self.message.bits_nominal

    def bits_nominal_of_rows(self) -> npt.NDArray[np.int64]:
        """As the message, and 0 for rows that are not sent."""
        return np.where(self.sent.cpu().numpy(), self.message.bits_nominal, 0)
