# ruff: noqa: E741
"""Literal transcriptions in NumPy of the uncompressed methods, read from the update equations alone.

As in `reference`, columns are clients and the letters are those of the equations. Every generator yields X^1, X^2, ...
in its first array. Whatever is written X^(t+1), with the gradients evaluated there, belongs to minibatch t + 1: a round
begins with the gradients at its own X^t.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
from reference import Array, Gradient, LocalGradient

Full = Callable[[Array], Array]  # X: the gradients over all rows
Step = Callable[[int], float]  # t: eta_t
Samples = Callable[[Array], Array]  # X: (clients, rows, d), the gradient of every row at its client's column


def centralized_sgd(X: Array, grad: Gradient, eta: float) -> Iterator[list[Array]]:
    """Mini-batch SGD with a server: X+ = (X - eta F(X)) J, J = 11^T/n."""
    t, n = 0, X.shape[1]
    J = np.ones((n, n)) / n
    while True:
        X = (X - eta * grad(X, t)) @ J
        yield [X]
        t = t + 1


def diloco(X: Array, grad: Gradient, eta: float, mu: float) -> Iterator[list[Array]]:
    """DiLoCo (arXiv 2311.08105) from one point, client by client: Nesterov's outer step on the mean of all sums."""
    t, n = 0, X.shape[1]
    theta, m = X[:, 0], np.zeros(len(X))
    while True:
        Delta = sum(grad(np.stack([theta] * n, axis=1), t)[:, i] for i in range(n)) / n
        m = mu * m + Delta
        theta = theta - eta * (Delta + mu * m)
        yield [np.stack([theta] * n, axis=1)]
        t = t + 1


def all_reduce_adamw(
    X: Array, grad: Gradient, eta: Step, b1: float, b2: float, eps: float, lam: float, clip: float
) -> Iterator[list[Array]]:
    """AdamW (arXiv 1711.05101, Algorithm 2, weight decay times eta as in torch) on the mean gradient, clipped."""
    t, n = 0, X.shape[1]
    g = grad(X, 0).mean(axis=1)
    theta, m, v = X.mean(axis=1), np.zeros(len(X)), np.zeros(len(X))
    while True:
        g = g * min(1.0, clip / np.linalg.norm(g))
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        m_hat, v_hat = m / (1 - b1 ** (t + 1)), v / (1 - b2 ** (t + 1))
        theta = theta - eta(t) * (m_hat / (np.sqrt(v_hat) + eps) + lam * theta)
        yield [np.stack([theta] * n, axis=1)]
        t = t + 1
        g = grad(np.stack([theta] * n, axis=1), t).mean(axis=1)


def d2(X: Array, W: Array, grad: Gradient, eta: Step, mix_first: bool) -> Iterator[list[Array]]:
    """D^2 (arXiv 1803.07068), each gradient with its own round's step; X^1 = X^0 - eta F^0 unless `mix_first`."""
    g = eta(0) * grad(X, 0)
    X_prev, g_prev, X = X, g, (X - g) @ W if mix_first else X - g
    t = 1
    while True:
        yield [X]
        g = eta(t) * grad(X, t)
        X_prev, g_prev, X = X, g, (2 * X - X_prev - g + g_prev) @ W
        t = t + 1


def extra(X: Array, W: Array, grad: Gradient, eta: Step) -> Iterator[list[Array]]:
    """EXTRA (arXiv 1404.6264): X1 = X0 W - eta F(X0); X++ = X+(I+W) - X W~ - eta (F(X+) - F(X))."""
    I = np.eye(len(W))
    W_tilde = (I + W) / 2
    F = grad(X, 0)
    X_plus = X @ W - eta(0) * F
    t = 1
    while True:
        yield [X_plus]
        F_plus = grad(X_plus, t)
        X, X_plus = X_plus, X_plus @ (I + W) - X @ W_tilde - (eta(t) * F_plus - eta(t - 1) * F)
        t, F = t + 1, F_plus


def nids(X: Array, W: Array, grad: Gradient, eta: Step, c: float) -> Iterator[list[Array]]:
    """NIDS without a nonsmooth term (arXiv 1704.07807): X1 = X0 - eta F(X0); X++ = (2X+ - X - eta F(X+) + eta F(X)) W~.

    W~ = I - c(I - W).
    """
    I = np.eye(len(W))
    W_tilde = I - c * (I - W)
    F = grad(X, 0)
    X_plus = X - eta(0) * F
    t = 1
    while True:
        yield [X_plus]
        F_plus = grad(X_plus, t)
        X, X_plus = X_plus, (2 * X_plus - X - eta(t) * F_plus + eta(t - 1) * F) @ W_tilde
        t, F = t + 1, F_plus


