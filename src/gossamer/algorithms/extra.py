"""EXTRA: exact first-order decentralized optimization, uncompressed."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.base import Algorithm, MethodInfo, check_steps
from gossamer.algorithms.round import Round
from gossamer.algorithms.schedules import LR
from gossamer.registry import methods


@dataclass(frozen=True)
class EXTRAState:
    """The models; the same in float64; and what the next step subtracts, X W~ - lr grad of the step before."""

    x: Tensor
    exact: Tensor
    old: Tensor


@methods.register("extra")
@dataclass(frozen=True)
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

    info = MethodInfo(
        title="EXTRA",
        paper="Shi et al., 2015 (arXiv 1404.6264)",
        messages=1,
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

    def __post_init__(self) -> None:
        check_steps(self)

    @property
    def mixed_in(self) -> float:
        """W~ = (I + W)/2."""
        return 0.5

    def init(self, x: Tensor) -> EXTRAState:
        """With `old` = x, the first step is x W - lr grad."""
        return EXTRAState(x, x.double(), x.double())

    def step(self, state: EXTRAState, round: Round) -> EXTRAState:
        """The models travel while the gradient is taken."""
        x = state.exact
        sent = round.send(x=x)
        moved = round.lr * round.oracle(state.x)
        mixed = x + sent.pulls()[0]  # X W
        exact = x + mixed - state.old - moved
        return EXTRAState(exact.to(state.x), exact, (x + mixed) / 2 - moved)
