"""CEDAS: exact diffusion with compressed messages and a step size that may fall."""

from math import inf

from torch import Tensor

from gossamer.algorithms.base import LR, Accepts, Algorithm, Compressor, MethodInfo, Round, method, unit
from gossamer.algorithms.lead import DualState
from gossamer.algorithms.surrogate import Surrogate, memory_step, zeros_float64


@method("cedas")
class CEDAS(Algorithm):
    """CEDAS, Algorithm 1 of Huang, Pu: *CEDAS: A Compressed Decentralized Stochastic Gradient Method with Improved
    Convergence*, 2023 (arXiv 2301.05872).

    At a constant step it is LEAD with `mix_first`, with eta times its dual variable. The letters are LEAD's.

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
    a: float | None = unit(None)

    info = MethodInfo(
        title="CEDAS",
        paper="Huang and Pu, 2023 (arXiv 2301.05872)",
        state=4,
        compressors=Accepts.UNBIASED,
        assumes="bounded variance; any difference between the clients",
        rate="O(1/sqrt(nT)) as centralized SGD, after a transient",
        equations="""
            Z  = X - eta F(X);  Y = Z - D
            Yh, Yw = COMM(Y):  q = C(Y - H);  Yh = H + q;  Yw = H W + q W;  H+ = H + a q
            D+ = D + gamma/2 (Yh - Yw)                D = H = 0 at the start
            X+ = Z - D+
        """,
        step_pace=inf,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.05, "gamma": 0.3}, {"lr": 0.05, "gamma": 0.3, "a": 0.5})

    def init(self, x: Tensor) -> DualState:
        """D = H = 0."""
        return DualState(x, zeros_float64(x), Surrogate.zero("h", x))

    def step(self, state: DualState, round: Round) -> DualState:
        """One gradient, one message."""
        x, dual = state.x, state.dual
        z = x - round.lr * round.oracle(x)
        a = memory_step(self.a, self.compressor, x.shape[1], averages=True)
        (h,) = round.publish((state.h, z - dual), compressor=self.compressor, a=a)
        dual = dual - self.gamma / 2 * h.estimate().pull
        return DualState((z - dual).to(x), dual, *round.arrived(h))
