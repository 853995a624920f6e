"""The contract of a method: one step function that the simulator and real processes share.

A method sees rows, never the network. Row i of every tensor belongs to client i, and several seeds stack their clients
one seed after another. So the paper's matrices stand transposed, and H (W - I) is the `pull` of the surrogate `h`.
A method's file imports its words from here.
"""
# ruff: noqa: PLC0414

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import partial
from types import NoneType
from typing import Any, ClassVar, Literal, Self, TypeVar, dataclass_transform, get_args, get_origin

from torch import Tensor

from gossamer import errors
from gossamer.algorithms.round import Round as Round
from gossamer.algorithms.schedules import LR as LR
from gossamer.algorithms.schedules import Schedule, check_lr
from gossamer.compression.base import Compressor as Compressor
from gossamer.registry import methods

Method = TypeVar("Method", bound="Algorithm")
State = Any
"""A method's own frozen dataclass of tensors and surrogates, one row per client; it holds the models `x`, (rows, d)."""

Start = Literal["full", "minibatch"]
"""Which gradient a tracker begins with."""


def setting(default: Any, check: Callable[[str, Any], Any]) -> Any:
    """A setting with a check of `gossamer.errors`; None passes where the type allows it."""
    return field(default=default, metadata={"check": check})


unit = partial(setting, check=errors.check_unit)
count = partial(setting, check=partial(errors.check_integer, low=1))
positive = partial(setting, check=errors.check_positive)
nonnegative = partial(setting, check=errors.check_nonnegative)


@dataclass_transform(frozen_default=True)
def method(name: str) -> Callable[[type[Method]], type[Method]]:
    """Make a class a frozen dataclass of its settings, and register it as a method."""
    return lambda cls: methods.register(name)(dataclass(frozen=True)(cls))


