"""C-GT: compressed gradient tracking."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Accepts, Algorithm, MethodInfo, Round, Start, method, unit, variants
from gossamer.algorithms.surrogate import Surrogate, memory_step, zeros_float64
from gossamer.compression.base import Compressor


@dataclass(frozen=True)
class CGTState:
    """Models, trackers, the gradients of the step before, and COMM's memories."""

    x: Tensor
    y: Tensor
    gradient: Tensor
    h: Surrogate
    g: Surrogate


@method("c_gt")
class CGT(Algorithm):
    """C-GT of Liao, Li, Huang, Pu: *A Compressed Gradient Tracking Method for Decentralized Optimization with Linear
    Convergence*, IEEE Transactions on Automatic Control 2022 (arXiv 2205.12623). Its theory is for strongly convex
    objectives.

    =======  ==========  ====================================================
    here     paper       meaning
    =======  ==========  ====================================================
    x, y     X, Y        models, trackers of the average gradient
    h, g     H_x, H_y    COMM's memories of X and Y
    a        alpha       how fast the memories follow
    =======  ==========  ====================================================

    BEER is its case a = 1, but for the first messages: BEER sends nothing for X^0 and V^0. With a below 1 the memory is
    not the estimate that is mixed, which lets an unbiased compressor be no contraction.

    Args:
        lr: eta, the step size.
        gamma: The mixing step size, in (0, 1].
        compressor: A contraction, or an unbiased one.
        a: In (0, 1]; by default 1 for a contraction and 1/(1 + omega) else.
        start: Y^0 is the `"full"` local gradient or this round's `"minibatch"` gradient.

    Deviations: one a and one gamma for both. The equations were confirmed by their fixed point (the exact minimiser),
    by the mean of Y, and by BEER, which they equal.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    a: float | None = unit(None)
    start: Start = "full"

    info = MethodInfo(
        title="C-GT",
        paper="Liao et al., 2022 (arXiv 2205.12623)",
        messages=2,
        state=7,
        compressors=Accepts.ANY,
        assumes="strong convexity; any difference between the clients",
        rate="linear",
        equations="""
            Xh, Xw = COMM(X);  Yh, Yw = COMM(Y)      COMM(Y):  q = C(Y - H);  Yh = H + q;  Yw = H W + q W;  H+ = H + a q
            X+ = X - gamma (Xh - Xw) - eta Y          Y = F(X) at the start
            Y+ = Y - gamma (Yh - Yw) + F(X+) - F(X)
        """,
        lr_may_differ=True,
    )
    examples = variants({"lr": 0.05, "gamma": 0.2}, {"a": 0.5}, {"start": "minibatch"})

    def init(self, x: Tensor) -> CGTState:
        """The memories start at zero; Y^0 is taken in the first step."""
        return CGTState(x, zeros_float64(x), torch.zeros_like(x), Surrogate.zero("h", x), Surrogate.zero("g", x))

    def step(self, state: CGTState, round: Round) -> CGTState:
        """Y^t from the gradient at X^t, both messages, X^(t+1); `y` is kept mixed, ready for the next gradient."""
        x, gamma = state.x, self.gamma
        gradient = round.oracle(x) if round.t else self.first_gradient(x, round)
        y = state.y + gradient - state.gradient
        a = memory_step(self.a, self.compressor, x.shape[1], averages=False)
        h, g = round.publish((state.h, x), (state.g, y), compressor=self.compressor, a=a)
        x = x + (gamma * h.estimate().pull - round.lr * y).to(x)
        y = y + gamma * g.estimate().pull
        return CGTState(x, y, gradient, *round.arrived(h, g))
