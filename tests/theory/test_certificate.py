"""Certificates, checked by independent code: Lemma omega-1 as printed, and determinants by expansion."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from gossamer.errors import InputError
from gossamer.theory import Certificate, certify, theorem_steps

GRID = [(alpha, rho, C) for alpha in (1.0, 0.5, 0.01) for rho in (1.0, 0.174, 0.0122) for C in (4.0, 1.0, 0.1)]
REFERENCE = [
    ((1.0, 0.174, 3.3), 1.355e-6),
    ((0.5, 0.174, 3.3), 6.77e-7),
    ((0.7, 1.0, 1.0), 9.96e-4),
    ((0.67, 0.0122, 4.0), 2.346e-10),
]

Rows = list[list[Fraction]]


def inequalities(of: Certificate, lr: float, gamma: float) -> Rows:
    """Rows r with r (s, 1)' >= 0, of (eq. tbp) and (eq. tbp-pl) for n = 1."""
    a, r, C, L, e, g, mu = map(Fraction, (of.alpha, of.rho, of.C, of.L, lr, gamma, of.mu or 0))
    second_last = (6 * g**2 * C + 18 * L**2 * e**2) / a
    A = [
        [1 - a / 2 + 6 * g**2 * C / a, Fraction(0), 6 * g**2 * C / a, 6 * e**2 / a],
        [18 * g**2 * C * L**2 / a, 1 - a / 2 + 6 * g**2 * C / a, 18 * g**2 * C * L**2 / a, second_last],
        [6 * g * C / r, Fraction(0), 1 - g * r / 2, 6 * e**2 / (g * r)],
        [18 * g * C * L**2 / r, 6 * g * C / r, 18 * g * C * L**2 / r, 1 - g * r / 2 + 18 * L**2 * e**2 / (g * r)],
    ]
    b1 = [6 * e**2 / a, 18 * L**2 * e**2 / a, Fraction(0), 18 * e**2 * L**2 / (g * r)]
    q = [Fraction(0), Fraction(0), e * L**2 / 2, Fraction(0)]
    rows = [[(1 - mu * e) * (i == j) - A[i][j] for i in range(4)] + [-q[j]] for j in range(4)]
    return [*rows, [-b for b in b1] + [e / 2 - e**2 * L / 2]]


def hold(of: Certificate) -> bool:
    point = [*map(Fraction, of.weights), Fraction(1)]
    return all(sum(r * x for r, x in zip(row, point, strict=True)) >= 0 for row in inequalities(of, of.lr, of.gamma))


def determinant(m: Rows) -> Fraction:
    if not m:
        return Fraction(1)
    minors = (m[0][j] and m[0][j] * determinant([row[:j] + row[j + 1 :] for row in m[1:]]) for j in range(len(m)))
    return sum(((-1) ** j * minor for j, minor in enumerate(minors)), Fraction(0))


def have_weights(of: Certificate, lr: float, gamma: float) -> bool:
    """Checked by the leading minors of a matrix without positive entries off the diagonal."""
    rows = inequalities(of, lr, gamma)
    return all(determinant([row[:k] for row in rows[:k]]) > 0 for k in range(1, 6))


@pytest.mark.parametrize(("network", "lr"), REFERENCE)
def test_reference_values(network: tuple[float, float, float], lr: float) -> None:
    found = certify(*network, L=1.0)
    assert found.lr == pytest.approx(lr, rel=0.01)
    assert hold(found)


@pytest.mark.parametrize("mu", [None, 0.01, 1.0])
@pytest.mark.parametrize(("alpha", "rho", "C"), GRID)
def test_certificates_hold_exactly_and_two_percent_more_does_not(
    alpha: float, rho: float, C: float, mu: float | None
) -> None:
    found = certify(alpha, rho, C, 1.0, mu)
    assert hold(found)
    assert found.check()
    assert min(found.slack) >= 0
    assert min(found.weights) > 0
    larger = replace(found, lr=1.02 * found.lr)
    assert not hold(larger)
    assert not larger.check()
    assert found.refuses(larger.lr)
    assert not found.refuses(found.lr)


