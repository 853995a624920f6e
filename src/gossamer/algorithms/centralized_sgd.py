"""Centralized SGD and gradient descent: the yardstick."""

from typing import Literal

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Needs, Round, method
from gossamer.algorithms.dsgd import DSGDState


@method("centralized_sgd")
class CentralizedSGD(Algorithm):
    """SGD with everyone's gradients: what no decentralized method can beat round for round.

    x^(t+1) = mean over clients of x_i - lr grad f_i(x_i), at every client. Bits are those of sending every model to
    everyone: the graph is the complete one, whatever the other methods run on.

    Args:
        lr: The step size.
        batch: `"minibatch"` for SGD, or `"full"` for gradient descent, whatever the batch size of a run.

    Deviations: none.
    """

    lr: LR
    batch: Literal["minibatch", "full"] = "minibatch"

    info = MethodInfo(
        title="Centralized SGD",
        paper="Robbins and Monro, 1951",
        state=1,
        assumes="that everyone can talk to everyone",
        rate="O(sigma/sqrt(nT)); O(1/T) with full gradients",
        equations="""
            X+ = (X - eta F(X)) 11'/n
        """,
        swing=0,
        is_centralized=True,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.05}, {"lr": 0.05, "batch": "full"})

    @property
    def needs(self) -> Needs | None:
        """Gradient descent needs all data."""
        return Needs.FULL_GRADIENTS if self.batch == "full" else None

    def init(self, x: Tensor) -> DSGDState:
        """The models."""
        return DSGDState(x)

    def step(self, state: DSGDState, round: Round) -> DSGDState:
        """Step, then average."""
        gradient = round.oracle.full if self.batch == "full" else round.oracle
        return DSGDState(round.mix(state.x - round.lr * gradient(state.x), "x").to(state.x))
