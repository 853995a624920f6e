"""The absolute constants of the BEER paper's theorems: steps and weights for all alpha, rho and L."""

import math
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gossamer.errors import check_positive, check_unit
from gossamer.theory.inputs import check_c
from gossamer.theory.search import Setting, bisected

_TINY = 1e-12


@dataclass(frozen=True)
class AbsoluteConstants:
    """Constants that exist by the BEER paper's theorems: gamma = c_gamma alpha rho, lr = c_eta gamma rho^2 / L, and
    the weights c_1 to c_4 of its Lyapunov function.
    """

    c_gamma: float
    c_eta: float
    c: tuple[float, float, float, float]


def absolute_constants(C: float) -> AbsoluteConstants:
    """The constants of Theorem 4.1 with the largest product c_gamma c_eta, which gives the largest lr.

    They satisfy the last matrix inequality of the proof, with two corrections: entry (4, 2) is
    24 c_gamma (C + 3 c_eta^2), and 35 is 36. `C` is ||W - I||^2, `MixingMatrix.C`.

    >>> from gossamer.theory import absolute_constants
    >>> constants = absolute_constants(4.0)
    >>> round(constants.c_gamma, 4), round(constants.c_eta, 3)
    (0.0067, 0.011)
    """
    from scipy.optimize import minimize_scalar

    C = check_c(C)
    # Step 3 of the proof also requires c_gamma <= 1 / (6 sqrt(C)) and c_eta <= 1/9 (eq. par_bound).
    # Row 5 requires c_gamma c_eta < 1, so a c_gamma above 1000 is not useful even at tiny C.
    most = bisected(lambda c_gamma: _slack(c_gamma, _TINY, C) >= 0, min(1 / (6 * C**0.5), 1000.0))
    product = minimize_scalar(lambda g: -g * _largest_c_eta(g, C), bounds=(0, most), method="bounded")
    c_gamma = float(product.x)
    c_eta = _largest_c_eta(c_gamma, C)
    weights = _weights(c_gamma, c_eta, C)
    assert weights is not None
    return AbsoluteConstants(c_gamma, c_eta, tuple(weights.tolist()))


def theorem_gamma(alpha: float, rho: float, C: float) -> float:
    """The mixing step of Theorem 4.1, gamma = c_gamma alpha rho. It is far smaller than what works in practice."""
    return theorem_steps(alpha, rho, C, 1.0)[0]


def theorem_steps(alpha: float, rho: float, C: float, L: float) -> tuple[float, float]:
    """gamma and lr of Theorem 4.1, from its absolute constants. `certify` finds larger ones with the same proof.

    The arguments are those of `certify`.

    >>> from gossamer.theory import theorem_steps
    >>> print(*(f"{step:.3g}" for step in theorem_steps(alpha=1.0, rho=0.174, C=3.3, L=1.0)))
    0.00142 5.42e-07
    """
    alpha, rho, L = check_unit("alpha", alpha), check_unit("rho", rho), check_positive("L", L)
    constants = absolute_constants(C)
    # Lemma prop_mixing requires gamma <= 1. A smaller c_gamma does not violate any row of the inequality.
    gamma = min(1.0, constants.c_gamma * alpha * rho)
    lr = constants.c_eta * gamma * rho**2 / L
    if min(gamma, lr) < sys.float_info.min or lr == math.inf:
        raise Setting.of(alpha, rho, check_c(C), L, None).beyond()
    return gamma, lr


def _weights(c_gamma: float, c_eta: float, C: float) -> npt.NDArray[np.float64] | None:
    """The smallest c_1 to c_4 that satisfy rows 1 to 4 of the inequality; None if no nonnegative ones exist.

    The matrix is negative off its diagonal. If a nonnegative solution exists, the inverse is nonnegative too, and the
    solution of the equations is below every solution of the inequalities.
    """
    g, e = c_gamma, c_eta
    # The entries follow from (eq. ls) and (eq. par_bound) with rho = 1, divided by the diagonal of their row. The paper
    # has 35 instead of 36 in row 3, and 24 c_gamma (1 + 3 c_eta^2) in row 4. Its second to last matrix also lacks C in
    # (1, 2), (1, 3) and (3, 2), c_gamma in (4, 2), and powers of rho, which is harmless because rho <= 1.
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
    """The slack of row 5 of the inequality; -1 if rows 1 to 4 cannot be satisfied."""
    weights = _weights(c_gamma, c_eta, C)
    if weights is None:
        return -1.0
    c1, c2, _, c4 = weights
    return float(1 - c_eta * c_gamma - c_eta * (12 * c_gamma * c1 + 36 * c_gamma * c2 + 36 * c4))


def _largest_c_eta(c_gamma: float, C: float) -> float:
    return bisected(lambda c_eta: _slack(c_gamma, c_eta, C) >= 0, 1 / 9)
