"""Base class of linear models: outputs A x, a loss per row, and a regulariser."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from gossamer.errors import InputError
from gossamer.kernels import Examples, Loss, combination, linear_gradients, linear_measures, outputs
from gossamer.problems.base import TOGETHER, DataProblem, Facts, in_groups
from gossamer.problems.curvature import largest_mean_square, largest_square
from gossamer.problems.data.datasets import Dataset
from gossamer.problems.data.holdings import Rows

_ROWS = 1 << 13  # data rows evaluated at once, so that their outputs stay in the cache


class LinearModel(DataProblem):
    """f_i(x) = mean of loss(A x, y) over client i's rows + nonconvex * sum_j x_j^2 / (1 + x_j^2) + l2/2 ||x||^2.

    A model x is a matrix (outputs, features) laid out row by row; outputs z are (..., outputs, rows). On sparse rows
    the kernels compute gradients and measurements; `losses`, `pull` and `predicted` are for dense rows.
    """

    is_replayable = True

    loss: Loss
    """As the kernels call it."""
    loss_curvature: float
    """The largest second derivative of the loss by its outputs."""
    loss_slope: float | None = None
    """The largest ||derivative of the loss by its outputs||^2, if it is bounded."""

    models_at_once = TOGETHER

    def __init__(self, rows: Rows, outputs: int, test: Rows | None, nonconvex: float, l2: float, about: Facts) -> None:
        self.outputs, self.features = outputs, rows.width
        super().__init__(rows, test, outputs * self.features, about)
        self.nonconvex, self.l2 = nonconvex, l2

    def content(self) -> Sequence[Any]:
        """The rows of every client, the test rows and the regularisers."""
        return [*super().content(), self.outputs, self.nonconvex, self.l2]

    @abstractmethod
    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """(..., rows): the loss of each row, from its outputs (..., outputs, rows) and its label (..., rows)."""

    @abstractmethod
    def pull(self, z: Tensor, y: Tensor) -> Tensor:
        """The derivative of the losses by z, of z's shape."""

    def predicted(self, z: Tensor) -> Tensor | None:
        """(..., rows): the predicted class of each row; None if the labels are numbers."""
        return None

    @cached_property
    def _examples(self) -> Examples | None:
        """The clients' rows, if they are sparse."""
        return self._as_examples(self.rows)

    @cached_property
    def _test_examples(self) -> Examples | None:
        """The test rows, if there are any and they are sparse."""
        return None if self.test is None else self._as_examples(self.test)

    def _as_examples(self, rows: Rows) -> Examples | None:
        if rows.sparse is None:
            return None
        labels, weights = rows.labels.numpy(), None if rows.weights is None else rows.weights.numpy()
        if self.loss == Loss.LOGISTIC and not rows.labels.is_floating_point():  # of test rows: 0 and 1
            labels = 2 * labels - 1
        targets = labels.astype(rows.sparse.values.dtype)
        return Examples(rows.sparse, targets, rows.counts, weights, self.outputs, self.loss)

    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """Mean of (derivative by z) times the row, plus the regulariser's gradient; see the kernels on rounding."""
        if self._examples is not None:
            return linear_gradients(self._examples, x, batch, self.nonconvex, self.l2)
        rows, shape = self.rows, (-1, self.outputs, self.features)
        if batch is not None:
            index = rows.index(batch)
            a = rows.features.index_select(0, index.flatten()).view(*batch.shape, self.features)
            pull = self.pull(outputs(x.view(shape), a), rows.labels[index])
            data = combination(pull, a).view(x.shape) / batch.shape[1]
        else:
            seeds = x.view(-1, rows.clients, self.outputs, self.features)
            data = torch.stack([self._full(models) for models in seeds]).view(x.shape)
        return data + self._regulariser_gradient(x)

    def batch_loss(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """Mean loss of each client's rows plus the regulariser, client by client."""
        rows, every = self.rows, list(self.rows.by_client())
        index = None if batch is None else rows.index(batch)
        matrix = None if rows.sparse is None else rows.sparse.matrix
        found = []
        for i, model in enumerate(x.view(-1, self.outputs, self.features)):
            which = every[i % rows.clients] if index is None else index[i]
            if matrix is None:
                z = model @ rows.features[which].T
            else:
                some = which.numpy() if isinstance(which, Tensor) else which
                z = torch.from_numpy((matrix[some] @ model.numpy().T).T)
            found.append(self.losses(z, rows.labels[which]).mean(dtype=torch.float64))
        return torch.stack(found) + self._regulariser(x.double())

    def _full(self, models: Tensor) -> Tensor:
        """The gradients of the losses at one model per client, (clients, outputs, features), over all rows."""
        rows = self.rows
        if rows.are_equal:
            a = rows.features.view(rows.clients, rows.least, self.features)
            pull = self.pull(outputs(models, a), rows.labels.view(rows.clients, rows.least))
            return combination(pull, a) / rows.least
        parts = []
        for mine, own in zip(rows.by_client(), models, strict=True):
            a, y = rows.features[mine][None], rows.labels[mine][None]
            parts.append(combination(self.pull(outputs(own[None], a), y), a) / a.shape[1])
        return torch.cat(parts)

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        """Evaluate over all rows of all clients, with matrix-matrix products for many models at a time."""
        losses, norms = [], []
        for group in in_groups(models) if self._examples is None else torch.split(models, TOGETHER):
            loss, gradient = self._value(group)
            losses.append(loss)
            norms.append(gradient.norm(dim=1))
        return {"loss": torch.cat(losses)[: len(models)], "grad_norm": torch.cat(norms)[: len(models)]}

    def _value(self, models: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Losses (k,) and gradients (k, d) at (k, d) models, in the problem's dtype or another; summed in float64."""
        rows, wide, dtype = self.rows, models.double(), dtype or self.dtype
        x = wide.to(dtype).view(-1, self.features)
        loss = self._regulariser(wide)
        gradient = self._regulariser_gradient(wide)
        if self._examples is not None:
            data, slope = linear_measures(self._examples, wide.to(dtype), derive=True)
            return loss + data, gradient + slope
        for begin in range(0, rows.total, _ROWS):
            some = slice(begin, begin + _ROWS)
            a, y = rows.features[some].to(dtype), rows.labels[some]
            z = (x @ a.T).view(len(models), self.outputs, -1)
            pull, each = self.pull(z, y), self.losses(z, y)
            if rows.weights is not None:
                weights = rows.weights[some].to(dtype)
                pull, each = pull * weights, each * weights
            gradient += (pull.view(len(x), -1) @ a).view(wide.shape).double() / rows.total
            loss += each.sum(dim=1, dtype=torch.float64) / rows.total
        return loss, gradient

    def score(self, models: Tensor) -> dict[str, Tensor]:
        """Loss (without regulariser) and accuracy on the test rows."""
        if self.test is None:
            return {}
        are_classes = self.loss != Loss.SQUARES
        if self._test_examples is not None:
            loss, accuracy = linear_measures(self._test_examples, models.to(self.dtype), derive=False)
            return {"loss": loss, "accuracy": accuracy} if are_classes else {"loss": loss}
        parts = []
        for group in in_groups(models.to(self.dtype)):
            sums = torch.zeros(2, len(group), dtype=torch.float64, device=self.device)
            for begin in range(0, self.test.total, _ROWS):
                a, y = (part[begin : begin + _ROWS] for part in (self.test.features, self.test.labels))
                z = (group.view(-1, self.features) @ a.T).view(len(group), self.outputs, -1)
                sums[0] += self.losses(z, y).sum(dim=1, dtype=torch.float64)
                classes = self.predicted(z)
                if classes is not None:
                    sums[1] += (classes == y).sum(dim=1)
            parts.append(sums / self.test.total)
        loss, accuracy = torch.cat(parts, dim=1)[:, : len(models)]
        return {"loss": loss, "accuracy": accuracy} if are_classes else {"loss": loss}

    def smoothness(self) -> float:
        """The largest L of a client: of the loss, its curvature times the largest eigenvalue of A'A / rows; of the
        regularisers, l2 and 2 nonconvex, the curvature at zero.
        """
        rows, largest = self.rows, 0.0
        if rows.sparse is not None:
            largest = largest_mean_square(rows.sparse.matrix.astype(np.float64), rows.counts)
        else:
            for mine in rows.by_client():
                square = float(torch.linalg.matrix_norm(rows.features[mine].double(), 2)) ** 2
                largest = max(largest, square / (mine.stop - mine.start))
        return self.loss_curvature * largest + 2 * self.nonconvex + self.l2

    def noise_bound(self) -> float | None:
        """The largest slope of the loss times the mean of ||a||^2 over a client's rows, maximised over clients."""
        if self.loss_slope is None:
            return None
        rows = self.rows
        if rows.sparse is not None:
            squares = np.asarray((rows.sparse.matrix.astype(np.float64) ** 2).sum(axis=1))
        else:
            squares = rows.features.double().square().sum(dim=1).cpu().numpy()
        sums = np.add.reduceat(squares, rows.first.cpu().numpy())  # by client
        return self.loss_slope * float((sums / rows.counts).max())

    def pl_constant(self) -> float | None:
        """`l2`, by strong convexity, if there is no nonconvex regulariser."""
        return self.l2 if self.l2 > 0 and self.nonconvex == 0 else None

    def minimum(self) -> float:
        """f*, by L-BFGS in float64 from the starting point; with a nonconvex regulariser, a local minimum."""
        return float(self._minimum)

    @cached_property
    def _minimum(self) -> float:
        from scipy.optimize import minimize

        def value(x: Any) -> tuple[float, Any]:
            loss, gradient = self._value(torch.from_numpy(x)[None].to(self.device), torch.float64)
            return float(loss[0]), gradient[0].cpu().numpy()

        start = self.x0().double().cpu().numpy()
        found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 0, "gtol": 1e-10})
        return float(found.fun)

    def _regulariser(self, x: Tensor) -> Tensor:
        square = x * x
        return self.nonconvex * (square / (1 + square)).sum(dim=1) + self.l2 / 2 * square.sum(dim=1)

    def _regulariser_gradient(self, x: Tensor) -> Tensor:
        if self.nonconvex and not self.l2:
            return self.nonconvex * (2 * x / (1 + x * x) ** 2)
        return self.l2 * x + self.nonconvex * (2 * x / (1 + x * x) ** 2)


