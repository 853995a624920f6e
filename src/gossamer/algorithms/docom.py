"""DoCoM: compressed gossip of models and of momentum-based trackers."""

from typing import Literal

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, Compressor, MethodInfo, Round, Start, method, unit, variants
from gossamer.algorithms.tracking import TrackedEstimate, storm


@method("docom")
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
    beta: float = unit(0.1)
    order: Literal["fresh", "stale"] = "fresh"
    start: Start = "full"

    info = MethodInfo(
        title="DoCoM",
        paper="Yau and Wai, 2023 (arXiv 2202.00255)",
        messages=2,
        exchanges="2 (1 stale)",
        gradients="2",
        state=8,
        assumes="mean-square smoothness; any difference between the clients",
        rate="O(T^(-2/3)); linear under PL with full gradients",
        equations="""
            X' = X - eta g;  Xh+ = Xh + C(X' - Xh);  X+ = X' + gamma Xh+ (W - I)
            v+ = beta F(X+; xi) + (1 - beta)(v + F(X+; xi) - F(X; xi))
            g' = g + v+ - v;  gh+ = gh + C(g' - gh);  g+ = g' + gamma gh+ (W - I)      v = g = F(X) at the start
        """,
        lr_may_differ=True,
    )
    examples = variants({"lr": 0.05, "gamma": 0.2}, {"beta": 0.5, "order": "stale", "start": "minibatch"})

    def init(self, x: Tensor) -> TrackedEstimate:
        """Surrogates at zero; the trackers are taken in the first step."""
        return TrackedEstimate.start(x)

    def step(self, state: TrackedEstimate, round: Round) -> TrackedEstimate:
        """The trackers at this model, then the next model."""
        x, gamma, compressor = state.x, self.gamma, self.compressor
        h, g = round.arrived(state.h, state.g)
        m = storm(state.m, round, x, state.old_x, self.beta) if round.t else self.first_gradient(x, round).double()
        v = state.v + m - state.m
        if self.order == "stale":
            v = v + gamma * g.pull
            new = x - (round.lr * v).to(x)
            new = new + (gamma * h.pull).to(x)
            h, g = round.publish((h, new), (g, v if round.t else None), compressor=compressor)
            return TrackedEstimate(new, h, v, g, m, x)

        if round.t:
            g = round.arrived(*round.publish((g, v), compressor=compressor))[0]
            v = v + gamma * g.pull
        new = x - (round.lr * v).to(x)
        (h,) = round.arrived(*round.publish((h, new), compressor=compressor))
        return TrackedEstimate(new + (gamma * h.pull).to(x), h, v, g, m, x)
