"""MoTEF-VR: momentum-based variance reduction, tracked with compressed messages."""

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, Compressor, MethodInfo, Round, Start, method, unit
from gossamer.algorithms.tracking import TrackedEstimate, storm, track


@method("motef_vr")
class MoTEFVR(Algorithm):
    """MoTEF-VR, Algorithm 2 of Islamov, Gao, Stich: *Towards Faster Decentralized Stochastic Optimization with
    Communication Compression*, ICLR 2025 (arXiv 2405.20114): BEER on STORM's estimate of the gradient.

    The letters are MoTEF's; M is STORM's estimate.

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
    lam: float = unit(0.1)
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

    def init(self, x: Tensor) -> TrackedEstimate:
        """H^0 = G^0 = 0; M^0 and V^0 are taken in the first step."""
        return TrackedEstimate.start(x)

    def step(self, state: TrackedEstimate, round: Round) -> TrackedEstimate:
        """STORM's estimate at this model; then BEER's lines."""
        x, m = state.x, state.m
        new = storm(m, round, x, state.old_x, self.lam) if round.t else self.first_gradient(x, round).double()
        moved = track(state, new, m, round, gamma=self.gamma, compressor=self.compressor)
        return TrackedEstimate(*moved, m=new, old_x=x)
