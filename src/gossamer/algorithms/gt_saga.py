"""GT-SAGA: gradient tracking with SAGA's variance reduction."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Needs, method
from gossamer.algorithms.round import Round, Samples
from gossamer.algorithms.surrogate import zeros_float64


@dataclass(frozen=True)
class GTSAGAState:
    """Models, trackers (float64), the estimates of the step before, and the last gradient of each data row."""

    x: Tensor
    y: Tensor
    old: Tensor
    table: Tensor
    """(rows, m, d)."""


@method("gt_saga")
class GTSAGA(Algorithm):
    """GT-SAGA, Algorithm 1 of Xin, Khan, Kar: *A Fast Randomized Incremental Gradient Method for Decentralized
    Nonconvex Optimization*, IEEE Transactions on Automatic Control 2022 (arXiv 2011.03853).

    Each client draws two independent indices per round: tau for the estimate g, and s for the table entry that the
    gradient at the current model replaces. That takes two gradients of rows per round.

    The earlier GT-SAGA of the same authors (*Variance-Reduced Decentralized Stochastic Optimization with Accelerated
    Convergence*, IEEE Transactions on Signal Processing 2020, arXiv 1912.04230) is `order="combine-then-adapt"`. It
    starts from Y^0 = g^0, the full gradient. One index serves both the estimate and the table.

    =======  ================  ==========================================================
    here     paper             meaning
    =======  ================  ==========================================================
    g, old   g                 SAGA's estimate of the local gradient, and the last one
    table    grad f_ij(z_ij)   the last gradient taken at each data row
    =======  ================  ==========================================================

    Args:
        lr: The step size.
        order: `"adapt-then-combine"` (2011.03853): two exchanges per round. `"combine-then-adapt"` (1912.04230): X W
            and Y W travel in one exchange while the gradient is computed.

    Deviations: a minibatch of more than one row is averaged, and then as many table entries are replaced.
    """

    lr: LR
    order: Literal["adapt-then-combine", "combine-then-adapt"] = "adapt-then-combine"
    needs = Needs.ROW_GRADIENTS

    info = MethodInfo(
        title="GT-SAGA",
        paper="Xin et al., 2022 (arXiv 2011.03853)",
        messages=2,
        exchanges="2 (1 combine-then-adapt)",
        gradients="2 (1 combine-then-adapt; all rows at the start)",
        state="3 + m",
        assumes="finite sums (combine-then-adapt: and strong convexity)",
        rate="O(1/T); linear under PL (combine-then-adapt: linear if strongly convex); exact with single rows",
        equations="""
            g  = F_tau(X) - table_tau + mean(table)   adapt-then-combine; Y = g_prev = 0 at the start
            Y+ = (Y + g - g_prev) W
            X+ = (X - eta Y+) W
            table_s = F_s(X)                          s drawn independently of tau

            X+ = X W - eta Y                          combine-then-adapt; Y = g = F(X) in full at the start
            g+ = F_s(X+) - table_s + mean(table);  then table_s = F_s(X+)
            Y+ = Y W + g+ - g
        """,
        step_pace=0.2,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.05}, {"lr": 0.05, "order": "combine-then-adapt"})

    def init(self, x: Tensor) -> GTSAGAState:
        """The table is filled in the first step."""
        return GTSAGAState(x, zeros_float64(x), torch.zeros_like(x), x.new_zeros(len(x), 0, x.shape[1]))

    def step(self, state: GTSAGAState, round: Round) -> GTSAGAState:
        """SAGA's estimate, then gradient tracking in the chosen order."""
        x, y = state.x, state.y
        if self.order == "adapt-then-combine":
            g, table = self._estimate(state, round, "table")
            y = round.mix(y + g - state.old, "y")
            new = round.mix(x - round.lr * y, "x")
        else:
            # X^t and Y^(t-1) are already known, and travel while the gradient is computed.
            sent = round.send(x=x, y=y if round.t else None)
            g, table = self._estimate(state, round, "batch")
            y = y + sent.pulls()[1] + g - state.old
            new = sent.mixed()[0] - round.lr * y
        return GTSAGAState(new.to(x), y, g, table)

    def _estimate(self, state: GTSAGAState, round: Round, purpose: str) -> tuple[Tensor, Tensor]:
        """g, and the table with the rows replaced that `purpose` draws; in the first round g is the full gradient."""
        x, oracle = state.x, round.oracle
        table = state.table if round.t else oracle.samples(x, whole=True).gradients
        tau = oracle.samples(x)
        corrections = (tau.gradients - table.gather(1, _index(tau))).sum(dim=1) / tau.taken
        g = corrections + (table.sum(dim=1, dtype=torch.float64) / tau.counts).to(x)
        s = tau if purpose == "batch" else oracle.samples(x, purpose=purpose)
        return g, table.scatter(1, _index(s), s.gradients)


def _index(samples: Samples) -> Tensor:
    """The data rows as an index into the table."""
    return samples.rows[..., None].expand(samples.gradients.shape)
