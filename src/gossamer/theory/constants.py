"""The absolute constants of the BEER paper's theorems: one choice of steps and weights for all alpha, rho and L."""

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossamer.errors import check_positive, check_unit
from gossamer.theory.inputs import check_c
from gossamer.theory.search import Setting, bisected

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
    from scipy.optimize import minimize_scalar

    C = check_c(C)
    # Step 3 of the proof also asks for c_gamma <= 1 / (6 sqrt(C)) and c_eta <= 1/9 (eq. par_bound).
    # (And row 5 for c_gamma c_eta < 1, so that at tiny C nothing is won by a c_gamma in the thousands.)
    most = bisected(lambda c_gamma: _slack(c_gamma, _TINY, C) >= 0, min(1 / (6 * C**0.5), 1000.0))
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
    return theorem_steps(alpha, rho, C, 1.0)[0]


def theorem_steps(alpha: float, rho: float, C: float, L: float) -> tuple[float, float]:
    """gamma and lr of Theorem 4.1, from its absolute constants; `certify` finds larger ones for the same proof.

    Args:
        alpha: Of the compressor, `compressor.alpha(d)`.
        rho: Of the mixing matrix, `mixing.rho`.
        C: Of the mixing matrix, `mixing.C`.
        L: Smoothness of every client's objective.

    >>> from gossamer.theory import theorem_steps
    >>> print(*(f"{step:.3g}" for step in theorem_steps(alpha=1.0, rho=0.174, C=3.3, L=1.0)))
    0.00142 5.42e-07
    """
    alpha, rho, L = check_unit("alpha", alpha), check_unit("rho", rho), check_positive("L", L)
    constants = absolute_constants(C)
    # Lemma prop_mixing needs gamma <= 1, and a smaller c_gamma makes no row of the inequality harder.
    gamma = min(1.0, constants.c_gamma * alpha * rho)
    lr = constants.c_eta * gamma * rho**2 / L
    if min(gamma, lr) < sys.float_info.min or lr == math.inf:
        raise Setting.of(alpha, rho, check_c(C), L, None).beyond()
    return gamma, lr


def _weights(c_gamma: float, c_eta: float, C: float) -> "npt.NDArray[np.float64] | None":
    """The least c_1 to c_4 for which rows 1 to 4 of the inequality hold, or None where there are none above 0.

    Off its diagonal the matrix is negative, so where it has any nonnegative solution its inverse is nonnegative too,
    and the solution of the equations is below every solution of the inequalities.
    """
    import numpy as np

    g, e = c_gamma, c_eta
    # Each entry is what (eq. ls) and (eq. par_bound) give with rho = 1, over its row's diagonal. The paper has 35 for
    # the 36 of row 3, and 24 c_gamma (1 + 3 c_eta^2) in row 4. Its matrix before the last one also lacks C in (1, 2),
    # (1, 3) and (3, 2) and c_gamma in (4, 2), and there powers of rho that are dropped, which is harmless: rho <= 1.
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
    return bisected(lambda c_eta: _slack(c_gamma, c_eta, C) >= 0, 1 / 9)
