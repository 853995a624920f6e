"""K-GT on BEER's surrogates: corrected local steps, and messages of a few bits."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, Compressor, MethodInfo, Round, method, variants
from gossamer.algorithms.surrogate import Known, Surrogate, zeros_float64


@dataclass(frozen=True)
class CompressedKGTState:
    """BEER's letters, and the mean local gradients of the round before."""

    x: Tensor
    h: Surrogate
    v: Tensor
    g: Surrogate
    own: Tensor


@method("compressed_kgt")
class CompressedKGT(Algorithm):
    """Local steps in which each client takes its own gradient out and the tracked average in, as K-GT does (Liu, Lin,
    Koloskova, Stich, arXiv 2301.01313), with BEER's surrogates and compressed messages.

    ==========  ====================================================================
    here        meaning
    ==========  ====================================================================
    x, v        models, and trackers of the average gradient
    h, g        surrogates of both: what the neighbours believe
    own         m, the mean gradient of a client's local steps in the round before
    correction  v + gamma G (W - I) - own: what is added to each gradient of a round
    ==========  ====================================================================

    The local steps are those of the run, with any optimiser: `local=gossamer.LocalSteps(torch.optim.AdamW, steps=10,
    lr=6e-4)`. Without `local` there is one step of SGD with the step size `lr`.

    With the identity, gamma = 1 and the order `"fresh"` it is K-GT. With one local step of SGD and the order `"stale"`
    it is BEER. Neither theory covers what lies between them: with compressed messages and several local steps, or with
    another optimiser than SGD, no rate is known, and what is said of it is measured.

    Args:
        lr: The step size of the sum of all local steps, 1 in most runs.
        gamma: The mixing step size, in (0, 1].
        compressor: The compressor C; any contraction will do.
        order: `"fresh"` mixes with the surrogates that this round's messages have just updated, as K-GT does;
            `"stale"` with those of the round before, as BEER does, so that packets travel during the next local steps.
        h0: H^0, what the neighbours believe of a model before the first message: `"zero"`, as in BEER, or the
            `"model"` itself, which they know where all clients start from the same one; nothing is then spent on it.

    Deviations: this is no published method.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    order: Literal["fresh", "stale"] = "stale"
    h0: Known = "zero"

    info = MethodInfo(
        title="Compressed K-GT",
        paper="K-GT: Liu et al., 2023 (arXiv 2301.01313); surrogates: Zhao et al., 2022 (arXiv 2201.13320)",
        messages=2,
        gradients="1 (K with local steps)",
        state=7,
        assumes="not known",
        rate="not known between its two ends, K-GT and BEER",
        equations="""
            Y = X - eta_c sum_k (F(Y_k) + V + gamma G (W - I) - M)      local steps; M+ the mean of F(Y_k)
            V+ = V + gamma G (W - I) + M+ - M
            X+ = Y + gamma H (W - I)                  stale; fresh: H+ in place of H, and H follows Y
            H+ = H + C(X+ - H)
            G+ = G + C(V+ - G)                        V = M = H = G = 0 at the start
        """,
        lr_may_differ=True,
    )
    examples = variants({"lr": 0.05, "gamma": 0.2}, {"order": "fresh"}, {"h0": "model"})

    @property
    def is_tracking(self) -> bool:
        """V is its tracker."""
        return True

    def init(self, x: Tensor) -> CompressedKGTState:
        """All letters at zero but H, where `h0` says so: the first local steps are uncorrected."""
        h, zero = Surrogate.of_models(x, self.h0), zeros_float64(x)
        return CompressedKGTState(x, h, zero, Surrogate.zero("g", x), torch.zeros_like(x))

    def correction(self, state: CompressedKGTState) -> Tensor:
        """The tracked average in, the own gradient out."""
        return state.v + self.gamma * state.g.settled().pull - state.own

    def step(self, state: CompressedKGTState, round: Round) -> CompressedKGTState:
        """Corrected local steps, then the two messages of BEER in one packet."""
        x, gamma, is_fresh = state.x, self.gamma, self.order == "fresh"
        h, g = round.arrived(state.h, state.g)
        correction = self.correction(replace(state, g=g))
        change, own = round.oracle.corrected(x, correction)
        v = correction + own
        y = x - (round.lr * change).to(x)
        told = v if round.t or is_fresh else None  # as in BEER, where G^0 = 0
        if not is_fresh:
            y = y + (gamma * h.pull).to(x)
            h, g = round.publish((h, y), (g, told), compressor=self.compressor)
            return CompressedKGTState(y, h, v, g, own)
        h, g = round.arrived(*round.publish((h, y), (g, told), compressor=self.compressor))
        return CompressedKGTState(y + (gamma * h.pull).to(x), h, v, g, own)