def variants(settings: Mapping[str, Any], *others: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Examples of a method: the settings, and the same with each of the others."""
    return settings, *({**settings, **other} for other in others)


class Accepts(Enum):
    """The compressors that a method with a `compressor` may use."""

    CONTRACTIVE = "contractive"
    UNBIASED = "unbiased"
    ANY = "any"
    """Contractive or unbiased."""


class Needs(Enum):
    """What a method asks of the data beyond minibatch gradients."""

    FULL_GRADIENTS = "full gradients"
    ROW_GRADIENTS = "the gradient of each data row"


@dataclass(frozen=True)
class Flow:
    """What edges add to a tracker: `factor` times the pull of a surrogate, once per round."""

    tracker: str
    """The field of the state."""
    surrogate: str
    """The field of the state whose pull is added."""
    factor: float


@dataclass(frozen=True)
class MethodInfo:
    """What is known of a method: for `gossamer methods`, the documentation, and the choice of step sizes."""

    title: str
    """The name that people know, for tables and figures."""
    paper: str = ""
    """Where the method comes from."""
    messages: int = 1
    """Messages per round, at most."""
    exchanges: int | str = 1
    """Exchanges per round that must follow one another: what latency multiplies."""
    gradients: str = "1"
    """Minibatch gradients per round, in words where the number varies."""
    state: int | str = "?"
    """Numbers that a client keeps from round to round, in multiples of d; m is its number of data rows."""
    compressors: Accepts = Accepts.CONTRACTIVE
    """Which compressors it may use, if it has one."""
    assumes: str = ""
    """What its theory asks for, beside smoothness and a connected graph."""
    rate: str = ""
    """What its theory promises."""
    equations: str = ""
    """One round in the paper's letters."""
    step_pace: float = 3.0
    """How large an lr `auto` takes: step_pace gamma s / L, where one mixing removes the share s of the disagreement."""
    swing: int = 2
    """Of a method without gamma: `auto` takes an lr of at most ((1 + lambda_min) / 2)^swing / L, where lambda_min is
    the smallest eigenvalue of W. Trackers become unstable at (1 + lambda_min)^2 / (2 L), DSGD and EXTRA at
    (1 + lambda_min) / L. 0 means no such limit."""
    is_centralized: bool = False
    """Whether it runs on the complete graph with equal weights, whatever the graph of the others."""
    allows_directed: bool = False
    """Whether it may mix with W_t that are doubly stochastic and not symmetric."""
    lr_may_differ: bool = False
    """Whether `round.lr` may have one entry per coordinate, as parameter groups of an optimiser need."""


class Algorithm(ABC):
    """A method: a frozen dataclass of its settings, checked at construction, with `init` and `step`."""

    lr: LR
    info: ClassVar[MethodInfo]
    examples: ClassVar[Sequence[Mapping[str, Any]]] = ({"lr": 0.05},)
    """Settings with which the conformance suite tries the class; it adds every compressor where there is one."""

    def __post_init__(self) -> None:
        """Check the settings; a method with more to check calls this first."""
        errors.settle(self, lr=check_lr(self.lr))
        if hasattr(self, "gamma"):
            errors.settle(self, gamma=errors.check_unit("gamma", self.gamma))
        check_settings(self)
        compressor = getattr(self, "compressor", None)
        is_biased = isinstance(compressor, Compressor) and not compressor.is_unbiased
        if is_biased and self.info.compressors is Accepts.UNBIASED:
            raise errors.InputError(
                f"{self.info.title} needs an unbiased compressor, E C(x) = x, such as gossamer.qsgd(16), since its "
                f"error must average out; {compressor} is biased."
            )

    @abstractmethod
    def init(self, x: Tensor) -> State:
        """The state before the first round, from the (rows, d) models."""

    @abstractmethod
    def step(self, state: State, round: Round) -> State:
        """One round: from the gradient at the current models to the next models. Pure: the old state is left alone."""

    @property
    def needs(self) -> Needs | None:
        """What it asks of the data beyond minibatch gradients."""
        return None

    @property
    def mixed_in(self) -> float:
        """Of a method without gamma: how much of W - I it adds to I when it mixes."""
        return 1.0

    @property
    def rounds_between_exchanges(self) -> int:
        """Rounds from one exchange to the next, at most: more than 1 where clients take local steps."""
        return 1

    @property
    def flows(self) -> tuple[Flow, ...] | None:
        """What edges add to trackers, for runs whose clients come and go; None if the method cannot run so.

        When a client is gone for good, each neighbour takes out what their edge has added. A method that can run so
        uses in each step the packets of the steps before, never those of the same step.
        """
        return None

    @property
    def is_tracking(self) -> bool:
        """Whether it keeps a tracker of the average gradient, in which a client's last gradient can stay."""
        return hasattr(self, "start")

    def correction(self, state: State) -> Tensor | None:
        """What it adds to every gradient of a round, (rows, d), where local steps are corrected; else None."""
        return None

    def lr_at(self, t: int) -> float:
        """The step size of round t."""
        return self.lr(t) if isinstance(self.lr, Schedule) else self.lr

    def check_mixing(self, lambda_min: float) -> None:  # noqa: B027 (most methods take any mixing matrix)
        """Refuse a mixing matrix that the method cannot use, given its smallest eigenvalue."""

    def check_dimension(self, d: int) -> None:
        """Refuse a compressor that the method cannot use on vectors of d coordinates."""
        compressor = getattr(self, "compressor", None)
        if isinstance(compressor, Compressor):
            accepts = self.info.compressors
            if accepts is Accepts.CONTRACTIVE or (accepts is Accepts.ANY and not compressor.is_unbiased):
                compressor.alpha(d)  # which says why, if it is not a contraction

    def with_minibatch_start(self) -> Self:
        """A copy that starts from a minibatch gradient; itself, if it has no setting `start`."""
        return replace(self, start="minibatch") if hasattr(self, "start") and is_dataclass(self) else self

    def first_gradient(self, x: Tensor, round: Round) -> Tensor:
        """The gradient that a method with the setting `start` begins with."""
        return round.oracle.full(x) if getattr(self, "start", None) == "full" else round.oracle(x)

    def remedy(self) -> str:
        """What to try when a run diverges: the settings that are most often too large."""
        steps = [f"`{name}` below {getattr(self, name)}" for name in ("lr", "gamma") if hasattr(self, name)]
        return "try " + " or ".join(steps)


def check_settings(instance: Any) -> None:
    """Check the fields that are made by `setting`, and those whose type is a Literal, a bool or a compressor."""
    for one in fields(instance):
        name, value = one.name, getattr(instance, one.name)
        if value is None and NoneType in get_args(one.type):
            continue
        if "check" in one.metadata:
            errors.settle(instance, **{name: one.metadata["check"](name, value)})
        elif get_origin(one.type) is Literal:
            errors.check_choice(name, value, get_args(one.type))
        elif one.type is bool:
            errors.check_bool(name, value)
        elif one.type is Compressor and not isinstance(value, Compressor):
            raise errors.InputError(f"`{name}` must be a compressor such as gossamer.gsgd(5), got {value!r}.")


def map_state(state: State, function: Callable[[Tensor], Tensor]) -> State:
    """The state with `function` applied to each tensor; what is under way is waited for first."""

    def change(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if hasattr(value, "settled"):
            value = value.settled()
            tensors = {f.name: getattr(value, f.name) for f in fields(value)}
            return replace(value, **{k: function(v) for k, v in tensors.items() if isinstance(v, Tensor)})
        raise TypeError(f"A state holds tensors and surrogates, got {type(value).__name__}.")

    return replace(state, **{field.name: change(getattr(state, field.name)) for field in fields(state)})
