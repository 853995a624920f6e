"""Warnings about steps that are likely too large, given before a run starts."""

import functools
import warnings
from dataclasses import replace

import numpy as np
import torch

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Compressor
from gossamer.compression.wrappers import blockwise
from gossamer.errors import ConvergenceWarning
from gossamer.records.identity import alpha_of, averages
from gossamer.theory import practical_steps

_DRAWN = 1 << 18  # coordinates with which a compressor is tried out
_MOST_DRAWN = 1 << 18  # of one vector
_SAME = 0.01  # relative difference of two alphas that count as equal
_FAR = 1.5  # times the practical gamma of a compressor that always keeps as much as it usually does


def warn_of_gamma(method: Algorithm, d: int, rho: float) -> None:
    """Warn if `gamma` is far above what the compressor allows at d coordinates.

    The practical limit grows as alpha^0.6 (`theory.practical_steps`). The alpha here is the larger of the guaranteed
    one and that on Gaussian vectors: some operators, such as `sign`, keep far more than they guarantee.
    """
    gamma, compressor = getattr(method, "gamma", None), getattr(method, "compressor", None)
    if not isinstance(gamma, float) or not isinstance(compressor, Compressor) or averages(method, d):
        return
    alpha = alpha_of(method, d)
    if gamma <= _FAR * _practical(alpha):
        return
    usual = _usual_alpha(compressor, d)
    if gamma > _FAR * _practical(max(alpha, usual)):
        warnings.warn(
            f"`gamma` = {gamma:g} of {method.info.title} is far above what {compressor} allows at {d} coordinates "
            f"(alpha = {alpha:.2g}, rho = {rho:.2g}): the run may diverge; try `gamma` = "
            f"{practical_steps(alpha, usual, 1.0, 1.0)[0]:.2g}, or gossamer.auto_steps.",
            ConvergenceWarning,
            stacklevel=3,
        )


def _practical(alpha: float) -> float:
    """As `practical_steps`, without its bound of 0.6: with hardly any compression, gamma = 1 is no mistake."""
    return 0.75 * float(alpha**0.6)


def usual_alpha(compressor: Compressor | None, d: int) -> float:
    """1 - E||C(z) - z||^2 / ||z||^2 over Gaussian z: what a compressor usually keeps; alpha is what it must keep."""
    if compressor is None:
        return 1.0
    if d > _MOST_DRAWN:  # what keeps a share that hardly depends on d is tried on fewer
        guaranteed, of_fewer = guaranteed_alpha(compressor, d), guaranteed_alpha(compressor, _MOST_DRAWN)
        if abs(of_fewer - guaranteed) > _SAME * guaranteed:
            return guaranteed
        d, compressor = _MOST_DRAWN, without_tensors(compressor)
    many = max(2, min(64, _DRAWN // d))
    z = torch.from_numpy(np.random.default_rng(0).standard_normal((many, d)))
    omega = compressor.omega(d)
    c = compressor(z, seed=0).dense() / (1 + omega if omega is not None else 1)  # unbiased ones as `scaled` would
    kept = 1 - float(((c - z).square().sum(dim=1) / z.square().sum(dim=1)).mean())
    return min(1.0, max(kept, 1e-6))


def without_tensors(compressor: Compressor) -> Compressor:
    """The same for vectors of any length."""
    return replace(compressor, tensors=()) if isinstance(compressor, blockwise) else compressor


def guaranteed_alpha(compressor: Compressor, d: int) -> float:
    """alpha of a contraction; 1 / (1 + omega) of an unbiased compressor, which is that of `scaled`."""
    omega = compressor.omega(d)
    return compressor.alpha(d) if omega is None else 1 / (1 + omega)


_usual_alpha = functools.lru_cache(maxsize=64)(usual_alpha)