def _flat(features: Any, intercept: bool) -> Any:
    """A float64 matrix with one line per row, sparse if the features are."""
    if sparse.issparse(features):
        rows = sparse.csr_array(features, dtype=np.float64)
        ones = sparse.csr_array(np.ones((rows.shape[0], 1)))
        return sparse.hstack([rows, ones], format="csr") if intercept else rows
    flat = np.asarray(features, np.float64).reshape(len(features), -1)
    return np.hstack([flat, np.ones((len(flat), 1))]) if intercept else flat


def matrix(dataset: Dataset, features: Any, scale: float, intercept: bool, dtype: torch.dtype) -> Any:
    """Features as a float64 matrix, divided by `scale`, with an optional column of ones; they must fit into `dtype`."""
    scaled = _flat(features, intercept) / scale
    largest = float(np.abs(scaled.data if sparse.issparse(scaled) else scaled).max(initial=0))
    if not largest <= torch.finfo(dtype).max:
        raise InputError(f"The features of {dataset.name!r} divided by {scale:g} do not fit into {str(dtype)[6:]}.")
    return scaled


def published_scale(features: Any, intercept: bool) -> float:
    """||A||_2 / (2 sqrt(N)), the intercept column included."""
    a = _flat(features, intercept)
    largest = largest_square(a) if sparse.issparse(a) else np.linalg.eigvalsh(a.T @ a)[-1]
    return float(np.sqrt(largest) / (2 * np.sqrt(a.shape[0])))
