"""Gradient tracking: every client follows the average gradient, uncompressed."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Round, Start, method, variants
from gossamer.algorithms.surrogate import zeros_float64


@dataclass(frozen=True)
class TrackingState:
    """Models, trackers (in float64: sums that never forget) and the gradients of the step before."""

    x: Tensor
    y: Tensor
    gradient: Tensor


@method("gradient_tracking")
class GradientTracking(Algorithm):
    """Gradient tracking: DIGing (Nedic, Olshevsky, Shi, arXiv 1607.03218), in its other orders Aug-DGM (Xu, Zhu, Soh,
    Xie, CDC 2015), NEXT (Di Lorenzo, Scutari, arXiv 1602.00591) and DSGT (Pu, Nedic, arXiv 1805.11454).

    Args:
        lr: The step size.
        order: `"combine-then-adapt"` (DIGing): X+ = X W - lr Y, Y+ = Y W + F(X+) - F(X), both messages in one
            exchange, hidden behind the gradient. `"adapt-then-combine"` (Aug-DGM): X+ = (X - lr Y) W,
            Y+ = (Y + F(X+) - F(X)) W, two exchanges. `"semi"` (NEXT, and with stochastic gradients DSGT):
            X+ = (X - lr Y) W, Y+ = Y W + F(X+) - F(X), two exchanges.
        start: Y^0 is the `"full"` local gradient or this round's `"minibatch"` gradient.

    Deviations: none.
    """

    lr: LR
    order: Literal["combine-then-adapt", "adapt-then-combine", "semi"] = "combine-then-adapt"
    start: Start = "full"

    info = MethodInfo(
        title="Gradient tracking",
        paper="Nedic et al., 2017 (arXiv 1607.03218)",
        messages=2,
        exchanges="1 (2 in the other orders)",
        state=3,
        assumes="nothing more: any difference between the clients",
        rate="O(1/T); O(sigma/sqrt(nT)) stochastic; linear if strongly convex",
        equations="""
            X+ = X W - eta Y                          combine-then-adapt; Y = F(X) at the start
            Y+ = Y W + F(X+) - F(X)
            X+ = (X - eta Y) W                        adapt-then-combine
            Y+ = (Y + F(X+) - F(X)) W
            X+ = (X - eta Y) W                        semi
            Y+ = Y W + F(X+) - F(X)
        """,
        step_pace=0.2,
        allows_directed=True,
        lr_may_differ=True,
    )
    examples = variants({"lr": 0.05}, {"order": "adapt-then-combine"}, {"order": "semi", "start": "minibatch"})

    def init(self, x: Tensor) -> TrackingState:
        """Y^0 is taken in the first step."""
        return TrackingState(x, zeros_float64(x), torch.zeros_like(x))

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        """Y^t from the gradient at X^t, then X^(t+1)."""
        x, y = state.x, state.y
        adapts_first = self.order != "combine-then-adapt"
        mixes_later = round.t == 0 or self.order == "adapt-then-combine"
        # X^t and Y^(t-1) are already known, and travel while the gradient is taken.
        sent = round.send(x=None if adapts_first else x, y=None if mixes_later else y)
        gradient = round.oracle(x) if round.t else self.first_gradient(x, round)

        y = y + sent.pulls()[1] + gradient - state.gradient
        if self.order == "adapt-then-combine" and round.t:
            y = round.mix(y, "y")
        new = round.mix(x - round.lr * y, "x") if adapts_first else sent.mixed()[0] - round.lr * y
        return TrackingState(new.to(x), y, gradient)
