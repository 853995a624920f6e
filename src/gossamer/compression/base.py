"""The contract of compression: a compressor turns rows into a message, and a message into the bytes that travel."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.compression.coding.wire import Reader
from gossamer.compression.layout import Layout
from gossamer.errors import InputError, NonFiniteError, check_choice
from gossamer.streams import Draw, Streams

Codec = Literal["fixed", "entropy", "auto"]
CODECS: tuple[Codec, ...] = ("fixed", "entropy", "auto")
Payload = tuple[bool, bytes]  # whether it is entropy-coded, and the bytes
Doubt = tuple[Tensor, Callable[[], None]]  # a number that is finite if all is well, and what to do if it is not

_later: ContextVar[list[Doubt] | None] = ContextVar("later", default=None)


class Message(ABC):
    """What a compressor yields for (rows, d) numbers, and what the neighbours can rebuild from its bytes.

    A message class is a frozen dataclass of tensors whose first dimension is rows. It owns its codecs: `fixed` and
    `entropy` write each row's payload, `parse` reads one back exactly, `payload_size` says the length of a
    fixed-width one without encoding it.
    """

    kind: ClassVar[int]
    """The number, 1 to 127, that names this class in a packet; other packages take 64 and above."""

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

    @abstractmethod
    def times(self, factor: float) -> Self:
        """The message for `factor` times the numbers."""

    @abstractmethod
    def payload_size(self) -> int:
        """Bytes of one row's payload in fixed width; every row has the same."""

    def payload_sizes(self) -> npt.NDArray[np.int64]:
        """(rows,): bytes of each row's payload in fixed width."""
        return np.full(self.shape[0], self.payload_size(), np.int64)

    def kinds(self) -> list[int]:
        """The kind that each row's packet says."""
        return [self.kind] * self.shape[0]

    @abstractmethod
    def fixed(self) -> list[bytes]:
        """The payload of each row in fixed width."""

    def entropy(self) -> list[bytes] | None:
        """The entropy-coded payload of each row; None where there is nothing to gain."""
        return None

    @classmethod
    @abstractmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """The one-row message that a payload encodes; a CodecError where it does not encode one."""

    @property
    @abstractmethod
    def bits_nominal(self) -> int:
        """What the paper counts for one row: b bits a coordinate, with neither norms nor indices nor headers."""

    def bits_nominal_of_rows(self) -> npt.NDArray[np.int64]:
        """(rows,): the same for each row."""
        return np.full(self.shape[0], self.bits_nominal, np.int64)

    @cached_property
    def _rebuilt(self) -> Tensor:
        return self._dense()

    def dense(self) -> Tensor:
        """The (rows, d) numbers that the neighbours add; rebuilt once, so treat them as read-only."""
        return self._rebuilt

    def payloads(self, codec: Codec) -> list[Payload]:
        """Each row's payload under a codec; `"auto"` takes the shorter, row by row."""
        if codec not in CODECS:
            check_choice("codec", codec, CODECS)
        coded = None if codec == "fixed" else self.entropy()
        if coded is None:
            return [(False, payload) for payload in self.fixed()]
        if codec == "entropy":
            return [(True, payload) for payload in coded]
        size = self.payload_size()
        if all(len(payload) < size for payload in coded):
            return [(True, payload) for payload in coded]
        pairs = zip(self.fixed(), coded, strict=True)
        return [(len(short) < size, short if len(short) < size else plain) for plain, short in pairs]

    def encode(self, codec: Codec = "fixed") -> list[bytes]:
        """One packet a row, with this message alone."""
        from gossamer.compression import packet  # a packet knows every kind of message, and so comes after them

        return packet.encode([self], clients=range(self.shape[0]), codec=codec)

    def num_bits(self, codec: Codec = "fixed") -> npt.NDArray[np.int64]:
        """8 x the length of each row's packet."""
        from gossamer.compression import packet

        return 8 * packet.sizes([self], 0, range(self.shape[0]), codec)


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
    """Settings with which the conformance suite tries the class; `gossamer compressors` shows the first, which should
    make sense at any number of coordinates."""

    checks_by_norm: ClassVar[bool] = False
    """Whether `compress` checks the norms of its input, with `check_magnitude`, which spares a look at all of it."""

    @abstractmethod
    def alpha(self, d: int) -> float:
        """The contraction constant for vectors of d coordinates, in (0, 1]; an InputError if C is no contraction."""

    def omega(self, d: int) -> float | None:
        """If E C(x) = x: the smallest known omega with E||C(x) - x||^2 <= omega ||x||^2. None if C is biased."""
        return None

    @property
    def is_unbiased(self) -> bool:
        """Whether E C(x) = x."""
        return self.omega(2) is not None

    @property
    @abstractmethod
    def is_deterministic(self) -> bool:
        """Whether the message is a function of the input alone."""

    @abstractmethod
    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Message:
        """The message for finite rows `x`; norms are taken over each block of `layout`.

        `layout.split(x)` gives the blocks as rows of their own. Random compressors take their numbers from `draw`.
        """

    def __call__(self, x: Tensor, draw: Draw | None = None, *, seed: int | None = None) -> Message:
        """Compress each row of `x` (rows, d); outside a run, `seed` stands for the rows' streams."""
        if not isinstance(x, Tensor) or x.dim() != 2 or 0 in x.shape or x.dtype not in (torch.float32, torch.float64):
            got = f"{tuple(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"A compressor takes a (rows, d) tensor of float32 or float64, got {got}.")
        x = x.detach()
        if not self.checks_by_norm:
            check_finite(x, "The vector to compress")
        if draw is None:
            if seed is None and not self.is_deterministic:
                raise InputError(f"{self} is random: pass `seed=`, for example seed=0.")
            draw = Streams([0 if seed is None else seed], range(x.shape[0]), x.device).at(0, "compress")
        return self.compress(x, draw, Layout(x.shape[1], x.shape[1]))


