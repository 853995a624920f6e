"""Surrogates: what the neighbours believe of a client's vector, such as H of X and G of V in BEER.

A client cannot send its vector in a few bits. It sends the compressed difference from what the neighbours already
believe, and both sides add it. So the belief is known at both ends of every edge without ever being sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Message
from gossamer.compression.partial import Partial
from gossamer.errors import InputError
from gossamer.kernels import move, subtract

if TYPE_CHECKING:
    from gossamer.algorithms.round import Round


class Slots(NamedTuple):
    """A message for each neighbour of its own: `messages[k]` goes to the k-th neighbour of each row in this round."""

    messages: tuple[Message, ...]
    used: Tensor
    """(rows, messages): whether there is such a neighbour in this round."""


Outgoing = Message | Slots
Known = Literal["zero", "model"]
"""H^0, what the neighbours believe of a model before the first message."""
Speaks = Callable[[Tensor], Tensor]
"""Given the difference from what the neighbours believe, (rows, d), says which rows send a message."""


class Pending(Protocol):
    """An exchange under way."""

    def wait(self) -> tuple[Tensor, ...]:
        """For each message sent, sum_j w_ij q_j over the neighbours and the client itself, in float64.

        For `Slots`, each neighbour's message, (rows, slots, d), in the type of the message.
        """

    def add(self, number: int, mixed: Tensor, a: float) -> Tensor:
        """H W + a Q W, where Q is the message with this number."""


class Arriving(NamedTuple):
    """A surrogate's message on its way: which exchange, which of its messages, and the memory step."""

    pending: Pending
    number: int
    a: float
    own: Tensor | None = None
    """H + Q, where it is not the new H, that is where a is not 1."""

    def heard(self) -> Tensor:
        """What the neighbours sent, once it is here."""
        return self.pending.wait()[self.number]


@dataclass(frozen=True)
class Surrogate:
    """H of a vector X. All in float64: sums that never forget would keep every rounding error of float32."""

    name: str
    """Keys the randomness of its messages, and names it in checkpoints."""
    own: Tensor
    """H: what the neighbours believe of this client's vector, once the message under way has arrived."""
    mixed: Tensor
    """H W: the weighted sum of what this client believes of theirs, without what is under way."""
    arriving: Arriving | None = None

    @classmethod
    def zero(cls, name: str, x: Tensor) -> Self:
        """H = 0, for a vector like x."""
        zero = zeros_float64(x)
        return cls(name, zero, zero)

    @classmethod
    def of_models(cls, x: Tensor, h0: Known) -> Self:
        """H of the models, at zero or at the models themselves, which are then the same for all clients."""
        if h0 == "zero":
            return cls.zero("h", x)
        own = x.to(torch.float64, copy=True)
        return cls("h", own, own)

    @property
    def pull(self) -> Tensor:
        """H (W - I): towards what the neighbours have."""
        self._check_here()
        return subtract(self.mixed, self.own)

    def follow(
        self, value: Tensor, round: "Round", compressor: Compressor, a: float, where: Speaks | None
    ) -> tuple["Surrogate", Outgoing, Tensor | None]:
        """H + a Q with Q = C(value - H); Q; and H + Q, where a is not 1."""
        self._check_here()
        q, whole = round.follow(compressor, value, self.own, self.name)
        if where is not None:
            q = Partial(q, where(value - self.own))
            whole = move(self.own, q.dense())
        if a == 1:
            return Surrogate(self.name, whole, self.mixed), q, None
        return Surrogate(self.name, move(self.own, q.dense(), a), self.mixed), q, whole

    def settled(self) -> "Surrogate":
        """After the message under way has arrived."""
        if self.arriving is None:
            return self
        pending, number, a, _ = self.arriving
        return Surrogate(self.name, self.own, pending.add(number, self.mixed, a))

    def estimate(self) -> "Surrogate":
        """H + Q with its neighbour sum, for the message under way: the estimate of the value that COMM returns."""
        if self.arriving is None:
            return self
        own = self.own if self.arriving.own is None else self.arriving.own
        return Surrogate(self.name, own, self.arriving.pending.add(self.arriving.number, self.mixed, 1.0))

    def _check_here(self) -> None:
        if self.arriving is not None:
            raise InputError(f"A message of the surrogate {self.name!r} is still under way; call round.arrived first.")


def zeros_float64(x: Tensor) -> Tensor:
    """The start of a sum that never forgets."""
    return torch.zeros_like(x, dtype=torch.float64)


def memory_step(a: float | None, compressor: Compressor, d: int, *, averages: bool) -> float:
    """The memory step `a` of COMM, as given; by default 1 for a contraction, 1/(1 + omega) for an unbiased compressor.

    Where a compressor is both, `averages` says that the method relies on its mean.
    """
    if a is not None:
        return a
    omega = compressor.omega(d)
    return 1.0 if omega is None or (omega < 1 and not averages) else 1 / (1 + omega)
