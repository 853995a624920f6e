"""The baselines: Algorithm 1 of the BEER paper in vectorised NumPy float64.

Minibatches, gradients and gsgd_b are those of the paper's section 5 and appendix A. Data rows are dense, and a round
draws its minibatch. `Beer` is lean: rows are clients, the gradients of all clients are batched products, and few
arrays are made on the way. `ColumnBeer` has the layout of the code that was published with the paper: columns are
clients, each client's gradient is computed on its own, and gsgd_b is written as its formula.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NONCONVEX = 0.05


class Beer:
    """X, H, V, G of Algorithm 1; `pull` is W - I, dense or sparse."""

    def __init__(
        self, gradient: Callable[[Array], Array], x: Array, pull: Any, lr: float, gamma: float, bits: int, seed: int = 0
    ) -> None:
        self.gradient, self.pull, self.lr, self.gamma = gradient, pull, lr, gamma
        self.random, self.s = np.random.default_rng(seed), 2.0 ** (bits - 1)
        d = x.shape[1]
        self.tau = 1 + min(d / self.s**2, math.sqrt(d) / self.s)
        self.x, self.h, self.g = x.copy(), np.zeros_like(x), np.zeros_like(x)
        self.v = self.old = gradient(self.x)

    def step(self) -> None:
        """Lines 3 to 8."""
        self.x = self.x + self.gamma * (self.pull @ self.h) - self.lr * self.v
        self.h += self.compressed(self.x - self.h)
        new = self.gradient(self.x)
        self.v = self.v + self.gamma * (self.pull @ self.g) + new - self.old
        self.g += self.compressed(self.v - self.g)
        self.old = new

    def compressed(self, x: Array) -> Array:
        """gsgd_b of each row."""
        norm = np.sqrt(np.einsum("ij,ij->i", x, x))[:, None]
        norm[norm == 0] = 1
        levels = np.floor(np.abs(x) * (self.s / norm) + self.random.random(x.shape))
        message: Array = np.copysign(levels * (norm / (self.s * self.tau)), x)
        return message


class ColumnBeer(Beer):
    """The same with columns as clients."""

    def __init__(
        self, gradient: Callable[[Array], Array], x: Array, pull: Any, lr: float, gamma: float, bits: int, seed: int = 0
    ) -> None:
        super().__init__(lambda rows: rows, x, pull, lr, gamma, bits, seed)
        self.gradient, self.x = gradient, np.ascontiguousarray(x.T)
        self.h, self.g = np.zeros_like(self.x), np.zeros_like(self.x)
        self.v = gradient(self.x)
        self.old = self.v.copy()

    def step(self) -> None:
        """Lines 3 to 8."""
        self.x += self.gamma * self.h.dot(self.pull) - self.lr * self.v
        self.h += self.compressed(self.x - self.h)
        new = self.gradient(self.x)
        self.v += self.gamma * self.g.dot(self.pull) + new - self.old
        self.old = new
        self.g += self.compressed(self.v - self.g)

    def compressed(self, x: Array) -> Array:
        """gsgd_b of each column."""
        norm = np.linalg.norm(x, axis=0)
        levels = np.floor(self.s / norm * np.abs(x) + self.random.uniform(0, 1, x.shape))
        message: Array = norm / (self.s * self.tau) * np.sign(x) * levels
        return message


class Logistic:
    """Nonconvex logistic regression: `signed` is (clients, rows, d), each row times its label, 1 or -1.

    `batch` is the number of rows per gradient, drawn with replacement; None takes all.
    """

    def __init__(self, signed: Array, batch: int | None, seed: int = 0) -> None:
        self.clients, self.rows, self.d = signed.shape
        self.signed, self.flat, self.batch = signed, signed.reshape(-1, self.d), batch
        self.first = self.rows * np.arange(self.clients)[:, None]
        self.random = np.random.default_rng(seed)

    def __call__(self, x: Array) -> Array:
        """The gradients over a new minibatch, or over all rows."""
        a = self.signed
        if self.batch is not None:
            a = self.flat[self.random.integers(0, self.rows, (self.clients, self.batch)) + self.first]
        pull = 1 / (1 + np.exp((a @ x[:, :, None])[:, :, 0]))
        square = 1 + x * x
        data = (pull[:, None, :] @ a)[:, 0, :]
        gradient: Array = data * (-1 / a.shape[1]) + (2 * NONCONVEX) * x / (square * square)
        return gradient


class HiddenLayer:
    """A sigmoid layer, softmax and cross-entropy: images (clients, rows, features), labels (clients, rows)."""

    def __init__(self, images: Array, labels: Array, hidden: int, classes: int, batch: int, seed: int = 0) -> None:
        self.clients, self.rows, self.features = map(int, images.shape)
        self.images, self.labels = images.reshape(-1, self.features), labels.reshape(-1)
        self.hidden, self.classes, self.batch = hidden, classes, batch
        self.first = self.rows * np.arange(self.clients)[:, None]
        self.random = np.random.default_rng(seed)

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.hidden * (self.features + 1) + self.classes * (self.hidden + 1)

    def __call__(self, x: Array) -> Array:
        """The gradients over a new minibatch."""
        index = self.random.integers(0, self.rows, (self.clients, self.batch)) + self.first
        a, y = self.images[index], self.labels[index]
        cuts = np.cumsum([self.hidden * self.features, self.hidden, self.classes * self.hidden])
        w1, c1, w2, c2 = np.split(x, cuts, axis=1)
        w1 = w1.reshape(-1, self.hidden, self.features)
        w2 = w2.reshape(-1, self.classes, self.hidden)
        middle = 1 / (1 + np.exp(-(a @ w1.swapaxes(1, 2) + c1[:, None])))
        z = middle @ w2.swapaxes(1, 2) + c2[:, None]
        p = np.exp(z - z.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        p[np.arange(self.clients)[:, None], np.arange(self.batch), y] -= 1
        p /= self.batch
        back = (p @ w2) * middle * (1 - middle)
        parts = (back.swapaxes(1, 2) @ a, back.sum(axis=1), p.swapaxes(1, 2) @ middle, p.sum(axis=1))
        return np.concatenate([part.reshape(self.clients, -1) for part in parts], axis=1)


class HiddenLayerByClient(HiddenLayer):
    """The same for columns, one client at a time."""

    def __call__(self, x: Array) -> Array:
        """The gradients over a new minibatch."""
        drawn = self.random.integers(0, self.rows, (self.clients, self.batch))
        return np.array([self._of(i, drawn[i], np.ascontiguousarray(x[:, i])) for i in range(self.clients)]).T

    def _of(self, client: int, drawn: Array, x: Array) -> Array:
        index, gradient = self.first[client] + drawn, np.empty(self.d)
        a, truth = self.images[index], np.eye(self.classes)[self.labels[index]]
        (w1, c1, w2, c2), (d1, e1, d2, e2) = self._parts(x), self._parts(gradient)
        middle = 1 / (1 + np.exp(-(a.dot(w1.T) + c1)))
        p = np.exp(middle.dot(w2.T) + c2)
        p = p / p.sum(axis=1, keepdims=True) - truth
        back = p.dot(w2) * middle * (1 - middle)
        np.dot(back.T, a, out=d1)
        np.dot(p.T, middle, out=d2)
        e1[:], e2[:] = back.sum(axis=0), p.sum(axis=0)
        return gradient / len(a)

    def _parts(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Weights and biases of both layers, as views."""
        cuts = np.cumsum([self.hidden * self.features, self.hidden, self.classes * self.hidden])
        w1, c1, w2, c2 = np.split(x, cuts)
        return w1.reshape(self.hidden, self.features), c1, w2.reshape(self.classes, self.hidden), c2


