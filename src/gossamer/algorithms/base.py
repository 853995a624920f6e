"""The contract of a method: one step function that the simulator and real processes share.

A method sees rows, never the network: row i of every tensor belongs to client i (several seeds stack their clients one
seed after another), so the paper's matrices stand transposed and H(W - I) reads `mixed_h - h`, where `mixed_h = W h` is
kept in the state and moved by what an exchange brings.

What a run adds up for ever (surrogates, their mixed sums, trackers) is float64 whatever the model's type: in float32
its rounding errors would enter every later round.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from gossamer.compression.base import Compressor, Message
from gossamer.errors import InputError
from gossamer.streams import Draw


class Oracle(Protocol):
    """Gradients, row i for client i."""

    def __call__(self, x: Tensor) -> Tensor:
        """This round's minibatch gradient at x; at several points of one round, the minibatch is the same."""

    def full(self, x: Tensor) -> Tensor:
        """The gradient over all of each client's data."""


class Pending(Protocol):
    """An exchange under way."""

    def wait(self) -> tuple[Tensor, ...]:
        """For each message sent, sum_j w_ij q_j over the neighbours and the client itself, in float64."""


@dataclass(frozen=True)
class Arrived:
    """An exchange that is over."""

    sums: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """Nothing to wait for."""
        return self.sums


def nothing_pending(messages: int) -> Arrived:
    """What a method that waits for its last exchange first finds before any: sums of zero."""
    return Arrived((torch.zeros((), dtype=torch.float64),) * messages)


@dataclass(frozen=True)
class Round:
    """All that a step may use beside its state."""

    t: int
    lr: float | Tensor
    oracle: Oracle
    random: Callable[[str], Draw]
    exchange: "Exchange"
    dtype: torch.dtype
    errors: list[Tensor] | None = None
    """Where to note, for each message, the share ||C(z) - z||^2 / ||z||^2 that was left out; None if nobody asks."""

    def compress(self, compressor: Compressor, difference: Tensor, purpose: str) -> Message:
        """C(difference), sent in the models' type; `purpose` keys its randomness, so it is one name a message."""
        z = difference.to(self.dtype)
        message = compressor(z, self.random(purpose))
        if self.errors is not None:
            lost, size = (torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in (message.dense() - z, z))
            self.errors.append(torch.where(size > 0, (lost / size).square(), size))
        return message


class Exchange(Protocol):
    """Messages out, weighted neighbour sums back."""

    def __call__(self, *messages: Message | None) -> Pending:
        """Send one packet with these messages to every neighbour; None is no message, and its sum is zero."""


State = Any
"""A method's own frozen dataclass of tensors with one row a client; it holds at least the models `x`, (rows, d)."""


class Algorithm(ABC):
    """A method: a frozen dataclass of its settings, checked at construction, with `init` and `step`."""

    lr: float
    title: ClassVar[str]
    """The name that people know, for tables and figures."""
    paper: ClassVar[str]
    """Where the method comes from."""
    messages: ClassVar[int]
    """Messages a round."""
    lr_may_differ: ClassVar[bool] = False
    """Whether `round.lr` may be one number a coordinate: what groups of parameters in an optimiser come to."""
    examples: ClassVar[Sequence[Mapping[str, Any]]] = ({"lr": 0.05},)
    """Settings with which the conformance suite tries the class; it adds every compressor where there is one."""

    @abstractmethod
    def init(self, x: Tensor) -> State:
        """The state before the first round, from the (rows, d) models."""

    @abstractmethod
    def step(self, state: State, round: Round) -> State:
        """One round: from the gradient at the current models to the next models. Pure: the old state is left alone."""

    def check_mixing(self, lambda_min: float) -> None:  # noqa: B027 (most methods take any mixing matrix)
        """Refuse a mixing matrix that the method cannot use, given its smallest eigenvalue."""

    def with_minibatch_start(self) -> "Algorithm":
        """The method for who never sees a full gradient; itself, unless it begins with one."""
        return self

    def remedy(self) -> str:
        """What to try when a run diverges: the settings that most often are too large."""
        steps = [f"`{name}` below {getattr(self, name)}" for name in ("lr", "gamma") if hasattr(self, name)]
        return "try " + " or ".join(steps)


def require_compressor(value: object) -> None:
    """Refuse anything but a compressor; a class is a common slip for an instance."""
    if not isinstance(value, Compressor):
        raise InputError(f"`compressor` must be a compressor such as gossamer.gsgd(5), got {value!r}.")


def zeros_float64(x: Tensor) -> Tensor:
    """The start of a sum that never forgets."""
    return torch.zeros_like(x, dtype=torch.float64)


def map_state(state: State, function: Callable[[Tensor], Tensor]) -> State:
    """The state with `function` applied to each tensor that has rows; an exchange under way is waited for first."""

    def change(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value) if value.dim() else value
        if hasattr(value, "wait"):
            return Arrived(tuple(change(tensor) for tensor in value.wait()))
        return value

    return replace(state, **{field.name: change(getattr(state, field.name)) for field in fields(state)})
