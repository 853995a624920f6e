"""Gradients of networks of linear layers on a CPU: client by client, in one pass over the rows of its minibatch.

The products are those of NumPy's kind of library (a BLAS) on one thread, so that a client's numbers do not depend on
who is computed beside it. The data rows are converted when they are read.
"""

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.cpu.elementary import exp
from gossamer.kernels.cpu.vectors import fetch
from gossamer.kernels.layers import LINEAR, RELU, SIGMOID, Layers
from gossamer.kernels.pool import split

_PARTS, _ROWS = 16, 256  # into which all rows are divided for measurements, whatever the threads; rows at once
_SOON = 12  # rows: those of a minibatch lie anywhere, and are asked for before they are read


@jit()
def _activate(kind: int, z: Any, out: Any) -> None:
    zero, one = z.dtype.type(0), z.dtype.type(1)
    if kind == SIGMOID:
        for j in range(z.size):
            small = exp(-abs(z[j]))
            share = one / (one + small)
            out[j] = share if z[j] >= zero else small * share
    elif kind == RELU:
        for j in range(z.size):
            out[j] = zero if z[j] < zero else z[j]
    else:
        for j in range(z.size):
            out[j] = np.tanh(z[j])


@jit()
def _deactivate(kind: int, back: Any, out: Any) -> None:
    """The derivative by an activation's input, from that by its output `out`."""
    zero, one = out.dtype.type(0), out.dtype.type(1)
    if kind == SIGMOID:
        for j in range(out.size):
            back[j] *= (one - out[j]) * out[j]
    elif kind == RELU:
        for j in range(out.size):
            back[j] = back[j] if out[j] > zero else zero
    else:
        for j in range(out.size):
            back[j] *= one - out[j] * out[j]


@jit()
def _read(features: Any, row: int, shift: Any, factor: Any, out: Any) -> None:
    for j in range(out.size):
        out[j] = (out.dtype.type(features[row, j]) - shift) * factor


@jit()
def _derive(z: Any, label: int, rows: int) -> None:
    """Cross-entropy's derivative by the outputs z of one row, divided by the number of rows."""
    largest, total = z[0], z.dtype.type(0)
    for j in range(z.size):
        largest = max(largest, z[j])
    for j in range(z.size):
        z[j] = exp(z[j] - largest)
        total += z[j]
    for j in range(z.size):
        z[j] /= total
    z[label] -= z.dtype.type(1)
    for j in range(z.size):
        z[j] /= z.dtype.type(rows)


@jit()
def _forward(x: Any, kinds: Any, widths: Any, rows: int, space: Any) -> None:
    """The outputs of all layers, one after another; the inputs are there."""
    at = p = 0
    for k in range(len(kinds)):
        n, m = widths[k], widths[k + 1]
        after = at + rows * n
        if kinds[k] == LINEAR:
            z = space[after : after + rows * m].reshape((rows, m))
            np.dot(space[at:after].reshape((rows, n)), x[p : p + m * n].reshape((m, n)).T, z)
            bias = x[p + m * n : p + m * n + m]
            for r in range(rows):
                for j in range(m):
                    z[r, j] += bias[j]
            p += m * n + m
        else:
            _activate(kinds[k], space[at:after], space[after : after + rows * m])
        at = after


@jit()
def _backward(x: Any, kinds: Any, widths: Any, rows: int, space: Any, back: Any, spare: Any, out: Any) -> None:
    """The gradient, from the derivatives by the outputs of the last layer, which are in `back`."""
    at, p = space.size - rows * widths[-1], x.size
    for k in range(len(kinds) - 1, -1, -1):
        n, m = widths[k], widths[k + 1]
        before, here = at - rows * n, back[: rows * m]
        if kinds[k] == LINEAR:
            p -= m * n + m
            d = here.reshape((rows, m))
            np.dot(d.T, space[before:at].reshape((rows, n)), out[p : p + m * n].reshape((m, n)))
            for j in range(m):
                total = 0.0
                for r in range(rows):
                    total += np.float64(d[r, j])
                out[p + m * n + j] = total
            if k:
                np.dot(d, x[p : p + m * n].reshape((m, n)), spare[: rows * n].reshape((rows, n)))
                back[: rows * n] = spare[: rows * n]
        else:
            _deactivate(kinds[k], here, space[at : at + rows * m])
        at = before


@jit()
def _gradient_rows(
    x: Any, batch: Any, first: Any, counts: Any, features: Any, numbers: Any, labels: Any, kinds: Any, widths: Any,
    out: Any, whole: Any, begin: int, end: int,
) -> int:  # fmt: skip
    """Write the gradients of some models; -1, or a model whose minibatch has a row that its client does not have.

    `whole` has room for the outputs of all layers, and twice for the largest of them.
    """
    rows, inputs, outputs = batch.shape[1], widths[0], widths[-1]
    size, most = rows * widths.sum(), rows * widths[1:].max()
    space, back, spare = whole[:size], whole[size : size + most], whole[size + most : size + 2 * most]
    place, width = np.int64(features.ctypes.data), inputs * features.itemsize
    for i in range(begin, end):
        client = i % len(first)
        for r in range(rows):
            if batch[i, r] < 0 or batch[i, r] >= counts[client]:
                return i
        for r in range(rows):
            row = first[client] + batch[i, r]
            soon = first[client] + batch[i, min(r + _SOON, rows - 1)]
            fetch(place + soon * width, width)
            _read(features, row, numbers[0], numbers[1], space[r * inputs : (r + 1) * inputs])
        _forward(x[i], kinds, widths, rows, space)
        back[: rows * outputs] = space[space.size - rows * outputs :]
        for r in range(rows):
            _derive(back[r * outputs : (r + 1) * outputs], labels[first[client] + batch[i, r]], rows)
        _backward(x[i], kinds, widths, rows, space, back, spare, out[i])
    return -1


