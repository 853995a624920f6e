"""The linear objectives: logistic regression, softmax regression, least squares."""

import os
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import softplus

from gossamer.errors import InputError, check_bool, check_choice, check_nonnegative, check_positive
from gossamer.kernels import Csr, Loss
from gossamer.problems.base import Facts, as_device, as_dtype
from gossamer.problems.curvature import least_residual, smallest_square
from gossamer.problems.data.datasets import Dataset, load
from gossamer.problems.data.holdings import Rows
from gossamer.problems.data.partition import Partition, split
from gossamer.problems.data.readers import check_dense
from gossamer.problems.linear import LinearModel, matrix, published_scale
from gossamer.registry import objectives

Data = str | os.PathLike[str] | Dataset | Any
Scale = float | Literal["published"]
Labels = Callable[[Any], Any]
Model = TypeVar("Model", bound=LinearModel)


class LogisticRegression(LinearModel):
    """Losses log(1 + exp(-z)) of rows that are stored multiplied by their label, since only the product a y matters.

    Test rows are stored as they are; their label is 1 for the second class and 0 for the first.
    """

    loss = Loss.LOGISTIC
    loss_curvature = 0.25
    loss_slope = 1.0

    @property
    def signed(self) -> Tensor:
        """(clients, rows, d): the rows, multiplied by their labels; if all clients have equally many rows."""
        return self.rows.features.view(self.clients, -1, self.d)

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """log(1 + exp(-z)); test rows, whose labels are integers, get their sign here."""
        z = z[..., 0, :]
        return softplus(-z if y.is_floating_point() else torch.where(y > 0, -z, z))

    def pull(self, z: Tensor, y: Tensor) -> Tensor:
        """-sigmoid(-z)."""
        if z.is_cuda:
            return torch.sigmoid(-z).neg_()
        with np.errstate(over="ignore"):  # 1 / inf is 0, as it should be
            return torch.from_numpy(-1 / (1 + np.exp(z.numpy())))

    def predicted(self, z: Tensor) -> Tensor:
        """The second class if a'x > 0, else the first."""
        return z[..., 0, :] > 0


class SoftmaxRegression(LinearModel):
    """Cross-entropy of softmax(z): one row of x per class."""

    loss = Loss.SOFTMAX
    loss_curvature = 0.5
    loss_slope = 2.0

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """logsumexp(z) - z_y."""
        return torch.logsumexp(z, dim=-2) - z.gather(-2, _at(y, z))[..., 0, :]

    def pull(self, z: Tensor, y: Tensor) -> Tensor:
        """softmax(z) minus 1 at the label."""
        p = torch.softmax(z, dim=-2) if z.is_cuda else _softmax(z)
        at = _at(y, z)
        return p.scatter_add_(-2, at, p.new_full((), -1).expand(at.shape))

    def predicted(self, z: Tensor) -> Tensor:
        """The class of the largest output."""
        return z.argmax(dim=-2)


def _softmax(z: Tensor) -> Tensor:
    """softmax(z) over the outputs, by NumPy: unlike torch, its rounding does not depend on positions."""
    array = z.numpy()
    with np.errstate(invalid="ignore"):  # the session reports divergence
        p = np.exp(array - array.max(axis=-2, keepdims=True))
    return torch.from_numpy(p / p.sum(axis=-2, keepdims=True))


def _at(y: Tensor, z: Tensor) -> Tensor:
    """The labels (..., rows) as an index into the outputs (..., outputs, rows)."""
    return y.unsqueeze(-2).expand(*z.shape[:-2], 1, z.shape[-1])


