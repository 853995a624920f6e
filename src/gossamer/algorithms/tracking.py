"""Compressed tracking: the lines of BEER's Algorithm 1, for methods that track another estimate than the gradient."""

from typing import NamedTuple

from torch import Tensor

from gossamer.algorithms.round import Round
from gossamer.algorithms.surrogate import Surrogate
from gossamer.compression.base import Compressor


class Tracked(NamedTuple):
    """X, its surrogate H, the tracker V and its surrogate G."""

    x: Tensor
    h: Surrogate
    v: Tensor
    g: Surrogate


def track(state: Tracked, new: Tensor, old: Tensor, round: Round, *, gamma: float, compressor: Compressor) -> Tracked:
    """V follows the change from `old` to `new`, X follows V. BEER is the case in which both are gradients.

    The line numbers are those of BEER's Algorithm 1. In the first round V = new, because all else is zero; G then has
    nothing to say.
    """
    x, h, v, g = state
    h, g = round.arrived(h, g)
    v = v + gamma * g.pull + new - old  # line 6
    x = x + (gamma * h.pull - round.lr * v).to(x)  # line 3
    h, g = round.publish((h, x), (g, v if round.t else None), compressor=compressor)  # lines 4, 5, 7, 8
    return Tracked(x, h, v, g)
