"""DiLoCo: local steps, and an outer Nesterov step on their average."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Round, method, setting
from gossamer.errors import InputError, check_unit


@dataclass(frozen=True)
class DiLoCoState:
    """The models and the outer momentum."""

    x: Tensor
    m: Tensor


def _momentum(name: str, value: object) -> float:
    checked = check_unit(name, value, zero=True)
    if checked == 1:
        raise InputError(f"`{name}` must be in [0, 1), got {value}.")
    return checked


@method("diloco")
class DiLoCo(Algorithm):
    """DiLoCo, Algorithm 1 of Douillard et al.: *DiLoCo: Distributed Low-Communication Training of Language Models*,
    2023 (arXiv 2311.08105). A baseline with a server: everyone hears everyone.

    ========  =========================  ===================================================
    here      paper                      meaning
    ========  =========================  ===================================================
    x         theta^(t-1)                the model that all clients share
    gradient  theta^(t-1) - theta_i^(t)  the sum of client i's inner steps, by `LocalSteps`
    delta     Delta^(t)                  the mean of these sums, the outer gradient
    momentum  mu                         Nesterov momentum of the outer step
    ========  =========================  ===================================================

    Run it with `local=gs.LocalSteps(torch.optim.AdamW, steps=H, ...)`. Without local steps, delta is the mean gradient,
    and the method is SGD with Nesterov momentum. With `lr=1, momentum=0` it is FedAvg.

    Args:
        lr: The outer step size.
        momentum: The outer momentum mu, in [0, 1).

    Bits are those of sending every model to everyone, (n - 1) d numbers per client and round, as for all centralized
    methods. A ring all-reduce of the same average takes 2 (n - 1)/n d numbers per client.

    Deviations: clients average their models instead of the sums, which is the same for clients at one point, and brings
    clients that start at different points together.
    """

    lr: LR = 0.7
    momentum: float = setting(0.9, _momentum)

    info = MethodInfo(
        title="DiLoCo",
        paper="Douillard et al., 2023 (arXiv 2311.08105)",
        state=2,
        assumes="that everyone can talk to everyone",
        rate="none proven with inner AdamW; without local steps that of SGD with momentum",
        equations="""
            D  = X - (X - F(X)) 11'/n                 F(X): the sums of H local steps
            M+ = mu M + D
            X+ = X - eta (D + mu M+)
        """,
        swing=0,
        is_centralized=True,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.02}, {"lr": 0.05, "momentum": 0.0})

    def init(self, x: Tensor) -> DiLoCoState:
        """The momentum starts at zero."""
        return DiLoCoState(x, torch.zeros_like(x))

    def step(self, state: DiLoCoState, round: Round) -> DiLoCoState:
        """Average where the clients' steps lead; then the outer step."""
        x = state.x
        delta = x - round.mix(x - round.oracle(x), "x").to(x)
        m = self.momentum * state.m + delta
        return DiLoCoState(x - round.lr * (delta + self.momentum * m), m)
