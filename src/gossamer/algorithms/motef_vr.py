"""MoTEF-VR: momentum-based variance reduction, tracked with compressed messages."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.base import Algorithm, MethodInfo, Start, check_steps
from gossamer.algorithms.estimators import storm
from gossamer.algorithms.round import Round
from gossamer.algorithms.schedules import LR
from gossamer.algorithms.surrogate import Surrogate, zeros_float64
from gossamer.algorithms.tracking import Tracked, track
from gossamer.compression.base import Compressor
from gossamer.errors import check_unit, settle
from gossamer.registry import methods


@dataclass(frozen=True)
class MoTEFVRState:
    """BEER's letters, STORM's estimate M, and the models of the step before."""

    x: Tensor
    h: Surrogate
    v: Tensor
    g: Surrogate
    m: Tensor
    old_x: Tensor


@methods.register("motef_vr")
@dataclass(frozen=True)
class MoTEFVR(Algorithm):
    """MoTEF-VR, Algorithm 2 of Islamov, Gao, Stich: *Towards Faster Decentralized Stochastic Optimization with
    Communication Compression*, ICLR 2025 (arXiv 2405.20114): BEER on STORM's estimate of the gradient.

    ======  ======  ==========================================================
    here    paper   meaning
    ======  ======  ==========================================================
    m       M       STORM's estimate: what V tracks (kept as the state's `old`)
    lam     lambda  how much a new gradient counts; with 1 this is BEER
    ======  ======  ==========================================================

    Args:
        lr: eta, the step size.
        gamma: The mixing step size, in (0, 1].
        compressor: The compressor C; any contraction will do.
        lam: In (0, 1].
        start: M^0 = V^0 is the `"full"` local gradient or this round's `"minibatch"` gradient.

    Deviations: none. The rate was not checked; the equations were, by lam = 1 (BEER), by their fixed point, and by
    DoCoM in its stale order, which they equal.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    lam: float = 0.1
    start: Start = "full"

    info = MethodInfo(
        title="MoTEF-VR",
        paper="Islamov et al., 2025 (arXiv 2405.20114)",
        messages=2,
        gradients="2",
        state=8,
        assumes="mean-square smoothness; any batch, any difference between the clients",
        rate="O(T^(-2/3)), with speed-up",
        equations="""
            X+ = X + gamma H (W - I) - eta V
            H+ = H + C(X+ - H)
            M+ = F(X+; xi) + (1 - lam)(M - F(X; xi))  one xi for both
            V+ = V + gamma G (W - I) + M+ - M
            G+ = G + C(V+ - G)                        M = V = F(X), H = G = 0 at the start
        """,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.05, "gamma": 0.2}, {"lr": 0.05, "gamma": 0.2, "lam": 0.5, "start": "minibatch"})

    def __post_init__(self) -> None:
        check_steps(self)
        settle(self, lam=check_unit("lam", self.lam))

    def init(self, x: Tensor) -> MoTEFVRState:
        """H^0 = G^0 = 0; M^0 and V^0 are taken in the first step."""
        zero = zeros_float64(x)
        return MoTEFVRState(x, Surrogate.zero("h", x), zero, Surrogate.zero("g", x), zero, x)

    def step(self, state: MoTEFVRState, round: Round) -> MoTEFVRState:
        """STORM's estimate at this model; then BEER's lines."""
        x, m = state.x, state.m
        new = storm(m, round, x, state.old_x, self.lam) if round.t else self.first_gradient(x, round).double()
        tracked = Tracked(x, state.h, state.v, state.g)
        moved = track(tracked, new, m, round, gamma=self.gamma, compressor=self.compressor)
        return MoTEFVRState(*moved, m=new, old_x=x)
