"""Checks of the theory's constants: values that no network or objective can have are refused."""

from gossamer.errors import InputError, check_positive


def check_c(C: object) -> float:
    """C = ||W - I||^2 (eq. C) as a float, if it is in (0, 4]; the eigenvalues of W are in [-1, 1]."""
    try:
        number = check_positive("C", C)
    except InputError as error:
        raise InputError(f"`C` = ||W - I||^2 must be in (0, 4]: {error}") from None
    if number > 4:
        raise InputError(f"`C` = ||W - I||^2 must be in (0, 4], got {number!r}; use `mixing.C`.")
    return number


def check_mu(mu: object, L: float) -> float | None:
    """The PL constant as a float, if it is in (0, L], or None. An L-smooth f has none above L."""
    if mu is None:
        return None
    number = check_positive("mu", mu)
    if number > L:
        raise InputError(f"`mu` must be at most L = {L!r}, got {mu!r}; no L-smooth objective has a larger PL constant.")
    return number
