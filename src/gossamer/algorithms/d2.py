"""D2: decentralized training over decentralized data, uncompressed."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Round, method
from gossamer.errors import InputError


@dataclass(frozen=True)
class D2State:
    """The models; the same in float64; and what the next step subtracts, such as x - lr grad of the step before."""

    x: Tensor
    exact: Tensor
    old: Tensor

    @classmethod
    def start(cls, x: Tensor) -> "D2State":
        """With `old` = x, the first step's 2 x - old is x alone."""
        return cls(x, x.double(), x.double())


@method("d2")
class D2(Algorithm):
    """D2 of Tang, Lian, Yan, Zhang, Liu: *D2: Decentralized Training over Decentralized Data*, ICML 2018
    (arXiv 1803.07068). Exact whatever the difference between the clients.

    X^1 = (X^0 - lr grad F(X^0)) W;  X^(t+1) = (2 X^t - X^(t-1) - lr grad F(X^t) + lr grad F(X^(t-1))) W.

    Args:
        lr: The step size.
        lazy: Mix with (W + I)/2 in place of W. D2 needs a smallest eigenvalue above -1/3, which this always gives and W
            itself often does not have (FDLA weights on a ring of 10: -0.826).
        mix_first: Mix in the first step, too, as the paper does. NIDS does not, nor does the D2 in the code that the
            authors of BEER published.

    Deviations: `lazy` by default, as above. Where lr changes, each gradient keeps the lr of its own round. The
    extrapolation is a sum that never forgets, so it is kept in float64.
    """

    lr: LR
    lazy: bool = True
    mix_first: bool = True

    info = MethodInfo(
        title="D2",
        paper="Tang et al., 2018 (arXiv 1803.07068)",
        state=3,
        assumes="smallest eigenvalue of W above -1/3 (lazy: always so)",
        rate="O(sigma/sqrt(nT)), whatever the difference between the clients",
        equations="""
            X+ = (X - eta F(X)) W                     first
            X+ = (2 X - X_prev - eta F(X) + eta F(X_prev)) W
        """,
        swing=0,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.05}, {"lr": 0.05, "mix_first": False})

    @property
    def mixed_in(self) -> float:
        """Half, when lazy."""
        return 0.5 if self.lazy else 1.0

    def check_mixing(self, lambda_min: float) -> None:
        """D2 diverges where the smallest eigenvalue is -1/3 or less."""
        if not self.lazy and lambda_min <= -1 / 3:
            raise InputError(
                f"D2 needs a mixing matrix whose smallest eigenvalue is above -1/3, got {lambda_min:.3f}; "
                "leave `lazy` at its default to mix with (W + I)/2."
            )

    def init(self, x: Tensor) -> D2State:
        """With `old` = x, the first step's 2 x - old is x alone."""
        return D2State.start(x)

    def step(self, state: D2State, round: Round) -> D2State:
        """Extrapolate, then mix."""
        mixes = round.t > 0 or self.mix_first
        return extrapolate_and_mix(state, round, share=0 if not mixes else 1 / 2 if self.lazy else 1)


def extrapolate_and_mix(state: D2State, round: Round, share: float) -> D2State:
    """2 X - X_prev - eta F(X) + eta F_prev, times I + share (W - I); with no share, nothing is sent."""
    adapted = state.exact - round.lr * round.oracle(state.x)
    z = state.exact + adapted - state.old
    exact = z + share * (round.mix(z, "x") - z) if share else z
    return D2State(exact.to(state.x), exact, adapted)
