"""GT-SARAH: gradient tracking with SARAH's variance reduction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Needs, Round, count, method
from gossamer.algorithms.surrogate import zeros_float64


@dataclass(frozen=True)
class SARAHState:
    """Models and those of the step before; trackers (float64); the estimates of the step before."""

    x: Tensor
    old_x: Tensor
    y: Tensor
    v: Tensor


@method("gt_sarah")
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
    period: int = count(10)
    needs = Needs.FULL_GRADIENTS

    info = MethodInfo(
        title="GT-SARAH",
        paper="Xin et al., 2022 (arXiv 2008.07428)",
        messages=2,
        gradients="2 (a full one every q + 1 rounds)",
        state=4,
        assumes="finite sums, mean-square smoothness",
        rate="||grad f||^2 <= eps after N + O(sqrt(N)/eps) gradients of rows in all, N = nm, if n <= O(sqrt(N) rho^3)",
        equations="""
            v  = F(X) full, every q + 1 rounds; else F(X; xi) - F(X_prev; xi) + v_prev
            Y+ = Y W + v - v_prev                     Y = v_prev = 0 at the start
            X+ = X W - eta Y+
        """,
        step_pace=0.2,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.05}, {"lr": 0.05, "period": 3})

    def init(self, x: Tensor) -> SARAHState:
        """Y = v = 0."""
        return SARAHState(x, x, zeros_float64(x), torch.zeros_like(x))

    def step(self, state: SARAHState, round: Round) -> SARAHState:
        """A full gradient, then q recursive steps."""
        return recursive_tracking(state, round, is_full=round.t % (self.period + 1) == 0)


def recursive_tracking(state: SARAHState, round: Round, *, is_full: bool) -> SARAHState:
    """SARAH's estimate at X^t, the tracker, and X^(t+1); X^t and the old tracker travel while gradients are taken."""
    x, y = state.x, state.y
    sent = round.send(x=x, y=y)
    v = round.oracle.full(x) if is_full else round.oracle(x) - round.oracle(state.old_x) + state.v
    y = y + sent.pulls()[1] + v - state.v
    return SARAHState((sent.mixed()[0] - round.lr * y).to(x), x, y, v)
