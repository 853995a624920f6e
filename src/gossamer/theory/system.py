"""The linear system of the BEER paper's proof: bounds on the four errors and f after one round.

Omega_1 = ||H - X||_F^2 and Omega_2 = ||G - V||_F^2 are the compression errors, Omega_3 = ||X - x-bar 1'||_F^2 and
Omega_4 = ||V - v-bar 1'||_F^2 the consensus errors, and Omega_5 = ||v-bar||^2, all in expectation. Lemma omega-1 and
the descent property state, for every gamma in (0, 1] and every lr = eta > 0 (neither has to be small),

    Omega^{t+1}  <=  A Omega^t + b1 Omega_5^t + b2 sigma^2 / b                                          (eq. ls)
    f(x-bar^{t+1})  <=  f(x-bar^t) - eta/2 ||grad f(x-bar^t)||^2 + q' Omega^t
                        - (eta/2 - eta^2 L/2) Omega_5^t + eta sigma^2 / (2 b n)                         (eq. descent)

where every f_i is L-smooth, the compressor is a contraction with constant alpha, and v-bar^0 is the mean of the
gradients at X^0. All entries were derived again from the chains of the proof. They agree with the lemma, except for the
noise: step (ii) of the chain for Omega_2, and step (i) of that for Omega_4, add the variances of the gradients at
X^{t+1} and X^t as if the second did not affect X^{t+1}. It does, by -eta times itself. By smoothness the missing term
is at most 2 eta L n sigma^2 / b, which f_i = L ||x||^2 / 2 attains. So b2 is (1 + eta L) times that of the paper.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gossamer.errors import InputError, check_integer, check_nonnegative, check_positive, check_unit
from gossamer.theory.inputs import check_c

Number = TypeVar("Number", float, Fraction)


class LinearSystem(NamedTuple):
    """A, b1, b2 of (eq. ls) and q of Step 2 of the proof."""

    A: npt.NDArray[np.float64]
    """The effect of Omega_1 to Omega_4 on the next ones; row i bounds Omega_i."""
    b1: npt.NDArray[np.float64]
    """The effect of Omega_5 = ||v-bar||^2 on them."""
    b2: npt.NDArray[np.float64]
    """The effect of the gradients' variance sigma^2 / b on them."""
    q: npt.NDArray[np.float64]
    """The effect of Omega_1 to Omega_4 on f."""


def linear_system(alpha: float, rho: float, C: float, L: float, n: int, gamma: float, lr: float) -> LinearSystem:
    """The matrix and the vectors with which the proof bounds one round of BEER.

    The arguments are those of `certify`; `n` is the number of clients.

    >>> from gossamer.theory import linear_system
    >>> A, b1, b2, q = linear_system(alpha=0.5, rho=0.2, C=2.0, L=1.0, n=10, gamma=0.01, lr=1e-5)
    >>> A.shape, [round(float(share), 4) for share in A.diagonal()]
    ((4, 4), [0.7524, 0.7524, 0.999, 0.999])
    """
    constants = check_unit("alpha", alpha), check_unit("rho", rho), check_c(C), check_positive("L", L)
    rest = check_integer("n", n, 1), check_unit("gamma", gamma), check_positive("lr", lr)
    with np.errstate(over="ignore"):
        try:
            system = LinearSystem(*(np.array(part, dtype=np.float64) for part in recursion(*constants, *rest)))
        except (OverflowError, ZeroDivisionError):
            system = None
    if system is None or not all(np.isfinite(part).all() for part in system):
        raise InputError(
            f"The numbers of the system are too large for a float at L = {L!r}, gamma = {gamma!r}, lr = {lr!r}."
        )
    return system


