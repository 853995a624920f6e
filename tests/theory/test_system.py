from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.theory import absolute_constants, linear_system, lyapunov, lyapunov_weights
from gossamer.theory.system import recursion

GOOD: Any = {"alpha": 0.5, "rho": 0.2, "C": 3.0, "L": 2.0, "n": 7, "gamma": 0.3, "lr": 0.01}


def test_the_entries_are_those_of_the_lemma() -> None:
    """Lemma omega-1 as printed, except that b2 has the factor 1 + eta L that its chain omits."""
    a, r, C, L, g, e = map(Fraction, ("1/3", "1/5", "7/2", "11/10", "1/7", "1/9"))
    n = 6
    A, b1, b2, q = recursion(a, r, C, L, n, g, e)
    zero = Fraction(0)
    lemma = (
        (1 - a / 2 + 6 * g**2 * C / a, zero, 6 * g**2 * C / a, 6 * e**2 / a),
        (
            18 * g**2 * C * L**2 / a,
            1 - a / 2 + 6 * g**2 * C / a,
            18 * g**2 * C * L**2 / a,
            (6 * g**2 * C + 18 * L**2 * e**2) / a,
        ),
        (6 * g * C / r, zero, 1 - g * r / 2, 6 * e**2 / (g * r)),
        (
            18 * g * C * L**2 / r,
            6 * g * C / r,
            18 * g * C * L**2 / r,
            1 - g * r / 2 + 18 * L**2 * e**2 / (g * r),
        ),
    )
    assert lemma == A
    assert b1 == (6 * n * e**2 / a, 18 * L**2 * e**2 * n / a, zero, 18 * n * e**2 * L**2 / (g * r))
    assert b2 == (zero, 12 * n * (1 + e * L) / a, zero, 12 * n * (1 + e * L) / (g * r))
    assert q == (zero, zero, e * L**2 / (2 * n), zero)


def test_floats_are_the_fractions_rounded() -> None:
    system = linear_system(**GOOD)
    a, r, C, L, g, e = (Fraction(GOOD[name]) for name in ("alpha", "rho", "C", "L", "gamma", "lr"))
    exact = recursion(a, r, C, L, GOOD["n"], g, e)
    for found, part in zip(system, exact, strict=True):
        np.testing.assert_allclose(found, np.array(part, dtype=float), rtol=1e-14)


def test_the_noise_term_needs_the_factor_that_the_proof_omits() -> None:
    """f = L x^2 / 2 and noise of +-sigma: exactly 2 (1 + eta L) sigma^2, where step (ii) has 2 sigma^2."""
    L, eta, sigma, moved = map(Fraction, ("3/2", "1/5", "2/7", "4/3"))
    changes, moves = [], []
    for now, then in product((-sigma, sigma), repeat=2):
        step = moved - eta * now  # X^{t+1} - X^t: V^t, and so the step, contains the noise of round t
        changes.append((L * step + then - now) ** 2)
        moves.append(L**2 * step**2)
    excess = (sum(changes) - sum(moves)) / 4
    assert excess == 2 * (1 + eta * L) * sigma**2 > 2 * sigma**2


def test_the_lyapunov_function_has_the_proofs_weights() -> None:
    c, rho, L, n = (2.0, 3.0, 5.0, 7.0), 0.1, 4.0, 10
    weights = lyapunov_weights(c, rho, L, n)
    expected = (2 * L / n, 3 * rho**2 / (n * L), 5 * L / n, 7 * rho**2 / (n * L))
    assert weights == pytest.approx(expected)
    assert lyapunov(1.5, (1.0, 10.0, 100.0, 1000.0), weights) == pytest.approx(
        1.5 + sum(s * omega for s, omega in zip(expected, (1, 10, 100, 1000), strict=True))
    )


def test_absolute_constants_close_the_proof_with_these_weights() -> None:
    """(eq. tbp) with the weights of (eq. lynapunov_def) at the theorem's steps; (eq. lf)'s rho^4 does not close it."""
    constants, rho, L, n, alpha = absolute_constants(4.0), 0.1, 2.0, 5, 0.3
    gamma = 0.999 * constants.c_gamma * alpha * rho
    lr = constants.c_eta * gamma * rho**2 / L
    A, b1, _, q = linear_system(alpha, rho, 4.0, L, n, gamma, lr)
    s = np.array(lyapunov_weights(constants.c, rho, L, n))
    assert (s @ (A - np.eye(4)) + q <= 1e-15 * s).all()
    assert lr / 2 - lr**2 * L / 2 - s @ b1 >= 0
    s[3] *= rho**2
    assert not (s @ (A - np.eye(4)) + q <= 1e-15 * s).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("alpha", "rho", "gamma") for value in (0, -0.1, 1.5, float("nan"), "0.5", None, True)]
    + [("C", value) for value in (0, -1, 4.5, float("nan"), float("inf"), "4", None, 10**400, [1])]
    + [(name, value) for name in ("L", "lr") for value in (0, -1, float("nan"), float("inf"), "1", None)]
    + [("n", value) for value in (0, 1.5, "2", True)]
    + [("L", 1e300), ("lr", 1e200)],
)
def test_invalid_inputs(name: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        linear_system(**(GOOD | {name: value}))
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_bad_errors_and_weights() -> None:
    with pytest.raises(InputError, match="`omegas` must be four numbers"):
        lyapunov(1.0, (1.0, 2.0), (1.0, 1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="`weights` must be four numbers"):
        lyapunov(1.0, (1.0, 2.0, 3.0, 4.0), 3.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`omegas_2` must be a number of 0 or more, got -1"):
        lyapunov(1.0, (1.0, -1.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="`f_gap`"):
        lyapunov(-1.0, (0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="`c_4`"):
        lyapunov_weights((1.0, 1.0, 1.0, float("nan")), 0.5, 1.0, 2)