def contraction(compressor: Compressor, d: int, omega: float) -> float:
    """The alpha of an unbiased compressor: 1 - omega, where that is above 0."""
    if omega >= 1:
        raise InputError(
            f"{compressor} is no contraction for {d} coordinates: it is unbiased with omega = {omega:.3g}, and only "
            f"omega below 1 contracts; use scaled({compressor})."
        )
    return 1 - omega


def check_magnitude(sizes: Tensor, rows: int, x: Tensor | None = None) -> None:
    """Refuse what is finite itself, but of which a norm or a product is not; `sizes` are that norm, row by row.

    With `x`, what the norms are of, it is also refused if it is not finite itself.
    """
    total, later = sizes.sum(), _later.get()
    if later is not None:
        later.append((total, lambda: _refuse(sizes, rows, x)))
    elif not math.isfinite(total.item()):
        _refuse(sizes, rows, x)


@contextlib.contextmanager
def checking_later(enabled: bool = True) -> Iterator[list[Doubt]]:
    """Inside, magnitudes are not looked at but handed over, so that a GPU need not be waited for at every message."""
    doubts: list[Doubt] = []
    token = _later.set(doubts if enabled else None)
    try:
        yield doubts
    finally:
        _later.reset(token)


def _refuse(sizes: Tensor, rows: int, x: Tensor | None) -> None:
    if x is not None:
        check_finite(x, "The vector to compress")
    bad = (~torch.isfinite(sizes.view(rows, -1))).any(dim=1).nonzero()[:, 0].tolist()
    if bad:
        raise NonFiniteError(f"The vector in row {bad[0]} is too large to compress in {str(sizes.dtype)[6:]}.", bad)


def check_finite(x: Tensor, what: str) -> None:
    """Refuse NaN and Inf, naming the row (the client, in a run) and the coordinate of the first."""
    # One number tells: a sum is finite only if its terms are, and only a sum that is not costs a second look.
    if math.isfinite(x.sum().item()):
        return
    bad = (~torch.isfinite(x)).nonzero()
    if len(bad) == 0:  # huge but finite numbers may overflow the sum
        return
    row, coordinate = bad[0].tolist()
    value = x[row, coordinate].item()
    raise NonFiniteError(
        f"{what} holds {value} in row {row}, coordinate {coordinate}.", sorted(set(bad[:, 0].tolist()))
    )
