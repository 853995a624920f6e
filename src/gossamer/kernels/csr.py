"""Rows of data that are mostly zero, in compressed form, and linear models on them.

The kernels are `cpu.examples` where numba is installed and else `csr_reference`. Both add up in float64 in one order,
and round the derivatives of the losses differently. Their gradients over rows a with derivatives p differ by at most
1e-5 (float32) or 1e-12 (float64) times the mean of ||a|| max(1, ||p||).
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from gossamer.errors import InputError
from gossamer.kernels import csr_reference
from gossamer.kernels.csr_reference import Loss, refuse_row
from gossamer.kernels.pool import split

Array = npt.NDArray[Any]
_CPU = torch.device("cpu")
_TOGETHER = 64  # models measured side by side
_LANES = 16  # a number of models is rounded up to a multiple: whole vectors are faster
_SIDE_BY_SIDE_BYTES = 64 << 20  # of the gradients of models measured side by side
_FEW_ENTRIES = 4  # per feature, below which putting models side by side costs more than it saves
_NO_BATCH, _NO_WEIGHTS = np.empty((1, 0), np.int64), np.empty(0)


@dataclass(frozen=True, eq=False)
class Csr:
    """Compressed rows: row r has `values[k]` in column `indices[k]`, for k from `indptr[r]` to `indptr[r + 1]`."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: Array
    width: int

    @classmethod
    def of(cls, matrix: Any, dtype: torch.dtype) -> "Csr":
        """A copy of a SciPy matrix in compressed rows, with values of this dtype."""
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        indptr, indices = np.array(matrix.indptr, np.int64), np.array(matrix.indices, np.int32)
        return cls(indptr, indices, np.array(matrix.data, kind), matrix.shape[1])

    @staticmethod
    def bytes_of(matrix: Any, itemsize: int) -> int:
        """The bytes that a SciPy matrix takes in this form."""
        return int(matrix.nnz * (4 + itemsize) + 8 * (matrix.shape[0] + 1))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def matrix(self) -> Any:
        """As a SciPy matrix, which shares the values."""
        return sparse.csr_array((self.values, self.indices, self.indptr), shape=(len(self), self.width))

    def dense(self, which: Any) -> Tensor:
        """Some rows as a tensor with all zeros."""
        if isinstance(which, Tensor):
            which = which.numpy()
        return torch.from_numpy(self.matrix[which].toarray())

    def part(self, rows: slice) -> "Csr":
        """A copy of consecutive rows."""
        ends = self.indptr[rows.start : rows.stop + 1]
        some = slice(ends[0], ends[-1])
        return Csr(ends - ends[0], self.indices[some].copy(), self.values[some].copy(), self.width)


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
        if self.loss == Loss.SOFTMAX and not ((self.targets >= 0) & (self.targets < self.outputs)).all():
            raise InputError(f"Targets must be classes from 0 to {self.outputs - 1}.")

    @cached_property
    def held(self) -> tuple[Array, Array]:
        """Each client's first row, and its number of rows."""
        counts = np.array(self.counts, np.int64)
        return np.cumsum(counts) - counts, counts

    @cached_property
    def _data(self) -> tuple[Array, ...]:
        """The arrays that the kernels take."""
        rows = self.rows
        return rows.indptr.view(np.uint64), rows.indices.view(np.uint32), rows.values, self.targets

    @cached_property
    def _fixed(self) -> tuple[Any, ...]:
        """Arguments of `gradients` that are the same in every call."""
        return *self.held, *self._data, self.outputs, int(self.loss)

    @cached_property
    def _entries(self) -> float:
        """Per row, on average."""
        return len(self.rows.values) / max(1, len(self.rows))

    def gradient(self, x: Tensor, batch: Tensor | None, nonconvex: float, l2: float) -> Tensor:
        """Row i: the gradient at row i of x, over its client's rows `batch[i]`, or over all of them.

        The mean of the losses' gradients, plus that of nonconvex * sum_j x_j^2 / (1 + x_j^2) + l2 / 2 ||x||^2. The
        clients of one seed stand after those of another. Each row is computed alone, in a fixed order.
        """
        models, whole = _array(x), batch is None
        rows = _NO_BATCH if batch is None else _array(batch)
        self._check(models, None if whole else rows)
        kernels = _kernels()
        if kernels is None:
            return torch.from_numpy(csr_reference.gradients(self, models, rows, whole, nonconvex, l2))
        out, bad = np.empty_like(models), []

        def run(begin: int, end: int) -> None:
            found = kernels.gradients(models, out, rows, whole, *self._fixed, nonconvex, l2, begin, end)
            if found >= 0:
                bad.append(found)

        entries = self._entries * (rows.shape[1] or len(self.rows) / len(self.counts))
        split(len(models), 4 * len(models) * self.outputs * (entries + self.rows.width), run)
        if bad:
            client = min(bad) % len(self.counts)
            refuse_row(client, rows[min(bad)], self.counts[client])
        return torch.from_numpy(out)

    def _check(self, models: Array, batch: Array | None) -> None:
        """The kernels read memory unchecked, so shapes must fit."""
        clients, d = len(self.counts), self.outputs * self.rows.width
        if models.ndim != 2 or models.shape[1] != d or len(models) % clients:
            raise InputError(f"Models must be (seeds * {clients}, {d}), one row per client, got {models.shape}.")
        if batch is not None and (batch.ndim != 2 or len(batch) != len(models) or not batch.shape[1]):
            raise InputError(f"A minibatch must be ({len(models)}, rows per client), got shape {batch.shape}.")

    def measure(self, models: Tensor, *, derive: bool) -> tuple[Tensor, Tensor]:
        """The mean loss at each of the (k, d) models, and its gradient (k, d), or the share of rows classified rightly.

        Means are over all rows by their weights, in float64. Outputs are computed in the type of the models. A model's
        numbers do not depend on the others.
        """
        points, total = _array(models), len(self.rows)
        if points.ndim != 2 or points.shape[1] != self.outputs * self.rows.width:
            raise InputError(f"Models must be (k, {self.outputs * self.rows.width}), got shape {points.shape}.")
        kernels = _kernels()
        if kernels is None:
            loss, other = csr_reference.measure(self, points, derive)
            return torch.from_numpy(loss / total), torch.from_numpy(other / total)
        loss, other = np.zeros(len(points)), np.zeros(points.shape if derive else len(points))
        together = max(1, min(_TOGETHER, _SIDE_BY_SIDE_BYTES // (8 * points.shape[1])))
        if self.outputs == 1 and len(self.rows.values) < _FEW_ENTRIES * self.rows.width:
            together = 1

        def run(begin: int, end: int) -> None:
            for at in range(begin, end, together):
                some = slice(at, min(end, at + together))
                self._measure_group(kernels, points[some], loss[some], other[some], derive)

        split(len(points), 4 * len(points) * self.outputs * total * (self._entries + 8), run)
        return torch.from_numpy(loss).div_(total), torch.from_numpy(other).div_(total)

    def _measure_group(self, kernels: ModuleType, points: Array, loss: Array, other: Array, derive: bool) -> None:
        """A group of models side by side, so that an entry of a row is one operation on contiguous numbers."""
        many, shape = len(points), (len(points), self.outputs, self.rows.width)
        lanes = many if many == 1 or self.outputs > 1 else -(-many // _LANES) * _LANES
        models = np.zeros((self.rows.width, self.outputs, lanes), points.dtype)
        models[:, :, :many] = points.reshape(shape).transpose(2, 1, 0)
        gradient = np.zeros(models.shape if derive else (0, self.outputs, lanes))
        sums, hits = np.zeros(lanes), np.zeros(lanes, np.int64)
        flat, into = models.reshape(len(models), -1), gradient.reshape(len(gradient), self.outputs * lanes)
        weights = _NO_WEIGHTS if self.weights is None else self.weights
        kernels.measure(flat, *self._data, weights, self.outputs, int(self.loss), derive, sums, hits, into)
        loss[:] = sums[:many]
        other[:] = gradient[:, :, :many].transpose(2, 1, 0).reshape(other.shape) if derive else hits[:many]


def _array(tensor: Tensor) -> Array:
    """The tensor's memory, contiguous."""
    return (tensor if tensor.is_contiguous() else tensor.contiguous()).numpy()


def _kernels() -> ModuleType | None:
    """The compiled kernels; None without numba."""
    from gossamer.kernels import backend, reference

    found = backend(_CPU)
    return None if found is reference else importlib.import_module("gossamer.kernels.cpu.examples")
