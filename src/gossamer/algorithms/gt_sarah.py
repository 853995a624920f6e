"""GT-SARAH: gradient tracking with SARAH's variance reduction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, Round, check_steps, zeros_float64
from gossamer.algorithms.schedules import LR
from gossamer.compression.dense import identity
from gossamer.errors import check_integer, settle
from gossamer.registry import methods


@dataclass(frozen=True)
class SARAHState:
    """Models and those of the step before; trackers (float64); the estimates of the step before."""

    x: Tensor
    old_x: Tensor
    y: Tensor
    v: Tensor


@methods.register("gt_sarah")
@dataclass(frozen=True)
class GTSARAH(Algorithm):
    """GT-SARAH, Algorithm 1 of Xin, Khan, Kar: *Fast Decentralized Nonconvex Finite-Sum Optimization with Recursive
    Variance Reduction*, SIAM Journal on Optimization 2022 (arXiv 2008.07428).

    Args:
        lr: The step size.
        period: q, the number of recursive steps after each full gradient, as in the paper. The full gradient is
            therefore taken every q + 1 rounds. (D-GET's q counts all rounds: its refresh comes every q rounds.)

    Deviations: none. The rate's constants were not checked; the equations were, by their fixed point (the exact
    minimiser) and by keeping the mean of Y at the mean of v.
    """

    lr: LR
    period: int = 10

    title = "GT-SARAH"
    paper = "Xin et al., 2022 (arXiv 2008.07428)"
    messages = 2
    step_pace = 0.2
    gradients = "2 (a full one every q + 1 rounds)"
    state = 4
    compressors = "none"
    assumes = "finite sums, mean-square smoothness"
    rate = "||grad f||^2 <= eps after N + O(sqrt(N)/eps) gradients of rows in all, N = nm, if n <= O(sqrt(N) rho^3)"
    equations = """
        v  = F(X) full, every q + 1 rounds; else F(X; xi) - F(X_prev; xi) + v_prev
        Y+ = Y W + v - v_prev                     Y = v_prev = 0 at the start
        X+ = X W - eta Y+
    """
    lr_may_differ = True
    examples = ({"lr": 0.05}, {"lr": 0.05, "period": 3})

    def __post_init__(self) -> None:
        check_steps(self)
        settle(self, period=check_integer("period", self.period, 1))

    @property
    def needs(self) -> str:
        """Every now and then."""
        return "full gradients"

    def init(self, x: Tensor) -> SARAHState:
        """Y = v = 0."""
        return SARAHState(x, x, zeros_float64(x), torch.zeros_like(x))

    def step(self, state: SARAHState, round: Round) -> SARAHState:
        """A full gradient, then q recursive steps."""
        return recursive_tracking(state, round, is_full=round.t % (self.period + 1) == 0)


def recursive_tracking(state: SARAHState, round: Round, *, is_full: bool) -> SARAHState:
    """SARAH's estimate at X^t, the tracker, and X^(t+1); X^t and the old tracker travel while gradients are taken."""
    x, y = state.x, state.y
    q_x, q_y = round.compress(identity(), x, "x"), round.compress(identity(), y, "y")
    pending = round.exchange(q_x, q_y)
    v = recursive_estimate(x, state.old_x, state.v, round, is_full=is_full)
    mixed_x, mixed_y = pending.wait()
    y = y + (mixed_y - q_y.dense()) + v - state.v
    return SARAHState((mixed_x - round.lr * y).to(x), x, y, v)


def recursive_estimate(x: Tensor, old_x: Tensor, v: Tensor, round: Round, *, is_full: bool) -> Tensor:
    """F(X) in full, or F(X; xi) - F(X_prev; xi) + v, both on this round's minibatch."""
    return round.oracle.full(x) if is_full else round.oracle(x) - round.oracle(old_x) + v
