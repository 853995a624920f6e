"""Partitions of the rows among clients: from the paper's unshuffled split to Dirichlet mixtures."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.errors import InputError, check_bool, check_integer, check_positive, settle
from gossamer.registry import partitions

Indices = npt.NDArray[np.int64]
_TURNS = 20


class Partition(ABC):
    """A rule that divides the rows of a data set among clients."""

    @abstractmethod
    def __call__(self, labels: npt.NDArray[Any], sizes: Indices, random: np.random.Generator) -> list[Indices]:
        """The row numbers of each client; client i gets `sizes[i]` of them, and no row is used twice."""


def split(
    labels: npt.NDArray[Any], clients: int, partition: str | Partition = "sorted", seed: int = 0, *, equal: bool = True
) -> list[Indices]:
    """The row numbers of each client, by `"sorted"`, `"iid"`, `"by_label"`, `"dirichlet:0.5"` or `"shards:2"`.

    With `equal`, every client gets equally many rows and the remainder is dropped, as in the paper; else all rows are
    kept. `seed` is that of a random partition.
    """
    clients, seed = check_integer("clients", clients, 1), check_integer("seed", seed, 0)
    check_bool("equal", equal)
    if clients > len(labels):
        raise InputError(f"{clients} clients cannot share {len(labels)} rows; ask for at most {len(labels)} clients.")
    rule = partitions.build(partition)
    if not isinstance(rule, Partition):
        raise InputError(f"`partition` must be a name such as 'sorted' or 'dirichlet:0.5', got {partition!r}.")
    if labels.ndim != 1 and not isinstance(rule, IID):
        raise InputError(f"Labels of shape {labels.shape} cannot be split by {partition!r}; use 'iid'.")
    sizes = np.full(clients, len(labels) // clients)
    if not equal:
        sizes[: len(labels) % clients] += 1
    shares = rule(labels, sizes, np.random.default_rng(seed))
    if equal:  # by_label ignores the sizes
        least = min(map(len, shares))
        shares = [share[:least] for share in shares]
    return [np.asarray(share, np.int64) for share in shares]


def _cut(order: npt.NDArray[Any], sizes: Indices) -> list[Indices]:
    """Consecutive pieces of these sizes."""
    return np.split(order, np.cumsum(sizes))[: len(sizes)]


@partitions.register("sorted")
@dataclass(frozen=True)
class Sorted(Partition):
    """The paper's unshuffled split: rows in the order of their labels, so that most clients see one label only."""

    def __call__(self, labels: npt.NDArray[Any], sizes: Indices, random: np.random.Generator) -> list[Indices]:
        """Consecutive rows."""
        return _cut(np.argsort(labels, kind="stable"), sizes)


@partitions.register("iid")
@dataclass(frozen=True)
class IID(Partition):
    """Rows in random order: every client sees the same mix."""

    def __call__(self, labels: npt.NDArray[Any], sizes: Indices, random: np.random.Generator) -> list[Indices]:
        """Random rows."""
        return _cut(random.permutation(len(labels)), sizes)


@partitions.register("by_label")
@dataclass(frozen=True)
class ByLabel(Partition):
    """Client i holds label i only; with more clients than labels, clients share labels, and vice versa."""

    def __call__(self, labels: npt.NDArray[Any], sizes: Indices, random: np.random.Generator) -> list[Indices]:
        """All rows of a client's labels; `sizes` is ignored."""
        classes, clients = np.unique(labels), len(sizes)
        if len(classes) > max(1000, clients):
            raise InputError(f"'by_label' needs labels that repeat, but there are {len(classes):,} different ones.")
        holders: list[list[int]] = [[] for _ in classes]
        for i in range(max(clients, len(classes))):
            holders[i % len(classes)].append(i % clients)
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for label, who in zip(classes, holders, strict=True):
            for client, rows in zip(who, np.array_split(np.flatnonzero(labels == label), len(who)), strict=True):
                parts[client].append(rows)
        shares = [np.concatenate(part) for part in parts]
        empty = next((i for i, share in enumerate(shares) if not len(share)), None)
        if empty is not None:
            raise InputError(f"'by_label' leaves client {empty} without rows; ask for fewer than {clients} clients.")
        return shares


@partitions.register("dirichlet")
@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each client draws its mix of labels from a Dirichlet distribution (Hsu, Qi and Brown, 2019).

    Args:
        alpha: Small values give one or two labels per client, large values the same mix to all.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        settle(self, alpha=check_positive("alpha", self.alpha))
        if not 1e-6 <= self.alpha <= 1e6:
            raise InputError(f"`alpha` of 'dirichlet' must lie between 1e-6 and 1e6, got {self.alpha!r}.")

    def __call__(self, labels: npt.NDArray[Any], sizes: Indices, random: np.random.Generator) -> list[Indices]:
        """Exactly `sizes`; when a label runs out, the remaining labels fill its share.

        Clients take turns, a twentieth of their rows at a time, so that no client gets all of what remains at the end.
        """
        classes, counts = np.unique(labels, return_counts=True)
        pools = [random.permutation(np.flatnonzero(labels == label)).tolist() for label in classes]
        mixes = np.maximum(random.dirichlet(self.alpha * counts / counts.mean(), len(sizes)), 1e-12)
        shares: list[list[int]] = [[] for _ in sizes]
        whole = [int(size) for size in sizes]
        for turn in range(1, _TURNS + 1):
            for client in random.permutation(len(sizes)).tolist():
                mine, wanted = shares[client], whole[client] * turn // _TURNS
                while len(mine) < wanted:
                    left = np.array([len(pool) for pool in pools])
                    odds = np.where(left > 0, mixes[client], 0.0)
                    drawn = random.multinomial(wanted - len(mine), odds / odds.sum())
                    for pool, many in zip(pools, np.minimum(drawn, left), strict=True):
                        mine += pool[len(pool) - many :]
                        del pool[len(pool) - many :]
        return [np.array(share) for share in shares]


@partitions.register("shards")
@dataclass(frozen=True)
class Shards(Partition):
    """Rows sorted by label are cut into shards, and each client gets k of them at random (McMahan et al., 2017).

    Args:
        k: Shards per client.
    """

    k: int = 2

    def __post_init__(self) -> None:
        settle(self, k=check_integer("k", self.k, 1))

    def __call__(self, labels: npt.NDArray[Any], sizes: Indices, random: np.random.Generator) -> list[Indices]:
        """Exactly `sizes`; a client's shards have nearly equal sizes."""
        clients = len(sizes)
        if self.k > sizes.min():
            raise InputError(f"'shards' cannot cut the {sizes.min()} rows of a client into k = {self.k} shards.")
        whose = random.permutation(np.repeat(np.arange(clients), self.k))
        mine = np.argsort(whose, kind="stable").reshape(clients, self.k)  # each client's shards
        whole, over = np.divmod(np.asarray(sizes, np.int64)[:, None], self.k)
        shard_sizes = np.empty(len(whose), np.int64)
        shard_sizes[mine] = whole + (np.arange(self.k) < over)
        shards = _cut(np.argsort(labels, kind="stable"), shard_sizes)
        return [np.concatenate([shards[i] for i in own]) for own in mine.tolist()]
