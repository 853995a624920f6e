"""The theory beside the code: numbers in, numbers out."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gossamer.errors import InputError, check_integer, check_positive, check_unit

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


def practical_steps(
    alpha: float,
    usual_alpha: float,
    share: float,
    L: float,
    *,
    gamma: float | None = None,
    lambda_min: float = 0.0,
    averages: bool = False,
    step_pace: float = 3.0,
) -> tuple[float, float]:
    """gamma and lr as `gossamer.auto` takes them.

    gamma = min(0.75 alpha^0.6, usual_alpha, 0.6, 0.92 / (1 - lambda_min)) and lr = min(1/2, step_pace gamma share) / L;
    for methods that rely on an unbiased compressor, alpha = 1/(1 + omega) and alpha^2. Found by experiment, not by
    proof. With top_k and random dithering, alpha^0.6 follows the largest gamma at which BEER stays stable, from
    alpha = 0.01 to 1, and 0.75 keeps a distance; random sparsification, which really loses as much as its alpha says,
    needs gamma below alpha itself. lr keeps the trackers' disagreement, which mixing takes some 1/(gamma share) rounds
    to remove, small against the average gradient. The last bound on gamma keeps I + gamma (W - I) positive.

    Args:
        alpha: Of the compressor, in the worst case.
        usual_alpha: The same on Gaussian vectors.
        share: s, the share of the clients' disagreement that one mixing removes; rho at the worst.
        L: Smoothness of the clients' objectives.
        gamma: To be kept, if given.
        lambda_min: The smallest eigenvalue of the mixing matrix.
        averages: Whether the method relies on the compressor's mean.
        step_pace: Of the method.
    """
    alpha, usual_alpha = check_unit("alpha", alpha), check_unit("usual_alpha", usual_alpha)
    if gamma is None:
        gamma = min(0.75 * alpha ** (2.0 if averages else 0.6), usual_alpha, 0.6, 0.92 / (1 - lambda_min))
    return gamma, min(0.5, step_pace * gamma * share) / L


def local_privacy(
    noise: float, clip: float, batch_size: int | None, rows: int, rounds: int, delta: float = 1e-5
) -> float:
    """epsilon of the (epsilon, delta) differential privacy that PORTER-DP gives each data row of a client.

    Against everyone who sees all that the client sends in all rounds, and knows everything but the run's seed, from
    which noise and minibatches are drawn: two data sets that differ in one row cannot be told apart. (A simulation that
    others repeat from its seed protects nothing; it shows what privacy costs.) A minibatch draws `batch_size` of the
    client's `rows` with replacement, so that a row is in it j times with the binomial probability p_j; replacing it
    moves the mean of the clipped gradients by at most 2 clip j / batch_size. With the draws coupled, joint convexity
    bounds the Renyi divergence of order a by log(sum_j p_j exp(a (a - 1) (2 clip j / batch_size)^2 / (2 noise^2))) /
    (a - 1) a round; rounds add up (Mironov, arXiv 1702.07476), compression and mixing cannot undo it, and the best
    order gives epsilon (Canonne, Kamath, Steinke, arXiv 2004.00010, Proposition 12). It is a bound: the truth is at
    most this.

    Args:
        noise: sigma_p, the deviation of the noise on each coordinate.
        clip: tau.
        batch_size: Rows a minibatch; None for full gradients.
        rows: Of the client.
        rounds: How many minibatches it has used.
        delta: The probability with which epsilon may be exceeded.

    >>> from gossamer.theory import local_privacy
    >>> round(local_privacy(noise=1.0, clip=1.0, batch_size=10, rows=1000, rounds=100), 2)
    1.93
    """
    from scipy.special import logsumexp
    from scipy.stats import binom

    noise, clip = check_positive("noise", noise), check_positive("clip", clip)
    rows, rounds = check_integer("rows", rows, 1), check_integer("rounds", rounds, 1)
    delta = check_positive("delta", delta)
    if delta >= 1:
        raise InputError(f"`delta` must be below 1, got {delta!r}.")
    if batch_size is None:  # every row, once
        share, chance = np.array([1 / rows]), np.zeros(1)
    else:
        times = np.arange(check_integer("batch_size", batch_size, 1, 10**7) + 1)
        share, chance = times / batch_size, binom.logpmf(times, batch_size, 1 / rows)
        share, chance = share[chance > -np.inf], chance[chance > -np.inf]
    orders = 1 + np.geomspace(1e-3, 1e4, 400)
    with np.errstate(over="ignore"):
        moved = (2 * clip / noise * share) ** 2 / 2
        spent = np.array([rounds * logsumexp(chance + a * (a - 1) * moved) / (a - 1) for a in orders])
    every = spent + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return float(max(0.0, every.min()))


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
