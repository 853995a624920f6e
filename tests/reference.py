# ruff: noqa: E741
"""Literal transcriptions in NumPy, one line a line of the papers; columns are clients, as there.

They share nothing with the library: it is held against them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Gradient = Callable[[Array, int], Array]  # (X, t): the gradients of round t's minibatch
LocalGradient = Callable[[Array, int, int], Array]  # (X, t, k): those of the minibatch of round t's local step k
Compression = Callable[[Array, str, int], Array]  # (X, purpose, t)


def beer(
    X: Array, V: Array, W: Array, grad: Gradient, C: Compression, eta: float, gamma: float
) -> Iterator[list[Array]]:
    """Algorithm 1 of arXiv 2201.13320; V is V^0, and the stored gradient of X^0."""
    I, t, old = np.eye(len(W)), 0, V
    G, H = np.zeros_like(X), np.zeros_like(X)  # line 1
    while True:  # line 2
        X = X + gamma * H @ (W - I) - eta * V  # line 3
        Qh = C(X - H, "h", t)  # line 4
        H = H + Qh  # line 5
        yield [X, H, V, G]  # X^(t+1), H^(t+1), V^t, G^t
        new = grad(X, t + 1)
        V = V + gamma * G @ (W - I) + new - old  # line 6
        Qg = C(V - G, "g", t + 1)  # line 7
        G = G + Qg  # line 8
        t, old = t + 1, new


def beer_reevaluated(
    X: Array, V: Array, W: Array, grad: Gradient, C: Compression, eta: float, gamma: float
) -> Iterator[list[Array]]:
    """Algorithm 1 with line 6 evaluating the old model on the new minibatch."""
    I, t = np.eye(len(W)), 0
    G, H = np.zeros_like(X), np.zeros_like(X)
    while True:
        old, X = X, X + gamma * H @ (W - I) - eta * V
        H = H + C(X - H, "h", t)
        yield [X, H, V, G]
        V = V + gamma * G @ (W - I) + grad(X, t + 1) - grad(old, t + 1)
        G = G + C(V - G, "g", t + 1)
        t = t + 1


def choco_fresh(X: Array, W: Array, grad: Gradient, C: Compression, eta: float, gamma: float) -> Iterator[list[Array]]:
    """CHOCO-SGD, Algorithm 2 of arXiv 1902.00340."""
    I, t, Xh = np.eye(len(W)), 0, np.zeros_like(X)
    while True:
        X_half = X - eta * grad(X, t)
        Xh = Xh + C(X_half - Xh, "h", t)
        X = X_half + gamma * Xh @ (W - I)
        yield [X, Xh]
        t = t + 1


def choco_stale(X: Array, W: Array, grad: Gradient, C: Compression, eta: float, gamma: float) -> Iterator[list[Array]]:
    """CHOCO-SGD with the surrogates of the round before."""
    I, t, Xh = np.eye(len(W)), 0, np.zeros_like(X)
    while True:
        X = X - eta * grad(X, t) + gamma * Xh @ (W - I)
        Xh = Xh + C(X - Xh, "h", t)
        yield [X, Xh]
        t = t + 1


def dsgd(X: Array, W: Array, grad: Gradient, eta: float) -> Iterator[list[Array]]:
    """X+ = X W - eta F(X)."""
    t = 0
    while True:
        X = X @ W - eta * grad(X, t)
        yield [X]
        t = t + 1


def dsgd_adapt_first(X: Array, W: Array, grad: Gradient, eta: float) -> Iterator[list[Array]]:
    """X+ = (X - eta F(X)) W."""
    t = 0
    while True:
        X = (X - eta * grad(X, t)) @ W
        yield [X]
        t = t + 1


def d2(X: Array, W: Array, grad: Gradient, eta: float) -> Iterator[list[Array]]:
    """X^1 = (X^0 - eta F^0) W;  X+ = (2 X - X_prev - eta F(X) + eta F_prev) W."""
    g = grad(X, 0)
    X_prev, g_prev, X = X, g, (X - eta * g) @ W
    t = 1
    while True:
        yield [X]
        g = grad(X, t)
        X_prev, g_prev, X = X, g, (2 * X - X_prev - eta * g + eta * g_prev) @ W
        t = t + 1


def gradient_tracking(X: Array, V: Array, W: Array, grad: Gradient, eta: float) -> Iterator[list[Array]]:
    """X+ = X W - eta V;  V+ = V W + F(X+) - F(X)."""
    t, old = 0, V
    while True:
        X = X @ W - eta * V
        yield [X]
        new = grad(X, t + 1)
        V = V @ W + new - old
        t, old = t + 1, new


def gsgd(x: Array, u: Array, b: int) -> Array:
    """Appendix A, for each column."""
    d = len(x)
    tau = 1 + min(d / 2 ** (2 * (b - 1)), sqrt(d) / 2 ** (b - 1))
    norm = np.linalg.norm(x, axis=0)
    norm_or_1 = np.where(norm > 0, norm, 1)
    quantized: Array = norm / tau * np.sign(x) * 2.0 ** -(b - 1) * np.floor(2 ** (b - 1) * np.abs(x) / norm_or_1 + u)
    return quantized


def top_k(x: Array, k: int) -> Array:
    """Appendix A, for each column."""
    out = np.zeros_like(x)
    for i in range(x.shape[1]):
        keep = np.argsort(-np.abs(x[:, i]), kind="stable")[:k]
        out[keep, i] = x[keep, i]
    return out


@dataclass
class LogisticClients:
    """f_i(x) = mean log(1 + exp(-b a'x)) + nonconvex sum x_j^2 / (1 + x_j^2), from the definition."""

    features: Array  # (clients, rows, d)
    labels: Array  # (clients, rows), -1 or +1
    nonconvex: float

    def gradient(self, X: Array, batch: npt.NDArray[np.int64] | None = None) -> Array:
        """Column i: client i's gradient at column i of X, over its rows `batch[i]` or all."""
        columns = []
        for i in range(X.shape[1]):
            rows = slice(None) if batch is None else batch[i]
            a, b, x = self.features[i][rows], self.labels[i][rows], X[:, i]
            weight = -b / (1 + np.exp(b * (a @ x)))
            columns.append(a.T @ weight / len(b) + self.nonconvex * 2 * x / (1 + x**2) ** 2)
        return np.stack(columns, axis=1)

    def loss(self, x: Array) -> float:
        """f at one point."""
        margins = self.labels * (self.features @ x)
        return float(np.logaddexp(0, -margins).mean() + self.nonconvex * (x**2 / (1 + x**2)).sum())
