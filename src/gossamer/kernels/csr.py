"""Rows of data that are mostly zero, in compressed form, and the readable loops of linear models on them.

The loops exist compiled, too (`cpu/examples.py`). Both add up gradients in float64 in one order, and round the
derivatives of the losses differently. Where each column has one value, the compiled loops multiply the finished sums by
it. Gradients over rows a with derivatives p differ by at most 1e-5 (float32) or 1e-12 (float64) times the mean of
||a|| max(1, ||p||).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from gossamer.errors import InputError
from gossamer.kernels.layers import refuse_row

Array = npt.NDArray[Any]
_NUMBERS = 1 << 20  # entries and coordinates handled at once
_NARROW = 1 << 12  # features up to which multiplying a model by a number per column costs little
_ROWS, _MODELS = 1 << 12, 64  # handled at once in measurements; fixed, so that sums do not depend on the company


class Loss(IntEnum):
    """The loss of a row with outputs z and target y."""

    LOGISTIC = 0
    """log(1 + exp(-y z)), y = 1 or -1."""
    SOFTMAX = 1
    """Cross-entropy of softmax(z), y = 0, 1, ..."""
    SQUARES = 2
    """(z - y)^2 / 2."""


@dataclass(frozen=True, eq=False)
class Csr:
    """Compressed rows: row r has `values[k]` in column `indices[k]`, for k from `indptr[r]` to `indptr[r + 1]`.

    Numbers are stored in few bits, since rows drawn at random are limited by the memory that they take.
    """

    indptr: npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
    indices: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
    values: Array
    width: int
    columns: Array | None = None
    """(width,): if known, each entry is its row's sign times the number of its column here, as in one-hot data."""
    signs: npt.NDArray[np.int8] | None = None
    """(rows,): 1 or -1, if `columns` is known and not all signs are 1."""

    @classmethod
    def of(cls, matrix: Any, dtype: torch.dtype) -> "Csr":
        """A copy of a SciPy matrix in compressed rows, with values of this dtype."""
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        end, column = _kinds(matrix)
        indptr, indices = np.array(matrix.indptr, end), np.array(matrix.indices, column)
        values = np.array(matrix.data, kind)
        return cls(indptr, indices, values, matrix.shape[1], *_factors(indptr, indices, values, matrix.shape[1]))

    @staticmethod
    def bytes_of(matrix: Any, itemsize: int) -> int:
        """The bytes that a SciPy matrix takes in this form."""
        end, column = _kinds(matrix)
        return int(matrix.nnz * (column.itemsize + itemsize) + end.itemsize * (matrix.shape[0] + 1))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def matrix(self) -> Any:
        """As a SciPy matrix, which shares the values."""
        places = self.indices.astype(np.int32), self.indptr.astype(np.int64)
        return sparse.csr_array((self.values, *places), shape=(len(self), self.width))

    def dense(self, which: Any) -> Tensor:
        """Some rows as a tensor with all zeros."""
        if isinstance(which, Tensor):
            which = which.numpy()
        return torch.from_numpy(self.matrix[which].toarray())

    def part(self, rows: slice) -> "Csr":
        """A copy of consecutive rows, computed with as the whole is: their own values might have more in common."""
        ends = self.indptr[rows.start : rows.stop + 1]
        some = slice(ends[0], ends[-1])
        signs = None if self.signs is None else self.signs[rows].copy()
        indices, values = self.indices[some].copy(), self.values[some].copy()
        return Csr(ends - ends[0], indices, values, self.width, self.columns, signs)


