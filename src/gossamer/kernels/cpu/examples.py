"""Numba kernels of linear models on sparse rows: gradients of clients, and measurements of many models.

A sum has one order, whatever is computed beside it. Sums over rows are float64. Row numbers and columns are unsigned:
numba would otherwise ask of each whether it counts from the end. `values` is None if `columns` holds a value for all
entries of a column: then the model and the finished sums are multiplied by it, and loops read column numbers only.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.kernels.buffers import empty
from gossamer.kernels.compile import jit
from gossamer.kernels.cpu.elementary import exp, log1p
from gossamer.kernels.csr import Examples, Loss
from gossamer.kernels.pool import split

Array = npt.NDArray[Any]

_LOGISTIC, _SOFTMAX = int(Loss.LOGISTIC), int(Loss.SOFTMAX)
_ROWS = 256  # rows of a client whose outputs are computed before the next step
_NUMBERS = 4096  # outputs of a block of rows at many models, to stay in the fastest cache
_TOGETHER, _LANES = 64, 16  # models measured side by side: at most, and in multiples of whole vectors
_SIDE_BY_SIDE_BYTES = 64 << 20  # of the gradients of models measured side by side
_FEW_ENTRIES = 4  # per feature, below which putting models side by side costs more than it saves
_NO_BATCH, _NO_WEIGHTS = np.empty((1, 0), np.int64), np.empty(0)
_ONE, _TWO, _THREE, _FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@jit()
def _gradients(
    x: Any, out: Any, batch: Any, whole: bool, first: Any, counts: Any, indptr: Any, indices: Any, values: Any,
    targets: Any, columns: Any, outputs: int, loss: int, nonconvex: float, l2: float, begin: int, end: int,
) -> int:  # fmt: skip
    """Write row i of `out`, for begin <= i < end: the gradient at row i of x over rows `batch[i]`, or over all.

    Returns the first i whose batch has a row that the client does not have; -1 if there is none.
    """
    low, high, labels = np.empty(_ROWS, np.uint64), np.empty(_ROWS, np.uint64), np.empty(_ROWS, x.dtype)
    z = np.empty((outputs, _ROWS), x.dtype)
    total, scaled = np.empty(x.shape[1]), np.empty(0 if columns is None else x.shape[1])
    touched = 0
    for i in range(begin, end):
        client = i % first.shape[0]
        start, most = first[client], counts[client]
        size = most if whole else batch.shape[1]
        total[:] = 0
        if columns is not None:
            _times(x[i], columns, scaled)
        for at in range(0, size, _ROWS):
            some = min(_ROWS, size - at)
            for b in range(some):
                row = at + b if whole else batch[i, at + b]
                if row < 0 or row >= most:
                    return i
                place = np.uint64(start + row)
                low[b], high[b], labels[b] = indptr[place], indptr[place + _ONE], targets[place]
            touched += _touch(low[:some], high, indices, values)
            if columns is None:
                _outputs(x[i], z, low[:some], high, indices, values)
            else:
                _outputs(scaled, z, low[:some], high, indices, values)
            _derivatives(z, labels[:some], loss)
            _add_rows(total, z, low[:some], high, indices, values)
        if columns is not None:
            _times(total, columns, total)
        _finish(x[i], out[i], total, size, nonconvex, l2)
    return -1 if touched >= 0 else -2  # always -1; without a use, the compiler would leave the sum out


@jit()
def _times(numbers: Any, columns: Any, out: Any) -> None:
    """out[o, column] = numbers[o, column] times the value of the column."""
    width = columns.shape[0]
    for at in range(0, numbers.shape[0], width):
        own, to = numbers[at : at + width], out[at : at + width]
        for j in range(width):
            to[j] = np.float64(own[j]) * np.float64(columns[j])


@jit()
def _touch(low: Any, high: Any, indices: Any, values: Any) -> int:
    """Ask for the memory of all rows at once: rows drawn at random would else be waited for one after another."""
    total = np.uint64(0)
    for b in range(low.shape[0]):
        if low[b] < high[b]:
            last = high[b] - _ONE
            total += np.uint64(indices[low[b]]) + np.uint64(indices[last])
            if values is not None:
                total += np.uint64(values[low[b]] != values[last])
    return np.int64(total >> _ONE)  # type: ignore[return-value]


@jit()
def _outputs(x: Any, z: Any, low: Any, high: Any, indices: Any, values: Any) -> None:
    """z[o, b] = the sum over a row's entries, in their order, of value times x[o, column]."""
    width = x.shape[0] // z.shape[0]
    for o in range(z.shape[0]):
        own, sums = x[o * width : (o + 1) * width], z[o]
        for b in range(low.shape[0]):
            total = 0.0
            for k in range(low[b], high[b]):
                if values is None:
                    total += own[indices[k]]
                else:
                    total += np.float64(values[k]) * np.float64(own[indices[k]])
            sums[b] = total


