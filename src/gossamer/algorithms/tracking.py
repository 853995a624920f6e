"""Compressed tracking: the lines of BEER's Algorithm 1, for methods that track another estimate than the gradient."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.round import Round
from gossamer.algorithms.surrogate import Known, Surrogate, zeros_float64
from gossamer.compression.base import Compressor

Letters = tuple[Tensor, Surrogate, Tensor, Surrogate]
"""X, its surrogate H, the tracker V and its surrogate G."""


@dataclass(frozen=True)
class Tracked:
    """BEER's letters."""

    x: Tensor
    h: Surrogate
    v: Tensor
    g: Surrogate


@dataclass(frozen=True)
class TrackedEstimate(Tracked):
    """BEER's letters, STORM's estimates of the local gradients, and the models of the step before."""

    m: Tensor
    old_x: Tensor

    @classmethod
    def start(cls, x: Tensor) -> "TrackedEstimate":
        """Surrogates at zero; trackers and estimates are taken in the first step."""
        return cls(*letters(x), zeros_float64(x), x)


def letters(x: Tensor, h0: Known = "zero") -> Letters:
    """G^0 = 0, and so is H^0 unless `h0` says otherwise; V^0 is taken in the first step."""
    return x, Surrogate.of_models(x, h0), zeros_float64(x), Surrogate.zero("g", x)


def storm(m: Tensor, round: Round, x: Tensor, old_x: Tensor, lam: float) -> Tensor:
    """STORM (Cutkosky, Orabona, arXiv 1905.10018): F(X; xi) + (1 - lam)(M - F(X_prev; xi)), in float64."""
    return (1 - lam) * (m - round.oracle(old_x)) + round.oracle(x)


def track(state: Tracked, new: Tensor, old: Tensor, round: Round, *, gamma: float, compressor: Compressor) -> Letters:
    """V follows the change from `old` to `new`, X follows V. BEER is the case in which both are gradients.

    The line numbers are those of BEER's Algorithm 1. In the first round V = new, because all else is zero; G then has
    nothing to say.
    """
    h, g = round.arrived(state.h, state.g)
    v = state.v + gamma * g.pull + new - old  # line 6
    x = state.x + (gamma * h.pull - round.lr * v).to(state.x)  # line 3
    h, g = round.publish((h, x), (g, v if round.t else None), compressor=compressor)  # lines 4, 5, 7, 8
    return x, h, v, g
