import math
from typing import Any

import pytest

from gossamer.errors import InputError
from gossamer.theory import Certificate, bits_to, certify, linear_system, neighbourhood, orders, rounds_to
from gossamer.theory.tables import _ROWS

PLAIN = certify(0.5, 0.2, 3.0, 2.0)
CURVED = certify(0.5, 0.2, 3.0, 2.0, 0.1)


def test_rounds_in_the_nonconvex_case() -> None:
    rounds = rounds_to(0.1, PLAIN, 3.0)
    assert rounds == math.ceil(2 * 3.0 / (PLAIN.lr * 0.1**2))
    assert rounds_to(0.05, PLAIN, 3.0) == pytest.approx(4 * rounds, abs=4)
    assert rounds_to(0.1, PLAIN, 0.0) == 1
    assert rounds_to(1e-200, PLAIN, 1.0) > 10**400  # exact, although epsilon^2 is not a float


def test_rounds_under_pl() -> None:
    rounds = rounds_to(1e-3, CURVED, 5.0)
    kept = math.log1p(-0.1 * CURVED.lr)
    assert rounds * kept <= math.log(1e-3 / 5.0) <= (rounds - 1) * kept
    assert rounds_to(5.0, CURVED, 5.0) == 0
    assert rounds_to(5.0, CURVED, 5.0 * (1 + 1e-15)) == pytest.approx(1e-15 / -kept, rel=0.2, abs=1)
    assert rounds_to(1e-300, CURVED, 1e300) == pytest.approx(600 * math.log(10) / -kept)


@pytest.mark.parametrize("certificate", [PLAIN, CURVED])
def test_the_neighbourhood_is_the_fixed_point_of_the_recursion(certificate: Certificate) -> None:
    n, sigma, batch = 10, 3.0, 4
    of = certificate
    b2 = linear_system(of.alpha, of.rho, of.C, of.L, n, of.gamma, of.lr).b2
    each = (of.lr / (2 * n) + sum(s * b for s, b in zip(of.weights_for(n), b2, strict=True))) * sigma**2 / batch
    expected = 2 * each / of.lr if of.mu is None else each / (of.mu * of.lr)
    assert neighbourhood(sigma, batch, of, n) == pytest.approx(expected)
    assert neighbourhood(sigma, 2 * batch, of, n) == pytest.approx(expected / 2)
    assert neighbourhood(sigma, batch, of) >= expected  # for any number of clients
    assert neighbourhood(0.0, batch, of) == 0.0


def test_the_neighbourhood_has_the_right_units() -> None:
    """With f scaled by 10, ||grad f||^2 grows by 100 and f by 10; the paper's noise terms both grow by 10."""
    plain, curved = certify(0.5, 0.2, 3.0, 20.0), certify(0.5, 0.2, 3.0, 20.0, 1.0)
    assert neighbourhood(30.0, 4, plain, 5) == pytest.approx(100 * neighbourhood(3.0, 4, PLAIN, 5))
    assert neighbourhood(30.0, 4, curved, 5) == pytest.approx(10 * neighbourhood(3.0, 4, CURVED, 5))


@pytest.mark.parametrize("certificate", [PLAIN, CURVED])
def test_noise_costs_rounds_until_the_target_cannot_be_guaranteed(certificate: Certificate) -> None:
    floor = neighbourhood(1e-3, 10, certificate, 5)
    target = (2 * floor) ** 0.5 if certificate.mu is None else 2 * floor
    noisy = rounds_to(target, certificate, 100 * floor, sigma=1e-3, batch=10, n=5)
    exact = rounds_to(target, certificate, 100 * floor)
    if certificate.mu is None:
        assert noisy == pytest.approx(2 * exact, rel=1e-6)
    else:
        assert noisy / exact == pytest.approx(math.log(100) / math.log(50))
    with pytest.raises(InputError, match=r"cannot be guaranteed: noise may keep .* batches larger than 5"):
        rounds_to(target, certificate, 1.0, sigma=1e-3, batch=5, n=5)
    with pytest.raises(InputError, match="a number too large for a float"):
        rounds_to(target, certificate, 1.0, sigma=1e200)


