"""BEER: gradient tracking with compressed messages."""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from gossamer.algorithms.base import Algorithm, Pending, Round, nothing_pending, require_compressor, zeros_float64
from gossamer.compression.base import Compressor
from gossamer.errors import check_choice, check_positive, check_unit, settle
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
        compressor: C. Any contraction will do.
        start: V^0 is the `"full"` local gradient, as in the paper, or this round's `"minibatch"` gradient.
        tracker: `"stored"` subtracts the stochastic gradient of the round before, as Algorithm 1 does;
            `"reevaluated"` evaluates the old model again on the new minibatch: another algorithm, with two gradients a
            round, used in the paper's published convolutional experiment.

    Deviations: none.
    """

    lr: float
    gamma: float
    compressor: Compressor
    start: Literal["full", "minibatch"] = "full"
    tracker: Literal["stored", "reevaluated"] = "stored"

    title = "BEER"
    paper = "Zhao et al., 2022 (arXiv 2201.13320)"
    messages = 2
    lr_may_differ = True
    examples = (
        {"lr": 0.05, "gamma": 0.2},
        {"lr": 0.05, "gamma": 0.2, "start": "minibatch"},
        {"lr": 0.05, "gamma": 0.2, "tracker": "reevaluated"},
    )

    def __post_init__(self) -> None:
        settle(self, lr=check_positive("lr", self.lr), gamma=check_unit("gamma", self.gamma))
        require_compressor(self.compressor)
        check_choice("start", self.start, ("full", "minibatch"))
        check_choice("tracker", self.tracker, ("stored", "reevaluated"))

    def with_minibatch_start(self) -> "BEER":
        """With V^0 from the first minibatch."""
        return replace(self, start="minibatch")

    def init(self, x: Tensor) -> BEERState:
        """H^0 = G^0 = 0; V^0 is taken in the first step."""
        zero = zeros_float64(x)
        return BEERState(x, zero, zero, zero, zero, zero, x, nothing_pending(2))

    def step(self, state: BEERState, round: Round) -> BEERState:
        """Lines 6 to 8 of the iteration before, then lines 3 to 5 of this one."""
        x, h, v, g, gamma = state.x, state.h, state.v, state.g, self.gamma
        mixed_q_h, mixed_q_g = state.pending.wait()
        mixed_h, mixed_g = state.mixed_h + mixed_q_h, state.mixed_g + mixed_q_g

        if round.t == 0:
            grad = round.oracle.full(x) if self.start == "full" else round.oracle(x)
            v = v + grad  # line 1: V^0, from v = 0
            q_g = None  # G^0 = 0, so nothing is sent for it yet
        else:
            grad = round.oracle(x)
            old = state.old if self.tracker == "stored" else round.oracle(state.old)
            v = v + gamma * (mixed_g - g) + grad - old  # line 6
            q_g = round.compress(self.compressor, v - g, "g")  # line 7
            g = g + q_g.dense()  # line 8

        old = grad if self.tracker == "stored" else x
        x = x + (gamma * (mixed_h - h) - round.lr * v).to(x)  # line 3
        q_h = round.compress(self.compressor, x - h, "h")  # line 4
        h = h + q_h.dense()  # line 5
        return BEERState(x, h, mixed_h, v, g, mixed_g, old, round.exchange(q_h, q_g))
