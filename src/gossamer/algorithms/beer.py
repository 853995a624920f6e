"""BEER: gradient tracking with compressed messages."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, Compressor, Flow, MethodInfo, Round, Start, method, variants
from gossamer.algorithms.surrogate import Known, Surrogate, zeros_float64


@dataclass(frozen=True)
class BEERState:
    """After step t: X^(t+1), H^(t+1), V^t, G^t."""

    x: Tensor
    h: Surrogate
    v: Tensor
    g: Surrogate
    old: Tensor
    """What line 6 subtracts: the gradient of the step before, or (reevaluated) the model it was taken at."""


@method("beer")
class BEER(Algorithm):
    """BEER, Algorithm 1 of Zhao, Li, Li, Richtarik, Chi: *BEER: Fast O(1/T) Rate for Decentralized Nonconvex
    Optimization with Communication Compression*, NeurIPS 2022 (arXiv 2201.13320).

    ==================  ==========  ====================================================
    here                paper       meaning
    ==================  ==========  ====================================================
    x                   X           models
    h, g                H, G        surrogates of X and V: what the neighbours believe
    v                   V           trackers of the average gradient
    h.pull, g.pull      H (W - I)   towards the neighbours' surrogates
    lr, gamma           eta, gamma  step size, mixing step size
    ==================  ==========  ====================================================

    A round begins where a gradient is taken, so step t runs lines 6 to 8 of iteration t - 1 and then lines 3 to 5 of
    iteration t; the sequence of X is Algorithm 1's. Its two messages leave in one packet. The neighbours' packets are
    first needed in the next step, so they travel while the next gradient is computed. G^0 = 0 needs no message.

    Args:
        lr: eta, the step size.
        gamma: The mixing step size, in (0, 1].
        compressor: The compressor C; any contraction will do.
        start: V^0 is the `"full"` local gradient, as in the paper, or this round's `"minibatch"` gradient.
        tracker: `"stored"` subtracts the stochastic gradient of the round before, as Algorithm 1 does;
            `"reevaluated"` evaluates the old model again on the new minibatch: another algorithm, with two gradients
            per round, used in the paper's published convolutional experiment.
        h0: H^0, what the neighbours believe of a model before the first message: `"zero"`, as in the paper, or the
            `"model"` itself, which they know where all clients start from the same one; nothing is then spent on it.

    Deviations: none with the default settings.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    start: Start = "full"
    tracker: Literal["stored", "reevaluated"] = "stored"
    h0: Known = "zero"

    info = MethodInfo(
        title="BEER",
        paper="Zhao et al., 2022 (arXiv 2201.13320)",
        messages=2,
        gradients="1 (2 reevaluated)",
        state=7,
        assumes="nothing more: any difference between the clients",
        rate="O(1/T) up to a floor of order sigma^2/b; linear under PL with full gradients",
        equations="""
            X+ = X + gamma H (W - I) - eta V
            H+ = H + C(X+ - H)
            V+ = V + gamma G (W - I) + F(X+) - F(X)
            G+ = G + C(V+ - G)                        V = F(X), H = G = 0 at the start
        """,
        lr_may_differ=True,
    )
    examples = variants({"lr": 0.05, "gamma": 0.2}, {"start": "minibatch"}, {"tracker": "reevaluated"}, {"h0": "model"})

    @property
    def flows(self) -> tuple[Flow, ...] | None:
        """Line 6 adds gamma G (W - I) to V. A client that joins has no old model whose gradient V contains."""
        return (Flow("v", "g", self.gamma),) if self.tracker == "stored" else None

    def init(self, x: Tensor) -> BEERState:
        """G^0 = 0, and so is H^0 unless `h0` says otherwise; V^0 is taken in the first step."""
        h = Surrogate.of_models(x, self.h0)
        return BEERState(x, h, zeros_float64(x), Surrogate.zero("g", x), torch.zeros_like(x))

    def step(self, state: BEERState, round: Round) -> BEERState:
        """Lines 6 to 8 of the iteration before, then lines 3 to 5 of this one."""
        x, v, gamma, is_stored = state.x, state.v, self.gamma, self.tracker == "stored"
        h, g = round.arrived(state.h, state.g)  # what the last packets brought
        gradient = round.oracle(x) if round.t else self.first_gradient(x, round)
        old = state.old if is_stored or round.t == 0 else round.oracle(state.old)

        v = v + gamma * g.pull + gradient - old  # line 6; line 1 in the first step, where all else is zero
        new = x + (gamma * h.pull - round.lr * v).to(x)  # line 3
        h, g = round.publish((h, new), (g, v if round.t else None), compressor=self.compressor)  # lines 4, 5, 7, 8
        return BEERState(new, h, v, g, gradient if is_stored else x)
