"""Logistic regression with the paper's nonconvex regulariser."""

import os
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import softplus

from gossamer.errors import InputError, check_bool, check_choice, check_nonnegative, check_positive
from gossamer.problems.base import Problem, as_device, as_dtype, in_groups
from gossamer.problems.datasets import Dataset, load
from gossamer.problems.partition import split
from gossamer.registry import objectives

_ROWS = 1 << 13  # data rows evaluated at once: their margins stay in the cache between the passes over them


class LogisticRegression(Problem):
    """f_i(x) = mean of log(1 + exp(-b a'x)) + nonconvex * sum_j x_j^2 / (1 + x_j^2) over client i's rows (a, b).

    Rows are kept multiplied by their label, `signed = b a`, since a and b only ever appear together.
    """

    def __init__(
        self, signed: Tensor, test: tuple[Tensor, Tensor] | None, nonconvex: float, about: dict[str, Any]
    ) -> None:
        self.signed, self.test, self.nonconvex = signed, test, nonconvex  # (clients, rows, d); (rows, d), (rows,)
        self.clients, self.rows_per_client, self.d = signed.shape
        self.dtype, self.device = signed.dtype, signed.device
        self._about = about
        self._flat = signed.reshape(-1, self.d)
        self._first = torch.arange(self.clients, device=self.device)[:, None] * self.rows_per_client

    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """Mean of -sigmoid(-b a'x) b a over the rows, and the regulariser's gradient."""
        if batch is None:
            models = x.view(-1, self.clients, self.d).permute(1, 2, 0)  # (clients, d, seeds): one product a client
            pull = torch.sigmoid(-(self.signed @ models))  # (clients, rows, seeds)
            data = -(self.signed.mT @ pull).permute(2, 0, 1).reshape(x.shape) / self.rows_per_client
        else:
            which = batch.view(-1, self.clients, batch.shape[1]) + self._first
            rows = self._flat.index_select(0, which.flatten()).view(*batch.shape, self.d)
            # A row times a matrix: torch is five times slower at the same product as a matrix times a column.
            pull = torch.sigmoid(-(x[:, None] @ rows.mT))
            data = -(pull @ rows)[:, 0] / batch.shape[1]
        return data + self.nonconvex * (2 * x / (1 + x * x) ** 2)

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        """Over all rows of all clients, many models at a time: matrix-matrix products in place of matrix-vector."""
        losses, norms = [], []
        for group in in_groups(models):
            wide = group.double().T.contiguous()  # (d, 64)
            x, square = wide.to(self.dtype), wide * wide
            loss = self.nonconvex * (square / (1 + square)).sum(dim=0)
            gradient = self.nonconvex * (2 * wide / (1 + square) ** 2)
            for rows in torch.split(self._flat, _ROWS):
                margin = (rows @ x).neg_()
                gradient -= (rows.T @ torch.sigmoid(margin)).double() / len(self._flat)
                loss += softplus(margin).sum(dim=0, dtype=torch.float64) / len(self._flat)
            losses.append(loss)
            norms.append(gradient.norm(dim=0))
        return {"loss": torch.cat(losses)[: len(models)], "grad_norm": torch.cat(norms)[: len(models)]}

    def accuracy(self, models: Tensor) -> Tensor | None:
        """The share of test rows on the right side: a'x > 0 says +1, anything else -1."""
        if self.test is None:
            return None
        features, is_positive = self.test
        counts = []
        for group in in_groups(models.to(self.dtype)):
            x = group.T.contiguous()
            right = torch.zeros(x.shape[1], dtype=torch.int64, device=self.device)
            for rows, positive in zip(torch.split(features, _ROWS), torch.split(is_positive, _ROWS), strict=True):
                right += ((rows @ x > 0) == positive[:, None]).sum(dim=0)
            counts.append(right)
        return torch.cat(counts)[: len(models)].double() / len(features)

    def describe(self) -> dict[str, Any]:
        """The data, its split and its scale."""
        return super().describe() | self._about


