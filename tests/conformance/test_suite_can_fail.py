"""The suite finds what it is there to find: components with one fault each."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import gossamer as gs
from gossamer.algorithms import Round
from gossamer.algorithms.dsgd import DSGDState
from gossamer.compression.dense import Dense
from gossamer.compression.layout import Layout
from gossamer.streams import Draw
from gossamer.testing import check_compressor, check_method


@dataclass(frozen=True)
class Wrong(gs.Compressor):
    """Halves every vector, and says it keeps more than it does."""

    stated: float = 0.8

    def alpha(self, d: int) -> float:
        return self.stated

    @property
    def is_deterministic(self) -> bool:
        return True

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Dense:
        return Dense(x / 2)


class InPlace(Wrong):
    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Dense:
        return Dense(x.mul_(0.5))


class MixesRows(Wrong):
    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Dense:
        return Dense(x / 2 * (x.sum() != 0) + 0 * x + (len(x) > 3) * x / 4)


class MovesZero(Wrong):
    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Dense:
        return Dense(x + 1e-3)


class Unsteady(Wrong):
    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Dense:
        return Dense(x * torch.rand_like(x))


class Contradictory(Wrong):
    def omega(self, d: int) -> float:
        return 0.25


class Biased(Contradictory):
    @property
    def is_unbiased(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("compressor", "fault"),
    [
        (Wrong(0.8), r"promises to lose at most 0\.2000"),
        (Wrong(1.5), "not in"),
        (InPlace(0.75), "changes its input"),
        (MixesRows(0.5), "depend on other rows"),
        (MovesZero(0.5), "zero vector"),
        (Unsteady(0.1), "differs for the same seed"),
        (Biased(0.75), "its mean is not x"),
        (Contradictory(0.75), "states is_unbiased = False, but omega = 0.25"),
    ],
)
def test_faulty_compressor(compressor: gs.Compressor, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_compressor(compressor)


def test_sound_compressor_passes() -> None:
    check_compressor(Wrong(0.75))


@dataclass(frozen=True)
class Faulty(gs.DSGD):
    fault: str = "none"

    def step(self, state: DSGDState, round: Round) -> DSGDState:
        new = super().step(state, round)
        if self.fault == "drifts":
            return replace(new, x=new.x + 1e-6)
        if self.fault == "in place":
            state.x.add_(1e-3)
        if self.fault == "seeds meet":
            return replace(new, x=new.x + 1e-3 * (new.x.mean() - new.x[:6].mean()))
        if self.fault == "numbered":
            weights = torch.linspace(-1, 1, 6, dtype=torch.float64).repeat(len(new.x) // 6)
            return replace(new, x=new.x + 1e-3 * weights[:, None])
        if self.fault == "stuck":
            return state
        return DSGDState(new.x)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("drifts", "mean model moves"),
        ("in place", "step changes `state.x`"),
        ("seeds meet", "a seed run beside another"),
        ("numbered", "numbering the clients"),
        ("stuck", "300 rounds on a quadratic"),
    ],
)
def test_faulty_method(fault: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_method(Faulty(lr=0.05, fault=fault))


def test_unchecked_settings() -> None:
    @dataclass(frozen=True)
    class Careless(gs.DSGD):
        def __post_init__(self) -> None:
            pass

    with pytest.raises(AssertionError, match=r"lr=0.0 is accepted"):
        check_method(Careless(lr=0.05))
