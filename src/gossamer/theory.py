"""The theory beside the code: numbers in, numbers out."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from gossamer.errors import InputError, check_unit

_TINY = 1e-12


@dataclass(frozen=True)
class AbsoluteConstants:
    """The constants that the BEER paper's theorems only say exist: gamma = c_gamma alpha rho,
    lr = c_eta gamma rho^2 / L, and the weights c_1 to c_4 of its Lyapunov function.
    """

    c_gamma: float
    c_eta: float
    c: tuple[float, float, float, float]


def absolute_constants(C: float) -> AbsoluteConstants:
    """The constants of Theorem 4.1 with the largest product c_gamma c_eta, that is the largest lr.

    They satisfy the last matrix inequality of the proof, with its slips repaired: entry (4, 2) is
    24 c_gamma (C + 3 c_eta^2), and 35 is 36.

    Args:
        C: ||W - I||^2, between 0 and 4; `MixingMatrix.C`.

    >>> from gossamer.theory import absolute_constants
    >>> constants = absolute_constants(4.0)
    >>> round(constants.c_gamma, 4), round(constants.c_eta, 3)
    (0.0067, 0.011)
    """
    if not 0 < C <= 4:
        raise InputError(f"`C` = ||W - I||^2 lies above 0 and at most at 4, got {C!r}.")
    # Step 3 of the proof also asks for c_gamma <= 1 / (6 sqrt(C)) and c_eta <= 1/9.
    most = _largest(lambda c_gamma: _slack(c_gamma, _TINY, C) >= 0, 1 / (6 * C**0.5))
    product = minimize_scalar(lambda g: -g * _largest_c_eta(g, C), bounds=(0, most), method="bounded")
    c_gamma = float(product.x)
    c_eta = _largest_c_eta(c_gamma, C)
    weights = _weights(c_gamma, c_eta, C)
    assert weights is not None
    return AbsoluteConstants(c_gamma, c_eta, tuple(weights.tolist()))


def theorem_gamma(alpha: float, rho: float, C: float) -> float:
    """The mixing step of Theorem 4.1, gamma = c_gamma alpha rho: proven, and far smaller than what works in practice.

    Args:
        alpha: Of the compressor, `compressor.alpha(d)`.
        rho: Of the mixing matrix, `mixing.rho`.
        C: Of the mixing matrix, `mixing.C`.
    """
    return absolute_constants(C).c_gamma * check_unit("alpha", alpha) * check_unit("rho", rho)


def _weights(c_gamma: float, c_eta: float, C: float) -> npt.NDArray[np.float64] | None:
    """The least c_1 to c_4 for which rows 1 to 4 of the inequality hold, or None where there are none above 0.

    Off its diagonal the matrix is negative, so where it has any nonnegative solution its inverse is nonnegative too,
    and the solution of the equations is below every solution of the inequalities.
    """
    g, e = c_gamma, c_eta
    rows = np.array(
        [
            [1, -72 * C * g**2, -24 * C * g, -72 * C * g],
            [0, 1, 0, -24 * C * g],
            [-12 * C * g, -36 * C * g, 1, -36 * C],
            [-24 * e**2 * g, -24 * g * (C + 3 * e**2), -24 * e**2, 1],
        ]
    )
    try:
        inverse = np.linalg.inv(rows)
    except np.linalg.LinAlgError:
        return None
    solved: npt.NDArray[np.float64] = inverse @ [0, 0, e, 0]
    return solved if (inverse >= 0).all() else None


def _slack(c_gamma: float, c_eta: float, C: float) -> float:
    """Row 5 of the inequality: how far from violated; -1 where rows 1 to 4 fail already."""
    weights = _weights(c_gamma, c_eta, C)
    if weights is None:
        return -1.0
    c1, c2, _, c4 = weights
    return float(1 - c_eta * c_gamma - c_eta * (12 * c_gamma * c1 + 36 * c_gamma * c2 + 36 * c4))


def _largest_c_eta(c_gamma: float, C: float) -> float:
    return _largest(lambda c_eta: _slack(c_gamma, c_eta, C) >= 0, 1 / 9)


def _largest(holds: Callable[[float], bool], most: float) -> float:
    """The largest number up to `most` for which something holds that holds for all smaller ones."""
    if holds(most):
        return most
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
