"""The contract of a method: one step function that the simulator and real processes share.

A method sees rows, never the network: row i of every tensor belongs to client i (several seeds stack their clients one
seed after another), so the paper's matrices stand transposed and H(W - I) reads `mixed_h - h`, where `mixed_h = W h` is
kept in the state and moved by what an exchange brings.

What a run adds up for ever (surrogates, their mixed sums, trackers) is float64 whatever the model's type: in float32
its rounding errors would enter every later round.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

from gossamer.algorithms.schedules import LR, Schedule, check_lr
from gossamer.compression.base import Compressor, Message
from gossamer.compression.dense import identity
from gossamer.errors import InputError, check_choice, check_unit, settle
from gossamer.streams import Draw


class Oracle(Protocol):
    """Gradients, row i for client i."""

    def __call__(self, x: Tensor) -> Tensor:
        """This round's minibatch gradient at x; at several points of one round, the minibatch is the same."""

    def full(self, x: Tensor) -> Tensor:
        """The gradient over all of each client's data."""

    def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> "Samples":
        """The gradients of this round's minibatch row by row, or those of all of each client's rows.

        Another `purpose` draws another minibatch of the same size, independent of the first.
        """


@dataclass(frozen=True)
class Samples:
    """Gradients of single data rows."""

    rows: Tensor
    """(rows, b): which of its data rows each client took."""
    gradients: Tensor
    """(rows, b, d): the gradient of each; zero where a client has fewer rows than others."""
    taken: Tensor
    """(rows, 1): how many each client took: fewer than b where a client has not so many."""
    counts: Tensor
    """(rows, 1): how many data rows each client has in all."""


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
    rho: float = 1.0
    """The spectral gap of the mixing matrix, which all clients know before they start."""
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

    def mix(self, z: Tensor, purpose: str) -> Tensor:
        """z W, by one uncompressed exchange; z + (q W - q) keeps the mean of z exactly where q is z in fewer bits."""
        q = self.compress(identity(), z, purpose)
        return z + (self.exchange(q).wait()[0] - q.dense())


class Exchange(Protocol):
    """Messages out, weighted neighbour sums back."""

    def __call__(self, *messages: Message | None) -> Pending:
        """Send one packet with these messages to every neighbour; None is no message, and its sum is zero."""


State = Any
"""A method's own frozen dataclass of tensors with one row a client; it holds at least the models `x`, (rows, d)."""


class Algorithm(ABC):
    """A method: a frozen dataclass of its settings, checked at construction, with `init` and `step`."""

    lr: LR
    title: ClassVar[str]
    """The name that people know, for tables and figures."""
    paper: ClassVar[str]
    """Where the method comes from."""
    messages: ClassVar[int]
    """Messages a round, at the most."""
    exchanges: ClassVar[int | str] = 1
    """Exchanges a round that must follow one another: what latency multiplies."""
    gradients: ClassVar[str] = "1"
    """Minibatch gradients a round, in words where it is not always as many."""
    state: ClassVar[int | str] = "?"
    """Numbers that a client keeps from round to round, in multiples of d; m is its rows of data."""
    compressors: ClassVar[Literal["none", "contractive", "unbiased", "any"]] = "contractive"
    """Which compressors a method with a `compressor` may use; `"any"` is contractive or unbiased."""
    assumes: ClassVar[str] = ""
    """What its theory asks for, beside smoothness and a connected graph."""
    rate: ClassVar[str] = ""
    """What its theory promises."""
    step_pace: ClassVar[float] = 3.0
    """How large an lr `gossamer.auto` takes: step_pace gamma s / L, where one mixing removes the share s of what the
    clients disagree on."""
    swing: ClassVar[int] = 2
    """Of a method without gamma: `gossamer.auto` takes an lr of at most ((1 + lambda_min) / 2)^swing / L, lambda_min
    being the smallest eigenvalue of W. Trackers become unstable at (1 + lambda_min)^2 / (2 L), DSGD and EXTRA at
    (1 + lambda_min) / L; 0 means no such limit."""
    equations: ClassVar[str] = ""
    """A round in the paper's letters, for who asks."""
    is_centralized: ClassVar[bool] = False
    """Whether it talks to everyone, on the complete graph with equal weights, whatever the graph of the others."""
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

    @property
    def needs(self) -> str | None:
        """What it asks of the data beyond minibatch gradients, in words; None if nothing."""
        return None

    @property
    def mixed_in(self) -> float:
        """Of a method without gamma: how much of W - I it adds to I when it mixes."""
        return 1.0

    @property
    def rounds_between_exchanges(self) -> int:
        """Rounds from one exchange to the next, at the most: more than 1 where clients take local steps."""
        return 1

    def lr_at(self, t: int) -> float:
        """The step size of round t."""
        return self.lr(t) if isinstance(self.lr, Schedule) else self.lr

    def check_mixing(self, lambda_min: float) -> None:  # noqa: B027 (most methods take any mixing matrix)
        """Refuse a mixing matrix that the method cannot use, given its smallest eigenvalue."""

    def check_dimension(self, d: int) -> None:
        """Refuse a compressor that the method cannot use on vectors of d coordinates."""
        compressor = getattr(self, "compressor", None)
        unbiased = self.compressors == "unbiased" or (self.compressors == "any" and self._is_unbiased())
        if isinstance(compressor, Compressor) and not unbiased:
            compressor.alpha(d)  # which says why, if it is no contraction

    def _is_unbiased(self) -> bool:
        compressor = getattr(self, "compressor", None)
        return isinstance(compressor, Compressor) and compressor.omega(2) is not None

    def with_minibatch_start(self) -> Self:
        """The method for who never sees a full gradient; itself, unless it begins with one."""
        return replace(self, start="minibatch") if hasattr(self, "start") and is_dataclass(self) else self

    def first_gradient(self, x: Tensor, round: Round) -> Tensor:
        """What a method with the setting `start` begins with."""
        return round.oracle.full(x) if getattr(self, "start", None) == "full" else round.oracle(x)

    def remedy(self) -> str:
        """What to try when a run diverges: the settings that most often are too large."""
        steps = [f"`{name}` below {getattr(self, name)}" for name in ("lr", "gamma") if hasattr(self, name)]
        return "try " + " or ".join(steps)


EACH_ROW = "the gradient of each data row"
"""What a method `needs` that takes gradients row by row."""

Start = Literal["full", "minibatch"]
"""Which gradient a tracker begins with."""


def check_steps(method: Any) -> None:
    """Check the settings that methods have in common, as far as this one has them; from its `__post_init__`."""
    settle(method, lr=check_lr(method.lr))
    if hasattr(method, "gamma"):
        settle(method, gamma=check_unit("gamma", method.gamma))
    if hasattr(method, "compressor"):
        _check_compressor(method)
    if hasattr(method, "start"):
        check_choice("start", method.start, ("full", "minibatch"))


def _check_compressor(method: Any) -> None:
    """Refuse anything but a compressor (a class is a common slip for an instance), or a biased one where that fails."""
    value = method.compressor
    if not isinstance(value, Compressor):
        raise InputError(f"`compressor` must be a compressor such as gossamer.gsgd(5), got {value!r}.")
    if method.compressors == "unbiased" and value.omega(2) is None:
        raise InputError(
            f"{method.title} needs an unbiased compressor, E C(x) = x, such as gossamer.qsgd(16), since its error must "
            f"average out; {value} is biased."
        )


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
