"""D2: decentralized training over decentralized data, uncompressed."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.base import Algorithm, Round
from gossamer.compression.dense import identity
from gossamer.errors import InputError, check_bool, check_positive, settle
from gossamer.registry import methods


@dataclass(frozen=True)
class D2State:
    """The models; the same in float64; and what the next step subtracts, x - lr grad of the step before, in float64."""

    x: Tensor
    exact: Tensor
    old: Tensor


@methods.register("d2")
@dataclass(frozen=True)
class D2(Algorithm):
    """D2 of Tang, Lian, Yan, Zhang, Liu: *D2: Decentralized Training over Decentralized Data*, ICML 2018
    (arXiv 1803.07068). Exact whatever the difference between the clients.

    X^1 = (X^0 - lr grad F(X^0)) W;  X^(t+1) = (2 X^t - X^(t-1) - lr grad F(X^t) + lr grad F(X^(t-1))) W.

    Args:
        lr: The step size.
        lazy: Mix with (W + I)/2 in place of W. D2 needs a smallest eigenvalue above -1/3, which this always gives and W
            itself often does not have (FDLA weights on a ring of 10: -0.826).

    Deviations: `lazy` by default, as above. The extrapolation is a sum that never forgets, so it is kept in float64.
    """

    lr: float
    lazy: bool = True

    title = "D2"
    paper = "Tang et al., 2018 (arXiv 1803.07068)"
    messages = 1
    lr_may_differ = True

    def __post_init__(self) -> None:
        settle(self, lr=check_positive("lr", self.lr))
        check_bool("lazy", self.lazy)

    def check_mixing(self, lambda_min: float) -> None:
        """D2 diverges where the smallest eigenvalue is -1/3 or less."""
        if not self.lazy and lambda_min <= -1 / 3:
            raise InputError(
                f"D2 needs a mixing matrix whose smallest eigenvalue is above -1/3, got {lambda_min:.3f}; "
                "leave `lazy` at its default to mix with (W + I)/2."
            )

    def init(self, x: Tensor) -> D2State:
        """With `old` = x, the first step's 2 x - old is x alone."""
        exact = x.double()
        return D2State(x, exact, exact)

    def step(self, state: D2State, round: Round) -> D2State:
        """Extrapolate, then mix."""
        adapted = state.exact - round.lr * round.oracle(state.x)
        z = state.exact + adapted - state.old
        q = round.compress(identity(), z, "x")
        # z + (W q - q) is W z where q = z, and keeps the mean of z exactly where q is z rounded to float32.
        moved = round.exchange(q).wait()[0] - q.dense()
        exact = z + (moved / 2 if self.lazy else moved)
        return D2State(exact.to(state.x), exact, adapted)
