"""Linear models on sparse rows in plain NumPy and SciPy: what the compiled kernels are held to."""

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from gossamer.errors import InputError

if TYPE_CHECKING:
    from gossamer.kernels.csr import Examples

Array = npt.NDArray[Any]
_ENTRIES = 1 << 20  # numbers handled at once


class Loss(IntEnum):
    """The loss of a row with outputs z and target y."""

    LOGISTIC = 0
    """log(1 + exp(-y z)), y = 1 or -1."""
    SOFTMAX = 1
    """Cross-entropy of softmax(z), y = 0, 1, ..."""
    SQUARES = 2
    """(z - y)^2 / 2."""


def gradients(examples: "Examples", x: Array, batch: Array, whole: bool, nonconvex: float, l2: float) -> Array:
    """As `Examples.gradient`; sums over rows and entries are float64, one after another."""
    first, counts = examples.held
    clients = np.arange(len(x)) % len(counts)
    sizes = counts[clients] if whole else np.full(len(x), batch.shape[1])
    mean_entries = max(1.0, len(examples.rows.values) / len(examples.rows))
    ends = np.cumsum(sizes * mean_entries + x.shape[1])
    parts, begin = [], 0
    while begin < len(x):
        reached = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, reached + _ENTRIES, "right")))
        some = slice(begin, end)
        which = np.repeat(np.arange(end - begin), sizes[some])  # the model of each row of data
        if whole:
            rows = np.concatenate([first[i] + np.arange(counts[i]) for i in clients[some]])
        else:
            rows = batch[some].ravel()
            _check_rows(rows, which, clients[some], counts, batch[some])
            rows = rows + first[clients[some]][which]
        parts.append(_sums(examples, x[some], rows, which) / sizes[some, None])
        begin = end
    bend = 1 + x * x
    kind = x.dtype.type
    regular: Array = kind(l2) * x + kind(nonconvex) * (2 * x / (bend * bend))
    return np.concatenate(parts).astype(x.dtype) + regular


def _check_rows(rows: Array, which: Array, clients: Array, counts: Array, batch: Array) -> None:
    bad = (rows < 0) | (rows >= counts[clients][which])
    if bad.any():
        model = which[bad.argmax()]
        refuse_row(int(clients[model]), batch[model], int(counts[clients[model]]))


def refuse_row(client: int, batch: Array, count: int) -> NoReturn:
    """Raise an error for a minibatch with a row that its client does not have."""
    row = int(batch[(batch < 0) | (batch >= count)][0])
    raise InputError(f"The minibatch of client {client} has row {row}, but the client has rows 0 to {count - 1}.")


def _sums(examples: "Examples", x: Array, rows: Array, which: Array) -> Array:
    """(models, d): the sum of the gradients of the losses of `rows` at the models `which`."""
    data, outputs, width = examples.rows, examples.outputs, examples.rows.width
    lengths = data.indptr[rows + 1] - data.indptr[rows]
    place = np.repeat(np.arange(len(rows)), lengths)  # the row of each entry
    entries = np.arange(lengths.sum()) + np.repeat(data.indptr[rows] - (np.cumsum(lengths) - lengths), lengths)
    columns, values = data.indices[entries], data.values[entries].astype(np.float64)
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


def measure(examples: "Examples", models: Array, derive: bool) -> tuple[Array, Array]:
    """As `Examples.measure`, as sums in place of means."""
    outputs, width, many = examples.outputs, examples.rows.width, len(models)
    columns = models.reshape(many * outputs, width).T
    matrix, total = examples.rows.matrix, len(examples.rows)
    loss, other = np.zeros(many), np.zeros((width, many * outputs) if derive else many)
    step = max(1, _ENTRIES // max(1, many * outputs))
    for begin in range(0, total, step):
        some = slice(begin, begin + step)
        a = matrix[some]
        z = (a @ columns).reshape(-1, many, outputs).transpose(0, 2, 1)
        each, pull, hits = losses(z, examples.targets[some], examples.loss)
        weights = np.ones(len(z)) if examples.weights is None else examples.weights[some]
        loss += (weights[:, None] * each).sum(axis=0)
        if derive:
            weighted = weights[:, None, None] * pull.transpose(0, 2, 1)
            other += a.T @ weighted.reshape(len(z), -1)
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
        total = powers.sum(axis=1)
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
