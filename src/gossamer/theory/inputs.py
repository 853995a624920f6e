"""The constants that go in, checked: those that no network, compressor or objective can have are refused."""

from gossamer.errors import InputError, check_positive


def check_c(C: object) -> float:
    """C = ||W - I||^2 (eq. C) as a float, if it is in (0, 4]: the eigenvalues of W lie in [-1, 1]."""
    span = "`C` = ||W - I||^2 lies above 0 and at most at 4"
    try:
        number = check_positive("C", C)
    except InputError as error:
        raise InputError(f"{span}: {error}") from None
    if number > 4:
        raise InputError(f"{span}, got {number!r}; a mixing matrix has it as `C`.")
    return number


def check_mu(mu: object, L: float) -> float | None:
    """The PL constant as a float, if it is in (0, L] (an L-smooth f has no larger one), or None."""
    if mu is None:
        return None
    number = check_positive("mu", mu)
    if number > L:
        raise InputError(f"`mu` must be at most L = {L!r}, got {mu!r}; no L-smooth objective satisfies PL with more.")
    return number