def test_bits() -> None:
    assert bits_to(0.1, PLAIN, 3.0, 64) == 64 * rounds_to(0.1, PLAIN, 3.0)
    assert bits_to(0.1, PLAIN, 3.0, 12.5) == math.ceil(12.5 * rounds_to(0.1, PLAIN, 3.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("epsilon", "bits") for value in (0, -1, float("nan"), float("inf"), "1", None)]
    + [(name, value) for name in ("phi", "sigma") for value in (-1, float("nan"), float("inf"), "1", None)]
    + [("certificate", None), ("certificate", 1e-6)]
    + [(name, value) for name in ("batch", "n") for value in (0, 1.5, "1", None, True)],
)
def test_invalid_inputs(name: str, value: object) -> None:
    good: Any = {
        "epsilon": 0.1,
        "certificate": PLAIN,
        "phi": 1.0,
        "bits": 10,
        "sigma": 0.0,
        "batch": 1,
        "n": 2,
    }
    with pytest.raises(InputError, match=f"`{name}` must be"):
        bits_to(**(good | {name: value}))


def test_beyond_floats() -> None:
    with pytest.raises(InputError, match="neighbourhood too large"):
        neighbourhood(1e200, 1, PLAIN)
    hardly = certify(0.5, 0.2, 3.0, 2.0, 1e-320)
    with pytest.raises(InputError, match="too small to compute the rounds"):
        rounds_to(0.1, hardly, 1.0)


def test_the_orders_of_the_tables() -> None:
    text = {row.method: (str(row.rate), str(row.rounds), str(row.gradients)) for row in _ROWS}
    assert text == {
        "squarm_sgd": (
            "O(1 / (n^(1/2) T^(1/2)) + n G^2 / T)",
            "O(n G^2 / epsilon^2 + sigma^2 / (b n epsilon^4))",
            "O(sigma^2 / (n epsilon^4) + n G^2 / epsilon^2)",
        ),
        "deepsqueeze": (
            "O(G^(2/3) / T^(2/3))",
            "O(G / epsilon^3 + sigma^2 / (b n epsilon^4))",
            "O(sigma^2 / (n epsilon^4) + G / epsilon^3)",
        ),
        "choco_sgd": (
            "O(G^(2/3) / T^(2/3))",
            "O(G / epsilon^3 + sigma^2 / (b n epsilon^4))",
            "O(sigma^2 / (n epsilon^4) + G / epsilon^3)",
        ),
        "beer": ("O(1 / T)", "O(1 / epsilon^2)", "O(sigma^2 / epsilon^4 + 1 / epsilon^2)"),
    }
    assert str(orders("beer").network_rounds) == "O(1 / (rho^3 alpha epsilon^2))"
    assert str(orders("CHOCO-SGD").network_rounds) == "O(G / (rho^2 alpha epsilon^3))"


def test_orders_as_numbers() -> None:
    values = {"epsilon": 0.1, "G": 2.0, "sigma": 3.0, "b": 5.0, "n": 10.0, "T": 1000.0, "alpha": 0.5, "rho": 0.1}
    assert orders("squarm_sgd").rounds.at(**values) == pytest.approx(10 * 4 / 0.01 + 9 / (50 * 1e-4))
    assert orders("squarm_sgd").rate.at(**values) == pytest.approx(0.01 + 10 * 4 / 1000)
    assert orders("choco_sgd").rate.at(T=1000, G=1) == pytest.approx(0.01)
    assert orders("choco_sgd").rate.symbols == ("G", "T")
    for row in _ROWS:  # a rate of T^-p is rounds of epsilon^(-2/p)
        if row.method != "squarm_sgd":
            rounds = row.rounds.at(epsilon=0.1, G=2.0, sigma=0.0, b=1, n=1)
            assert row.rate.at(T=rounds, G=2.0) == pytest.approx(0.01)


def test_orders_refuse() -> None:
    with pytest.raises(InputError, match="needs a value for 'G'"):
        orders("choco_sgd").rate.at(T=10)
    with pytest.raises(InputError, match="Unknown symbol 'gamma'"):
        orders("choco_sgd").rate.at(T=10, G=1, gamma=2)
    with pytest.raises(InputError, match="`T` must be a number above 0, got 0"):
        orders("beer").rate.at(T=0)
    with pytest.raises(InputError, match="too large for a float"):
        orders("beer").rounds.at(epsilon=1e-200)
    with pytest.raises(InputError, match="'choco_sgd'"):
        orders("choco")
    with pytest.raises(InputError, match="3"):
        orders(3)  # type: ignore[arg-type]
