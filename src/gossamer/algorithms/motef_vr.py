"""MoTEF-VR: momentum-based variance reduction, tracked with compressed messages."""

from dataclasses import dataclass, replace

from torch import Tensor

from gossamer.algorithms.base import (
    Algorithm,
    Round,
    Start,
    check_steps,
    nothing_pending,
    zeros_float64,
)
from gossamer.algorithms.beer import BEERState, track
from gossamer.algorithms.schedules import LR
from gossamer.compression.base import Compressor
from gossamer.errors import check_unit, settle
from gossamer.registry import methods


@dataclass(frozen=True)
class MoTEFVRState(BEERState):
    """BEER's, with the models of the step before; `old` is M."""

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

    title = "MoTEF-VR"
    paper = "Islamov et al., 2025 (arXiv 2405.20114)"
    messages = 2
    gradients = "2"
    state = 8
    assumes = "mean-square smoothness; any batch, any difference between the clients"
    rate = "O(T^(-2/3)), with speed-up"
    equations = """
        X+ = X + gamma H (W - I) - eta V
        H+ = H + C(X+ - H)
        M+ = F(X+; xi) + (1 - lam)(M - F(X; xi))  one xi for both
        V+ = V + gamma G (W - I) + M+ - M
        G+ = G + C(V+ - G)                        M = V = F(X), H = G = 0 at the start
    """
    lr_may_differ = True
    examples = ({"lr": 0.05, "gamma": 0.2}, {"lr": 0.05, "gamma": 0.2, "lam": 0.5, "start": "minibatch"})

    def __post_init__(self) -> None:
        check_steps(self)
        settle(self, lam=check_unit("lam", self.lam))

    def init(self, x: Tensor) -> MoTEFVRState:
        """H^0 = G^0 = 0; M^0 and V^0 are taken in the first step."""
        zero = zeros_float64(x)
        return MoTEFVRState(x, zero, zero, zero, zero, zero, zero, nothing_pending(2), x)

    def step(self, state: MoTEFVRState, round: Round) -> MoTEFVRState:
        """STORM's estimate at this model; then BEER's lines."""
        x, m = state.x, state.old
        if round.t == 0:
            new = self.first_gradient(x, round).double()
            return replace(track(state, round, new, None, self.gamma, self.compressor), old=new, old_x=x)
        new = storm(m, round, x, state.old_x, self.lam)
        return replace(track(state, round, new, m, self.gamma, self.compressor), old=new, old_x=x)


def storm(m: Tensor, round: Round, x: Tensor, old_x: Tensor, lam: float) -> Tensor:
    """STORM (Cutkosky, Orabona, arXiv 1905.10018): F(X; xi) + (1 - lam)(M - F(X_prev; xi)), in float64."""
    return (1 - lam) * (m - round.oracle(old_x)) + round.oracle(x)
