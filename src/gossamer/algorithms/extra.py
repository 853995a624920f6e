"""EXTRA: exact first-order decentralized optimization, uncompressed."""

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Round, method
from gossamer.algorithms.d2 import D2State


@method("extra")
class EXTRA(Algorithm):
    """EXTRA of Shi, Ling, Wu, Yin: *EXTRA: An Exact First-Order Algorithm for Decentralized Consensus Optimization*,
    SIAM Journal on Optimization 2015 (arXiv 1404.6264).

    X^1 = X^0 W - lr grad F(X^0);
    X^(t+1) = X^t (I + W) - X^(t-1) (I + W)/2 - lr (grad F(X^t) - grad F(X^(t-1))).

    Args:
        lr: The step size.

    Deviations: where lr changes, each gradient keeps the lr of its own round. The extrapolation is a sum that never
    forgets, so it is kept in float64.
    """

    lr: LR
    mixed_in = 0.5  # W~ = (I + W)/2

    info = MethodInfo(
        title="EXTRA",
        paper="Shi et al., 2015 (arXiv 1404.6264)",
        state=3,
        assumes="convexity",
        rate="O(1/T) convex; linear if strongly convex",
        equations="""
            X+ = X W - eta F(X)                       first
            X+ = X (I + W) - X_prev (I + W)/2 - eta (F(X) - F(X_prev))
        """,
        swing=1,
        lr_may_differ=True,
    )

    def init(self, x: Tensor) -> D2State:
        """With `old` = x, the first step is x W - lr grad."""
        return D2State.start(x)

    def step(self, state: D2State, round: Round) -> D2State:
        """The models travel while the gradient is taken."""
        x = state.exact
        sent = round.send(x=x)
        moved = round.lr * round.oracle(state.x)
        mixed = x + sent.pulls()[0]  # X W
        exact = x + mixed - state.old - moved
        return D2State(exact.to(state.x), exact, (x + mixed) / 2 - moved)