@jit()
def _derivatives(z: Any, labels: Any, loss: int) -> None:
    """Replace the outputs of each row by the derivative of its loss."""
    one = z.dtype.type(1)
    rows, margins = labels.shape[0], z[0]
    if loss == _LOGISTIC:
        for b in range(rows):
            margin = margins[b] * labels[b]
            small = exp(-abs(margin))
            share = one / (one + small)
            margins[b] = -(share * small if margin >= 0 else share) * labels[b]
    elif loss == _SOFTMAX:
        _softmax_derivatives(z, labels)
    else:
        for b in range(rows):
            margins[b] -= labels[b]


@jit()
def _softmax_derivatives(z: Any, labels: Any) -> None:
    """Replace the outputs of each row by softmax(z), minus 1 at the label."""
    outputs, rows, one = z.shape[0], labels.shape[0], z.dtype.type(1)
    largest, total = z[0, :rows].copy(), np.zeros(rows, z.dtype)
    for o in range(1, outputs):
        for b in range(rows):
            largest[b] = max(z[o, b], largest[b])
    for o in range(outputs):
        for b in range(rows):
            z[o, b] = exp(z[o, b] - largest[b])
            total[b] += z[o, b]
    for o in range(outputs):
        for b in range(rows):
            z[o, b] /= total[b]
    for b in range(rows):
        z[np.int64(labels[b]), b] -= one


@jit()
def _add_rows(total: Any, z: Any, low: Any, high: Any, indices: Any, values: Any) -> None:
    """total[o, column] += z[o, b] times value, row after row."""
    width = total.shape[0] // z.shape[0]
    for o in range(z.shape[0]):
        own, factors = total[o * width : (o + 1) * width], z[o]
        for b in range(low.shape[0]):
            factor = np.float64(factors[b])
            for k in range(low[b], high[b]):
                if values is None:
                    own[indices[k]] += factor
                else:
                    own[indices[k]] += factor * np.float64(values[k])


@jit()
def _finish(x: Any, out: Any, total: Any, size: int, nonconvex: float, l2: float) -> None:
    """The mean over the rows, plus the gradient of the regularisers."""
    kind = x.dtype.type
    one, two, a, b, rows = kind(1), kind(2), kind(nonconvex), kind(l2), np.float64(size)
    if nonconvex == 0:
        for j in range(x.shape[0]):
            out[j] = kind(total[j] / rows) + b * x[j]
    else:
        for j in range(x.shape[0]):
            bend = one + x[j] * x[j]
            out[j] = kind(total[j] / rows) + (b * x[j] + a * (two * x[j] / (bend * bend)))


