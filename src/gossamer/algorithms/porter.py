"""PORTER: BEER on clipped gradients, with noise for privacy where that is wanted."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Needs, Start, method, nonnegative, positive, variants
from gossamer.algorithms.round import Oracle, Round, Samples
from gossamer.algorithms.tracking import Tracked, letters, track
from gossamer.compression.base import Compressor
from gossamer.errors import InputError


@dataclass(frozen=True)
class PORTERState(Tracked):
    """BEER's letters, and the clipped gradient of the step before."""

    gradient: Tensor


@method("porter")
class PORTER(Algorithm):
    """PORTER of Li, Chi: *Convergence and Privacy of Decentralized Nonconvex Optimization with Gradient Clipping and
    Communication Compression*, 2023 (arXiv 2305.09896): BEER with each gradient clipped (PORTER-GC), or with each data
    row's gradient clipped and Gaussian noise added (PORTER-DP), which makes what a client sends differentially private.

    clip(z) = clip z / (clip + ||z||), smooth, and shorter than `clip`.

    Clipping moves the fixed point from sum grad f_i = 0 to sum clip(grad f_i) = 0. For f_i = (x - a_i)^2 / 2 with
    a = (0, 0, D) and clip = 1, the gradient norm there is 2.5, 32 and 332 for D = 10, 100 and 1000. So the method does
    not need bounded gradients, but it does need bounded dissimilarity, that is a bound on how much the gradients of
    the clients differ. `gossamer reproduce exactness` shows it.

    The privacy that PORTER-DP gives against everyone who sees a client's messages, but does not know the run's seed, is
    `gossamer.theory.local_privacy(noise, clip, batch_size, rows, rounds, delta)`.

    Args:
        lr: eta, the step size.
        gamma: The mixing step size, in (0, 1].
        compressor: The compressor C; any contraction will do.
        clip: tau. None for no clipping: BEER.
        per_sample: Clip the gradient of each data row (PORTER-DP), and not only that of the minibatch (PORTER-GC).
        noise: sigma_p, the deviation of the noise on each coordinate; needs `per_sample`.
        start: V^0 is the `"full"` local gradient or this round's `"minibatch"` gradient, clipped in the same way.

    Deviations: BEER's start, where the paper takes V = 0 and G = 0 one step earlier. The equations were confirmed by
    clip = None, which is BEER bit for bit, and by the length of what is tracked.
    """

    lr: LR
    gamma: float
    compressor: Compressor
    clip: float | None = positive(1.0)
    per_sample: bool = False
    noise: float = nonnegative(0.0)
    start: Start = "minibatch"

    info = MethodInfo(
        title="PORTER",
        paper="Li and Chi, 2023 (arXiv 2305.09896)",
        messages=2,
        state=7,
        assumes="bounded dissimilarity; and bounded variance (GC) or smoothness of every row's loss (DP)",
        rate="as BEER, but to sum clip(grad f_i) = 0, which is not stationary; with noise, to a floor set by privacy",
        equations="""
            g  = clip(F(X))                           GC
            g  = mean over the rows of clip(F_s(X)) + noise N(0, I)          DP;  clip(z) = tau z / (tau + ||z||)
            and BEER with g in place of F(X)
        """,
        lr_may_differ=True,
    )
    examples = variants({"lr": 0.05, "gamma": 0.2, "clip": 5.0}, {"per_sample": True}, {"clip": None, "start": "full"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise and not (self.per_sample and self.clip is not None):
            raise InputError(
                f"`noise` makes messages private only where every row's gradient is clipped: with noise={self.noise}, "
                "set `per_sample` to true and `clip` to a number."
            )

    @property
    def needs(self) -> Needs | None:
        """PORTER-DP clips row by row."""
        return Needs.ROW_GRADIENTS if self.per_sample else None

    def init(self, x: Tensor) -> PORTERState:
        """H^0 = G^0 = 0; V^0 is taken in the first step."""
        return PORTERState(*letters(x), torch.zeros_like(x))

    def step(self, state: PORTERState, round: Round) -> PORTERState:
        """The clipped gradient at this model; then BEER's lines."""
        clipped = replace(round, oracle=_Clipped(self, round))
        gradient = clipped.oracle(state.x) if round.t else self.first_gradient(state.x, clipped)
        moved = track(state, gradient, state.gradient, round, gamma=self.gamma, compressor=self.compressor)
        return PORTERState(*moved, gradient=gradient)


def clip(z: Tensor, tau: float | None) -> Tensor:
    """Smooth clipping: tau z / (tau + ||z||), along the last dimension."""
    if tau is None:
        return z
    scale: Tensor = tau / (tau + torch.linalg.vector_norm(z, dim=-1, keepdim=True))
    return z * scale


@dataclass(frozen=True)
class _Clipped(Oracle):
    """The round's gradients, clipped."""

    method: PORTER
    round: Round

    def __call__(self, x: Tensor) -> Tensor:
        return self._clipped(x, whole=False)

    def full(self, x: Tensor) -> Tensor:
        return self._clipped(x, whole=True)

    def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> Samples:
        return self.round.oracle.samples(x, whole=whole, purpose=purpose)

    def _clipped(self, x: Tensor, *, whole: bool) -> Tensor:
        oracle, tau = self.round.oracle, self.method.clip
        if not self.method.per_sample:
            return clip(oracle.full(x) if whole else oracle(x), tau)
        rows = oracle.samples(x, whole=whole)
        mean = clip(rows.gradients, tau).sum(dim=1) / rows.taken
        if self.method.noise:
            mean = mean + (self.method.noise * self.round.random("noise").normal(x.shape[1])).to(x)
        return mean