def _kinds(matrix: Any) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The types of `indptr` and `indices`."""
    end = np.uint32 if matrix.nnz <= np.iinfo(np.uint32).max else np.uint64
    return np.dtype(end), np.dtype(np.uint16 if matrix.shape[1] <= 1 << 16 else np.uint32)


def _factors(indptr: Array, indices: Array, values: Array, width: int) -> tuple[Array | None, Array | None]:
    """`columns` and `signs` of compressed rows; None and None if a column has several values, or a row both signs."""
    if width > _NARROW:
        return None, None
    lengths = np.diff(indptr).astype(np.int64)
    signs = np.ones(len(lengths), np.int8)
    columns = np.zeros(width, values.dtype)
    columns[indices] = values
    if np.array_equal(columns[indices], values):
        return columns, None
    np.abs(columns, out=columns)
    signs[lengths > 0] = np.where(values[indptr[:-1][lengths > 0]] < 0, -1, 1)
    return (columns, signs) if np.array_equal(columns[indices] * np.repeat(signs, lengths), values) else (None, None)


@dataclass(frozen=True, eq=False)
class Examples:
    """Sparse rows with their targets, and which client holds which: what a linear model is trained or tested on."""

    rows: Csr
    targets: Array
    """(rows,), in the type of the values."""
    counts: Sequence[int]
    """The number of rows of each client, one client's rows after another's."""
    weights: Array | None
    """(rows,): of each row in `measure`, if these differ."""
    outputs: int
    loss: Loss

    def __post_init__(self) -> None:
        if self.loss == Loss.LOGISTIC and not (abs(self.targets) == 1).all():
            raise InputError("Targets must be 1 or -1.")
        if self.loss == Loss.SOFTMAX and not ((self.targets >= 0) & (self.targets < self.outputs)).all():
            raise InputError(f"Targets must be classes from 0 to {self.outputs - 1}.")

    @cached_property
    def held(self) -> tuple[Array, Array]:
        """Each client's first row, and its number of rows."""
        counts = np.array(self.counts, np.int64)
        return np.cumsum(counts) - counts, counts

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        """As compiled loops take them: where rows begin, columns, values, targets, and numbers of columns.

        Either the values or the numbers of columns are None. Targets of the logistic loss are int8; they take over the
        signs of rows, since only the product of row and target matters.
        """
        rows, targets, is_logistic = self.rows, self.targets, self.loss == Loss.LOGISTIC
        columns = rows.columns if is_logistic or rows.signs is None else None
        if is_logistic:
            targets = targets.astype(np.int8)
            targets = targets if rows.signs is None else targets * rows.signs
        return rows.indptr, rows.indices, rows.values if columns is None else None, targets, columns

    @cached_property
    def entries(self) -> float:
        """Per row, on average."""
        return len(self.rows.values) / max(1, len(self.rows))

    def work(self, batch: Array | None) -> int:
        """Multiplications of one gradient, about."""
        rows = len(self.rows) / len(self.counts) if batch is None else batch.shape[1]
        return self.outputs * int(2 * self.entries * rows + self.rows.width)

    def arrays(self, x: Tensor, batch: Tensor | None) -> tuple[Array, Array | None]:
        """Models and minibatches as contiguous arrays. Compiled loops read memory unchecked, so shapes must fit."""
        models, d, clients = _array(x), self.outputs * self.rows.width, len(self.counts)
        if models.ndim != 2 or models.shape[1] != d or len(models) % clients:
            raise InputError(f"Models must be (seeds * {clients}, {d}), one row per client, got {models.shape}.")
        rows = None if batch is None else _array(batch)
        if rows is not None and (rows.ndim != 2 or len(rows) != len(models) or not rows.shape[1]):
            raise InputError(f"A minibatch must be ({len(models)}, rows per client), got shape {rows.shape}.")
        return models, rows

    def points(self, models: Tensor) -> Array:
        """Models to be measured, as a contiguous array."""
        array, d = _array(models), self.outputs * self.rows.width
        if array.ndim != 2 or array.shape[1] != d:
            raise InputError(f"Models must be (k, {d}), got shape {array.shape}.")
        return array

    def refuse(self, model: int, batch: Array) -> NoReturn:
        """Raise an error for the minibatch of a model, which has a row that its client does not have."""
        client = model % len(self.counts)
        refuse_row(client, self.counts[client], batch)


def _array(tensor: Tensor) -> Array:
    return (tensor if tensor.is_contiguous() else tensor.contiguous()).numpy()


def linear_gradients(examples: Examples, x: Tensor, batch: Tensor | None, nonconvex: float, l2: float) -> Tensor:
    """Row i: the gradient at row i of x, over its client's rows `batch[i]`, or over all of them.

    The mean of the losses' gradients, plus that of nonconvex * sum_j x_j^2 / (1 + x_j^2) + l2 / 2 ||x||^2. The clients
    of one seed stand after those of another. Each row is computed alone: sums are float64, in the order of rows and
    entries.
    """
    models, drawn = examples.arrays(x, batch)
    first, counts = examples.held
    clients = np.arange(len(models)) % len(counts)
    sizes = counts[clients] if drawn is None else np.full(len(models), drawn.shape[1])
    reached = np.cumsum(sizes * max(1.0, examples.entries) + models.shape[1])
    parts, begin = [np.empty((0, models.shape[1]))], 0
    while begin < len(models):
        before = reached[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(reached, before + _NUMBERS, "right")))
        mine, some = clients[begin:end], sizes[begin:end]
        which = np.repeat(np.arange(end - begin), some)  # the model of each row of data
        rows = _count_up(some) if drawn is None else drawn[begin:end].ravel()
        bad = (rows < 0) | (rows >= counts[mine][which])
        if drawn is not None and bad.any():
            examples.refuse(begin + int(which[bad.argmax()]), drawn[begin + which[bad.argmax()]])
        parts.append(_sums(examples, models[begin:end], first[mine][which] + rows, which) / some[:, None])
        begin = end
    bend, kind = 1 + models * models, models.dtype.type
    regular = kind(l2) * models + kind(nonconvex) * (2 * models / (bend * bend))
    return torch.from_numpy(np.concatenate(parts).astype(models.dtype) + regular)


