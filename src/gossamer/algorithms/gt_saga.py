"""GT-SAGA: gradient tracking with SAGA's variance reduction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.algorithms.base import EACH_ROW, Algorithm, Round, check_steps, zeros_float64
from gossamer.algorithms.schedules import LR
from gossamer.registry import methods


@dataclass(frozen=True)
class GTSAGAState:
    """Models, trackers (float64), the estimates of the step before, and the last gradient of each data row."""

    x: Tensor
    y: Tensor
    old: Tensor
    table: Tensor
    """(rows, m, d)."""


@methods.register("gt_saga")
@dataclass(frozen=True)
class GTSAGA(Algorithm):
    """GT-SAGA, Algorithm 1 of Xin, Khan, Kar: *Variance-Reduced Decentralized Stochastic Optimization with Accelerated
    Convergence*, IEEE Transactions on Signal Processing 2020 (arXiv 1912.04230).

    Args:
        lr: The step size.

    Deviations: minibatches of more than one row are averaged. The table begins with the gradients at X^0.
    """

    lr: LR

    title = "GT-SAGA"
    paper = "Xin et al., 2020 (arXiv 1912.04230)"
    messages = 2
    step_pace = 0.2
    exchanges = 2
    gradients = "1 (all rows at the start)"
    state = "3 + m"
    compressors = "none"
    assumes = "finite sums"
    rate = "linear if strongly convex, exact with single rows"
    equations = """
        g  = F_s(X) - table_s + mean(table)       s: this round's rows; then table_s = F_s(X)
        Y+ = (Y + g - g_prev) W                   Y = g_prev = 0 at the start
        X+ = (X - eta Y+) W
    """
    lr_may_differ = True

    def __post_init__(self) -> None:
        check_steps(self)

    @property
    def needs(self) -> str:
        """One gradient a row."""
        return EACH_ROW

    def init(self, x: Tensor) -> GTSAGAState:
        """The table is filled in the first step."""
        return GTSAGAState(x, zeros_float64(x), torch.zeros_like(x), x.new_zeros(len(x), 0, x.shape[1]))

    def step(self, state: GTSAGAState, round: Round) -> GTSAGAState:
        """SAGA's estimate, then gradient tracking, adapt-then-combine."""
        x = state.x
        table = state.table if round.t else round.oracle.samples(x, whole=True).gradients
        new = round.oracle.samples(x)
        where = new.rows[..., None].expand(new.gradients.shape)
        corrections = (new.gradients - table.gather(1, where)).sum(dim=1) / new.taken
        g = corrections + (table.sum(dim=1, dtype=torch.float64) / new.counts).to(x)
        table = table.scatter(1, where, new.gradients)

        y = round.mix(state.y + g - state.old, "y")
        x = round.mix(x - round.lr * y, "x").to(x)
        return GTSAGAState(x, y, g, table)
