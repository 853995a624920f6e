"""DeepSqueeze: compressed gossip with error feedback on the models."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, Compressor, MethodInfo, Round, method
from gossamer.algorithms.surrogate import zeros_float64


@dataclass(frozen=True)
class DeepSqueezeState:
    """The models, and what compression has left out of them so far."""

    x: Tensor
    error: Tensor


@method("deepsqueeze")
class DeepSqueeze(Algorithm):
    """DeepSqueeze, Algorithm 1 of Tang, Lian, Qiu, Yuan, Zhang, Zhang, Liu: *DeepSqueeze: Decentralization Meets
    Error-Compensated Compression*, 2019 (arXiv 1907.07346).

    =======  ==========  ================================================
    here     paper       meaning
    =======  ==========  ================================================
    x        x           models
    error    delta       what compression left out, added to the next
    c        C[v]        the message: a compressed model, no difference
    =======  ==========  ================================================

    Neighbours keep no surrogates, so a client's state is small; but whole models are compressed, not differences, so
    gamma must be small where the compressor is coarse.

    Args:
        lr: The step size.
        gamma: The mixing step size, in (0, 1].
        compressor: Any contraction.

    Deviations: none. The rate was not checked; the equations were, by the published code's and by their mean.
    """

    lr: LR
    gamma: float
    compressor: Compressor

    info = MethodInfo(
        title="DeepSqueeze",
        paper="Tang et al., 2019 (arXiv 1907.07346)",
        state=2,
        assumes="bounded dissimilarity",
        rate="O(sigma/sqrt(nT)) leading; a floor at constant step",
        equations="""
            X' = X - eta F(X)
            V  = X' + D;  c = C(V);  D+ = V - c       D = 0 at the start
            X+ = X' + gamma c (W - I)
        """,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.02, "gamma": 0.05},)

    def init(self, x: Tensor) -> DeepSqueezeState:
        """Nothing has been left out."""
        return DeepSqueezeState(x, zeros_float64(x))

    def step(self, state: DeepSqueezeState, round: Round) -> DeepSqueezeState:
        """Step, compress with what was left out before, gossip."""
        x = state.x - round.lr * round.oracle(state.x)
        v = x + state.error
        sent = round.send(self.compressor, x=v)
        return DeepSqueezeState(x + (self.gamma * sent.pulls()[0]).to(x), v - sent.dense()[0])