def gradient_tracking(
    X: Array,
    Y: Array,
    W: Array,
    grad: Gradient,
    eta: float,
    order: Literal["combine-then-adapt", "adapt-then-combine", "semi"],
) -> Iterator[list[Array]]:
    """Gradient tracking: CTA (DIGing, arXiv 1607.03218), ATC (Aug-DGM), semi-ATC (NEXT, DSGT); Y is Y^0."""
    t, F = 0, Y
    while True:
        X = X @ W - eta * Y if order == "combine-then-adapt" else (X - eta * Y) @ W
        yield [X, Y, F]
        F_plus = grad(X, t + 1)
        Y = (Y + F_plus - F) @ W if order == "adapt-then-combine" else Y @ W + F_plus - F
        t, F = t + 1, F_plus


def dsgt(X: Array, W: Array, grad: Gradient, alpha: float) -> Iterator[list[Array]]:
    """DSGT of arXiv 1805.11454, agent by agent: y_{i,0} = g_i(x_{i,0}, xi_{i,0});

    x_{i,k+1} = sum_j w_ij (x_{j,k} - alpha y_{j,k}); y_{i,k+1} = sum_j w_ij y_{j,k} + g_i(x_{i,k+1}) - g_i(x_{i,k}).
    """
    k, n = 0, X.shape[1]
    g = grad(X, 0)
    y = g
    while True:
        X = np.stack([sum(W[i, j] * (X[:, j] - alpha * y[:, j]) for j in range(n)) for i in range(n)], axis=1)
        yield [X, y, g]
        k = k + 1
        new = grad(X, k)
        y = np.stack([sum(W[i, j] * y[:, j] for j in range(n)) + new[:, i] - g[:, i] for i in range(n)], axis=1)
        g = new


Indices = Callable[[int], npt.NDArray[np.int64]]  # t: (clients, b), the rows that each client draws


def gt_saga(X: Array, W: Array, each: Samples, tau: Indices, s: Indices, eta: float) -> Iterator[list[Array]]:
    """GT-SAGA, Algorithm 1 of arXiv 2011.03853, tau_i and s_i being independent minibatches of rows.

    y^0 = g^{-1} = 0, z_{i,j}^0 = x_i^0.
    g_i = grad f_{i,tau}(x_i) - grad f_{i,tau}(z_{i,tau}) + (1/m) sum_j grad f_{i,j}(z_{i,j});
    Y+ = (Y + g - g_prev) W; X+ = (X - eta Y+) W; z_{i,j}+ = x_i for j = s_i, else z_{i,j}.
    """
    k, n = 0, X.shape[1]
    at_z = each(X)
    Y, g_prev = np.zeros_like(X), np.zeros_like(X)
    while True:
        at_x, g = each(X), np.zeros_like(X)
        for i in range(n):
            of_tau = tau(k)[i]
            g[:, i] = (at_x[i, of_tau] - at_z[i, of_tau]).mean(axis=0) + at_z[i].mean(axis=0)
        Y = (Y + g - g_prev) @ W
        X = (X - eta * Y) @ W
        for i in range(n):
            for j in s(k)[i]:
                at_z[i, j] = at_x[i, j]
        yield [X, Y, g]
        k, g_prev = k + 1, g


def gt_saga_combine_first(X: Array, W: Array, each: Samples, s: Indices, eta: float) -> Iterator[list[Array]]:
    """GT-SAGA of arXiv 1912.04230: y^0 = g^0 = grad f_i(x_i^0), z_{i,j}^1 = x_i^0, and one index s_i^k for k >= 1.

    X+ = X W - eta Y; g_i+ = grad f_{i,s}(x_i+) - grad f_{i,s}(z_{i,s}) + (1/m) sum_j grad f_{i,j}(z_{i,j});
    Y+ = Y W + g+ - g; z_{i,s} = x_i+.
    """
    k, n = 0, X.shape[1]
    at_z = each(X)
    g: Array = at_z.mean(axis=1).T
    Y = g
    while True:
        X = X @ W - eta * Y
        yield [X, Y, g]
        k = k + 1
        at_x, g_plus = each(X), np.zeros_like(X)
        for i in range(n):
            of_s = s(k)[i]
            g_plus[:, i] = (at_x[i, of_s] - at_z[i, of_s]).mean(axis=0) + at_z[i].mean(axis=0)
        Y = Y @ W + g_plus - g
        for i in range(n):
            for j in s(k)[i]:
                at_z[i, j] = at_x[i, j]
        g = g_plus


