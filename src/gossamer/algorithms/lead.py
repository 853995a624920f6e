"""LEAD: linearly convergent primal-dual steps with compressed messages."""

from dataclasses import dataclass, replace
from math import inf

from torch import Tensor

from gossamer.algorithms.base import LR, Accepts, Algorithm, Compressor, MethodInfo, Round, method, unit, variants
from gossamer.algorithms.surrogate import Surrogate, memory_step, zeros_float64
from gossamer.errors import InputError


@dataclass(frozen=True)
class DualState:
    """Models, the dual variable (float64), and COMM's memory."""

    x: Tensor
    dual: Tensor
    h: Surrogate


@method("lead")
class LEAD(Algorithm):
    """LEAD, Algorithm 1 of Liu, Li, Wang, Tang, Yan: *Linear Convergent Decentralized Optimization with Compression*,
    ICLR 2021 (arXiv 2007.00232).

    =======  ========  =====================================================
    here     paper     meaning
    =======  ========  =====================================================
    dual     D         the dual variable, in the range of I - W
    h        H         COMM's memory of Y
    a        alpha     how fast the memory follows
    =======  ========  =====================================================

    The first round is line 2 of the paper, X^1 = X^0 - eta F(X^0): it sends no message.

    Args:
        lr: eta, the step size.
        gamma: The dual step size, in (0, 1].
        compressor: An unbiased one, such as `qsgd`.
        a: In (0, 1]; by default 1/(1 + omega).
        mix_first: Leave line 2 out and send a message in the first round, too. The paper does not; CEDAS does, and
            equals LEAD with this setting at a constant step.

    Deviations: none.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    a: float | None = unit(None)
    mix_first: bool = False

    info = MethodInfo(
        title="LEAD",
        paper="Liu et al., 2021 (arXiv 2007.00232)",
        state=4,
        compressors=Accepts.UNBIASED,
        assumes="strong convexity",
        rate="linear",
        equations="""
            X+ = X - eta F(X)                         first; then
            Y  = X - eta F(X) - eta D
            Yh, Yw = COMM(Y):  q = C(Y - H);  Yh = H + q;  Yw = H W + q W;  H+ = H + a q
            D+ = D + gamma/(2 eta) (Yh - Yw)          D = H = 0 at the start
            X+ = X - eta F(X) - eta D+
        """,
        step_pace=inf,
        lr_may_differ=True,
    )
    examples = variants({"lr": 0.05, "gamma": 0.3}, {"a": 0.5}, {"mix_first": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.lr, "eta_min", 1.0) == 0:
            raise InputError(f"LEAD divides by its step size, which {self.lr} takes to 0; set `eta_min`, or use CEDAS.")

    def init(self, x: Tensor) -> DualState:
        """D = H = 0."""
        return DualState(x, zeros_float64(x), Surrogate.zero("h", x))

    def step(self, state: DualState, round: Round) -> DualState:
        """One gradient, one message; in the first round line 2, without a message."""
        x, dual, eta = state.x, state.dual, round.lr
        z = x - eta * round.oracle(x)
        if round.t == 0 and not self.mix_first:
            return replace(state, x=z)
        a = memory_step(self.a, self.compressor, x.shape[1], averages=True)
        (h,) = round.publish((state.h, z - eta * dual), compressor=self.compressor, a=a)
        dual = dual - self.gamma / (2 * eta) * h.estimate().pull
        return DualState((z - eta * dual).to(x), dual, *round.arrived(h))
