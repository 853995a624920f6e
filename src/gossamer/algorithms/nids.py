"""NIDS, or exact diffusion: exact without compression, with steps that the graph does not limit."""

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Round, method, unit
from gossamer.algorithms.d2 import D2State, extrapolate_and_mix
from gossamer.errors import InputError


@method("nids")
class NIDS(Algorithm):
    """NIDS of Li, Shi, Yan: *A Decentralized Proximal-Gradient Method with Network Independent Step-Sizes and Separated
    Convergence Rates*, IEEE Transactions on Signal Processing 2019 (arXiv 1704.07807), for a smooth objective; it is
    exact diffusion (Yuan, Ying, Zhao, Sayed, arXiv 1702.05122) up to indexing.

    X^1 = X^0 - lr grad F(X^0);  X^(t+1) = (2 X^t - X^(t-1) - lr grad F(X^t) + lr grad F(X^(t-1))) (I - c (I - W)).

    With minibatches it is D2 without mixing in the first step, and shares its step.

    Args:
        lr: The step size; up to 2/L, whatever the graph.
        c: How much of W is mixed in, in (0, 1/(1 - lambda_min(W))]; 1/2 always will do.

    Deviations: no proximal step. Where lr changes, each gradient keeps the lr of its own round. The extrapolation is a
    sum that never forgets, so it is kept in float64.
    """

    lr: LR
    c: float = unit(0.5)

    info = MethodInfo(
        title="NIDS",
        paper="Li et al., 2019 (arXiv 1704.07807)",
        state=3,
        assumes="convexity",
        rate="O(1/T) convex; linear if strongly convex, network and objective apart",
        equations="""
            X+ = X - eta F(X)                         first
            X+ = (2 X - X_prev - eta F(X) + eta F(X_prev)) (I - c (I - W))
        """,
        swing=0,
        lr_may_differ=True,
    )

    @property
    def mixed_in(self) -> float:
        """c."""
        return self.c

    def check_mixing(self, lambda_min: float) -> None:
        """I - c (I - W) must not have eigenvalues below 0."""
        if self.c * (1 - lambda_min) > 1 + 1e-9:
            raise InputError(
                f"NIDS needs `c` of at most 1/(1 - lambda_min), here {1 / (1 - lambda_min):.3f}, got {self.c}; "
                "0.5 always will do."
            )

    def init(self, x: Tensor) -> D2State:
        """With `old` = x, the first step's 2 x - old is x alone."""
        return D2State.start(x)

    def step(self, state: D2State, round: Round) -> D2State:
        """Extrapolate, then mix, but for the first step."""
        return extrapolate_and_mix(state, round, share=self.c if round.t else 0)