def gt_sarah(X: Array, W: Array, grad: Gradient, full: Full, eta: float, q: int) -> Iterator[list[Array]]:
    """GT-SARAH, Algorithm 1 of arXiv 2008.07428: per outer loop a full gradient, and an inner loop of q steps.

    v = F(X), then q times F(X;xi) - F(X_prev;xi) + v_prev; each time Y+ = Y W + v - v_prev; X+ = X W - eta Y+.
    """
    count = 0
    Y, v_prev = np.zeros_like(X), np.zeros_like(X)
    while True:
        v = full(X)
        Y = Y @ W + v - v_prev
        X_prev, X = X, X @ W - eta * Y
        yield [X, Y, v]
        count, v_prev = count + 1, v
        for _ in range(q):
            v = grad(X, count) - grad(X_prev, count) + v_prev
            Y = Y @ W + v - v_prev
            X_prev, X = X, X @ W - eta * Y
            yield [X, Y, v]
            count, v_prev = count + 1, v


def d_get(X: Array, W: Array, grad: Gradient, full: Full, eta: float, q: int) -> Iterator[list[Array]]:
    """D-GET (arXiv 1910.05857), finite sum: v^0 = Y^0 = F(X^0).

    X+ = X W - eta Y; v+ = F(X+) every q steps, else F(X+;xi) - F(X;xi) + v; Y+ = Y W + v+ - v.
    """
    t = 0
    v = Y = full(X)
    while True:
        X_plus = X @ W - eta * Y
        yield [X_plus, Y, v]
        v_plus = full(X_plus) if (t + 1) % q == 0 else grad(X_plus, t + 1) - grad(X, t + 1) + v
        Y = Y @ W + v_plus - v
        t, X, v = t + 1, X_plus, v_plus


def chebyshev(W: Array, K: int, a: float) -> Array:
    """W_K = T_K(W/a) / T_K(1/a)."""
    T = np.polynomial.Chebyshev.basis(K)
    eigenvalues, U = np.linalg.eigh(W)
    mixed: Array = U @ np.diag(T(eigenvalues / a) / T(1 / a)) @ U.T
    return mixed


def destress(
    X: Array,
    W: Array,
    grad: Gradient,
    full: Full,
    active: Callable[[int], Array],
    eta: float,
    q: int,
    K_in: int,
    K_out: int,
    p: float,
) -> Iterator[list[Array]]:
    """DESTRESS (arXiv 2110.01165): q inner steps a refresh; the next x is the last u.

    s = (s + F(x) - F(x_prev)) W_out; u+ = (u - eta v) W_in; v+ = (v + (lambda_i/p)(F(u+;xi) - F(u;xi))) W_in, where
    lambda_i = 1 for those that are active with probability p.
    """
    a = float(np.linalg.norm(W - np.ones_like(W) / len(W), 2))
    W_in, W_out = chebyshev(W, K_in, a), chebyshev(W, K_out, a)
    x, t = X, 0
    s, F_prev = np.zeros_like(X), np.zeros_like(X)
    while True:
        F = full(x)
        s = (s + F - F_prev) @ W_out
        F_prev = F
        u, v = x, s
        for inner in range(q):
            u_plus = (u - eta * v) @ W_in
            yield [u_plus, s, F]
            t = t + 1
            if inner < q - 1:  # the last v is not used: the refresh replaces it
                lam = active(t)
                v = (v + lam / p * (grad(u_plus, t) - grad(u, t))) @ W_in
            u = u_plus
        x = u


def kgt(X: Array, W: Array, grad: LocalGradient, K: int, eta_c: float, eta_s: float) -> Iterator[list[Array]]:
    """K-GT (arXiv 2301.01313, Algorithm 1), from c = 0."""
    n = X.shape[1]
    c, t = np.zeros_like(X), 0
    while True:
        Y = X
        for k in range(K):
            Y = Y - eta_c * (grad(Y, t, k) + c)
        z = (X - Y) / (K * eta_c)
        c = c - z @ (np.eye(n) - W)
        X = (X - K * eta_c * eta_s * z) @ W
        t += 1
        yield [X]