class LeastSquares(LinearModel):
    """Losses (z - y)^2 / 2."""

    loss = Loss.SQUARES
    loss_curvature = 1.0

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """(z - y)^2 / 2."""
        return (z[..., 0, :] - y).square() / 2

    def pull(self, z: Tensor, y: Tensor) -> Tensor:
        """z - y."""
        return z - y.unsqueeze(-2)

    def pl_constant(self) -> float | None:
        """The smallest non-zero eigenvalue of the Hessian; of sparse rows with many features and many rows, `l2`."""
        if self.nonconvex:
            return None
        if self.rows.sparse is not None:
            return smallest_square(self._weighted()[0], self.l2)
        a = self.rows.features.double()
        weighted = a if self.rows.weights is None else a * self.rows.weights[:, None]
        eigenvalues = torch.linalg.eigvalsh(weighted.T @ a / len(a)) + self.l2
        above = eigenvalues[eigenvalues > 1e-12 * eigenvalues[-1]]
        return float(above.min()) if len(above) else None

    def minimum(self) -> float:
        """f*, exact unless there is a nonconvex regulariser."""
        if self.nonconvex:
            return super().minimum()
        if self.rows.sparse is not None:
            return least_residual(*self._weighted(), self.l2) / 2
        a, y = self.rows.features.double(), self.rows.labels.double()
        root = (torch.ones_like(y) if self.rows.weights is None else self.rows.weights).div(len(y)).sqrt()
        ridge = self.l2**0.5 * torch.eye(self.d, dtype=torch.float64, device=self.device)
        left, right = torch.cat([a * root[:, None], ridge]), torch.cat([y * root, y.new_zeros(self.d)])
        x = torch.linalg.lstsq(left.cpu(), right.cpu()[:, None], driver="gelsd").solution[:, 0]
        return float((left.cpu() @ x - right.cpu()).square().sum() / 2)

    def _weighted(self) -> tuple[Any, Any]:
        """Sparse rows and labels, such that f(x) is ||A x - y||^2 / 2 + l2/2 ||x||^2."""
        rows = self.rows
        assert rows.sparse is not None
        weights = np.ones(rows.total) if rows.weights is None else rows.weights.numpy()
        root = np.sqrt(weights / rows.total)
        return scaled_rows(rows.sparse.matrix.astype(np.float64), root), rows.labels.double().numpy() * root


