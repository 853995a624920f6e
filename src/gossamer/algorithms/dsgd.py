"""DSGD: gossip and gradient, uncompressed."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Round, method


@dataclass(frozen=True)
class DSGDState:
    """The models alone."""

    x: Tensor


@method("dsgd")
class DSGD(Algorithm):
    """DSGD (D-PSGD) of Lian et al.: *Can Decentralized Algorithms Outperform Centralized Algorithms?*, NeurIPS 2017
    (arXiv 1705.09056). At a constant step it stops at a floor that grows with the difference between the clients.

    Args:
        lr: The step size.
        order: `"combine-then-adapt"`, X W - lr grad F(X), as in the paper, or `"adapt-then-combine"`,
            (X - lr grad F(X)) W.

    Deviations: none.
    """

    lr: LR
    order: Literal["combine-then-adapt", "adapt-then-combine"] = "combine-then-adapt"

    info = MethodInfo(
        title="DSGD",
        paper="Lian et al., 2017 (arXiv 1705.09056)",
        state=1,
        assumes="bounded dissimilarity",
        rate="O(sigma/sqrt(nT)) + terms in zeta^2/rho^2; a floor at constant step",
        equations="""
            X+ = X W - eta F(X)                       combine-then-adapt
            X+ = (X - eta F(X)) W                     adapt-then-combine
        """,
        swing=1,
        allows_directed=True,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.05}, {"lr": 0.05, "order": "adapt-then-combine"})

    def init(self, x: Tensor) -> DSGDState:
        """The models."""
        return DSGDState(x)

    def step(self, state: DSGDState, round: Round) -> DSGDState:
        """Mix and step, in the chosen order."""
        x = state.x
        if self.order == "combine-then-adapt":
            sent = round.send(x=x)
            gradient = round.oracle(x)  # while the models travel
            return DSGDState(sent.mixed()[0].to(x) - round.lr * gradient)
        sent = round.send(x=x - round.lr * round.oracle(x))
        return DSGDState(sent.mixed()[0].to(x))