@pytest.mark.parametrize(("network", "lr"), REFERENCE)
def test_two_percent_more_has_no_weights_at_any_gamma(network: tuple[float, float, float], lr: float) -> None:
    """Checked by determinants on a grid of gammas; `refuses` proves it for those between."""
    found = certify(*network, L=1.0)
    assert have_weights(found, found.lr, found.gamma)
    for factor in np.geomspace(0.1, 3.0, 60):
        assert not have_weights(found, 1.02 * found.lr, float(factor) * found.gamma)
    assert have_weights(found, 0.98 * found.lr, 1.05 * found.gamma)
    assert found.refuses(100 * lr)  # a linear program in floats accepts this at the smallest rho


def test_a_linear_program_agrees_where_it_is_accurate() -> None:
    found = certify(0.7, 1.0, 1.0, 1.0)
    for factor, feasible in ((0.99, True), (1.02, False)):
        rows = np.array(inequalities(found, factor * found.lr, found.gamma), dtype=float)
        rows /= np.abs(rows).max(axis=1, keepdims=True)
        assert (linprog(np.ones(4), A_ub=-rows[:, :4], b_ub=rows[:, 4]).status == 0) == feasible


@pytest.mark.slow
def test_certified_steps_are_larger_than_those_of_the_absolute_constants() -> None:
    ratios = {}
    for alpha in (1.0, 0.5, 0.1, 0.01):
        for rho in (1.0, 0.6, 0.3, 0.174, 0.05, 0.0122, 0.001):
            for C in (4.0, 3.3, 2.0, 1.0, 0.3, 0.1, 0.01):
                ratios[alpha, rho, C] = certify(alpha, rho, C, 1.0).lr / theorem_steps(alpha, rho, C, 1.0)[1]
    assert min(ratios.values()) >= 1
    # sqrt(C) is 1 - lambda for some eigenvalue of W, and all but the first are in [rho - 1, 1 - rho].
    real = {key: ratio for key, ratio in ratios.items() if key[1] <= key[2] ** 0.5 <= 2 - key[1]}
    least, most = min(real, key=lambda key: real[key]), max(real, key=lambda key: real[key])
    print(f"certified / absolute lr: {real[least]:.3g} at {least} to {real[most]:.3g} at {most}")
    usual = [ratio for key, ratio in real.items() if key[2] >= 0.1]
    assert 1.5 < min(usual) <= max(usual) < 4


def test_it_scales_with_smoothness() -> None:
    one = certify(0.5, 0.2, 3.0, 1.0)
    other = certify(0.5, 0.2, 3.0, 1000.0)
    assert other.lr == pytest.approx(one.lr / 1000)
    assert other.gamma == pytest.approx(one.gamma)
    scales = (1000, 1 / 1000, 1000, 1 / 1000)
    assert other.weights == pytest.approx([s * scale for s, scale in zip(one.weights, scales, strict=True)], rel=1e-6)
    assert other.c == pytest.approx(one.c, rel=1e-6)
    assert one.weights_for(10) == pytest.approx([s / 10 for s in one.weights])


def test_strong_curvature_costs_steps() -> None:
    lrs = [certify(1.0, 1.0, 1.0, 1.0, mu).lr for mu in (None, 1e-6, 0.1, 1.0)]
    assert lrs == sorted(lrs, reverse=True)
    assert lrs[1] == pytest.approx(lrs[0], rel=1e-4)
    assert lrs[3] < 0.99 * lrs[0]


