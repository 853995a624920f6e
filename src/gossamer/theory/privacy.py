"""The differential privacy of PORTER-DP."""

import numpy as np

from gossamer.errors import InputError, check_integer, check_positive


def local_privacy(
    noise: float, clip: float, batch_size: int | None, rows: int, rounds: int, delta: float = 1e-5
) -> float:
    """epsilon of the (epsilon, delta) differential privacy that PORTER-DP gives each data row of a client.

    The adversary sees everything that the client sends in all rounds, and knows everything except the seed of the run,
    from which noise and minibatches are drawn. Such an adversary cannot distinguish two data sets that differ in one
    row. (A simulation that others can repeat from its seed protects nothing; it shows the cost of privacy.)

    A minibatch draws `batch_size` of the client's `rows` with replacement, so a row occurs j times with the binomial
    probability p_j. Replacing it moves the mean of the clipped gradients by at most 2 clip j / batch_size. With coupled
    draws, joint convexity bounds the Renyi divergence of order a per round by
    log(sum_j p_j exp(a (a - 1) (2 clip j / batch_size)^2 / (2 noise^2))) / (a - 1). The divergences of all rounds add
    up (Mironov, arXiv 1702.07476), compression and mixing do not increase them, and the best order gives epsilon
    (Canonne, Kamath, Steinke, arXiv 2004.00010, Proposition 12). The result is an upper bound.

    Args:
        noise: sigma_p, the standard deviation of the noise on each coordinate.
        clip: tau.
        batch_size: Rows per minibatch; None for full gradients.
        rows: Data rows of the client.
        rounds: The number of minibatches used.
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
    epsilons = spent + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return float(max(0.0, epsilons.min()))
