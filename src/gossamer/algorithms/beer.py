"""BEER: gradient tracking with compressed messages."""

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from torch import Tensor

from gossamer.algorithms.base import (
    Algorithm,
    Pending,
    Round,
    Start,
    check_steps,
    nothing_pending,
    zeros_float64,
)
from gossamer.algorithms.schedules import LR
from gossamer.compression.base import Compressor
from gossamer.errors import check_choice
from gossamer.registry import methods


@dataclass(frozen=True)
class BEERState:
    """After step t: X^(t+1), H^(t+1), V^t, G^t; the mixed sums lag by the exchange under way."""

    x: Tensor
    h: Tensor
    mixed_h: Tensor
    v: Tensor
    g: Tensor
    mixed_g: Tensor
    old: Tensor
    """What line 6 subtracts: the gradient of the step before, or (reevaluated) the model it was taken at."""
    pending: Pending


Tracked = TypeVar("Tracked", bound=BEERState)


@methods.register("beer")
@dataclass(frozen=True)
class BEER(Algorithm):
    """BEER, Algorithm 1 of Zhao, Li, Li, Richtarik, Chi: *BEER: Fast O(1/T) Rate for Decentralized Nonconvex
    Optimization with Communication Compression*, NeurIPS 2022 (arXiv 2201.13320).

    ==================  ==========  ====================================================
    here                paper       meaning
    ==================  ==========  ====================================================
    x                   X           models
    h, g                H, G        surrogates of X and V: what the neighbours believe
    v                   V           trackers of the average gradient
    mixed_h, mixed_g    H W, G W    weighted neighbour sums of the surrogates
    lr, gamma           eta, gamma  step size, mixing step size
    ==================  ==========  ====================================================

    A round begins where a gradient is taken, so step t runs lines 6 to 8 of iteration t - 1 and then lines 3 to 5 of
    iteration t; the sequence of X is Algorithm 1's. Its two messages leave in one exchange, and what comes back is
    first needed in the next step.

    Args:
        lr: eta, the step size.
        gamma: The mixing step size, in (0, 1].
        compressor: The compressor C; any contraction will do.
        start: V^0 is the `"full"` local gradient, as in the paper, or this round's `"minibatch"` gradient.
        tracker: `"stored"` subtracts the stochastic gradient of the round before, as Algorithm 1 does;
            `"reevaluated"` evaluates the old model again on the new minibatch: another algorithm, with two gradients a
            round, used in the paper's published convolutional experiment.

    Deviations: none.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    start: Start = "full"
    tracker: Literal["stored", "reevaluated"] = "stored"

    title = "BEER"
    paper = "Zhao et al., 2022 (arXiv 2201.13320)"
    messages = 2
    gradients = "1 (2 reevaluated)"
    state = 7
    assumes = "nothing more: any difference between the clients"
    rate = "O(1/T) up to a floor of order sigma^2/b; linear under PL with full gradients"
    equations = """
        X+ = X + gamma H (W - I) - eta V
        H+ = H + C(X+ - H)
        V+ = V + gamma G (W - I) + F(X+) - F(X)
        G+ = G + C(V+ - G)                        V = F(X), H = G = 0 at the start
    """
    lr_may_differ = True
    examples = (
        {"lr": 0.05, "gamma": 0.2},
        {"lr": 0.05, "gamma": 0.2, "start": "minibatch"},
        {"lr": 0.05, "gamma": 0.2, "tracker": "reevaluated"},
    )

    def __post_init__(self) -> None:
        check_steps(self)
        check_choice("tracker", self.tracker, ("stored", "reevaluated"))

    def init(self, x: Tensor) -> BEERState:
        """H^0 = G^0 = 0; V^0 is taken in the first step."""
        zero = zeros_float64(x)
        return BEERState(x, zero, zero, zero, zero, zero, x, nothing_pending(2))

    def step(self, state: BEERState, round: Round) -> BEERState:
        """Lines 6 to 8 of the iteration before, then lines 3 to 5 of this one."""
        x, is_stored = state.x, self.tracker == "stored"
        if round.t == 0:
            grad = self.first_gradient(x, round)
            moved = track(state, round, grad, None, self.gamma, self.compressor)
        else:
            grad = round.oracle(x)
            old = state.old if is_stored else round.oracle(state.old)
            moved = track(state, round, grad, old, self.gamma, self.compressor)
        return replace(moved, old=grad if is_stored else x)


def track(
    state: Tracked, round: Round, new: Tensor, old: Tensor | None, gamma: float, compressor: Compressor
) -> Tracked:
    """Algorithm 1 for anything that is tracked: `new` at this round's models, `old` at those of the round before.

    BEER tracks gradients. MoTEF and MoTEF-VR track other estimates of them, and share these lines.
    """
    x, h, v, g = state.x, state.h, state.v, state.g
    mixed_q_h, mixed_q_g = state.pending.wait()
    mixed_h, mixed_g = state.mixed_h + mixed_q_h, state.mixed_g + mixed_q_g

    if old is None:
        v = v + new  # line 1: V^0, from v = 0
        q_g = None  # G^0 = 0, so nothing is sent for it yet
    else:
        v = v + gamma * (mixed_g - g) + new - old  # line 6
        q_g = round.compress(compressor, v - g, "g")  # line 7
        g = g + q_g.dense()  # line 8

    x = x + (gamma * (mixed_h - h) - round.lr * v).to(x)  # line 3
    q_h = round.compress(compressor, x - h, "h")  # line 4
    h = h + q_h.dense()  # line 5
    pending = round.exchange(q_h, q_g)
    return replace(state, x=x, h=h, mixed_h=mixed_h, v=v, g=g, mixed_g=mixed_g, pending=pending)
