"""Step sizes that work in practice."""

from gossamer.errors import check_unit


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
    """gamma and lr of `gossamer.auto_steps`. They are found by experiment, not by proof.

    gamma = min(0.75 alpha^0.6, usual_alpha, 0.6, 0.92 / (1 - lambda_min)) and lr = min(1/2, step_pace gamma share) / L;
    for methods that rely on an unbiased compressor, alpha = 1/(1 + omega) and the power is 2. With top_k and random
    dithering, alpha^0.6 follows the largest gamma at which BEER is stable, from alpha = 0.01 to 1; 0.75 is a margin.
    Random sparsification, whose error is as large as alpha states, needs gamma below alpha. Mixing takes about
    1/(gamma share) rounds to remove the trackers' disagreement; lr keeps it small against the average gradient. The
    last bound on gamma keeps I + gamma (W - I) positive.

    `alpha` is the contraction constant of the compressor in the worst case, `usual_alpha` that on Gaussian vectors.
    `share` is the fraction of the clients' disagreement that one mixing removes; rho in the worst case. `lambda_min` is
    the smallest eigenvalue of the mixing matrix. `averages` says whether the method relies on an unbiased compressor.
    `gamma` is a fixed mixing step, if given.
    """
    alpha, usual_alpha = check_unit("alpha", alpha), check_unit("usual_alpha", usual_alpha)
    if gamma is None:
        gamma = min(0.75 * alpha ** (2.0 if averages else 0.6), usual_alpha, 0.6, 0.92 / max(1 - lambda_min, 1e-9))
    return gamma, min(0.5, step_pace * gamma * share) / L
