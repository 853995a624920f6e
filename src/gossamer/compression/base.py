"""The contract of compression: a compressor turns rows into a message, and a message into the bytes that travel."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gossamer.errors import InputError, NonFiniteError
from gossamer.streams import Draw, Streams


class Message(ABC):
    """What a compressor yields for (rows, d) numbers, and what the neighbours can rebuild from its bytes.

    A message class is a frozen dataclass of tensors whose first dimension is rows. It owns its codec: `payloads`
    writes one row's bytes, `parse` reads them back exactly, `payload_size` says their number without encoding.
    """

    kind: ClassVar[int]
    """The byte that names this class in a packet; other packages take 128 and above."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the numbers that the message stands for: float32 or float64."""

    @abstractmethod
    def _dense(self) -> Tensor:
        """Rebuild the (rows, d) numbers."""

    @property
    @abstractmethod
    def parameter(self) -> int:
        """The one non-negative integer that the receiver needs beside d and the dtype (bits, k, ...); 0 if none."""

    @abstractmethod
    def payload_size(self) -> int:
        """Bytes of one row's payload in fixed width; every row has the same."""

    @abstractmethod
    def payloads(self) -> list[bytes]:
        """The payload of each row."""

    @classmethod
    @abstractmethod
    def parse(cls, payload: bytes, parameter: int, d: int, dtype: torch.dtype) -> Self:
        """The one-row message that a payload encodes; a CodecError where it does not encode one."""

    @property
    @abstractmethod
    def bits_paper(self) -> int:
        """What the paper counts for one row: b bits a coordinate, with neither norms nor indices nor headers."""

    @cached_property
    def _rebuilt(self) -> Tensor:
        return self._dense()

    def dense(self) -> Tensor:
        """The (rows, d) numbers that the neighbours add; rebuilt once, so treat them as read-only."""
        return self._rebuilt


class Compressor(ABC):
    """A map C with E||C(x) - x||^2 <= (1 - alpha) ||x||^2, applied to each row (Definition 2.3 of the BEER paper).

    A compressor is a frozen dataclass, checked at construction, that implements `alpha`, `is_deterministic` and
    `compress`. Calling it checks the input once and compresses it:

    >>> import torch, gossamer as gs
    >>> x = torch.tensor([[3.0, -4.0, 0.0]])
    >>> gs.top_k(1)(x).dense()
    tensor([[ 0., -4.,  0.]])
    """

    examples: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    """Settings with which the conformance suite tries the class."""

    @abstractmethod
    def alpha(self, d: int) -> float:
        """The contraction constant for vectors of d coordinates, in (0, 1]."""

    @property
    @abstractmethod
    def is_deterministic(self) -> bool:
        """Whether the message is a function of the input alone."""

    @abstractmethod
    def compress(self, x: Tensor, draw: Draw) -> Message:
        """The message for finite rows `x`; random compressors take their numbers from `draw`."""

    def __call__(self, x: Tensor, draw: Draw | None = None, *, seed: int | None = None) -> Message:
        """Compress each row of `x` (rows, d); outside a run, `seed` stands for the rows' streams."""
        if x.dim() != 2 or x.shape[1] == 0 or x.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"A compressor takes a (rows, d) tensor of float32 or float64, got {tuple(x.shape)} of {x.dtype}."
            )
        check_finite(x, "The vector to compress")
        if draw is None:
            if seed is None and not self.is_deterministic:
                raise InputError(f"{self} is random: pass `seed=`, for example seed=0.")
            draw = Streams([seed or 0], range(x.shape[0]), x.device).at(0, "compress")
        return self.compress(x, draw)


def check_finite(x: Tensor, what: str) -> None:
    """Refuse NaN and Inf, naming the row (the client, in a run) and the coordinate of the first."""
    # One number tells: a sum is finite only if its terms are, and only a sum that is not costs a second look.
    if torch.isfinite(x.sum(dtype=torch.float64)):
        return
    bad = (~torch.isfinite(x)).nonzero()
    if len(bad) == 0:  # huge but finite numbers may overflow the sum
        return
    row, coordinate = bad[0].tolist()
    value = x[row, coordinate].item()
    raise NonFiniteError(
        f"{what} holds {value} in row {row}, coordinate {coordinate}.", sorted(set(bad[:, 0].tolist()))
    )
