"""Gradients of networks of linear layers on a CPU: client by client, in one pass over the rows of its minibatch.

The products are those of NumPy's kind of library (a BLAS) on one thread, so that a client's numbers do not depend on
who is computed beside it. The data rows are converted when they are read. Of rows of bytes that are mostly zero, the
first layer reads the other entries only.
"""

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.cpu.elementary import exp
from gossamer.kernels.cpu.vectors import add_outer_product, add_sparse_product, fetch, transpose
from gossamer.kernels.layers import LINEAR, RELU, SIGMOID, Layers
from gossamer.kernels.pool import split

_PARTS, _ROWS = 16, 256  # into which all rows are divided for measurements, whatever the threads; rows at once
_LANES = 16  # of a first layer's outputs
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
def _exponentials(z: Any, largest: Any) -> None:
    """Replace each row of outputs by exp(z - its largest), which is noted."""
    for r in range(z.shape[0]):
        largest[r] = z[r, 0]
        for j in range(1, z.shape[1]):
            largest[r] = max(largest[r], z[r, j])
        for j in range(z.shape[1]):
            z[r, j] -= largest[r]
    flat = z.reshape(z.size)
    for k in range(flat.size):
        flat[k] = exp(flat[k])


@jit()
def _derive(z: Any, label: int, factor: Any) -> None:
    """Cross-entropy's derivative by the outputs of one row, times a factor, from their exponentials."""
    total = z.dtype.type(0)
    for j in range(z.size):
        total += z[j]
    for j in range(z.size):
        z[j] /= total
    z[label] -= z.dtype.type(1)
    for j in range(z.size):
        z[j] *= factor


@jit()
def _forward(x: Any, kinds: Any, widths: Any, rows: int, space: Any, first: int) -> None:
    """The outputs of all layers from the first on, one after another; its inputs are there."""
    at = p = 0
    for k in range(len(kinds)):
        n, m = widths[k], widths[k + 1]
        after = at + rows * n
        if k < first:
            p += m * n + m
        elif kinds[k] == LINEAR:
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
def _backward(
    x: Any, kinds: Any, widths: Any, rows: int, space: Any, back: Any, spare: Any, out: Any, first: int
) -> None:
    """The gradient, from the derivatives by the outputs of the last layer, which are in `back`.

    It goes as far as the first layer; the derivatives by its inputs are then in `back`, if another comes before it.
    """
    at, p = space.size - rows * widths[-1], x.size
    for k in range(len(kinds) - 1, first - 1, -1):
        n, m = widths[k], widths[k + 1]
        before, here = at - rows * n, back[: rows * m]
        if kinds[k] == LINEAR:
            p -= m * n + m
            d = here.reshape((rows, m))
            np.dot(d.T, space[before:at].reshape((rows, n)), out[p : p + m * n].reshape((m, n)))
            _sum_columns(d, out[p + m * n : p + m * n + m])
            if k:
                np.dot(d, x[p : p + m * n].reshape((m, n)), spare[: rows * n].reshape((rows, n)))
                back[: rows * n] = spare[: rows * n]
        else:
            _deactivate(kinds[k], here, space[at : at + rows * m])
        at = before


@jit()
def _read_sparse(x: Any, widths: Any, row: int, indptr: Any, indices: Any, values: Any, table: Any, matrix: Any,
                 wide: Any, out: Any) -> None:  # fmt: skip
    """The outputs of a first, linear layer for one sparse row; `matrix` has its weights, transposed."""
    n, m = widths[0], widths[1]
    begin, end = np.int64(indptr[row]), np.int64(indptr[row + 1])
    wide[:m] = x[m * n : m * n + m]
    wide[m:] = 0
    add_sparse_product(wide, matrix, indices[begin:end], values[begin:end], table)
    out[:] = wide[:m]


@jit()
def _derive_sparse(back: Any, row: int, indptr: Any, indices: Any, values: Any, table: Any, wide: Any,
                   matrix: Any) -> None:  # fmt: skip
    """Add the part of one sparse row to the gradient of a first, linear layer, transposed."""
    begin, end = np.int64(indptr[row]), np.int64(indptr[row + 1])
    wide[: back.size] = back
    wide[back.size :] = 0
    add_outer_product(matrix, wide, indices[begin:end], values[begin:end], table)


