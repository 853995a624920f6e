# ruff: noqa: E741
"""Literal transcriptions in NumPy of the compressed methods, read from the update equations alone.

The conventions are those of `reference_methods`; S = W - I. What compresses X^(t+1) leaves in round t ("h"), what
compresses a tracker that had to wait for the gradients at X^(t+1) in round t + 1 ("g"); C-GT sends X^t and Y^t in t.
"""

from collections.abc import Callable, Iterator
from math import sqrt

import numpy as np
from reference import Array, Compression, Gradient, LocalGradient
from reference_methods import Step


def deep_squeeze(X: Array, W: Array, grad: Gradient, C: Compression, eta: float, gamma: float) -> Iterator[list[Array]]:
    """DeepSqueeze (arXiv 1907.07346): X' = X - eta F; V = X' + D; D+ = V - C(V); X+ = X' + gamma C(V) S."""
    S, t, D = W - np.eye(len(W)), 0, np.zeros_like(X)
    while True:
        X_half = X - eta * grad(X, t)
        V = X_half + D
        c = C(V, "x", t)
        D = V - c
        X = X_half + gamma * c @ S
        yield [X, D]
        t = t + 1


def squarm_sgd(
    X: Array,
    W: Array,
    grad: Gradient,
    C: Compression,
    eta: float,
    gamma: float,
    beta: float,
    H: int,
    threshold: Step,
) -> Iterator[list[Array]]:
    """SQuARM-SGD (arXiv 2005.07041), c_t = `threshold`(t); the second array says who sent.

    v = beta v + g; x' = x - eta (beta v + g); every H steps q_i = C(x'_i - xh_i) where |x'_i - xh_i|^2 > c_t eta^2,
    else 0; xh += q; x+ = x' + gamma sum_j w_ij (xh_j - xh_i).
    """
    I, t, n = np.eye(len(W)), 0, X.shape[1]
    v, Xh = np.zeros_like(X), np.zeros_like(X)
    while True:
        g = grad(X, t)
        v = beta * v + g
        X = X - eta * (beta * v + g)
        sent = np.zeros(n)
        if (t + 1) % H == 0:
            Q = C(X - Xh, "h", t)
            for i in range(n):
                if np.sum((X[:, i] - Xh[:, i]) ** 2) > threshold(t) * eta**2:
                    sent[i] = 1
                else:
                    Q[:, i] = 0
            Xh = Xh + Q
            X = X + gamma * Xh @ (W - I)
        yield [X, sent]
        t = t + 1


class Comm:
    """COMM(Y, H, Hw) of LEAD: q = Q(Y-H); Yh = H+q; Yw = Hw+qW; H <- (1-a)H + a Yh; Hw <- (1-a)Hw + a Yw."""

    def __init__(self, like: Array, W: Array, Q: Compression, a: float, purpose: str) -> None:
        self.H, self.Hw = np.zeros_like(like), np.zeros_like(like)
        self.W, self.Q, self.a, self.purpose = W, Q, a, purpose

    def __call__(self, Y: Array, t: int) -> tuple[Array, Array]:
        q = self.Q(Y - self.H, self.purpose, t)
        Yh = self.H + q
        Yw = self.Hw + q @ self.W
        self.H = (1 - self.a) * self.H + self.a * Yh
        self.Hw = (1 - self.a) * self.Hw + self.a * Yw
        return Yh, Yw


def lead(
    X: Array, W: Array, grad: Gradient, Q: Compression, eta: Step, gamma: float, a: float, line_2: bool = True
) -> Iterator[list[Array]]:
    """LEAD, Algorithm 1 of arXiv 2007.00232, D^1 = H^1 = 0; without `line_2` the loop begins at X^0."""
    comm, D, t = Comm(X, W, Q, a, "h"), np.zeros_like(X), 0
    if line_2:
        X = X - eta(0) * grad(X, 0)
        yield [X, D]
        t = 1
    while True:
        F = grad(X, t)
        Y = X - eta(t) * F - eta(t) * D
        Yh, Yw = comm(Y, t)
        D = D + gamma / (2 * eta(t)) * (Yh - Yw)
        X = X - eta(t) * F - eta(t) * D
        yield [X, D]
        t = t + 1


def cedas(
    X: Array, W: Array, grad: Gradient, Q: Compression, eta: Step, gamma: float, a: float
) -> Iterator[list[Array]]:
    """CEDAS (arXiv 2301.05872), D^0 = H^0 = 0."""
    comm, D, t = Comm(X, W, Q, a, "h"), np.zeros_like(X), 0
    while True:
        Z = X - eta(t) * grad(X, t)
        Y = Z - D
        Yh, Yw = comm(Y, t)
        D = D + gamma / 2 * (Yh - Yw)
        X = Z - D
        yield [X, D]
        t = t + 1


def c_gt(
    X: Array, Y: Array, W: Array, grad: Gradient, C: Compression, eta: float, gamma: float, a: float
) -> Iterator[list[Array]]:
    """C-GT (arXiv 2205.12623); Y is Y^0 and F(X^0).

    X+ = X - gamma (Xh - Xw) - eta Y; Y+ = Y - gamma (Yh - Yw) + F(X+) - F(X).
    """
    comm_x, comm_y = Comm(X, W, C, a, "h"), Comm(X, W, C, a, "g")
    t, F = 0, Y
    while True:
        Xh, Xw = comm_x(X, t)
        Yh, Yw = comm_y(Y, t)
        X = X - gamma * (Xh - Xw) - eta * Y
        yield [X, Y, F]
        F_plus = grad(X, t + 1)
        Y = Y - gamma * (Yh - Yw) + F_plus - F
        t, F = t + 1, F_plus


