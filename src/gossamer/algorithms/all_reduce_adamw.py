"""AdamW on the average gradient of all clients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Round, method, nonnegative, positive, variants
from gossamer.errors import InputError


@dataclass(frozen=True)
class AdamWState:
    """The models, and the means of the gradients and of their squares."""

    x: Tensor
    m: Tensor
    v: Tensor


@method("all_reduce_adamw")
class AllReduceAdamW(Algorithm):
    """AdamW on the average of all clients' gradients, in every round: data-parallel training as most models use it.

    Loshchilov, Hutter: *Decoupled Weight Decay Regularization*, ICLR 2019 (arXiv 1711.05101), Algorithm 2. The models
    are those of `torch.optim.AdamW` on the mean gradient.

    ============  ==============  =======================================
    here          paper           meaning
    ============  ==============  =======================================
    m, v          m, v            means of the gradients, and of squares
    betas         beta_1, beta_2  how long these means remember
    weight_decay  lambda          x shrinks by lr lambda x in each round
    ============  ==============  =======================================

    Args:
        lr: The step size.
        betas: Two numbers in [0, 1).
        eps: Added to sqrt(v).
        weight_decay: 0 for Adam.
        clip: The largest norm of the average gradient: a longer one is scaled down to it. None for no limit.

    Bits are those of sending every gradient to everyone, (n - 1) d numbers per client and round, as for all centralized
    methods. A ring all-reduce of the same average takes 2 (n - 1)/n d numbers per client.

    With local steps, whose sums take the place of the gradients, it resembles FedAdam (Reddi et al., 2021, arXiv
    2003.00295).

    Deviations: in the first round clients average their models, too, so that all start from one point. The weight decay
    is multiplied by lr, as in torch; in the paper it is not.
    """

    lr: LR
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = positive(1e-8)
    weight_decay: float = nonnegative(0.01)
    clip: float | None = positive(None)

    info = MethodInfo(
        title="All-reduce AdamW",
        paper="Loshchilov and Hutter, 2019 (arXiv 1711.05101)",
        state=3,
        assumes="that everyone can talk to everyone",
        rate="O(log T/sqrt(T)) for Adam with decreasing steps and bounded gradients (arXiv 2003.02395)",
        equations="""
            G  = F(X) 11'/n
            M+ = b1 M + (1 - b1) G;  V+ = b2 V + (1 - b2) G^2
            X+ = X - eta (M+/(1 - b1^t) / (sqrt(V+/(1 - b2^t)) + eps) + lambda X)
        """,
        swing=0,
        is_centralized=True,
        lr_may_differ=True,
    )
    examples = variants({"lr": 0.05, "weight_decay": 0.0}, {"betas": (0.8, 0.9), "clip": 0.5})

    def __post_init__(self) -> None:
        super().__post_init__()
        betas = self.betas
        numbers = isinstance(betas, tuple | list) and len(betas) == 2 and all(isinstance(b, int | float) for b in betas)
        if not numbers or not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"`betas` must be two numbers in [0, 1), got {betas!r}.")
        object.__setattr__(self, "betas", tuple(map(float, betas)))

    def init(self, x: Tensor) -> AdamWState:
        """Both means start at zero."""
        return AdamWState(x, torch.zeros_like(x), torch.zeros_like(x))

    def step(self, state: AdamWState, round: Round) -> AdamWState:
        """Average the gradients; then AdamW."""
        x, t, (b1, b2) = state.x, round.t + 1, self.betas
        if round.t == 0:
            x, g = (z.to(x) for z in round.send(x=x, g=round.oracle(x)).mixed())
        else:
            (g,) = (z.to(x) for z in round.send(g=round.oracle(x)).mixed())
        if self.clip is not None:
            norm = torch.linalg.vector_norm(g, dim=1, keepdim=True, dtype=torch.float64)
            g = g * (self.clip / norm.clamp(min=self.clip)).to(x)
        m = b1 * state.m + (1 - b1) * g
        v = b2 * state.v + (1 - b2) * (g * g)
        step = (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + self.eps) + self.weight_decay * x
        return AdamWState(x - round.lr * step, m, v)
