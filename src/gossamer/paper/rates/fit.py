"""Straight lines through measurements, with their intervals, beside what theory says of their slopes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.theory.verdict import Verdict

TOLERANCE = 0.1
"""Share of theory's exponent (or, where that is 0, the exponent) that a finite range and a grid of steps may cost."""


@dataclass(frozen=True)
class Fit:
    """A fitted slope beside theory's."""

    study: str
    what: str
    method: str
    x: str
    y: str
    slope: float
    """The power of a log-log line; for linear convergence the change of log y per round."""
    low: float
    """The 95% confidence interval begins here."""
    high: float
    theory: float
    is_bound: bool
    """Theory is an upper bound: y may grow more slowly, or fall faster, than it says. So x is chosen to have bounds
    from above: 1/alpha rather than alpha."""
    points: tuple[tuple[float, float], ...]
    """Geometric means over the seeds."""
    note: str = ""
    is_exponential: bool = False
    """The slope is the change of log y for a unit of x, not a power."""

    @property
    def tolerance(self) -> float:
        """A tenth of theory's exponent; 0.1 where theory says flat."""
        return TOLERANCE * (abs(self.theory) or 1.0)

    @property
    def agrees(self) -> Verdict:
        """Whether the slope is where theory says, judged by the whole confidence interval.

        Theory allows the slopes up to `tolerance` from its own, and every smaller one if it is a bound. The claim holds
        if the whole interval is allowed, does not hold if none of it is, and is inconclusive otherwise.
        """
        most = self.theory + self.tolerance
        least = -math.inf if self.is_bound else self.theory - self.tolerance
        if least <= self.low and self.high <= most:
            return "holds"
        return "does not hold" if self.low > most or self.high < least else "inconclusive"

    @property
    def is_reached(self) -> bool:
        """Whether the slope itself is theory's, to the tolerance: of a bound, that it is tight here."""
        return abs(self.slope - self.theory) <= self.tolerance


class Line(NamedTuple):
    """A slope, its 95% confidence interval, and how straight the measurements lie (R^2 of their mean over seeds)."""

    slope: float
    low: float
    high: float
    straightness: float


def fit_line(x: Sequence[float], ys: npt.ArrayLike) -> Line:
    """The line through the measurements of several seeds.

    A least-squares line is fitted to each seed, and the slope is the mean of theirs. The interval joins, as independent
    errors are joined, the t-interval of the seeds' slopes with that of the regression of the seeds' mean, which stays
    where all seeds bend alike; with a single seed it is the regression's alone.

    Args:
        x: At least three places.
        ys: For each seed, its measurements there; a place where any seed has none that is finite is left out.
    """
    from scipy.stats import t

    every, values = np.asarray(x, float), np.asarray(ys, float)
    has_all = np.isfinite(values).all(axis=0)
    every, values = every[has_all], values[:, has_all]
    if len(every) < 3:
        return Line(math.nan, -math.inf, math.inf, math.nan)
    away = every - every.mean()
    slopes = values @ away / (away @ away)
    slope, mean = float(slopes.mean()), values.mean(axis=0)
    mean = mean - mean.mean()
    left, free = float(((mean - slope * away) ** 2).sum()), len(every) - 2
    half = math.sqrt(left / free / (away @ away)) * t.ppf(0.975, free)
    if len(values) > 1:
        between = slopes.std(ddof=1) / math.sqrt(len(values)) * t.ppf(0.975, len(values) - 1)
        half = math.hypot(half, between)
    whole = float(mean @ mean)
    return Line(slope, slope - half, slope + half, 1 - left / whole if whole else 1.0)


def fit_power(x: Sequence[float], ys: npt.ArrayLike) -> Line:
    """`fit_line` of log y against log x: the power with which y grows."""
    return fit_line(np.log(x).tolist(), np.log(np.asarray(ys, float)).tolist())


def means(x: Sequence[float], ys: npt.ArrayLike) -> tuple[tuple[float, float], ...]:
    """x with the geometric mean of y over the seeds, where that is finite."""
    y = np.exp(np.log(np.asarray(ys, float)).mean(axis=0))
    return tuple((float(a), float(b)) for a, b in zip(x, y, strict=True) if math.isfinite(b))
