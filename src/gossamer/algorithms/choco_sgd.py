"""CHOCO-SGD: SGD with compressed gossip."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gossamer.algorithms.base import Algorithm, Pending, Round, check_steps, nothing_pending, zeros_float64
from gossamer.algorithms.schedules import LR
from gossamer.compression.base import Compressor
from gossamer.errors import check_choice
from gossamer.registry import methods


@dataclass(frozen=True)
class CHOCOState:
    """The models, their surrogates and the surrogates' neighbour sums."""

    x: Tensor
    h: Tensor
    mixed_h: Tensor
    pending: Pending


@methods.register("choco_sgd")
@dataclass(frozen=True)
class CHOCOSGD(Algorithm):
    """CHOCO-SGD, Algorithm 2 of Koloskova, Stich, Jaggi: *Decentralized Stochastic Optimization and Gossip Algorithms
    with Compressed Communication*, ICML 2019 (arXiv 1902.00340).

    =======  ===================  ============================================
    here     paper                meaning
    =======  ===================  ============================================
    x        x                    models
    h        x-hat                surrogates: what the neighbours believe
    mixed_h  sum_j w_ij x-hat_j   weighted neighbour sums of the surrogates
    =======  ===================  ============================================

    Args:
        lr: The step size.
        gamma: The mixing step size, in (0, 1].
        compressor: Any contraction.
        order: `"fresh"` mixes with the surrogates that this round's messages have just updated, as in the paper;
            `"stale"` with those of the round before (Koloskova, Lin, Stich, Jaggi, arXiv 1907.09356, and BEER without
            its tracker), which lets communication hide behind the next gradient.

    The paper's rate is for strongly convex objectives. The rate for nonconvex ones is that of Koloskova, Lin, Stich,
    Jaggi, arXiv 1907.09356. Both assume bounded second moments of the gradients.

    Deviations: none.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    order: Literal["fresh", "stale"] = "fresh"

    title = "CHOCO-SGD"
    paper = "Koloskova et al., 2019 (arXiv 1902.00340)"
    messages = 1
    step_pace = 6.0
    state = 3
    assumes = "bounded gradients"
    rate = "O(sigma/sqrt(nT) + (G/(alpha rho^2 T))^(2/3)) (arXiv 1907.09356); a floor at constant step"
    equations = """
        X' = X - eta F(X)
        H+ = H + C(X' - H)
        X+ = X' + gamma H+ (W - I)                fresh; stale: H in place of H+, and X+ - H compressed
    """
    lr_may_differ = True
    examples = ({"lr": 0.05, "gamma": 0.2}, {"lr": 0.05, "gamma": 0.2, "order": "stale"})

    def __post_init__(self) -> None:
        check_steps(self)
        check_choice("order", self.order, ("fresh", "stale"))

    def init(self, x: Tensor) -> CHOCOState:
        """The surrogates start at zero."""
        zero = zeros_float64(x)
        return CHOCOState(x, zero, zero, nothing_pending(1))

    def step(self, state: CHOCOState, round: Round) -> CHOCOState:
        """x' = x - lr grad(x), then compressed gossip."""
        x, h = state.x, state.h
        mixed_h = state.mixed_h + state.pending.wait()[0]
        x = x - round.lr * round.oracle(x)
        if self.order == "stale":
            x = x + (self.gamma * (mixed_h - h)).to(x)
        q = round.compress(self.compressor, x - h, "h")
        h = h + q.dense()
        pending = round.exchange(q)
        if self.order == "fresh":
            mixed_h = mixed_h + pending.wait()[0]
            x = x + (self.gamma * (mixed_h - h)).to(x)
            pending = nothing_pending(1)
        return CHOCOState(x, h, mixed_h, pending)