def test_given_steps() -> None:
    best = certify(0.5, 0.2, 3.0, 1.0)
    half = certify(0.5, 0.2, 3.0, 1.0, gamma=best.gamma, lr=best.lr / 2)
    assert hold(half)
    assert max(h / b for h, b in zip(half.weights, best.weights, strict=True)) < 0.01  # far from the limit
    theorem = theorem_steps(0.5, 0.2, 3.0, 1.0)
    assert hold(certify(0.5, 0.2, 3.0, 1.0, gamma=theorem[0], lr=theorem[1]))
    other = certify(0.5, 0.2, 3.0, 1.0, gamma=best.gamma / 2)
    assert hold(other)
    assert other.lr < best.lr
    assert not have_weights(other, 1.01 * other.lr, other.gamma)
    with pytest.raises(InputError, match="does not close at lr"):
        certify(0.5, 0.2, 3.0, 1.0, lr=1.02 * best.lr)
    with pytest.raises(InputError, match="with any lr"):
        certify(0.5, 0.2, 3.0, 1.0, gamma=0.9)


def test_gamma_is_at_most_one_on_a_very_lazy_matrix() -> None:
    """A lazy matrix, W = I - 1e-3 (I - J): rho and C are both small, and gamma compensates."""
    found = certify(1.0, 1e-3, 1e-6, 1.0)
    assert 0.01 < found.gamma <= 1
    assert hold(found)
    capped = certify(1.0, 1e-6, 1e-12, 1.0)
    assert capped.gamma <= 1
    assert hold(capped)
    assert capped.refuses(1.02 * capped.lr)


@settings(max_examples=40)
@given(
    alpha=st.floats(1e-6, 1.0),
    rho=st.floats(1e-6, 1.0),
    C=st.floats(1e-6, 4.0),
    L=st.floats(1e-6, 1e6),
    condition=st.none() | st.floats(1.0, 1e9),
)
def test_any_network(alpha: float, rho: float, C: float, L: float, condition: float | None) -> None:
    found = certify(alpha, rho, C, L, None if condition is None else L / condition)
    assert hold(found)
    assert found.check()
    assert not replace(found, lr=1.02 * found.lr).check()
    assert found.refuses(1.02 * found.lr)
    if condition is None:
        assert found.lr >= theorem_steps(alpha, rho, C, L)[1]


@settings(max_examples=25)
@given(
    alpha=st.floats(0, 1, exclude_min=True),
    rho=st.floats(0, 1, exclude_min=True),
    C=st.floats(0, 4, exclude_min=True),
    L=st.floats(0, exclude_min=True, allow_infinity=False),
)
def test_at_the_limits_of_floats_a_certificate_holds_or_is_refused(
    alpha: float, rho: float, C: float, L: float
) -> None:
    try:
        found = certify(alpha, rho, C, L)
    except InputError as error:
        assert "for a float" in str(error)  # noqa: PT017
        return
    assert hold(found)


GOOD: Any = {"alpha": 0.5, "rho": 0.2, "C": 3.0, "L": 2.0, "mu": 0.5}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("alpha", "rho") for value in (0, -0.1, 1.5, float("nan"), float("inf"), "0.5", None)]
    + [("C", value) for value in (0, -1, 4.5, float("nan"), float("inf"), "4", None)]
    + [("L", value) for value in (0, -1, float("nan"), float("inf"), "1", None)]
    + [("mu", value) for value in (0, -1, 2.5, float("nan"), float("inf"), "1")]
    + [("gamma", value) for value in (0, 1.5, float("nan"), "1")]
    + [("lr", value) for value in (0, -1, float("nan"), "1")],
)
def test_invalid_inputs(name: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        certify(**(GOOD | {name: value}))
    sentence = str(caught.value)
    assert sentence.startswith(f"`{name}`")
    assert sentence.endswith(".")
    assert repr(value) in sentence


def test_a_certificate_is_checked_at_construction() -> None:
    found = certify(**GOOD)
    with pytest.raises(InputError, match="`weights` must be four numbers"):
        replace(found, weights=(1.0, 2.0))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`gamma` must be in"):
        replace(found, gamma=2.0)
    with pytest.raises(InputError, match="`lr` must be a number above 0"):
        found.refuses(float("nan"))
    with pytest.raises(InputError, match="`n` must be an integer"):
        found.weights_for(0)
