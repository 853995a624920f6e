"""Steps that work in practice."""

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