_own = threading.local()


def _room(size: int, dtype: Any) -> Any:
    """Memory of this thread, used again: fresh pages would cost more than the products."""
    if getattr(_own, "room", np.empty(0)).nbytes < size * dtype.itemsize:
        _own.room = np.empty(size * dtype.itemsize, np.uint8)
    return _own.room[: size * dtype.itemsize].view(dtype)


def layer_gradients(layers: Layers, x: Tensor, batch: Tensor) -> Tensor:
    """Gradients over minibatches: see `layers.Layers`."""
    models, drawn = layers.arrays(x, batch)
    out, to = empty(models.shape, x.dtype)
    given = models, drawn, *layers.parts, to
    bad: set[int] = set()
    room = drawn.shape[1] * (sum(layers.widths) + 2 * max(layers.widths[1:]))

    def run(begin: int, end: int) -> bool:
        bad.add(int(_gradient_rows(*given, _room(room, models.dtype), begin, end)))
        return max(bad) < 0

    split(len(models), models.size * drawn.shape[1], run, is_blas=True)
    if max(bad, default=-1) >= 0:
        layers.refuse(min(bad - {-1}), drawn[min(bad - {-1})])
    return out


@jit()
def _judge(z: Any, label: int, weight: Any, sums: Any) -> None:
    """Add the loss of a row with outputs z, and whether its largest output, the first of equals, is at its label."""
    best, total = 0, 0.0
    for j in range(1, z.size):
        best = j if z[j] > z[best] else best
    for j in range(z.size):
        total += np.float64(exp(z[j] - z[best]))
    sums[0] += weight * (np.log(total) + np.float64(z[best]) - np.float64(z[label]))
    sums[1] += best == label


@jit()
def _measure_rows(
    x: Any, features: Any, numbers: Any, labels: Any, weights: Any, kinds: Any, widths: Any, whole: Any, begin: int,
    end: int, sums: Any, part: Any, gradient: Any,
) -> None:  # fmt: skip
    """Add up losses, hits and, if there is room for them, gradients of one model over some rows."""
    inputs, outputs, one = widths[0], widths[-1], x.dtype.type(1)
    for first in range(begin, end, _ROWS):
        rows = min(_ROWS, end - first)
        size, most = rows * widths.sum(), rows * widths[1:].max()
        space, back, spare = whole[:size], whole[size : size + most], whole[size + most : size + 2 * most]
        for r in range(rows):
            _read(features, first + r, numbers[0], numbers[1], space[r * inputs : (r + 1) * inputs])
        _forward(x, kinds, widths, rows, space)
        back[: rows * outputs] = space[size - rows * outputs :]
        for r in range(rows):
            z, label = back[r * outputs : (r + 1) * outputs], labels[first + r]
            weight = weights[first + r] if weights.size else 1.0
            _judge(z, label, weight, sums)
            if gradient.size:
                _derive(z, label, 1)
                for j in range(outputs):
                    z[j] *= x.dtype.type(weight) if weights.size else one
        if gradient.size:
            _backward(x, kinds, widths, rows, space, back, spare, part)
            for j in range(gradient.size):
                gradient[j] += np.float64(part[j])


def layer_measures(layers: Layers, models: Tensor, derive: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean losses, shares of hits and gradients over all rows: see `layers.Layers`."""
    x, d, total = layers.points(models), layers.d, len(layers.labels)
    _, _, *data = layers.parts
    features, numbers, labels, kinds, widths = data
    weights = np.empty(0) if layers.weights is None else layers.weights
    sums, gradients = np.zeros((len(x), _PARTS, 2)), np.zeros((len(x), _PARTS, d if derive else 0))
    room = _ROWS * (sum(layers.widths) + 2 * max(layers.widths[1:]))

    def run(begin: int, end: int) -> None:
        for at in range(begin, end):
            model, part = divmod(at, _PARTS)
            mine = total * part // _PARTS, total * (part + 1) // _PARTS
            own = _room(room + d, x.dtype)
            into = sums[model, part], own[room:], gradients[model, part]
            _measure_rows(x[model], features, numbers, labels, weights, kinds, widths, own[:room], *mine, *into)

    split(len(x) * _PARTS, float(x.size) * total, run, is_blas=True)
    means = torch.from_numpy(sums.sum(axis=1) / total)
    return means[:, 0], means[:, 1], torch.from_numpy(gradients.sum(axis=1) / total) if derive else None
