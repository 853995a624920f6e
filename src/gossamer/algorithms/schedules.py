"""Step sizes that change from round to round, by torch's conventions: any method takes one as its `lr`.

>>> from gossamer.algorithms import schedules
>>> lr = schedules.step(0.1, step_size=30, gamma=0.5)
>>> lr(0), lr(30), lr(60)
(0.1, 0.05, 0.025)

In a spec file: `lr = "cosine:0.1,2000"`, or `lr = {name = "cosine", lr = 0.1, T_max = 2000}`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from gossamer import registry
from gossamer.errors import InputError, check_integer, check_nonnegative, check_positive, check_unit, settle


class Schedule(ABC):
    """The step size of each round; a frozen dataclass whose first setting is the one it begins with."""

    lr: float

    @abstractmethod
    def __call__(self, t: int) -> float:
        """The step size of round t, from 0."""


LR = float | Schedule
"""What a method's `lr` may be."""


def check_lr(value: object) -> LR:
    """A step size above 0, or a schedule, which may be described as in a spec file."""
    if isinstance(value, str) and ":" not in value:
        raise InputError(
            f"`lr` must be a number above 0, a schedule such as 'cosine:0.1,2000', or in a spec 'auto' or 'certified'; "
            f"got {value!r}."
        )
    if isinstance(value, str | dict):
        value = registry.schedules.build(value)
    return value if isinstance(value, Schedule) else check_positive("lr", value)


@registry.schedules.register("constant")
@dataclass(frozen=True)
class constant(Schedule):
    """The same in every round."""

    lr: float

    def __post_init__(self) -> None:
        settle(self, lr=check_positive("lr", self.lr))

    def __call__(self, t: int) -> float:
        """`lr`."""
        return self.lr


@registry.schedules.register("step")
@dataclass(frozen=True)
class step(Schedule):
    """Times `gamma` after every `step_size` rounds, as `torch.optim.lr_scheduler.StepLR`."""

    lr: float
    step_size: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        settle(self, lr=check_positive("lr", self.lr), step_size=check_integer("step_size", self.step_size, 1))
        settle(self, gamma=check_unit("gamma", self.gamma))

    def __call__(self, t: int) -> float:
        """lr gamma^floor(t / step_size)."""
        return self.lr * float(self.gamma ** (t // self.step_size))


@registry.schedules.register("cosine")
@dataclass(frozen=True)
class cosine(Schedule):
    """Half a cosine down to `eta_min` in `T_max` rounds (and up again after), as torch's `CosineAnnealingLR`."""

    lr: float
    T_max: int
    eta_min: float = 0.0

    def __post_init__(self) -> None:
        settle(self, lr=check_positive("lr", self.lr), T_max=check_integer("T_max", self.T_max, 1))
        settle(self, eta_min=check_nonnegative("eta_min", self.eta_min))
        if self.eta_min > self.lr:
            raise InputError(f"`eta_min` must be at most `lr`, {self.lr}, got {self.eta_min}.")

    def __call__(self, t: int) -> float:
        """eta_min + (lr - eta_min) (1 + cos(pi t / T_max)) / 2."""
        return self.eta_min + (self.lr - self.eta_min) * (1 + math.cos(math.pi * t / self.T_max)) / 2


@registry.schedules.register("inverse")
@dataclass(frozen=True)
class inverse(Schedule):
    """Falls as 1/t, as torch's `LambdaLR` with 1 / (1 + decay t)."""

    lr: float
    decay: float = 1.0

    def __post_init__(self) -> None:
        settle(self, lr=check_positive("lr", self.lr), decay=check_positive("decay", self.decay))

    def __call__(self, t: int) -> float:
        """lr / (1 + decay t)."""
        return self.lr / (1 + self.decay * t)


@registry.schedules.register("warmup_cosine")
@dataclass(frozen=True)
class warmup_cosine(Schedule):
    """Up to `lr` in `warmup` equal steps, then half a cosine down to `eta_min`, reached at `T_max` and kept.

    As torch's `LinearLR` followed by `CosineAnnealingLR`.
    """

    lr: float
    T_max: int
    warmup: int = 0
    eta_min: float = 0.0

    def __post_init__(self) -> None:
        settle(self, lr=check_positive("lr", self.lr), T_max=check_integer("T_max", self.T_max, 1))
        settle(self, warmup=check_integer("warmup", self.warmup, 0), eta_min=check_nonnegative("eta_min", self.eta_min))
        if self.warmup >= self.T_max:
            raise InputError(f"`warmup` must be below `T_max`, {self.T_max}, got {self.warmup}.")
        if self.eta_min > self.lr:
            raise InputError(f"`eta_min` must be at most `lr`, {self.lr}, got {self.eta_min}.")

    def __call__(self, t: int) -> float:
        """lr (t + 1) / warmup, then eta_min + (lr - eta_min) (1 + cos(pi (t - warmup) / (T_max - warmup))) / 2."""
        if t < self.warmup:
            return self.lr * (t + 1) / self.warmup
        done = min(1.0, (t - self.warmup) / (self.T_max - self.warmup))
        return self.eta_min + (self.lr - self.eta_min) * (1 + math.cos(math.pi * done)) / 2