@jit()
def _measure(
    models: Any, indptr: Any, indices: Any, values: Any, targets: Any, columns: Any, classes: Any, weights: Any,
    outputs: int, loss: int, derive: bool, sums: Any, hits: Any, gradient: Any,
) -> None:  # fmt: skip
    """Add up over all rows, for many models: losses, and either the gradients or the rows that are classified rightly.

    Lane o * many + m of `models` (features, lanes) and of `gradient` belongs to output o of model m, so that each entry
    of a row is one operation on contiguous vectors. `classes` are the targets without signs of rows, which decide ties.
    `weights` of length 0 are 1. `models` are changed.
    """
    if columns is not None:
        _scale(models, columns)
    lanes, many, total = models.shape[1], sums.shape[0], targets.shape[0]
    rows = max(1, _NUMBERS // lanes)
    z, each = np.empty((rows, lanes), models.dtype), np.empty((rows, many), models.dtype)
    factors, lost = np.ones(rows, models.dtype), np.zeros(many)
    for begin in range(0, total, rows):
        some = min(rows, total - begin)
        labels, ends = classes[begin : begin + some], indptr[begin : begin + some + 1]
        if loss == _LOGISTIC:  # outputs times targets: margins
            factors[:some] = targets[begin : begin + some]
        _many_outputs(models, z, factors, ends, indices, values)
        if loss == _LOGISTIC:
            _logistic(z, each, labels, derive, hits)
        elif loss == _SOFTMAX:
            _softmax(z, each, labels, derive, hits)
        else:
            _squares(z, each, labels)
        _add_losses(sums, lost, each, weights[begin : begin + some], some)
        if derive:
            _add_many(gradient, z, factors, weights[begin : begin + some], ends, indices, values)
    if derive and columns is not None:
        _scale(gradient, columns)


@jit()
def _scale(rows: Any, columns: Any) -> None:
    """Multiply each row, which belongs to a feature, by the number of its column."""
    for j in range(columns.shape[0]):
        own = rows[j]
        for m in range(own.shape[0]):
            own[m] *= columns[j]


@jit()
def _many_outputs(models: Any, z: Any, factors: Any, ends: Any, indices: Any, values: Any) -> None:
    """z[r, lane] = factor (1 or -1) times the sum over a row's entries, in their order, of value times model."""
    lanes = z.shape[1]
    for r in range(ends.shape[0] - 1):
        factor, k, stop, own = factors[r], np.uint64(ends[r]), np.uint64(ends[r + 1]), z[r]
        if lanes == 1:
            total = z.dtype.type(0)
            for at in range(k, stop):
                total += models[indices[at], 0] if values is None else values[at] * models[indices[at], 0]
            own[0] = factor * total
            continue
        own[:] = 0
        while k + _THREE < stop:  # four entries at a time: a quarter of the loads and stores of z
            at_a, at_b = models[indices[k]], models[indices[k + _ONE]]
            at_c, at_d = models[indices[k + _TWO]], models[indices[k + _THREE]]
            if values is None:
                for m in range(lanes):
                    own[m] = (((own[m] + at_a[m]) + at_b[m]) + at_c[m]) + at_d[m]
            else:
                a, b, c, d = values[k], values[k + _ONE], values[k + _TWO], values[k + _THREE]
                for m in range(lanes):
                    own[m] = (((own[m] + a * at_a[m]) + b * at_b[m]) + c * at_c[m]) + d * at_d[m]
            k += _FOUR
        while k < stop:
            at_a = models[indices[k]]
            for m in range(lanes):
                own[m] += at_a[m] if values is None else values[k] * at_a[m]
            k += _ONE
        if factor < 0:
            for m in range(lanes):
                own[m] = -own[m]


@jit()
def _add_losses(sums: Any, lost: Any, each: Any, weights: Any, rows: int) -> None:
    """sums[m] += weight times the loss of each row; `lost` has the digits that the sums have lost so far (Kahan)."""
    for r in range(rows):
        weight = weights[r] if weights.shape[0] else 1.0
        for m in range(sums.shape[0]):
            one = weight * np.float64(each[r, m]) - lost[m]
            total = sums[m] + one
            rest = (total - sums[m]) - one
            lost[m], sums[m] = rest if np.isfinite(rest) else 0.0, total  # an infinite loss stays infinite


@jit()
def _add_many(gradient: Any, z: Any, factors: Any, weights: Any, ends: Any, indices: Any, values: Any) -> None:
    """gradient[column, lane] += weight times factor times value times z[r, lane], row after row."""
    lanes = z.shape[1]
    wide = np.empty(lanes)
    for r in range(ends.shape[0] - 1):
        factor = np.float64(factors[r]) * (weights[r] if weights.shape[0] else 1.0)
        low, high = np.uint64(ends[r]), np.uint64(ends[r + 1])
        if lanes == 1:
            pull = factor * np.float64(z[r, 0])
            for k in range(low, high):
                gradient[indices[k], 0] += pull if values is None else np.float64(values[k]) * pull
            continue
        for m in range(lanes):
            wide[m] = factor * np.float64(z[r, m])
        for k in range(low, high):
            own = gradient[indices[k]]
            for m in range(lanes):
                own[m] += wide[m] if values is None else np.float64(values[k]) * wide[m]


@jit()
def _logistic(z: Any, each: Any, labels: Any, derive: bool, hits: Any) -> None:
    """Losses log(1 + exp(-z)) of margins z; then their derivatives in z, or hits. A margin of 0 is the first class."""
    margins, losses = z.reshape(z.size), each.reshape(each.size)
    zero, one = z.dtype.type(0), z.dtype.type(1)
    if not derive:
        for r in range(labels.shape[0]):
            own, is_first = z[r], labels[r] < 0
            for m in range(z.shape[1]):
                hits[m] += own[m] >= 0 if is_first else own[m] > 0
    for i in range(labels.shape[0] * z.shape[1]):
        margin = margins[i]
        small = exp(-abs(margin))
        losses[i] = log1p(small) + (zero if margin > 0 else -margin)
        if derive:
            share = one / (one + small)
            margins[i] = -(share * small if margin >= 0 else share)


@jit()
def _softmax(z: Any, each: Any, labels: Any, derive: bool, hits: Any) -> None:
    """Losses logsumexp(z) - z at the label; then their derivatives in z, or hits. The first of equal outputs wins."""
    many = each.shape[1]
    outputs = z.shape[1] // many
    largest, total, best = np.empty(many, z.dtype), np.empty(many, z.dtype), np.empty(many, np.int64)
    for r in range(labels.shape[0]):
        label, lanes = np.int64(labels[r]), z[r].reshape((outputs, many))
        best[:], largest[:], total[:] = 0, lanes[0], 0
        for o in range(1, outputs):
            for m in range(many):
                is_larger = lanes[o, m] > largest[m]
                best[m] = o if is_larger else best[m]
                largest[m] = lanes[o, m] if is_larger else largest[m]
        for m in range(many):
            each[r, m] = largest[m] - lanes[label, m]
            hits[m] += best[m] == label
        for o in range(outputs):
            for m in range(many):
                lanes[o, m] = exp(lanes[o, m] - largest[m])
                total[m] += lanes[o, m]
        for m in range(many):
            each[r, m] += np.log(total[m])
        if derive:
            for o in range(outputs):
                for m in range(many):
                    lanes[o, m] /= total[m]
            lanes[label] -= z.dtype.type(1)


@jit()
def _squares(z: Any, each: Any, labels: Any) -> None:
    """Losses (z - y)^2 / 2; then their derivatives in z."""
    half = z.dtype.type(0.5)
    for r in range(labels.shape[0]):
        for m in range(z.shape[1]):
            z[r, m] -= labels[r]
            each[r, m] = half * z[r, m] * z[r, m]


def linear_gradients(examples: Examples, x: Tensor, batch: Tensor | None, nonconvex: float, l2: float) -> Tensor:
    """Gradients of linear models on sparse rows: see `csr.linear_gradients`."""
    models, drawn = examples.arrays(x, batch)
    out, to = empty(models.shape, x.dtype)
    data = *examples.held, *examples.parts, examples.outputs, int(examples.loss)
    given = models, to, _NO_BATCH if drawn is None else drawn, drawn is None, *data, nonconvex, l2
    bad: set[int] = set()

    def run(begin: int, end: int) -> bool:
        bad.add(int(_gradients(*given, begin, end)))
        return max(bad) < 0

    split(len(models), len(models) * examples.work(drawn), run)
    if drawn is not None and max(bad, default=-1) >= 0:
        examples.refuse(min(bad - {-1}), drawn[min(bad - {-1})])
    return out


def linear_measures(examples: Examples, models: Tensor, derive: bool) -> tuple[Tensor, Tensor]:
    """Mean losses with gradients or hits: see `csr.linear_measures`."""
    points, total, outputs = examples.points(models), len(examples.rows), examples.outputs
    loss, other = np.zeros(len(points)), np.zeros(points.shape if derive else len(points))
    together = min(_TOGETHER, _SIDE_BY_SIDE_BYTES // (8 * max(1, points.shape[1])))
    if outputs == 1 and len(examples.rows.values) < _FEW_ENTRIES * examples.rows.width:
        together = 1

    def run(begin: int, end: int) -> None:
        last = min(len(points), end * _LANES)
        for at in range(begin * _LANES, last, max(1, together)):
            some = slice(at, min(last, at + max(1, together)))
            _measure_group(examples, points[some], loss[some], other[some], derive)

    work = len(points) * outputs * int(total * (examples.entries + 8)) // 8  # several lanes are one operation
    split(-(-len(points) // _LANES), work, run)
    return torch.from_numpy(loss).div_(total), torch.from_numpy(other).div_(total)


def _measure_group(examples: Examples, points: Array, loss: Array, other: Array, derive: bool) -> None:
    """Sums over the rows for a group of models side by side."""
    many, outputs, width = len(points), examples.outputs, examples.rows.width
    lanes = many if many == 1 or outputs > 1 else -(-many // _LANES) * _LANES
    models = np.zeros((width, outputs, lanes), points.dtype)
    models[:, :, :many] = points.reshape(many, outputs, width).transpose(2, 1, 0)
    gradient = np.zeros(models.shape if derive else (0, outputs, lanes))
    sums, hits = np.zeros(lanes), np.zeros(lanes, np.int64)
    side_by_side, into = models.reshape(width, -1), gradient.reshape(len(gradient), outputs * lanes)
    weights = _NO_WEIGHTS if examples.weights is None else examples.weights
    data = *examples.parts, examples.targets, weights, outputs, int(examples.loss)
    _measure(side_by_side, *data, derive, sums, hits, into)
    loss[:] = sums[:many]
    other[:] = gradient[:, :, :many].transpose(2, 1, 0).reshape(other.shape) if derive else hits[:many]
