"""The linear objectives: logistic regression, softmax regression, least squares."""

import os
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from gossamer.errors import InputError, check_bool, check_choice, check_nonnegative, check_positive
from gossamer.problems.base import as_device, as_dtype
from gossamer.problems.data.datasets import Dataset, load
from gossamer.problems.data.partition import Partition, split
from gossamer.problems.data.rows import Rows
from gossamer.problems.linear import LinearModel, matrix, published_scale
from gossamer.registry import objectives

Data = str | os.PathLike[str] | Dataset | Any
Scale = float | Literal["published"]


class LogisticRegression(LinearModel):
    """Losses log(1 + exp(-z)) of rows that are kept multiplied by their label, since a and y only appear together.

    The test rows are not: their labels say whether they are of the second class.
    """

    loss_curvature = 0.25
    loss_slope = 1.0

    @property
    def signed(self) -> Tensor:
        """(clients, rows, d): the rows, multiplied by their labels; for clients with as many rows each."""
        return self.rows.features.view(self.clients, -1, self.d)

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """log(1 + exp(-z)); test rows, whose labels are integers, are multiplied by theirs here."""
        z = z[..., 0, :]
        return softplus(-z if y.is_floating_point() else torch.where(y > 0, -z, z))

    def pull(self, z: Tensor, y: Tensor) -> Tensor:
        """-sigmoid(-z)."""
        if z.is_cuda:
            return torch.sigmoid(-z).neg_()
        with np.errstate(over="ignore"):  # 1 / inf is the 0 that is wanted
            return torch.from_numpy(-1 / (1 + np.exp(z.numpy())))

    def predicted(self, z: Tensor) -> Tensor:
        """a'x > 0 says the second class, anything else the first."""
        return z[..., 0, :] > 0


class SoftmaxRegression(LinearModel):
    """Cross-entropy of softmax(z): one row of x a class."""

    loss_curvature = 0.5
    loss_slope = 2.0

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """logsumexp(z) - z_y."""
        return torch.logsumexp(z, dim=-2) - z.gather(-2, _at(y, z))[..., 0, :]

    def pull(self, z: Tensor, y: Tensor) -> Tensor:
        """softmax(z) less 1 at the label."""
        p = torch.softmax(z, dim=-2) if z.is_cuda else _softmax(z)
        at = _at(y, z)
        return p.scatter_add_(-2, at, p.new_full((), -1).expand(at.shape))

    def predicted(self, z: Tensor) -> Tensor:
        """The class of the largest output."""
        return z.argmax(dim=-2)


def _softmax(z: Tensor) -> Tensor:
    """softmax(z) over the outputs, by NumPy: unlike torch, it rounds an element alike wherever it stands."""
    array = z.numpy()
    with np.errstate(invalid="ignore"):  # a run that diverges says so itself
        p = np.exp(array - array.max(axis=-2, keepdims=True))
    return torch.from_numpy(p / p.sum(axis=-2, keepdims=True))


def _at(y: Tensor, z: Tensor) -> Tensor:
    """The labels (..., rows) as an index into the outputs (..., outputs, rows)."""
    return y.unsqueeze(-2).expand(*z.shape[:-2], 1, z.shape[-1])