class Evaluation:
    """Measures logistic regression, one model at a time."""

    def __init__(self, signed: Array, test: Array, positive: Array) -> None:
        self.signed, self.test, self.positive = signed.reshape(-1, signed.shape[-1]), test, positive

    def loss_and_gradient_norm(self, x: Array) -> tuple[float, float]:
        """Over all training rows."""
        margin = self.signed @ x
        square = x * x
        loss = np.logaddexp(0, -margin).mean() + NONCONVEX * (square / (1 + square)).sum()
        data = (1 / (1 + np.exp(margin))) @ self.signed / len(self.signed)
        gradient = 2 * NONCONVEX * x / (1 + square) ** 2 - data
        return float(loss), float(np.linalg.norm(gradient))

    def accuracy(self, x: Array) -> float:
        """On the test rows."""
        return float(((self.test @ x > 0) == self.positive).mean())

    def __call__(self, models: Array) -> tuple[float, ...]:
        """Loss, gradient norm and accuracy of the mean, and the accuracy of every client."""
        mean = models.mean(axis=0)
        return (*self.loss_and_gradient_norm(mean), self.accuracy(mean), *(self.accuracy(x) for x in models))


def gsgd_levels(x: Array, bits: int, random: np.random.Generator) -> Array:
    """The signed levels of gsgd_b of each row, in the precision of x."""
    s = x.dtype.type(2.0 ** (bits - 1))
    norm = np.sqrt(np.einsum("ij,ij->i", x, x))[:, None]
    u = random.random(x.shape, dtype=x.dtype.type)
    levels: Array = np.copysign(np.floor(np.abs(x) * (s / norm) + u), x).astype(np.int8)
    return levels


def packed(values: npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.uint8]:
    """The lowest `width` bits of each value, one after another."""
    bits = np.unpackbits(values[:, None], axis=1, count=width, bitorder="little")
    return np.packbits(bits.reshape(-1), bitorder="little")


def unpacked(payload: npt.NDArray[np.uint8], count: int, width: int) -> npt.NDArray[np.uint8]:
    """What `packed` was given."""
    bits = np.unpackbits(payload, count=count * width, bitorder="little").reshape(count, width)
    return np.packbits(bits, axis=1, bitorder="little")[:, 0]
