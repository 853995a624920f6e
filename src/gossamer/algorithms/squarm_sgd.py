"""SQuARM-SGD: momentum, local steps, and messages only when there is something to say."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Round, count, method, nonnegative, setting, variants
from gossamer.algorithms.surrogate import Surrogate
from gossamer.compression.base import Compressor
from gossamer.errors import InputError, check_unit


@dataclass(frozen=True)
class SQuARMState:
    """Models, momentum and the surrogates."""

    x: Tensor
    v: Tensor
    h: Surrogate


@method("squarm_sgd")
class SQuARMSGD(Algorithm):
    """SQuARM-SGD, Algorithm 1 of Singh, Data, George, Diggavi: *SQuARM-SGD: Communication-Efficient Momentum SGD for
    Decentralized Optimization*, IEEE JSAIT 2021 (arXiv 2005.07041). Without momentum it is SPARQ-SGD (arXiv
    1910.14280).

    =========  =======  =====================================================================
    here       paper    meaning
    =========  =======  =====================================================================
    h          x-hat    surrogates: what the neighbours believe
    momentum   beta     Nesterov momentum
    threshold  c_t      a client sends only where ||x - x-hat||^2 > c_t eta^2
    =========  =======  =====================================================================

    Args:
        lr: The step size.
        gamma: The mixing step size, in (0, 1].
        compressor: Any contraction.
        momentum: beta, in [0, 1).
        local_steps: H; clients talk in every H-th round only.
        threshold: c_t = threshold (t + 1)^threshold_power; 0 always sends.
        threshold_power: How c_t grows, below 1.

    Deviations: a client that has nothing to say sends an empty packet, which its neighbours need to go on, and which is
    counted; the paper counts nothing for it.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    momentum: float = setting(0.9, partial(check_unit, zero=True))
    local_steps: int = count(1)
    threshold: float = nonnegative(0.0)
    threshold_power: float = nonnegative(0.0)

    info = MethodInfo(
        title="SQuARM-SGD",
        paper="Singh et al., 2021 (arXiv 2005.07041)",
        exchanges="1 every H-th round",
        state=4,
        assumes="bounded gradients",
        rate="O(1/sqrt(nT)) leading; a floor at constant step",
        equations="""
            v  = beta v + F(X);  X' = X - eta (beta v + F(X))
            every H-th round:  H+ = H + C(X' - H) where ||X' - H||^2 > c_t eta^2
                               X+ = X' + gamma H+ (W - I);  else X+ = X'
        """,
        step_pace=6.0,
        lr_may_differ=True,
    )
    examples = variants(
        {"lr": 0.01, "gamma": 0.2}, {"momentum": 0.0, "local_steps": 3}, {"threshold": 2.0, "threshold_power": 0.3}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("momentum", "threshold_power"):
            if getattr(self, name) >= 1:
                raise InputError(f"`{name}` must be below 1, got {getattr(self, name)}.")

    @property
    def rounds_between_exchanges(self) -> int:
        """H."""
        return self.local_steps

    def init(self, x: Tensor) -> SQuARMState:
        """Momentum and surrogates start at zero."""
        return SQuARMState(x, torch.zeros_like(x), Surrogate.zero("h", x))

    def step(self, state: SQuARMState, round: Round) -> SQuARMState:
        """A step with momentum; in every H-th round, compressed gossip of what has moved enough."""
        h, gradient = state.h, round.oracle(state.x)
        v = self.momentum * state.v + gradient
        x = state.x - round.lr * (self.momentum * v + gradient)
        if (round.t + 1) % self.local_steps == 0:
            # With a step size for each coordinate, distances are measured in steps.
            c = self.threshold * (round.t + 1) ** self.threshold_power
            speaks = None if not self.threshold else lambda moved: (moved / round.lr).square().sum(dim=1) > c
            (h,) = round.arrived(*round.publish((h, x), compressor=self.compressor, where=speaks))
            x = x + (self.gamma * h.pull).to(x)
        return SQuARMState(x, v, h)
