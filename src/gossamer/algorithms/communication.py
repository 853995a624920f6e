"""COMM: the compression procedure that LEAD, C-GT and CEDAS share."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.compression.base import Compressor, Message


@dataclass(frozen=True)
class Estimate:
    """What COMM knows of Y once a message q has left and the neighbours' have come."""

    y: Tensor
    """Y-hat = H + q."""
    mixed_y: Tensor
    """Y-hat W = H W + q W."""
    h: Tensor
    """H+ = (1 - a) H + a Y-hat."""
    mixed_h: Tensor
    """H+ W."""


def comm(h: Tensor, mixed_h: Tensor, q: Message, mixed_q: Tensor, a: float) -> Estimate:
    """COMM(Y, H, H W), given q = C(Y - H) and q W: with a = 1 the memory H is the estimate itself, as in BEER."""
    dense = q.dense()
    return Estimate(h + dense, mixed_h + mixed_q, h + a * dense, mixed_h + a * mixed_q)


def memory_step(a: float | None, compressor: Compressor, d: int, *, averages: bool) -> float:
    """COMM's a, as given; by default 1 for a contraction, and 1/(1 + omega) for an unbiased compressor.

    Which of the two counts where a compressor is both: `averages` says that the method relies on its mean.
    """
    if a is not None:
        return a
    omega = compressor.omega(d)
    return 1.0 if omega is None or (omega < 1 and not averages) else 1 / (1 + omega)