@jit()
def _sum_columns(d: Any, out: Any) -> None:
    sums = np.zeros(d.shape[1])
    for r in range(d.shape[0]):
        for j in range(d.shape[1]):
            sums[j] += np.float64(d[r, j])
    out[:] = sums


@jit()
def _room_of(whole: Any, rows: int, widths: Any) -> Any:
    """The outputs of all layers, twice room for the largest of them, a first layer transposed, and one row of it."""
    size, most = rows * widths.sum(), rows * widths[1:].max()
    lanes = -(-widths[1] // _LANES) * _LANES
    at = size + 2 * most
    matrix = whole[at : at + widths[0] * lanes].reshape((widths[0], lanes))
    wide = whole[at + widths[0] * lanes : at + (widths[0] + 1) * lanes]
    return whole[:size], whole[size : size + most], whole[size + most : at], matrix, wide


def _room_size(rows: int, widths: tuple[int, ...]) -> int:
    return rows * (sum(widths) + 2 * max(widths[1:])) + (widths[0] + 1) * (widths[1] + _LANES)


@jit()
def _gradient_rows(
    x: Any, batch: Any, first: Any, counts: Any, features: Any, numbers: Any, indptr: Any, indices: Any, values: Any,
    table: Any, labels: Any, kinds: Any, widths: Any, out: Any, whole: Any, begin: int, end: int,
) -> int:  # fmt: skip
    """Write the gradients of some models; -1, or a model whose minibatch has a row that its client does not have."""
    rows, n, m, outputs, is_sparse = batch.shape[1], widths[0], widths[1], widths[-1], indptr.size > 0
    space, back, spare, matrix, wide = _room_of(whole, rows, widths)
    place, width = np.int64(features.ctypes.data), n * features.itemsize
    columns, bytes_ = np.int64(indices.ctypes.data), np.int64(values.ctypes.data)
    share = x.dtype.type(1) / x.dtype.type(rows)
    for i in range(begin, end):
        client = i % len(first)
        for r in range(rows):
            if batch[i, r] < 0 or batch[i, r] >= counts[client]:
                return i
        if is_sparse:
            transpose(x[i, : m * n].reshape((m, n)), matrix)
        for r in range(rows):
            row, soon = first[client] + batch[i, r], first[client] + batch[i, min(r + _SOON, rows - 1)]
            if is_sparse:
                start, many = np.int64(indptr[soon]), np.int64(indptr[soon + 1]) - np.int64(indptr[soon])
                fetch(columns + 2 * start, 2 * many)
                fetch(bytes_ + start, many)
                z = space[rows * n + r * m : rows * n + (r + 1) * m]
                _read_sparse(x[i], widths, row, indptr, indices, values, table, matrix, wide, z)
            else:
                fetch(place + soon * width, width)
                _read(features, row, numbers[0], numbers[1], space[r * n : (r + 1) * n])
        _forward(x[i], kinds, widths, rows, space, int(is_sparse))
        back[: rows * outputs] = space[space.size - rows * outputs :]
        _exponentials(back[: rows * outputs].reshape((rows, outputs)), spare)
        for r in range(rows):
            _derive(back[r * outputs : (r + 1) * outputs], labels[first[client] + batch[i, r]], share)
        _backward(x[i], kinds, widths, rows, space, back, spare, out[i], int(is_sparse))
        if is_sparse:
            matrix[:] = 0
            for r in range(rows):
                row, d = first[client] + batch[i, r], back[r * m : (r + 1) * m]
                _derive_sparse(d, row, indptr, indices, values, table, wide, matrix)
            transpose(matrix[:, :m], out[i, : m * n].reshape((m, n)))
            _sum_columns(back[: rows * m].reshape((rows, m)), out[i, m * n : m * n + m])
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
    room = _room_size(drawn.shape[1], layers.widths)

    def run(begin: int, end: int) -> bool:
        bad.add(int(_gradient_rows(*given, _room(room, models.dtype), begin, end)))
        return max(bad) < 0

    split(len(models), models.size * drawn.shape[1], run, is_blas=True)
    if max(bad, default=-1) >= 0:
        layers.refuse(min(bad - {-1}), drawn[min(bad - {-1})])
    return out


@jit()
def _judge(z: Any, labels: Any, weights: Any, sums: Any, spare: Any) -> None:
    """Add the losses of rows with outputs z, and whether the largest of a row, the first of equals, is at its label.

    The exponentials of the outputs are left.
    """
    at_label = spare[z.shape[0] :]
    for r in range(z.shape[0]):
        best = 0
        for j in range(1, z.shape[1]):
            best = j if z[r, j] > z[r, best] else best
        sums[1] += best == labels[r]
        at_label[r] = z[r, labels[r]]
    _exponentials(z, spare)
    for r in range(z.shape[0]):
        total = 0.0
        for j in range(z.shape[1]):
            total += np.float64(z[r, j])
        loss = np.log(total) + np.float64(spare[r]) - np.float64(at_label[r])
        sums[0] += loss * (weights[r] if weights.size else 1.0)


@jit()
def _measure_rows(
    x: Any, features: Any, numbers: Any, indptr: Any, indices: Any, values: Any, table: Any, labels: Any, kinds: Any,
    widths: Any, weights: Any, whole: Any, begin: int, end: int, sums: Any, part: Any, gradient: Any,
) -> None:  # fmt: skip
    """Add up losses, hits and, if there is room for them, gradients of one model over some rows."""
    n, m, outputs, one, is_sparse = widths[0], widths[1], widths[-1], x.dtype.type(1), indptr.size > 0
    _, _, _, matrix, wide = _room_of(whole, _ROWS, widths)
    for first in range(begin, end, _ROWS):
        rows = min(_ROWS, end - first)
        space, back, spare, _, _ = _room_of(whole, rows, widths)
        if is_sparse:
            transpose(x[: m * n].reshape((m, n)), matrix)
        for r in range(rows):
            if is_sparse:
                z = space[rows * n + r * m : rows * n + (r + 1) * m]
                _read_sparse(x, widths, first + r, indptr, indices, values, table, matrix, wide, z)
            else:
                _read(features, first + r, numbers[0], numbers[1], space[r * n : (r + 1) * n])
        _forward(x, kinds, widths, rows, space, int(is_sparse))
        back[: rows * outputs] = space[space.size - rows * outputs :]
        some = weights[first : first + rows]
        _judge(back[: rows * outputs].reshape((rows, outputs)), labels[first : first + rows], some, sums, spare)
        if gradient.size:
            for r in range(rows):
                weight = x.dtype.type(some[r]) if some.size else one
                _derive(back[r * outputs : (r + 1) * outputs], labels[first + r], weight)
            _backward(x, kinds, widths, rows, space, back, spare, part, int(is_sparse))
            if is_sparse:
                matrix[:] = 0
                for r in range(rows):
                    d = back[r * m : (r + 1) * m]
                    _derive_sparse(d, first + r, indptr, indices, values, table, wide, matrix)
                transpose(matrix[:, :m], part[: m * n].reshape((m, n)))
                _sum_columns(back[: rows * m].reshape((rows, m)), part[m * n : m * n + m])
            for j in range(gradient.size):
                gradient[j] += np.float64(part[j])


def layer_measures(layers: Layers, models: Tensor, derive: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean losses, shares of hits and gradients over all rows: see `layers.Layers`."""
    x, d, total = layers.points(models), layers.d, len(layers.labels)
    _, _, *data = layers.parts
    weights = np.empty(0) if layers.weights is None else layers.weights
    sums, gradients = np.zeros((len(x), _PARTS, 2)), np.zeros((len(x), _PARTS, d if derive else 0))
    room = _room_size(_ROWS, layers.widths)

    def run(begin: int, end: int) -> None:
        for at in range(begin, end):
            model, part = divmod(at, _PARTS)
            mine = total * part // _PARTS, total * (part + 1) // _PARTS
            own = _room(room + d, x.dtype)
            into = sums[model, part], own[room:], gradients[model, part]
            _measure_rows(x[model], *data, weights, own[:room], *mine, *into)

    split(len(x) * _PARTS, float(x.size) * total, run, is_blas=True)
    means = torch.from_numpy(sums.sum(axis=1) / total)
    return means[:, 0], means[:, 1], torch.from_numpy(gradients.sum(axis=1) / total) if derive else None
