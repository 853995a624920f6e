"""The orders in tables 1 and 3 of the BEER paper, as text and as numbers. Without constants they predict nothing."""

import math
import tomllib
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files

from gossamer.errors import InputError, check_nonnegative, check_positive, unknown

_SYMBOLS = {
    "sigma": "sigma^2 bounds the variance of a gradient",
    "b": "rows per minibatch",
    "n": "clients",
    "G": "G^2 bounds the clients' squared gradients, or their differences",
    "rho": "the spectral gap of the mixing matrix",
    "alpha": "the contraction constant of the compressor",
    "epsilon": "the target for ||grad f||",
    "T": "rounds",
}


@dataclass(frozen=True)
class Order:
    """An order of magnitude, O(...): a sum of products of powers. The papers give no constants for it.

    Ratios of two values are meaningful (how much more for half the epsilon?); a single value is not.
    """

    terms: tuple[tuple[tuple[str, Fraction], ...], ...]
    """The symbols of each term, with their powers."""

    def __str__(self) -> str:
        return f"O({' + '.join(map(_product, self.terms))})"

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that it depends on."""
        return tuple(name for name in _SYMBOLS if any(name in dict(term) for term in self.terms))

    def at(self, **values: float) -> float:
        """The sum with all constants set to 1, from a value for each of `symbols`: an order, not a prediction."""
        for name in values:
            if name not in _SYMBOLS:
                raise unknown("symbol", name, _SYMBOLS)
        for name in self.symbols:
            if name not in values:
                raise InputError(
                    f"{self} needs a value for {name!r} ({_SYMBOLS[name]}), got {', '.join(values) or 'none'}."
                )
        checks = dict.fromkeys(_SYMBOLS, check_positive) | {"sigma": check_nonnegative, "G": check_nonnegative}
        checked = {name: checks[name](name, values[name]) for name in self.symbols}
        try:
            total = sum(math.prod(checked[name] ** float(power) for name, power in term) for term in self.terms)
        except (OverflowError, ZeroDivisionError):
            total = math.inf
        if total == math.inf:
            raise InputError(f"{self} is too large for a float at {checked}; use less extreme values.")
        return float(total)


@dataclass(frozen=True)
class Orders:
    """A row of tables 1 and 3 of the BEER paper (nonconvex case), with additions from the text."""

    method: str
    rate: Order
    """The mean of ||grad f||^2 after T rounds (Table 1)."""
    rounds: Order
    """Rounds to ||grad f|| <= epsilon (Table 3, which omits alpha and rho)."""
    gradients: Order
    """Gradients of single rows per client (Table 3)."""
    network_rounds: Order | None
    """Rounds to epsilon with full gradients, with alpha and rho, if the paper states them (section 4.1)."""
    assumes: str
    """Assumptions beyond smoothness and bounded variance, in the words of `gossamer methods`."""


def orders(method: str) -> Orders:
    """The orders that the BEER paper gives for a method: `beer`, `choco_sgd`, `deepsqueeze` or `squarm_sgd`.

    >>> from gossamer.theory import orders
    >>> print(orders("choco_sgd").rounds)
    O(G / epsilon^3 + sigma^2 / (b n epsilon^4))
    >>> orders("choco_sgd").rounds.at(epsilon=0.5, G=1.0, sigma=0.0, n=10, b=1)
    8.0
    """
    name = method.strip().lower().replace("-", "_") if isinstance(method, str) else method
    for row in _ROWS:
        if row.method == name:
            return row
    raise unknown("method", method, [row.method for row in _ROWS])


def _order(text: str) -> Order:
    """The order written as in tables.toml: a sum of products of powers, such as `n^-1/2 T^-1/2 + n G^2 T^-1`."""
    terms = ([factor.partition("^") for factor in term.split()] for term in text.split(" + "))
    return Order(tuple(tuple((name, Fraction(power or 1)) for name, _, power in term) for term in terms))


def _product(term: tuple[tuple[str, Fraction], ...]) -> str:
    """A term as text, with all negative powers after one slash."""
    above: list[str] = []
    below: list[str] = []
    for name, power in sorted(term, key=lambda factor: list(_SYMBOLS).index(factor[0])):
        size = f"^{abs(power)}" if power.denominator == 1 else f"^({abs(power)})"
        (above if power > 0 else below).append(name + ("" if abs(power) == 1 else size))
    divisor = "" if not below else f" / {below[0]}" if len(below) == 1 else f" / ({' '.join(below)})"
    return (" ".join(above) or "1") + divisor


_TABLES = tomllib.loads(files("gossamer.theory").joinpath("data", "tables.toml").read_text(encoding="utf-8"))
_ROWS = tuple(
    Orders(
        method,
        _order(row["rate"]),
        _order(row["rounds"]),
        _order(row["gradients"]),
        _order(row["network_rounds"]) if "network_rounds" in row else None,
        row["assumes"],
    )
    for method, row in _TABLES.items()
)
