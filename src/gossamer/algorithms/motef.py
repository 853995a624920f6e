"""MoTEF: momentum tracking with compressed messages."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, Compressor, Flow, MethodInfo, Round, Start, method, unit
from gossamer.algorithms.surrogate import Known, zeros_float64
from gossamer.algorithms.tracking import Tracked, letters, track


@dataclass(frozen=True)
class MoTEFState(Tracked):
    """BEER's letters, and the momentum M."""

    m: Tensor


@method("motef")
class MoTEF(Algorithm):
    """MoTEF, Algorithm 1 of Islamov, Gao, Stich: *Towards Faster Decentralized Stochastic Optimization with
    Communication Compression*, ICLR 2025 (arXiv 2405.20114): BEER on Polyak's momentum in place of gradients, which
    keeps its rate with small batches, and gains from every client.

    ======  ======  ==========================================================
    here    paper   meaning
    ======  ======  ==========================================================
    m       M       momentum: what V tracks
    lam     lambda  how much a new gradient counts; with 1 this is BEER
    ======  ======  ==========================================================

    The other letters, and the lines that the two share, are BEER's.

    Args:
        lr: eta, the step size.
        gamma: The mixing step size, in (0, 1].
        compressor: The compressor C; any contraction will do.
        lam: In (0, 1].
        start: M^0 = V^0 is the `"full"` local gradient or this round's `"minibatch"` gradient.
        h0: H^0, what the neighbours believe of a model before the first message: `"zero"`, as in the paper, or the
            `"model"` itself, which they know where all clients start from the same one; nothing is then spent on it.

    The paper and its published code start differently. The paper has M^0 = V^0 = F(X^0), which is what runs here. The
    code has M^0 = 0 and V^0 = F(X^0). As V follows the changes of M, the mean of V - M never changes: it stays 0 with
    the paper's start and mean F(X^0) with the code's, whose fixed point is therefore not stationary.

    Deviations: none.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    lam: float = unit(0.1)
    start: Start = "full"
    h0: Known = "zero"

    info = MethodInfo(
        title="MoTEF",
        paper="Islamov et al., 2025 (arXiv 2405.20114)",
        messages=2,
        state=7,
        assumes="bounded variance; any batch, any difference between the clients",
        rate="O(sigma/sqrt(nT)) as distributed SGD, with linear speed-up",
        equations="""
            X+ = X + gamma H (W - I) - eta V
            H+ = H + C(X+ - H)
            M+ = (1 - lam) M + lam F(X+)
            V+ = V + gamma G (W - I) + M+ - M
            G+ = G + C(V+ - G)                        M = V = F(X), H = G = 0 at the start
        """,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.05, "gamma": 0.2}, {"lr": 0.05, "gamma": 0.2, "lam": 1.0, "start": "minibatch"})

    @property
    def flows(self) -> tuple[Flow, ...]:
        """As BEER."""
        return (Flow("v", "g", self.gamma),)

    def init(self, x: Tensor) -> MoTEFState:
        """G^0 = 0, and so is H^0 unless `h0` says otherwise; M^0 and V^0 are taken in the first step."""
        return MoTEFState(*letters(x, self.h0), zeros_float64(x))

    def step(self, state: MoTEFState, round: Round) -> MoTEFState:
        """The momentum at this model; then BEER's lines."""
        x, m, lam = state.x, state.m, self.lam
        new = (1 - lam) * m + lam * round.oracle(x) if round.t else self.first_gradient(x, round).double()
        return MoTEFState(*track(state, new, m, round, gamma=self.gamma, compressor=self.compressor), m=new)