def _count_up(sizes: Array) -> Array:
    """0, 1, ... to each size in turn."""
    found: Array = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return found


def _sums(examples: Examples, x: Array, rows: Array, which: Array) -> Array:
    """(models, d): the sum of the gradients of the losses of `rows` at the models `which`."""
    data, outputs, width = examples.rows, examples.outputs, examples.rows.width
    begin, end = (data.indptr[at].astype(np.int64) for at in (rows, rows + 1))
    lengths = end - begin
    place = np.repeat(np.arange(len(rows)), lengths)  # the row of each entry
    entries = _count_up(lengths) + np.repeat(begin, lengths)
    columns, values = data.indices[entries].astype(np.int64), data.values[entries].astype(np.float64)
    model = which[place]
    z = np.stack(
        [np.bincount(place, values * x[model, o * width + columns], len(rows)) for o in range(outputs)], axis=1
    )
    _, pull, _ = losses(z[:, :, None].astype(x.dtype), examples.targets[rows], examples.loss)
    return np.hstack(
        [
            np.bincount(model * width + columns, pull[place, o, 0] * values, len(x) * width).reshape(len(x), width)
            for o in range(outputs)
        ]
    )


def linear_measures(examples: Examples, models: Tensor, derive: bool) -> tuple[Tensor, Tensor]:
    """The mean loss at each of the (k, d) models, and its gradient (k, d), or the share of rows classified rightly.

    Means are over all rows by their weights, in float64. Outputs are computed in the type of the models. A model's
    numbers do not depend on the others.
    """
    points, total = examples.points(models), len(examples.rows)
    means, others = [np.zeros(0)], [np.zeros((0, *points.shape[1:]) if derive else 0)]
    for begin in range(0, len(points), _MODELS):
        loss, other = _measure(examples, points[begin : begin + _MODELS], derive)
        means.append(loss / total)
        others.append(other / total)
    return torch.from_numpy(np.concatenate(means)), torch.from_numpy(np.concatenate(others))


def _measure(examples: Examples, models: Array, derive: bool) -> tuple[Array, Array]:
    """Sums over the rows of losses, and of gradients or hits."""
    outputs, width, many = examples.outputs, examples.rows.width, len(models)
    columns, matrix = models.reshape(many * outputs, width).T, examples.rows.matrix
    loss, other = np.zeros(many), np.zeros((width, many * outputs) if derive else many)
    for begin in range(0, len(examples.rows), _ROWS):
        some = slice(begin, begin + _ROWS)
        a = matrix[some]
        z = (a @ columns).reshape(-1, many, outputs).transpose(0, 2, 1)
        each, pull, hits = losses(z, examples.targets[some], examples.loss)
        weights = np.ones(len(z)) if examples.weights is None else examples.weights[some]
        loss += np.cumsum(weights[:, None] * each, axis=0)[-1]  # NumPy's sum of one column has another order
        if derive:
            other += a.T @ (weights[:, None, None] * pull.transpose(0, 2, 1)).reshape(len(z), -1)
        else:
            other += hits.sum(axis=0)
    return loss, other.T.reshape(models.shape) if derive else other


def losses(z: Array, targets: Array, loss: int) -> tuple[Array, Array, Array]:
    """Of outputs z (rows, outputs, k): losses (rows, k), their derivatives by z, and who is classified rightly."""
    with np.errstate(over="ignore", invalid="ignore"):  # 1 / inf is 0, as it should be; the session reports divergence
        return _losses(z, targets, loss)


def _losses(z: Array, targets: Array, loss: int) -> tuple[Array, Array, Array]:
    if loss == Loss.SOFTMAX:
        at = targets.astype(np.int64)[:, None, None]
        powers = np.exp(z - z.max(axis=1, keepdims=True))
        total = np.cumsum(powers, axis=1)[:, -1]  # NumPy's sum has an order that depends on k
        each = np.log(total) + z.max(axis=1) - np.take_along_axis(z, at, axis=1)[:, 0]
        pull = powers / total[:, None]
        np.put_along_axis(pull, at, np.take_along_axis(pull, at, axis=1) - 1, axis=1)
        return each, pull, z.argmax(axis=1) == at[:, 0]
    y = targets[:, None, None]
    if loss == Loss.SQUARES:
        apart = z - y
        return apart[:, 0] ** 2 / 2, apart, np.zeros(apart[:, 0].shape, np.bool_)
    pull = -y / (1 + np.exp(y * z))
    return np.logaddexp(0, -y * z)[:, 0], pull, (z[:, 0] > 0) == (y[:, 0] > 0)