def recursion(
    alpha: Number, rho: Number, C: Number, L: Number, n: int, gamma: Number, lr: Number
) -> tuple[tuple[tuple[Number, ...], ...], tuple[Number, ...], tuple[Number, ...], tuple[Number, ...]]:
    """A, b1, b2 and q (Lemma omega-1, eq. omega-1 to omega-4), in floats or fractions, without checks."""
    zero = alpha - alpha
    # ||X^{t+1} - X^t||^2 <= 3 gamma^2 C (Omega_1 + Omega_3) + 3 eta^2 (Omega_4 + n Omega_5)      (eq. diff_x)
    mixed, moved = 3 * gamma**2 * C, 3 * lr**2
    young, young_mixing = 2 / alpha, 3 / (gamma * rho)  # from (eq. noodle), (eq. rice); from the chain for Omega_3
    noise = 2 * n * (1 + lr * L)  # the paper: 2 n
    # What the mixing of X adds to Omega_2 and to Omega_4, and what a compression error adds to its consensus error.
    on_g, on_v, on_mean = young * 3 * L**2 * mixed, young_mixing * 2 * L**2 * mixed, young_mixing * 2 * gamma**2 * C
    A = (
        (1 - alpha / 2 + young * mixed, zero, young * mixed, young * moved),
        (on_g, 1 - alpha / 2 + young * mixed, on_g, young * (mixed + 3 * L**2 * moved)),
        (on_mean, zero, 1 - gamma * rho / 2, young_mixing * 2 * lr**2),
        (on_v, on_mean, on_v, 1 - gamma * rho / 2 + young_mixing * 2 * L**2 * moved),
    )
    b1 = (young * moved * n, young * 3 * L**2 * moved * n, zero, young_mixing * 2 * L**2 * moved * n)
    b2 = (zero, young * 3 * noise, zero, young_mixing * 2 * noise)
    q = (zero, zero, lr * L**2 / (2 * n), zero)
    return A, b1, b2, q


def lyapunov(f_gap: float, omegas: Sequence[float], weights: Sequence[float]) -> float:
    """Phi = f(x-bar) - f* + s_1 Omega_1 + s_2 Omega_2 + s_3 Omega_3 + s_4 Omega_4 (eq. lynapunov_def).

    `f_gap` is f(x-bar) - f* or an upper bound, `omegas` are squared Frobenius norms summed over the clients, and the
    weights come from `Certificate.weights_for` or `lyapunov_weights`.

    >>> from gossamer.theory import lyapunov
    >>> lyapunov(2.0, (4.0, 0.0, 1.0, 0.0), (0.25, 1.0, 0.5, 1.0))
    3.5
    """
    f_gap = check_nonnegative("f_gap", f_gap)
    errors, shares = four_numbers("omegas", omegas), four_numbers("weights", weights)
    return f_gap + sum(share * error for share, error in zip(shares, errors, strict=True))


def lyapunov_weights(c: Sequence[float], rho: float, L: float, n: int) -> tuple[float, float, float, float]:
    """s = [c_1 L/n, c_2 rho^2/(n L), c_3 L/n, c_4 rho^2/(n L)] for the theorems' constants.

    This is the form of the proof (eq. lynapunov_def), which closes. (eq. lf) of the text has c_4 rho^4/(n L) last. `c`
    is `AbsoluteConstants.c`; the other arguments are those of `linear_system`.
    """
    c1, c2, c3, c4 = four_numbers("c", c)
    rho, L, n = check_unit("rho", rho), check_positive("L", L), check_integer("n", n, 1)
    return c1 * L / n, c2 * rho**2 / (n * L), c3 * L / n, c4 * rho**2 / (n * L)


def four_numbers(name: str, values: Sequence[float]) -> tuple[float, float, float, float]:
    """The values as floats, if they are four nonnegative numbers."""
    try:
        first, second, third, fourth = values
    except (TypeError, ValueError):
        raise InputError(f"`{name}` must be four numbers, one for each Omega, got {str(values)[:80]}.") from None
    numbered = enumerate((first, second, third, fourth), start=1)
    one, two, three, four = (check_nonnegative(f"{name}_{index}", value) for index, value in numbered)
    return one, two, three, four
