"""A method of another package, in one file: compressed gossip with momentum."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, MethodInfo
from gossamer.algorithms.round import Round
from gossamer.algorithms.schedules import LR
from gossamer.algorithms.surrogate import Surrogate
from gossamer.compression import Compressor


@dataclass(frozen=True)
class HeavyBallState:
    x: Tensor
    m: Tensor
    h: Surrogate


@dataclass(frozen=True)
class HeavyBall(Algorithm):
    """M+ = beta M + F(X);  X' = X - eta M+;  H+ = H + C(X' - H);  X+ = X' + gamma H+ (W - I)."""

    lr: LR
    gamma: float
    compressor: Compressor
    beta: float = 0.5

    info = MethodInfo("Heavy ball", "this file", messages=1, state=4, assumes="nothing", rate="none", equations="above")
    examples = ({"lr": 0.05, "gamma": 0.2},)

    def init(self, x: Tensor) -> HeavyBallState:
        return HeavyBallState(x, torch.zeros_like(x), Surrogate.zero("h", x))

    def step(self, state: HeavyBallState, round: Round) -> HeavyBallState:
        m = self.beta * state.m + round.oracle(state.x)
        x = state.x - round.lr * m
        (h,) = round.arrived(*round.publish((state.h, x), compressor=self.compressor))
        return HeavyBallState(x + (self.gamma * h.pull).to(x), m, h)