@objectives.register("logistic_regression")
def logistic_regression(
    data: Data = "breast_cancer",
    *,
    clients: int = 10,
    partition: str | Partition = "sorted",
    equal: bool = True,
    nonconvex: float = 0.05,
    l2: float = 0.0,
    feature_scale: Scale = 1.0,
    intercept: bool = True,
    data_dir: str | os.PathLike[str] | None = None,
    test: Any = None,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> LogisticRegression:
    """Binary classification with rows divided among clients (section 5 of the BEER paper).

    Args:
        data: `"a9a"`, `"breast_cancer"` (embedded), the path of a LIBSVM file, or anything that
            `gossamer.problems.load` takes; with two classes. Sparse features (LIBSVM, SciPy) stay sparse on a CPU.
        clients: Number of clients.
        partition: `"sorted"` by label, as in the paper, `"iid"`, `"by_label"`, `"dirichlet:0.5"` or `"shards:2"`.
        equal: Give every client equally many rows and drop the remainder, as in the paper; else keep all rows.
        nonconvex: Weight of the regulariser sum_j x_j^2 / (1 + x_j^2).
        l2: Weight of the regulariser ||x||^2 / 2.
        feature_scale: Divisor of the features, the intercept included; `"published"` is
            ||A||_2 / (2 sqrt(N)), with which the logistic part has L = 1, as in the paper's published runs.
        intercept: Append a column of ones.
        data_dir: Folder with data files; see `gossamer.problems.load`.
        test: Test rows, if `data` is not a named data set.
        seed: Seed of a random partition.
        dtype: float32 or float64.
        device: Device of the tensors, such as `"cpu"` or `"cuda"`.
    """
    dataset = load(data, data_dir, test)
    classes = dataset.classes("Logistic regression")
    if len(classes) != 2:
        shown = ", ".join(f"{value:g}" for value in classes[:5]) + (", ..." if len(classes) > 5 else "")
        raise InputError(
            f"Logistic regression needs two classes, but {dataset.name!r} has {len(classes)}: {shown}; "
            "softmax_regression takes any number."
        )
    sign = np.where(dataset.labels == classes[1], 1.0, -1.0)
    common = _Common(dataset, clients, partition, equal, feature_scale, intercept, seed, dtype, device)
    return common.model(LogisticRegression, 1, lambda y: (y == classes[1]).astype(np.int64), nonconvex, l2, sign)


@objectives.register("softmax_regression")
def softmax_regression(
    data: Data = "digits",
    *,
    clients: int = 10,
    partition: str | Partition = "sorted",
    equal: bool = True,
    nonconvex: float = 0.0,
    l2: float = 0.0,
    feature_scale: Scale | None = None,
    intercept: bool = True,
    data_dir: str | os.PathLike[str] | None = None,
    test: Any = None,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> SoftmaxRegression:
    """Classification into several classes, one weight vector each.

    The arguments are those of `logistic_regression`. `data` is `"mnist"`, `"digits"` (embedded), or anything else with
    classes. By default `feature_scale` is the largest value a pixel can take, so that features lie between 0 and 1.
    """
    dataset = load(data, data_dir, test)
    classes = dataset.classes("Softmax regression")
    scale = dataset.peak if feature_scale is None else feature_scale
    common = _Common(dataset, clients, partition, equal, scale, intercept, seed, dtype, device)
    return common.model(SoftmaxRegression, len(classes), lambda y: np.searchsorted(classes, y), nonconvex, l2)


@objectives.register("least_squares")
def least_squares(
    data: Data,
    *,
    clients: int = 10,
    partition: str | Partition = "sorted",
    equal: bool = True,
    nonconvex: float = 0.0,
    l2: float = 0.0,
    feature_scale: Scale = 1.0,
    intercept: bool = True,
    data_dir: str | os.PathLike[str] | None = None,
    test: Any = None,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> LeastSquares:
    """Linear regression: labels are numbers.

    The arguments are those of `logistic_regression`. `data` is the path of a LIBSVM file, a pair (features, labels), or
    anything else that `gossamer.problems.load` takes. The partition `"sorted"` sorts by label value.
    """
    dataset = load(data, data_dir, test)
    if dataset.labels.ndim != 1:
        raise InputError(f"Least squares needs one label per row, got labels of shape {dataset.labels.shape}.")
    common = _Common(dataset, clients, partition, equal, feature_scale, intercept, seed, dtype, device)
    return common.model(LeastSquares, 1, lambda y: y.astype(np.float64), nonconvex, l2)


class _Common:
    """What all three have in common: scale the features, divide the rows among clients."""

    def __init__(
        self,
        dataset: Dataset,
        clients: int,
        partition: str | Partition,
        equal: bool,
        scale: Scale,
        intercept: bool,
        seed: int,
        dtype: str | torch.dtype,
        device: str | torch.device,
    ) -> None:
        check_bool("intercept", intercept)
        if isinstance(scale, str):
            check_choice("feature_scale", scale, ("published",))
            self.scale = published_scale(dataset.features, intercept)
        else:
            self.scale = check_positive("feature_scale", scale)
        self.dataset, self.intercept = dataset, intercept
        self.dtype, self.device = as_dtype(dtype), as_device(device)
        self.shares = split(dataset.labels, clients, partition, seed, equal=equal)
        self.about: Facts = {"data": dataset.name, "partition": str(partition), "feature_scale": round(self.scale, 6)}

    def model(
        self, kind: type[Model], outputs: int, as_labels: Labels, nonconvex: float, l2: float, sign: Any = None
    ) -> Model:
        """The objective; the training rows are multiplied by `sign`, which then replaces their labels, if given."""
        data = self.dataset
        features, labels = self._matrix(data.features), as_labels(data.labels)
        if sign is not None:
            features, labels = scaled_rows(features, sign), np.ones(len(sign))
        rows = Rows.share(features, labels, self.shares, self.dtype, self.device)
        rows.named = torch.from_numpy(np.asarray(data.labels, np.float64)[np.concatenate(self.shares)])
        test = None
        if data.test_features is not None and data.test_labels is not None:
            if data.test_features.shape[1:] != data.features.shape[1:]:
                raise InputError(
                    f"The test rows of {data.name} have the shape {data.test_features.shape[1:]}, those of training "
                    f"{data.features.shape[1:]}."
                )
            everyone = [np.arange(len(data.test_labels))]
            features, labels = self._matrix(data.test_features), as_labels(data.test_labels)
            test = Rows.share(features, labels, everyone, self.dtype, self.device)
        weights = check_nonnegative("nonconvex", nonconvex), check_nonnegative("l2", l2)
        return kind(rows, outputs, test, *weights, self.about | {"nonconvex": nonconvex, "l2": l2})

    def _matrix(self, features: Any) -> Any:
        """The features as a matrix, dense unless sparse rows are smaller and can be used."""
        found = matrix(self.dataset, features, self.scale, self.intercept, self.dtype)
        itemsize, on_cpu = self.dtype.itemsize, self.device.type == "cpu"
        if not sparse.issparse(found):
            return found
        if on_cpu and Csr.bytes_of(found, itemsize) < found.shape[0] * found.shape[1] * itemsize:
            return found
        if not on_cpu:
            free, _ = torch.cuda.mem_get_info(self.device)
            check_dense(f"'{self.dataset.name}'", found.shape, itemsize, free)
        return found.astype(torch.empty(0, dtype=self.dtype).numpy().dtype).toarray()


def scaled_rows(rows: Any, factors: Any) -> Any:
    """Each row times its factor; sparse rows stay sparse."""
    if not sparse.issparse(rows):
        return rows * factors[:, None]
    values = rows.data * np.repeat(factors, np.diff(rows.indptr))
    return sparse.csr_array((values, rows.indices, rows.indptr), shape=rows.shape)
