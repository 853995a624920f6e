"""The search behind `certify`: floats propose a gamma, and rational arithmetic decides.

With gamma = c_gamma alpha rho and eta = c_eta gamma rho^2 / L, as in the theorems, and with rows and weights scaled
accordingly, the inequalities have entries near 1 for any rho (`_scaled`). Floats are then accurate enough to search for
the best gamma. Whether weights exist at given steps is decided in rational arithmetic on the unscaled inequalities
(`_inequalities`).
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from gossamer.errors import InputError

Number = TypeVar("Number", float, Fraction)

_EDGE = 1e-3
"""The relative distance of a certified lr to the largest one."""
_PADS = (1e-9, 1e-12, 1e-14)
"""Relative enlargements of the weights, so that rounding them to floats violates no inequality."""
_FINEST = 1 + 2.0**-16
"""The smallest ratio of the ends of an interval in `is_refuted`."""


@dataclass(frozen=True)
class Setting:
    """The exact constants of the inequalities, without the steps; mu is 0 if PL is not assumed."""

    alpha: Fraction
    rho: Fraction
    C: Fraction
    L: Fraction
    mu: Fraction

    @classmethod
    def of(cls, alpha: float, rho: float, C: float, L: float, mu: float | None) -> "Setting":
        """From checked floats."""
        return cls(Fraction(alpha), Fraction(rho), Fraction(C), Fraction(L), Fraction(mu or 0))

    def beyond(self) -> InputError:
        """The error for steps or weights outside the range of floats."""
        values = ", ".join(f"{name} = {float(getattr(self, name)):g}" for name in ("alpha", "rho", "C", "L"))
        return InputError(f"Steps or weights are too small or too large for a float with {values}.")


def proposed_gamma(setting: Setting) -> float:
    """The gamma in (0, 1] that allows the largest lr, to the precision of a search in floats."""
    from scipy.optimize import minimize_scalar

    alpha, rho, C, kappa = _floats(setting)
    try:
        # Above this no c_eta > 0 is feasible: with c_eta = 0 the pivots of the matrix are those of two 2 x 2 blocks.
        most = 1 / (2 * math.sqrt(3 * C) * math.sqrt(12 * C + rho**2))
        most = min(most, 1 / (alpha * rho))

        def badness(log_share: float) -> float:
            share = math.exp(log_share)
            return -share * _largest_c_eta(most * share, alpha, rho, C, kappa)

        found = minimize_scalar(badness, bounds=(-6.0, 0.0), method="bounded", options={"xatol": 1e-6})
        share = math.exp(min(found.x, 0.0))
        if badness(0.0) <= badness(found.x):  # gamma = 1, which a bounded search does not try
            share = 1.0
        gamma = min(1.0, most * share * alpha * rho)
    except (OverflowError, ZeroDivisionError):
        raise setting.beyond() from None
    if gamma < sys.float_info.min:
        raise setting.beyond()
    return gamma


def largest_lr(setting: Setting, gamma: float) -> float | None:
    """The largest lr for which weights exist at this gamma, reduced by `_EDGE`; None if none exist at any lr."""
    alpha, rho, C, kappa = _floats(setting)
    try:
        c_eta = _largest_c_eta(gamma / alpha / rho, alpha, rho, C, kappa)
        guess = c_eta * gamma * rho**2 / float(setting.L)
    except (OverflowError, ZeroDivisionError):
        raise setting.beyond() from None
    if c_eta == 0.0:
        return None
    if not sys.float_info.min < guess * (1 - _EDGE) < math.inf:
        raise setting.beyond()

    def holds(lr: float) -> bool:
        return _pivots(_inequalities(setting, lr, gamma, gamma)) is not None

    low, high = guess * (1 - _EDGE), guess * (1 + _EDGE)
    while not holds(low):  # the proposal was wrong; the search works from any start
        low, high = low / 2, low
        if low < sys.float_info.min:
            return None
    while holds(high):
        low, high = high, 2 * high
    while high > low * (1 + 3 * _EDGE):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def weights_of(setting: Setting, gamma: float, lr: float) -> tuple[float, float, float, float] | None:
    """The smallest weights at these steps, for n = 1, as floats that satisfy all inequalities exactly, or None."""
    rows = _inequalities(setting, lr, gamma, gamma)
    if _pivots(rows) is None:
        return None
    four = [row[:4] for row in rows[:4]]
    least = _solution(four, [-row[4] for row in rows[:4]])
    for pad in _PADS:
        room = [four[i][i] * least[i] * Fraction(pad) for i in range(4)]
        exact = _solution(four, [room[i] - rows[i][4] for i in range(4)])
        try:
            one, two, three, four_ = map(float, exact)
        except OverflowError:
            raise setting.beyond() from None
        weights = one, two, three, four_
        if min(weights) < sys.float_info.min:
            raise setting.beyond()
        point = [*map(Fraction, weights), Fraction(1)]
        if all(sum((row[i] * point[i] for i in range(5)), Fraction(0)) >= 0 for row in rows):
            return weights
    return None


def is_refuted(setting: Setting, lr: float) -> bool:
    """Whether no gamma in (0, 1] has weights for this lr, proven by covering (0, 1] with infeasible intervals.

    On an interval, every term of the inequalities is relaxed: it is evaluated at the end that makes it easier to
    satisfy. If the relaxed system has no solution, no gamma of the interval has one.
    """
    # Below this gamma the diagonal entry of Omega_4, gamma rho/2 - 18 L^2 eta^2 / (gamma rho), is not positive.
    least = 6 * setting.L * Fraction(lr) / setting.rho
    if least >= 1:
        return True
    start = float(least) * (1 - 1e-9)
    if start < sys.float_info.min:
        raise setting.beyond()
    open_intervals = [(start, 1.0)]
    while open_intervals:
        low, high = open_intervals.pop()
        if _pivots(_inequalities(setting, lr, low, high)) is None:
            continue
        if high < low * _FINEST:
            return False
        middle = math.sqrt(low) * math.sqrt(high)
        open_intervals += [(middle, high), (low, middle)]
    return True


def _inequalities(setting: Setting, lr: float, low: float, high: float) -> list[list[Fraction]]:
    """(eq. tbp) and (eq. tbp-pl) for n = 1 as rows r with r (s_1, s_2, s_3, s_4, 1)' >= 0, for Omega_1 to Omega_5.

    With low = high they hold for gamma = low. With low < high they are relaxed for `is_refuted`.
    """
    alpha, rho, C, L, eta = setting.alpha, setting.rho, setting.C, setting.L, Fraction(lr)
    gamma, gamma_high = Fraction(low), Fraction(high)
    mixed, mixed_3 = 6 * gamma**2 * C / alpha, 6 * gamma * C / rho
    moved, moved_3 = 6 * eta**2 / alpha, 6 * eta**2 / (gamma_high * rho)
    compression = alpha / 2 - mixed - setting.mu * eta
    consensus = gamma_high * rho / 2 - setting.mu * eta
    L2, zero = 3 * L**2, Fraction(0)
    return [
        [compression, -L2 * mixed, -mixed_3, -L2 * mixed_3, zero],
        [zero, compression, zero, -mixed_3, zero],
        [-mixed, -L2 * mixed, consensus, -L2 * mixed_3, -eta * L**2 / 2],
        [-moved, -mixed - L2 * moved, -moved_3, consensus - L2 * moved_3, zero],
        [-moved, -L2 * moved, zero, -L2 * moved_3, eta / 2 - eta**2 * L / 2],
    ]


def _scaled(c_gamma: float, c_eta: float, alpha: float, rho: float, C: float, kappa: float) -> list[list[float]]:
    """The inequalities in c_1 to c_4, with scaled rows: Step 3 of the proof before its simplification.

    The rows are divided by alpha L/n, alpha rho^2/(n L), gamma rho L/n, gamma rho^3/(n L) and eta/2; kappa is mu / L.
    """
    g, e = c_gamma, c_eta
    compression = 0.5 - 6 * C * g**2 * rho**2 - e * g * rho**3 * kappa
    consensus = 0.5 - e * rho * kappa
    return [
        [compression, -18 * C * g**2 * rho**4, -6 * C * g, -18 * C * g * rho**2, 0.0],
        [0.0, compression, 0.0, -6 * C * g, 0.0],
        [-6 * C * g, -18 * C * g * rho**2, consensus, -18 * C, -e * rho / 2],
        [-6 * e**2 * g * rho**2, -g * (6 * C + 18 * e**2 * rho**4), -6 * e**2, consensus - 18 * e**2 * rho**2, 0.0],
        [-12 * e * g * rho**3, -36 * e * g * rho**5, 0.0, -36 * e * rho**3, 1 - e * g * alpha * rho**3],
    ]


def _largest_c_eta(c_gamma: float, alpha: float, rho: float, C: float, kappa: float) -> float:
    """The largest c_eta for which weights exist, in floats; 0 if there is none."""

    def holds(c_eta: float) -> bool:
        return _pivots(_scaled(c_gamma, c_eta, alpha, rho, C, kappa)) is not None

    # At these bounds rows 3 and 4 alone have no solution: a diagonal entry is 0, or 1/4 <= 18 C * 6 c_eta^2.
    return bisected(holds, min(1 / (6 * rho), 1 / math.sqrt(432 * C)))


def bisected(holds: Callable[[float], bool], most: float) -> float:
    """The largest number up to `most` for which `holds`; it must hold for all smaller ones."""
    if holds(most):
        return most
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _pivots(rows: list[list[Number]]) -> list[list[Number]] | None:
    """The rows after elimination, or None if a pivot is not positive (the last may be 0)."""
    rows = [list(row) for row in rows]
    last = len(rows) - 1
    for i, row in enumerate(rows):
        if row[i] < 0 or (row[i] == 0 and i < last):
            return None
        for other in rows[i + 1 :]:
            if other[i]:
                factor = other[i] / row[i]
                for j in range(i + 1, len(row)):
                    other[j] -= factor * row[j]
    return rows


def _solution(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """The solution of matrix x = right, for a matrix with positive pivots."""
    rows = _pivots([[*row, value] for row, value in zip(matrix, right, strict=True)])
    assert rows is not None
    solution: list[Fraction] = []
    for i in reversed(range(len(rows))):
        known = sum((a * x for a, x in zip(rows[i][i + 1 : -1], solution, strict=True)), Fraction(0))
        solution.insert(0, (rows[i][-1] - known) / rows[i][i])
    return solution


def _floats(setting: Setting) -> tuple[float, float, float, float]:
    return float(setting.alpha), float(setting.rho), float(setting.C), float(setting.mu / setting.L)
