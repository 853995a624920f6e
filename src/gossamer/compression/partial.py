"""Messages that only some of the clients send: a packet then says that nothing comes."""

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
    """Nothing: zero, in no bytes."""

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
        """The type of the numbers that others would have sent."""
        return self.type

    def _dense(self) -> Tensor:
        return torch.zeros(self.rows, self.d, dtype=self.type)

    def times(self, factor: float) -> Self:
        """Still nothing."""
        return self

    def payload_size(self) -> int:
        """None at all."""
        return 0

    def fixed(self) -> list[bytes]:
        """No bytes."""
        return [b""] * self.rows

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Nothing to read."""
        return cls(1, d, dtype)

    @property
    def bits_nominal(self) -> int:
        """0."""
        return 0


@dataclass(frozen=True, eq=False)
class Partial(Message):
    """A message of which only the rows in `sent` leave; the others are silent. Neighbours read one or the other."""

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
        """That of the message."""
        return self.message.dtype

    def _dense(self) -> Tensor:
        dense = self.message.dense()
        return torch.where(self.sent[:, None], dense, torch.zeros_like(dense))

    def times(self, factor: float) -> Self:
        """The message times the factor."""
        return type(self)(self.message.times(factor), self.sent)

    def payload_size(self) -> int:
        """Of a row that is sent."""
        return self.message.payload_size()

    def payload_sizes(self) -> npt.NDArray[np.int64]:
        """None where nothing is sent."""
        return np.where(self.sent.cpu().numpy(), self.message.payload_sizes(), 0)

    def fixed(self) -> list[bytes]:
        """Each row's payload, or none."""
        return [row if sent else b"" for row, sent in zip(self.message.fixed(), self.sent.tolist(), strict=True)]

    def payloads(self, codec: Codec) -> list[Payload]:
        """Each row's payload under a codec, or none."""
        rows = zip(self.message.payloads(codec), self.sent.tolist(), strict=True)
        return [row if sent else (False, b"") for row, sent in rows]

    def kinds(self) -> list[int]:
        """The message's own, or that of silence."""
        return [self.message.kind if sent else Silence.kind for sent in self.sent.tolist()]

    @classmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Never: a packet holds the message, or silence."""
        raise NotImplementedError

    @property
    def bits_nominal(self) -> int:
        """Of a row that is sent."""
        return self.message.bits_nominal

    def bits_nominal_of_rows(self) -> npt.NDArray[np.int64]:
        """0 where nothing is sent."""
        return np.where(self.sent.cpu().numpy(), self.message.bits_nominal, 0)
