"""CHOCO-SGD: SGD with compressed gossip."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, Compressor, Flow, MethodInfo, Round, method, variants
from gossamer.algorithms.surrogate import Known, Surrogate


@dataclass(frozen=True)
class CHOCOState:
    """The models and their surrogates."""

    x: Tensor
    h: Surrogate


@method("choco_sgd")
class CHOCOSGD(Algorithm):
    """CHOCO-SGD, Algorithm 2 of Koloskova, Stich, Jaggi: *Decentralized Stochastic Optimization and Gossip Algorithms
    with Compressed Communication*, ICML 2019 (arXiv 1902.00340).

    =======  ================================  ============================================
    here     paper                             meaning
    =======  ================================  ============================================
    x        x                                 models
    h        x-hat                             surrogates: what the neighbours believe
    h.pull   sum_j w_ij (x-hat_j - x-hat_i)    towards the neighbours' surrogates
    =======  ================================  ============================================

    Args:
        lr: The step size.
        gamma: The mixing step size, in (0, 1].
        compressor: Any contraction.
        order: `"fresh"` mixes with the surrogates that this round's messages have just updated, as in the paper;
            `"stale"` with those of the round before (Koloskova, Lin, Stich, Jaggi, arXiv 1907.09356, and BEER without
            its tracker), which lets communication hide behind the next gradient.
        h0: H^0, what the neighbours believe of a model before the first message: `"zero"`, as in the paper, or the
            `"model"` itself, which they know where all clients start from the same one; nothing is then spent on it.

    The paper's rate is for strongly convex objectives. The rate for nonconvex ones is that of Koloskova, Lin, Stich,
    Jaggi, arXiv 1907.09356. Both assume bounded second moments of the gradients.

    Deviations: none.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    order: Literal["fresh", "stale"] = "fresh"
    h0: Known = "zero"

    info = MethodInfo(
        title="CHOCO-SGD",
        paper="Koloskova et al., 2019 (arXiv 1902.00340)",
        state=3,
        assumes="bounded gradients",
        rate="O(sigma/sqrt(nT) + (G/(alpha rho^2 T))^(2/3)) (arXiv 1907.09356); a floor at constant step",
        equations="""
            X' = X - eta F(X)
            H+ = H + C(X' - H)
            X+ = X' + gamma H+ (W - I)                fresh; stale: H in place of H+, and X+ - H compressed
        """,
        step_pace=6.0,
        lr_may_differ=True,
    )
    examples = variants({"lr": 0.05, "gamma": 0.2}, {"order": "stale"}, {"h0": "model"})

    @property
    def flows(self) -> tuple[Flow, ...] | None:
        """There is no tracker. The fresh order waits for packets in the middle of a step."""
        return () if self.order == "stale" else None

    def init(self, x: Tensor) -> CHOCOState:
        """The surrogates start at zero, or at the models."""
        return CHOCOState(x, Surrogate.of_models(x, self.h0))

    def step(self, state: CHOCOState, round: Round) -> CHOCOState:
        """x' = x - lr grad(x), then compressed gossip."""
        (h,) = round.arrived(state.h)
        x = state.x - round.lr * round.oracle(state.x)
        if self.order == "stale":
            x = x + (self.gamma * h.pull).to(x)
            return CHOCOState(x, *round.publish((h, x), compressor=self.compressor))
        (h,) = round.arrived(*round.publish((h, x), compressor=self.compressor))
        return CHOCOState(x + (self.gamma * h.pull).to(x), h)
