"""The interfaces of compression: a `Compressor` turns vectors into a `Message`, which encodes itself as bytes."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.compression.coding.wire import Reader
from gossamer.compression.layout import Layout
from gossamer.errors import InputError, NonFiniteError, check_choice
from gossamer.kernels import Mixer, are_finite, move
from gossamer.kernels import difference as subtracted
from gossamer.streams import Draw, Streams

Codec = Literal["fixed", "entropy", "auto"]
CODECS: tuple[Codec, ...] = ("fixed", "entropy", "auto")
Payload = tuple[bool, bytes]  # whether it is entropy-coded, and the bytes
Followed = tuple["Message", Tensor]
"""A message, and the surrogate moved by it."""
DeferredCheck = tuple[Tensor, Callable[[], None]]  # numbers that must be finite, and the function that raises if not

_deferred: ContextVar[list[DeferredCheck] | None] = ContextVar("deferred", default=None)


class Message(ABC):
    """The compressed form of (rows, d) values; each row is sent as bytes and decoded exactly.

    A message class is a frozen dataclass of tensors whose first dimension is rows. It owns its codecs: `fixed` and
    `entropy` write the payload of each row, `parse` reads one back exactly, and `payload_size` is the length of a
    fixed-width payload, known without encoding it.
    """

    kind: ClassVar[int]
    """The number of this class in a packet, from 1 to 127. Other packages use 64 and above."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the decoded values: float32 or float64."""

    @abstractmethod
    def _dense(self) -> Tensor:
        """Compute the (rows, d) values."""

    @abstractmethod
    def times(self, factor: float) -> Self:
        """The message whose values are multiplied by `factor`."""

    @abstractmethod
    def payload_size(self) -> int:
        """Bytes of a fixed-width payload; the same for every row."""

    def payload_sizes(self) -> npt.NDArray[np.int64]:
        """(rows,): bytes of the fixed-width payload of each row."""
        return np.full(self.shape[0], self.payload_size(), np.int64)

    def kinds(self) -> list[int]:
        """The `kind` in the packet of each row."""
        return [self.kind] * self.shape[0]

    @abstractmethod
    def fixed(self) -> list[bytes]:
        """The fixed-width payload of each row."""

    def entropy(self) -> list[bytes] | None:
        """The entropy-coded payload of each row; None if the class has no entropy codec."""
        return None

    @classmethod
    @abstractmethod
    def parse(cls, reader: Reader, entropy: bool, d: int, dtype: torch.dtype) -> Self:
        """Decode the payload of one row; raise a CodecError if it is invalid."""

    @property
    @abstractmethod
    def bits_nominal(self) -> int:
        """Nominal bits of one row: b per coordinate, without norms, indices and headers."""

    def bits_nominal_of_rows(self) -> npt.NDArray[np.int64]:
        """(rows,): `bits_nominal` of each row."""
        return np.full(self.shape[0], self.bits_nominal, np.int64)

    @cached_property
    def _rebuilt(self) -> Tensor:
        return self._dense()

    def dense(self) -> Tensor:
        """The (rows, d) values that the neighbours decode. The result is cached; do not modify it."""
        return self._rebuilt

    def bound(self) -> float:
        """A number that no value of the message exceeds in size."""
        return float(torch.linalg.vector_norm(self.dense(), torch.inf))

    def add_to(self, mixed: Tensor, mixer: "Mixer", a: float) -> Tensor:
        """H W + a Q W, where Q are these values."""
        return mixer.add(mixed, self.dense(), a)

    def payloads(self, codec: Codec) -> list[Payload]:
        """The payload of each row with a codec; `"auto"` takes the shorter one for each row."""
        if codec not in CODECS:
            check_choice("codec", codec, CODECS)
        coded = None if codec == "fixed" else self.entropy()
        if coded is None:
            return [(False, payload) for payload in self.fixed()]
        size = self.payload_size()
        if codec == "entropy" or all(len(payload) < size for payload in coded):
            return [(True, payload) for payload in coded]
        pairs = zip(self.fixed(), coded, strict=True)
        return [(len(short) < size, short if len(short) < size else plain) for plain, short in pairs]

    def encode(self, codec: Codec = "fixed") -> list[bytes]:
        """One packet per row, with this message alone."""
        from gossamer.compression import packet  # it imports every kind of message

        return packet.encode([self], clients=range(self.shape[0]), codec=codec)

    def num_bits(self, codec: Codec = "fixed") -> npt.NDArray[np.int64]:
        """(rows,): 8 x the length of the packet of each row."""
        from gossamer.compression import packet

        return 8 * packet.sizes([self], 0, range(self.shape[0]), codec)