@objectives.register("logistic_regression")
def logistic_regression(
    data: str | os.PathLike[str] | Dataset = "breast_cancer",
    *,
    clients: int = 10,
    partition: str = "sorted",
    nonconvex: float = 0.05,
    feature_scale: float | Literal["published"] = 1.0,
    intercept: bool = True,
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> LogisticRegression:
    """Binary classification, its rows shared out among clients (section 5 of the BEER paper).

    Args:
        data: `"a9a"`, `"breast_cancer"` (embedded), or the path of a LIBSVM file.
        clients: How many share the rows; each gets as many, the remainder is dropped.
        partition: `"sorted"` by label, as in the paper, or `"iid"`.
        nonconvex: Weight of the regulariser sum_j x_j^2 / (1 + x_j^2).
        feature_scale: What features are divided by, the intercept included; `"published"` is
            ||A||_2 / (2 sqrt(N)), with which the logistic part has L = 1, as in the paper's published runs.
        intercept: Append a column of ones.
        data_dir: Where data files lie; see `gossamer.problems.datasets.load`.
        seed: Of a random partition.
        dtype: float32 or float64.
        device: Where the tensors live, such as `"cpu"` or `"cuda"`.
    """
    nonconvex = check_nonnegative("nonconvex", nonconvex)
    check_bool("intercept", intercept)
    if isinstance(feature_scale, str):
        check_choice("feature_scale", feature_scale, ("published",))
    else:
        check_positive("feature_scale", feature_scale)
    dtype, device = as_dtype(dtype), as_device(device)
    dataset = data if isinstance(data, Dataset) else load(data, data_dir)
    labels, classes = _signs(dataset.labels, dataset.name)
    features = _with_intercept(dataset.features, intercept)
    scale = _published_scale(features) if isinstance(feature_scale, str) else float(feature_scale)
    rows = split(labels, clients, partition, seed)
    signed = torch.tensor((features * (labels / scale)[:, None])[rows], dtype=dtype, device=device)
    if not torch.isfinite(signed).all():
        raise InputError(f"The features of {dataset.name!r} divided by {scale:g} do not fit into {str(dtype)[6:]}.")
    test = None
    if dataset.test_features is not None and dataset.test_labels is not None:
        test_labels, _ = _signs(dataset.test_labels, f"the test rows of {dataset.name}", classes)
        test_features = _with_intercept(dataset.test_features, intercept) / scale
        test = (
            torch.tensor(test_features, dtype=dtype, device=device),
            torch.tensor(test_labels > 0, device=device),
        )
    about = {"data": dataset.name, "partition": partition, "nonconvex": nonconvex, "feature_scale": round(scale, 6)}
    return LogisticRegression(signed, test, nonconvex, about)


def _with_intercept(features: npt.NDArray[np.float64], intercept: bool) -> npt.NDArray[np.float64]:
    return np.hstack([features, np.ones((len(features), 1))]) if intercept else features


def _published_scale(features: npt.NDArray[np.float64]) -> float:
    """||A||_2 / (2 sqrt(N))."""
    largest = np.linalg.eigvalsh(features.T @ features)[-1]
    return float(np.sqrt(largest) / (2 * np.sqrt(len(features))))


def _signs(
    labels: npt.NDArray[np.float64], name: str, classes: npt.NDArray[np.float64] | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Labels as -1 and +1 (the larger one), and the two classes."""
    found = np.unique(labels)
    shown = ", ".join(f"{value:g}" for value in found[:5])
    if classes is None:
        classes = found
        if len(classes) != 2:
            raise InputError(f"Logistic regression needs two classes, but {name!r} has {len(found)}: {shown}.")
    elif not np.isin(found, classes).all():
        raise InputError(f"The labels of {name} are {shown}, but those of training {classes[0]:g}, {classes[1]:g}.")
    return np.where(labels == classes[1], 1.0, -1.0), classes
