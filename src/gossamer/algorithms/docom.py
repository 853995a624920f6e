"""DoCoM: compressed gossip of models and of momentum-based trackers."""

from dataclasses import dataclass
from typing import Literal

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
from gossamer.algorithms.motef_vr import storm
from gossamer.algorithms.schedules import LR
from gossamer.compression.base import Compressor
from gossamer.errors import check_choice, check_unit, settle
from gossamer.registry import methods


@dataclass(frozen=True)
class DoCoMState:
    """Models, trackers and their surrogates with neighbour sums; STORM's estimates; the models of the step before."""

    x: Tensor
    h: Tensor
    mixed_h: Tensor
    v: Tensor
    g: Tensor
    mixed_g: Tensor
    m: Tensor
    old_x: Tensor
    pending: Pending


@methods.register("docom")
@dataclass(frozen=True)
class DoCoM(Algorithm):
    """DoCoM, Algorithm 1 of Yau, Wai: *DoCoM: Compressed Decentralized Optimization with Near-Optimal Sample
    Complexity*, TMLR 2023 (arXiv 2202.00255).

    ======  ========  ==========================================================
    here    paper     meaning
    ======  ========  ==========================================================
    h, g    x-hat,    surrogates of X and of the trackers: what the neighbours
            g-hat     believe
    v       g         trackers of the average gradient
    m       v         STORM's estimates of the local gradients
    ======  ========  ==========================================================

    Args:
        lr: eta, the step size.
        gamma: The mixing step size, in (0, 1].
        compressor: Any contraction.
        beta: STORM's, in (0, 1]: how much a new gradient counts.
        order: `"fresh"` mixes with the surrogates that this round's messages have just updated, as in the paper: two
            exchanges one after the other. `"stale"` with those of the round before, as the authors' code for deep
            learning does: one exchange, and the sequence of MoTEF-VR.
        start: The trackers begin with the `"full"` local gradient or this round's `"minibatch"` gradient.

    Deviations: one gamma for both.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    beta: float = 0.1
    order: Literal["fresh", "stale"] = "fresh"
    start: Start = "full"

    title = "DoCoM"
    paper = "Yau and Wai, 2023 (arXiv 2202.00255)"
    messages = 2
    exchanges = "2 (1 stale)"
    gradients = "2"
    state = 8
    assumes = "mean-square smoothness; any difference between the clients"
    rate = "O(T^(-2/3)); linear under PL with full gradients"
    equations = """
        X' = X - eta g;  Xh+ = Xh + C(X' - Xh);  X+ = X' + gamma Xh+ (W - I)
        v+ = beta F(X+; xi) + (1 - beta)(v + F(X+; xi) - F(X; xi))
        g' = g + v+ - v;  gh+ = gh + C(g' - gh);  g+ = g' + gamma gh+ (W - I)      v = g = F(X) at the start
    """
    lr_may_differ = True
    examples = (
        {"lr": 0.05, "gamma": 0.2},
        {"lr": 0.05, "gamma": 0.2, "beta": 0.5, "order": "stale", "start": "minibatch"},
    )

    def __post_init__(self) -> None:
        check_steps(self)
        settle(self, beta=check_unit("beta", self.beta))
        check_choice("order", self.order, ("fresh", "stale"))

    def init(self, x: Tensor) -> DoCoMState:
        """Surrogates at zero; the trackers are taken in the first step."""
        zero = zeros_float64(x)
        return DoCoMState(x, zero, zero, zero, zero, zero, zero, x, nothing_pending(2))

    def step(self, state: DoCoMState, round: Round) -> DoCoMState:
        """The trackers at this model, then the next model."""
        x, h, v, g, gamma, is_fresh = state.x, state.h, state.v, state.g, self.gamma, self.order == "fresh"
        mixed_q_h, mixed_q_g = state.pending.wait()
        mixed_h, mixed_g = state.mixed_h + mixed_q_h, state.mixed_g + mixed_q_g

        q_g = None
        if round.t == 0:
            m = v = self.first_gradient(x, round).double()
        else:
            m = storm(state.m, round, x, state.old_x, self.beta)
            v = v + m - state.m
            v = v if is_fresh else v + gamma * (mixed_g - g)
            q_g = round.compress(self.compressor, v - g, "g")
            g = g + q_g.dense()
            if is_fresh:
                mixed_g = mixed_g + round.exchange(q_g).wait()[0]
                v = v + gamma * (mixed_g - g)

        new = x - (round.lr * v).to(x)
        new = new if is_fresh else new + (gamma * (mixed_h - h)).to(x)
        q_h = round.compress(self.compressor, new - h, "h")
        h = h + q_h.dense()
        if not is_fresh:
            return DoCoMState(new, h, mixed_h, v, g, mixed_g, m, x, round.exchange(q_h, q_g))
        mixed_h = mixed_h + round.exchange(q_h).wait()[0]
        new = new + (gamma * (mixed_h - h)).to(x)
        return DoCoMState(new, h, mixed_h, v, g, mixed_g, m, x, nothing_pending(2))
