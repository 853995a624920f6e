"""Estimates of the gradient that several methods share."""

import torch
from torch import Tensor

from gossamer.algorithms.round import Round


def momentum(m: Tensor, gradient: Tensor, lam: float) -> Tensor:
    """Polyak's momentum: (1 - lam) M + lam F(X)."""
    return (1 - lam) * m + lam * gradient


def storm(m: Tensor, round: Round, x: Tensor, old_x: Tensor, lam: float) -> Tensor:
    """STORM (Cutkosky, Orabona, arXiv 1905.10018): F(X; xi) + (1 - lam)(M - F(X_prev; xi)), in float64."""
    return (1 - lam) * (m - round.oracle(old_x)) + round.oracle(x)


def sarah(v: Tensor, round: Round, x: Tensor, old_x: Tensor, *, is_full: bool) -> Tensor:
    """SARAH: F(X) in full, or F(X; xi) - F(X_prev; xi) + v, both on this round's minibatch."""
    return round.oracle.full(x) if is_full else round.oracle(x) - round.oracle(old_x) + v


def clip(z: Tensor, tau: float | None) -> Tensor:
    """Smooth clipping: tau z / (tau + ||z||), along the last dimension."""
    if tau is None:
        return z
    scale: Tensor = tau / (tau + torch.linalg.vector_norm(z, dim=-1, keepdim=True))
    return z * scale