@dataclass(frozen=True, eq=False)
class Proportional(Message):
    """A message whose values are proportional to one of its tensors."""

    multiplied: ClassVar[str]
    """The name of that tensor, which has the dtype of the values."""
    symbols: ClassVar[str] = ""
    """The name of the tensor with one symbol per coordinate, if there is one."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""
        rows, d = getattr(self, self.symbols).shape
        return rows, d

    @property
    def dtype(self) -> torch.dtype:
        """The type of that tensor."""
        factor: Tensor = getattr(self, self.multiplied)
        return factor.dtype

    def times(self, factor: float) -> Self:
        """Multiply that tensor."""
        return replace(self, **{self.multiplied: getattr(self, self.multiplied) * factor})


class Compressor(ABC):
    """A map C with E||C(x) - x||^2 <= (1 - alpha) ||x||^2, applied to each row (Definition 2.3 of the BEER paper).

    A compressor is a frozen dataclass that checks its settings at construction and implements `alpha`,
    `is_deterministic` and `compress`; an unbiased one also implements `omega` and `is_unbiased`. Class attributes such
    as `is_unbiased = True` are enough. Calling it checks the input and compresses it:

    >>> import torch, gossamer as gs
    >>> x = torch.tensor([[3.0, -4.0, 0.0]])
    >>> gs.top_k(1)(x).dense()
    tensor([[ 0., -4.,  0.]])
    """

    examples: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    """Settings with which the conformance suite tests the class. `gossamer compressors` shows the first, which should
    suit any number of coordinates."""

    checks_by_norm: ClassVar[bool] = False
    """Whether `compress` checks norms of its input with `check_magnitude`, so that `__call__` need not."""

    @abstractmethod
    def alpha(self, d: int) -> float:
        """The contraction constant for d coordinates, in (0, 1]; raises an InputError if C is no contraction."""

    @property
    def is_unbiased(self) -> bool:
        """Whether E C(x) = x; then `omega` is not None."""
        return False

    def omega(self, d: int) -> float | None:
        """The smallest known omega with E||C(x) - x||^2 <= omega ||x||^2, if C is unbiased; None if it is biased."""
        return None

    @property
    @abstractmethod
    def is_deterministic(self) -> bool:
        """Whether the message depends on the input alone, not on random numbers."""

    @abstractmethod
    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Message:
        """Compress the finite rows of `x`, with one norm for each block of `layout`.

        `layout.split(x)` turns blocks into rows. Random compressors take their random numbers from `draw`.
        """

    def follow(self, value: Tensor, own: Tensor, draw: Draw, layout: Layout, dtype: torch.dtype) -> Followed:
        """Q = C(value - own) in `dtype`, and own + Q.

        Overridden where one pass over memory does it all. The numbers must be those of `compress`.
        """
        difference = subtracted(value, own, dtype)
        if not self.checks_by_norm:
            check_finite(difference, "The vector to compress")
        q = self.compress(difference, draw, layout)
        return q, move(own, q.dense())

    def __call__(self, x: Tensor, draw: Draw | None = None, *, seed: int | None = None) -> Message:
        """Compress each row of `x`, (rows, d). Outside a run, pass `seed` instead of `draw`."""
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
        return self.compress(x, draw, Layout.whole(x.shape[1]))


def contraction(compressor: Compressor, d: int, omega: float) -> float:
    """The alpha of an unbiased compressor, 1 - omega; raises an InputError unless omega is below 1."""
    if omega >= 1:
        raise InputError(
            f"{compressor} is no contraction for {d} coordinates: omega must be below 1, but is {omega:.3g}; use "
            f"scaled({compressor})."
        )
    return 1 - omega


def check_magnitude(sizes: Tensor, rows: int, x: Callable[[], Tensor] | None = None) -> None:
    """Refuse vectors with norms or products that overflow; `sizes` holds these norms, row by row.

    If `x` is given, NaN and infinite values of what it returns are reported first.
    """
    deferred = _deferred.get()
    if deferred is not None:
        deferred.append((sizes, lambda: _refuse(sizes, rows, x)))
    elif not are_finite(sizes):
        _refuse(sizes, rows, x)


@contextlib.contextmanager
def checking_later(checks: list[DeferredCheck]) -> Iterator[None]:
    """Collect the checks of values instead of running them, which would wait for the GPU at every message."""
    token = _deferred.set(checks)
    try:
        yield
    finally:
        _deferred.reset(token)


def _refuse(sizes: Tensor, rows: int, x: Callable[[], Tensor] | None) -> None:
    if x is not None:
        check_finite(x(), "The vector to compress")
    bad = (~torch.isfinite(sizes.view(rows, -1))).any(dim=1).nonzero()[:, 0].tolist()
    if bad:
        raise NonFiniteError(f"The vector in row {bad[0]} is too large to compress in {str(sizes.dtype)[6:]}.", bad)


def check_finite(x: Tensor, what: str) -> None:
    """Refuse NaN and infinite values; the error names the row (in a run, the client) and coordinate of the first."""
    # A sum is finite only if its terms are, so the values are inspected only if the sum is not finite.
    deferred = _deferred.get()
    if deferred is not None:
        deferred.append((x, lambda: _refuse_values(x, what)))
    elif not are_finite(x):
        _refuse_values(x, what)


def _refuse_values(x: Tensor, what: str) -> None:
    bad = (~torch.isfinite(x)).nonzero()
    if len(bad) == 0:  # large finite values may overflow the sum
        return
    row, coordinate = bad[0].tolist()
    value = x[row, coordinate].item()
    raise NonFiniteError(
        f"{what} holds {value} in row {row}, coordinate {coordinate}.", sorted(set(bad[:, 0].tolist()))
    )
