"""Which client holds which rows."""

import numpy as np
import numpy.typing as npt

from gossamer.errors import InputError, check_integer
from gossamer.registry import partitions

Indices = npt.NDArray[np.int64]


def split(labels: npt.NDArray[np.float64], clients: int, partition: str = "sorted", seed: int = 0) -> Indices:
    """(clients, rows) row numbers: equal shares, with the remainder dropped as in the paper."""
    clients, seed = check_integer("clients", clients, 1), check_integer("seed", seed, 0)
    if clients > len(labels):
        raise InputError(f"{clients} clients cannot share {len(labels)} rows; ask for at most {len(labels)} clients.")
    order = partitions.get(partition)(labels, seed)
    rows = len(labels) // clients
    return np.asarray(order[: rows * clients], np.int64).reshape(clients, rows)


@partitions.register("sorted")
def sort_by_label(labels: npt.NDArray[np.float64], seed: int) -> Indices:
    """The paper's unshuffled split: rows in the order of their labels, so that most clients see one label alone."""
    return np.argsort(labels, kind="stable")


@partitions.register("iid")
def shuffle(labels: npt.NDArray[np.float64], seed: int) -> Indices:
    """Rows in random order: every client sees the same mix."""
    return np.random.default_rng(seed).permutation(len(labels))