class LeastSquares(LinearModel):
    """Losses (z - y)^2 / 2."""

    loss_curvature = 1.0

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """(z - y)^2 / 2."""
        return (z[..., 0, :] - y).square() / 2

    def pull(self, z: Tensor, y: Tensor) -> Tensor:
        """z - y."""
        return z - y.unsqueeze(-2)

    def pl_constant(self) -> float | None:
        """The smallest eigenvalue of the Hessian that is not zero."""
        if self.nonconvex:
            return None
        a = self.rows.features.double()
        weighted = a if self.rows.weights is None else a * self.rows.weights[:, None]
        eigenvalues = torch.linalg.eigvalsh(weighted.T @ a / len(a)) + self.l2
        above = eigenvalues[eigenvalues > 1e-12 * eigenvalues[-1]]
        return float(above.min()) if len(above) else None

    def minimum(self) -> float:
        """f*: exact, but with a nonconvex regulariser."""
        if self.nonconvex:
            return super().minimum()
        a, y = self.rows.features.double(), self.rows.labels.double()
        root = (torch.ones_like(y) if self.rows.weights is None else self.rows.weights).div(len(y)).sqrt()
        ridge = self.l2**0.5 * torch.eye(self.d, dtype=torch.float64, device=self.device)
        left, right = torch.cat([a * root[:, None], ridge]), torch.cat([y * root, y.new_zeros(self.d)])
        x = torch.linalg.lstsq(left.cpu(), right.cpu()[:, None], driver="gelsd").solution[:, 0]
        return float((left.cpu() @ x - right.cpu()).square().sum() / 2)


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
    """Binary classification, its rows shared out among clients (section 5 of the BEER paper).

    Args:
        data: `"a9a"`, `"breast_cancer"` (embedded), the path of a LIBSVM file, or anything that
            `gossamer.problems.load` takes; with two classes.
        clients: How many share the rows.
        partition: `"sorted"` by label, as in the paper, `"iid"`, `"by_label"`, `"dirichlet:0.5"` or `"shards:2"`.
        equal: As many rows for every client, the remainder dropped, as in the paper; else all rows are kept.
        nonconvex: Weight of the regulariser sum_j x_j^2 / (1 + x_j^2).
        l2: Weight of the regulariser ||x||^2 / 2.
        feature_scale: What features are divided by, the intercept included; `"published"` is
            ||A||_2 / (2 sqrt(N)), with which the logistic part has L = 1, as in the paper's published runs.
        intercept: Append a column of ones.
        data_dir: Where data files lie; see `gossamer.problems.load`.
        test: Test rows, where `data` is not a named data set.
        seed: Of a random partition.
        dtype: float32 or float64.
        device: Where the tensors live, such as `"cpu"` or `"cuda"`.
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
    rows = common.rows(np.ones(len(sign)), sign)
    test_rows = common.test(lambda labels: (labels == classes[1]).astype(np.int64))
    return LogisticRegression(
        rows, 1, test_rows, *_weights(nonconvex, l2), common.about | {"nonconvex": nonconvex, "l2": l2}
    )


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

    Args:
        data: `"mnist"`, `"digits"` (embedded), or anything that `gossamer.problems.load` takes.
        clients: How many share the rows.
        partition: As for `logistic_regression`.
        equal: As for `logistic_regression`.
        nonconvex: Weight of the regulariser sum_j x_j^2 / (1 + x_j^2).
        l2: Weight of the regulariser ||x||^2 / 2.
        feature_scale: What features are divided by; by default the largest value a pixel can take, so that they lie
            between 0 and 1.
        intercept: Append a column of ones.
        data_dir: Where data files lie.
        test: Test rows, where `data` is not a named data set.
        seed: Of a random partition.
        dtype: float32 or float64.
        device: Where the tensors live.
    """
    dataset = load(data, data_dir, test)
    classes = dataset.classes("Softmax regression")
    scale = dataset.peak if feature_scale is None else feature_scale
    common = _Common(dataset, clients, partition, equal, scale, intercept, seed, dtype, device)
    rows = common.rows(np.searchsorted(classes, dataset.labels))
    test_rows = common.test(lambda labels: np.searchsorted(classes, labels))
    about = common.about | {"nonconvex": nonconvex, "l2": l2}
    return SoftmaxRegression(rows, len(classes), test_rows, *_weights(nonconvex, l2), about)


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

    Args:
        data: The path of a LIBSVM file, a pair (features, labels), or anything that `gossamer.problems.load`
            takes.
        clients: How many share the rows.
        partition: As for `logistic_regression`; `"sorted"` goes by the labels' size.
        equal: As for `logistic_regression`.
        nonconvex: Weight of the regulariser sum_j x_j^2 / (1 + x_j^2).
        l2: Weight of the regulariser ||x||^2 / 2.
        feature_scale: What features are divided by, the intercept included.
        intercept: Append a column of ones.
        data_dir: Where data files lie.
        test: Test rows, where `data` is not a named data set.
        seed: Of a random partition.
        dtype: float32 or float64.
        device: Where the tensors live.
    """
    dataset = load(data, data_dir, test)
    if dataset.labels.ndim != 1:
        raise InputError(f"Least squares needs one number a row, but labels are {dataset.labels.shape}.")
    common = _Common(dataset, clients, partition, equal, feature_scale, intercept, seed, dtype, device)
    rows = common.rows(dataset.labels.astype(np.float64))
    test_rows = common.test(lambda labels: labels.astype(np.float64))
    about = common.about | {"nonconvex": nonconvex, "l2": l2}
    return LeastSquares(rows, 1, test_rows, *_weights(nonconvex, l2), about)


def _weights(nonconvex: float, l2: float) -> tuple[float, float]:
    return check_nonnegative("nonconvex", nonconvex), check_nonnegative("l2", l2)


class _Common:
    """What the three do alike: scale the features, share out the rows."""

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
        self.about: dict[str, Any] = {
            "data": dataset.name,
            "partition": partition if isinstance(partition, str) else str(partition),
            "feature_scale": round(self.scale, 6),
        }

    def rows(self, labels: Any, sign: Any = None) -> Rows:
        """The training rows; multiplied by `sign`, if given."""
        features = matrix(self.dataset, self.dataset.features, self.scale, self.intercept, self.dtype)
        features = features if sign is None else features * sign[:, None]
        made = Rows.share(features, labels, self.shares, self.dtype, self.device)
        made.named = torch.from_numpy(np.asarray(self.dataset.labels, np.float64)[np.concatenate(self.shares)])
        return made

    def test(self, as_labels: Any) -> Rows | None:
        """The test rows, if there are any."""
        features, labels = self.dataset.test_features, self.dataset.test_labels
        if features is None or labels is None:
            return None
        if features.shape[1:] != self.dataset.features.shape[1:]:
            raise InputError(
                f"The test rows of {self.dataset.name} have the shape {features.shape[1:]}, those of training "
                f"{self.dataset.features.shape[1:]}."
            )
        wide = matrix(self.dataset, features, self.scale, self.intercept, self.dtype)
        return Rows.share(wide, as_labels(labels), [np.arange(len(labels))], self.dtype, self.device)
