"""C-GT: compressed gradient tracking."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.base import Algorithm, Round, Start, check_steps, zeros_float64
from gossamer.algorithms.communication import comm, memory_step
from gossamer.algorithms.schedules import LR
from gossamer.compression.base import Compressor
from gossamer.errors import check_unit, settle
from gossamer.registry import methods


@dataclass(frozen=True)
class CGTState:
    """Models, trackers, the gradients of the step before, and COMM's memories with their neighbour sums."""

    x: Tensor
    y: Tensor
    old: Tensor
    h: Tensor
    mixed_h: Tensor
    g: Tensor
    mixed_g: Tensor


@methods.register("c_gt")
@dataclass(frozen=True)
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
    a: float | None = None
    start: Start = "full"

    title = "C-GT"
    paper = "Liao et al., 2022 (arXiv 2205.12623)"
    messages = 2
    state = 7
    compressors = "any"
    assumes = "strong convexity; any difference between the clients"
    rate = "linear"
    equations = """
        Xh, Xw = COMM(X);  Yh, Yw = COMM(Y)       COMM(Y):  q = C(Y - H);  Yh = H + q;  Yw = H W + q W;  H+ = H + a q
        X+ = X - gamma (Xh - Xw) - eta Y          Y = F(X) at the start
        Y+ = Y - gamma (Yh - Yw) + F(X+) - F(X)
    """
    lr_may_differ = True
    examples = (
        {"lr": 0.05, "gamma": 0.2},
        {"lr": 0.05, "gamma": 0.2, "a": 0.5},
        {"lr": 0.05, "gamma": 0.2, "start": "minibatch"},
    )

    def __post_init__(self) -> None:
        check_steps(self)
        settle(self, a=None if self.a is None else check_unit("a", self.a))

    def init(self, x: Tensor) -> CGTState:
        """The memories start at zero; Y^0 is taken in the first step."""
        zero = zeros_float64(x)
        return CGTState(x, zero, x, zero, zero, zero, zero)

    def step(self, state: CGTState, round: Round) -> CGTState:
        """Y^t from the gradient at X^t, both messages, X^(t+1); `y` is kept mixed, ready for the next gradient."""
        x, gamma = state.x, self.gamma
        grad = round.oracle(x) if round.t else self.first_gradient(x, round)
        y = state.y + grad - state.old if round.t else state.y + grad
        q_x = round.compress(self.compressor, x - state.h, "h")
        q_y = round.compress(self.compressor, y - state.g, "g")
        mixed_q_x, mixed_q_y = round.exchange(q_x, q_y).wait()

        a = memory_step(self.a, self.compressor, x.shape[1], averages=False)
        of_x = comm(state.h, state.mixed_h, q_x, mixed_q_x, a)
        of_y = comm(state.g, state.mixed_g, q_y, mixed_q_y, a)
        x = x - (gamma * (of_x.y - of_x.mixed_y) + round.lr * y).to(x)
        y = y - gamma * (of_y.y - of_y.mixed_y)
        return CGTState(x, y, grad, of_x.h, of_x.mixed_h, of_y.h, of_y.mixed_h)
