"""CEDAS: exact diffusion with compressed messages and a step size that may fall."""

from dataclasses import dataclass
from math import inf

from torch import Tensor

from gossamer.algorithms.base import Algorithm, Round, check_steps, zeros_float64
from gossamer.algorithms.communication import comm, memory_step
from gossamer.algorithms.lead import LEADState
from gossamer.algorithms.schedules import LR
from gossamer.compression.base import Compressor
from gossamer.errors import check_unit, settle
from gossamer.registry import methods


@methods.register("cedas")
@dataclass(frozen=True)
class CEDAS(Algorithm):
    """CEDAS, Algorithm 1 of Huang, Pu: *CEDAS: A Compressed Decentralized Stochastic Gradient Method with Improved
    Convergence*, 2023 (arXiv 2301.05872).

    =======  ========  =====================================================
    here     paper     meaning
    =======  ========  =====================================================
    dual     D         the dual variable, in the range of I - W
    h        H         COMM's memory of Y
    a        alpha     how fast the memory follows
    =======  ========  =====================================================

    At a constant step it is LEAD with `mix_first`, with eta times its dual variable.

    Args:
        lr: eta, the step size, or a schedule.
        gamma: The dual step size, in (0, 1].
        compressor: An unbiased one, such as `qsgd`.
        a: In (0, 1]; by default 1/(1 + omega).

    Deviations: none.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    a: float | None = None

    title = "CEDAS"
    paper = "Huang and Pu, 2023 (arXiv 2301.05872)"
    messages = 1
    step_pace = inf
    state = 4
    compressors = "unbiased"
    assumes = "bounded variance; any difference between the clients"
    rate = "O(1/sqrt(nT)) as centralized SGD, after a transient"
    equations = """
        Z  = X - eta F(X);  Y = Z - D
        Yh, Yw = COMM(Y):  q = C(Y - H);  Yh = H + q;  Yw = H W + q W;  H+ = H + a q
        D+ = D + gamma/2 (Yh - Yw)                D = H = 0 at the start
        X+ = Z - D+
    """
    lr_may_differ = True
    examples = ({"lr": 0.05, "gamma": 0.3}, {"lr": 0.05, "gamma": 0.3, "a": 0.5})

    def __post_init__(self) -> None:
        check_steps(self)
        settle(self, a=None if self.a is None else check_unit("a", self.a))

    def init(self, x: Tensor) -> LEADState:
        """D = H = 0."""
        zero = zeros_float64(x)
        return LEADState(x, zero, zero, zero)

    def step(self, state: LEADState, round: Round) -> LEADState:
        """One gradient, one message."""
        x, dual = state.x, state.dual
        z = x - round.lr * round.oracle(x)
        q = round.compress(self.compressor, z - dual - state.h, "h")
        a = memory_step(self.a, self.compressor, x.shape[1], averages=True)
        y = comm(state.h, state.mixed_h, q, round.exchange(q).wait()[0], a)
        dual = dual + self.gamma / 2 * (y.y - y.mixed_y)
        return LEADState((z - dual).to(x), dual, y.h, y.mixed_h)
