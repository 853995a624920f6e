from fractions import Fraction

import pytest

from gossamer.errors import InputError
from gossamer.theory import absolute_constants, theorem_gamma


@pytest.mark.parametrize("C", [4.0, 3.3, 1.0, 0.1])
def test_absolute_constants_satisfy_the_proof_exactly(C: float) -> None:
    """The corrected inequality in rational arithmetic, at steps 0.1 % smaller to leave room for rounding."""
    found = absolute_constants(C)
    big, g, e = (Fraction(value) for value in (C, found.c_gamma * 0.999, found.c_eta * 0.999))
    c1, c2, c3, c4 = (Fraction(value) for value in found.c)
    assert c1 >= 72 * big * g**2 * c2 + 24 * big * g * c3 + 72 * big * g * c4
    assert c2 >= 24 * big * g * c4
    assert c3 - 12 * big * g * c1 - 36 * big * g * c2 - 36 * big * c4 >= e
    assert c4 >= 24 * e**2 * g * c1 + 24 * g * (big + 3 * e**2) * c2 + 24 * e**2 * c3
    assert 12 * e * g * c1 + 36 * e * g * c2 + 36 * e * c4 <= 1 - e * g
    assert found.c_gamma <= 1 / (6 * C**0.5)
    assert found.c_eta <= 1 / 9


def test_the_constants_of_c_four() -> None:
    found = absolute_constants(4.0)
    assert found.c_gamma == pytest.approx(0.0067, abs=1e-4)
    assert found.c_eta == pytest.approx(0.0115, abs=1e-4)
    assert theorem_gamma(0.5, 0.1, 4.0) == pytest.approx(0.5 * 0.1 * found.c_gamma)


def test_no_better_product_is_feasible() -> None:
    from gossamer.theory.constants import _largest_c_eta

    best = absolute_constants(2.0)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 1.5):
        g = best.c_gamma * factor
        assert g * _largest_c_eta(g, 2.0) <= best.c_gamma * best.c_eta * (1 + 1e-6)


@pytest.mark.parametrize("C", [0, -1, 4.5, float("nan")])
def test_bad_c(C: float) -> None:
    with pytest.raises(InputError, match=r"must be in \(0, 4\]"):
        absolute_constants(C)