def beer(
    X: Array, V: Array, W: Array, grad: Gradient, C: Compression, eta: Step, gamma: float
) -> Iterator[list[Array]]:
    """BEER (arXiv 2201.13320) with a step of its own in every round; V is V^0 and F(X^0)."""
    S, t, F = W - np.eye(len(W)), 0, V
    H, G = np.zeros_like(X), np.zeros_like(X)
    while True:
        X = X + gamma * H @ S - eta(t) * V
        H = H + C(X - H, "h", t)
        yield [X, V, F]
        F_plus = grad(X, t + 1)
        V = V + gamma * G @ S + F_plus - F
        G = G + C(V - G, "g", t + 1)
        t, F = t + 1, F_plus


def motef(
    X: Array, M: Array, W: Array, grad: Gradient, C: Compression, eta: float, gamma: float, lam: float, vr: bool
) -> Iterator[list[Array]]:
    """MoTEF and, with `vr`, MoTEF-VR (arXiv 2405.20114); M is M^0 = V^0.

    M+ = (1-lam) M + lam F(X+), or F(X+;xi) + (1-lam)(M - F(X;xi)) with the same xi.
    """
    S, t, V = W - np.eye(len(W)), 0, M
    H, G = np.zeros_like(X), np.zeros_like(X)
    while True:
        X_plus = X + gamma * H @ S - eta * V
        H = H + C(X_plus - H, "h", t)
        yield [X_plus, V, M]
        if vr:
            M_plus = grad(X_plus, t + 1) + (1 - lam) * (M - grad(X, t + 1))
        else:
            M_plus = (1 - lam) * M + lam * grad(X_plus, t + 1)
        V = V + gamma * G @ S + M_plus - M
        G = G + C(V - G, "g", t + 1)
        t, X, M = t + 1, X_plus, M_plus


def docom(
    X: Array, v: Array, W: Array, grad: Gradient, C: Compression, eta: float, gamma: float, beta: float, fresh: bool
) -> Iterator[list[Array]]:
    """DoCoM (arXiv 2202.00255); v is v^0 = g^0. Unless `fresh`, the estimates of the round before mix.

    v+ = beta F(X+;xi) + (1-beta)(v + F(X+;xi) - F(X;xi)).
    """
    S, t, g = W - np.eye(len(W)), 0, v
    Xh, gh = np.zeros_like(X), np.zeros_like(X)
    while True:
        if fresh:
            X_half = X - eta * g
            Xh = Xh + C(X_half - Xh, "h", t)
            X_plus = X_half + gamma * Xh @ S
        else:
            X_plus = X - eta * g + gamma * Xh @ S
            Xh = Xh + C(X_plus - Xh, "h", t)
        yield [X_plus, g, v]
        new, old = grad(X_plus, t + 1), grad(X, t + 1)
        v_plus = beta * new + (1 - beta) * (v + new - old)
        if fresh:
            g_half = g + v_plus - v
            gh = gh + C(g_half - gh, "g", t + 1)
            g = g_half + gamma * gh @ S
        else:
            g = g + v_plus - v + gamma * gh @ S
            gh = gh + C(g - gh, "g", t + 1)
        t, X, v = t + 1, X_plus, v_plus


def clip(z: Array, tau: float) -> Array:
    """clip_tau(z) = tau z / (tau + |z|), for one vector."""
    clipped: Array = tau * z / (tau + sqrt(np.sum(z**2)))
    return clipped


Rows = Callable[[Array, int], Array]  # (X, t): (clients, b, d), the gradient of every row of round t's minibatch


def porter_gradient(each: Rows, tau: float, dp: bool, noise: Callable[[int], Array]) -> Gradient:
    """What PORTER takes for a gradient; `noise`(t) is N(0, sigma_p^2 I).

    DP: g_i = (1/b) sum_s clip_tau(grad l(x_i;s)) + noise. GC: g_i = clip_tau((1/b) sum_s grad l(x_i;s)).
    """

    def g(X: Array, t: int) -> Array:
        columns = []
        for rows in each(X, t):
            clipped = [clip(row, tau) for row in rows]
            columns.append(sum(clipped) / len(rows) if dp else clip(sum(rows) / len(rows), tau))
        return np.stack(columns, axis=1) + (noise(t) if dp else 0)

    return g


def porter(
    X: Array, V: Array, W: Array, g: Gradient, C: Compression, eta: float, gamma: float
) -> Iterator[list[Array]]:
    """PORTER (arXiv 2305.09896): BEER with F replaced by g, which is `porter_gradient`; V is V^0 = g(X^0)."""
    return beer(X, V, W, g, C, lambda t: eta, gamma)


def compressed_kgt(
    X: Array, W: Array, grad: LocalGradient, C: Compression, K: int, eta_c: float, gamma: float, fresh: bool
) -> Iterator[list[Array]]:
    """y <- y - eta_c (grad f_i(y) + v_i - own_i), v += gamma G(W - I) + m_i - own_i, x+ = y + gamma H(W - I)."""
    L = W - np.eye(X.shape[1])
    V, M, H, G = (np.zeros_like(X) for _ in range(4))
    t = 0
    while True:
        V = V + gamma * G @ L
        Y, total = X, np.zeros_like(X)
        for k in range(K):
            F = grad(Y, t, k)
            Y, total = Y - eta_c * (F + V - M), total + F
        V, M = V + total / K - M, total / K
        if fresh:
            H = H + C(Y - H, "h", t)
            X = Y + gamma * H @ L
        else:
            X = Y + gamma * H @ L
            H = H + C(X - H, "h", t)
        if t > 0 or fresh:
            G = G + C(V - G, "g", t)
        t += 1
        yield [X]
