"""Plans: rules that give W_t for any round t.

Random plans keep no state and no table. W_t is a function of the seed and t, by the same counter-based streams as all
other randomness, so every process can ask for any round.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gossamer.errors import InputError, check_integer
from gossamer.topology.base import Edges, Matrix, check_size, ordered
from gossamer.topology.rounds import RoundWeights
from gossamer.topology.spectrum import from_edge_weights

Content = list[npt.NDArray[np.generic]]
_DENSE_UP_TO = 1000  # clients for which eigenvalues are computed; beyond that, bounds are used


class Plan(Protocol):
    """A rule t -> W_t."""

    @property
    def clients(self) -> int:
        """How many clients there are."""

    @property
    def period(self) -> int | None:
        """Rounds after which the weights repeat; None if they are random."""

    @property
    def edges(self) -> Edges:
        """All edges that any round may use."""

    def at(self, t: int) -> RoundWeights:
        """W_t."""

    def mean(self) -> sparse.csr_array:
        """The expected W_t, averaged over a period."""

    def mean_square(self, one: float = 1.0, both: float = 1.0) -> sparse.csr_array:
        """The expected W_t^2 of symmetric weights, averaged over a period.

        Here each edge is up with probability `one`, and two edges of one client are both up with probability `both`.
        """

    def least(self, *, subsets: bool = False) -> float:
        """A lower bound of the eigenvalues of every W_t; with `subsets`, also if any of its edges are left out."""

    def content(self) -> Content:
        """What tells the plan from any other."""


@dataclass(frozen=True)
class Repeated:
    """W_t = rounds[t mod period]."""

    rounds: tuple[RoundWeights, ...]

    def __post_init__(self) -> None:
        if not self.rounds:
            raise InputError("A schedule needs the weights of at least one round, got none.")
        _check_sizes([w.clients for w in self.rounds])

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.rounds[0].clients

    @property
    def period(self) -> int:
        """The number of rounds."""
        return len(self.rounds)

    @property
    def edges(self) -> Edges:
        """All edges of all rounds."""
        return ordered(np.concatenate([w.edges for w in self.rounds]))

    def at(self, t: int) -> RoundWeights:
        """W_t."""
        return self.rounds[t % len(self.rounds)]

    def mean(self) -> sparse.csr_array:
        """The mean over a period."""
        return sparse.csr_array(sum(w.sparse for w in self.rounds) / len(self.rounds))

    def mean_square(self, one: float = 1.0, both: float = 1.0) -> sparse.csr_array:
        """The mean over a period, from W = I - sum_e w_e L_e, where L_e^2 = 2 L_e."""
        return sparse.csr_array(sum(_square(w, one, both) for w in self.rounds) / len(self.rounds))

    def least(self, *, subsets: bool = False) -> float:
        """The smallest eigenvalue of any round."""
        return min(_least(w, subsets) for w in self.rounds)

    def content(self) -> Content:
        """All weights."""
        return [part for w in self.rounds for part in (w.sparse.indptr, w.sparse.indices, w.sparse.data)]


@dataclass(frozen=True)
class RandomMatchings:
    """In each round the clients are paired at random, with weight 1/2; of an odd number, one waits."""

    clients: int
    seed: int

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, 0, 2**64 - 1)
        check_size(f"Random matchings of {self.clients:,} clients", self.clients * (self.clients - 1) / 2)

    @property
    def period(self) -> None:
        """They never repeat."""
        return

    @property
    def edges(self) -> Edges:
        """All pairs."""
        return np.stack(np.triu_indices(self.clients, 1), axis=1).astype(np.int64)

    def at(self, t: int) -> RoundWeights:
        """Clients in random order, two by two."""
        order = np.argsort(uniform(self.seed, "matching", t, self.clients), kind="stable")
        pairs = ordered(order[: self.clients // 2 * 2])
        return RoundWeights.on_edges(self.clients, pairs, np.full(len(pairs), 0.5))

    def mean(self) -> sparse.csr_array:
        """Each pair has the same chance."""
        pairs = self.edges
        chance = (self.clients // 2) / max(1, len(pairs))
        return from_edge_weights(self.clients, pairs, np.full(len(pairs), chance / 2))

    def mean_square(self, one: float = 1.0, both: float = 1.0) -> sparse.csr_array:
        """W^2 = W for weights of 1/2 on any part of a matching."""
        return sparse.csr_array(one * self.mean() + (1 - one) * sparse.eye_array(self.clients))

    def least(self, *, subsets: bool = False) -> float:
        """Weights of 1/2 on a matching have the eigenvalues 0 and 1."""
        return 0.0

    def content(self) -> Content:
        """Clients and seed."""
        return [np.array("random matchings"), np.array([self.clients, self.seed], np.uint64)]


@dataclass(frozen=True)
class Alternating:
    """One round of each plan in turn: W_t = plans[t mod k].at(t // k)."""

    plans: tuple[Plan, ...]

    def __post_init__(self) -> None:
        if not self.plans:
            raise InputError("`alternating` needs at least one graph, got none.")
        _check_sizes([plan.clients for plan in self.plans])

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.plans[0].clients

    @property
    def period(self) -> int | None:
        """As long as it takes all plans to repeat."""
        periods = [plan.period for plan in self.plans if plan.period is not None]
        return len(self.plans) * math.lcm(*periods) if len(periods) == len(self.plans) else None

    @property
    def edges(self) -> Edges:
        """All edges of all plans."""
        return ordered(np.concatenate([plan.edges for plan in self.plans]))

    def at(self, t: int) -> RoundWeights:
        """W_t."""
        turn, which = divmod(t, len(self.plans))
        return self.plans[which].at(turn)

    def mean(self) -> sparse.csr_array:
        """The mean of the plans' means."""
        return sparse.csr_array(sum(plan.mean() for plan in self.plans) / len(self.plans))

    def mean_square(self, one: float = 1.0, both: float = 1.0) -> sparse.csr_array:
        """The mean over the plans."""
        return sparse.csr_array(sum(plan.mean_square(one, both) for plan in self.plans) / len(self.plans))

    def least(self, *, subsets: bool = False) -> float:
        """The least of the plans'."""
        return min(plan.least(subsets=subsets) for plan in self.plans)

    def content(self) -> Content:
        """That of each plan."""
        return [np.array("alternating"), *(part for plan in self.plans for part in (np.array("plan"), *plan.content()))]


@dataclass(frozen=True)
class Unreliable:
    """Another plan, with edges and clients that fail at random, each in its own rounds.

    An edge that fails, or that has an end that sleeps, is used by neither end. Both ends add its weight to their own,
    so that W_t stays symmetric with unit row sums.
    """

    plan: Plan
    dropout: float
    sleeping: float
    seed: int

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, 0, 2**64 - 1)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.plan.clients

    @property
    def period(self) -> None:
        """Failures never repeat."""
        return

    @property
    def edges(self) -> Edges:
        """Those of the plan."""
        return self.plan.edges

    def at(self, t: int) -> RoundWeights:
        """W_t of the plan, with the edges that are left."""
        w = self.plan.at(t)
        if not w.is_symmetric:
            raise InputError(
                "Edges can fail only on a symmetric schedule: without one of its edges, a directed W_t is no longer "
                "doubly stochastic."
            )
        is_up = np.ones(len(w.edges), bool)
        if self.dropout:
            is_up &= uniform(self.seed, "edge dropout", t, len(w.edges)) >= self.dropout
        if self.sleeping:
            is_awake = uniform(self.seed, "sleeping clients", t, self.clients) >= self.sleeping
            is_up &= is_awake[w.edges].all(axis=1)
        return RoundWeights.on_edges(self.clients, w.edges[is_up], w.edge_weights[is_up])

    def mean(self) -> sparse.csr_array:
        """Every edge keeps the share of its weight with which it is up."""
        up = (1 - self.dropout) * (1 - self.sleeping) ** 2
        return sparse.csr_array(up * self.plan.mean() + (1 - up) * sparse.eye_array(self.clients))

    def mean_square(self, one: float = 1.0, both: float = 1.0) -> sparse.csr_array:
        """An edge needs both of its ends awake; two edges of one client need three."""
        up, awake = 1 - self.dropout, 1 - self.sleeping
        return self.plan.mean_square(one * up * awake**2, both * up**2 * awake**3)

    def least(self, *, subsets: bool = False) -> float:
        """That of the plan with any edges left out."""
        return self.plan.least(subsets=True)

    def content(self) -> Content:
        """That of the plan, how much fails, and the seed."""
        shares = np.array([self.dropout, self.sleeping])
        return [np.array("unreliable"), shares, np.array([self.seed], np.uint64), *self.plan.content()]


def uniform(seed: int, purpose: str, t: int, count: int) -> Matrix:
    """`count` numbers in [0, 1) that belong to a seed, a purpose and a round."""
    from gossamer.streams import Streams

    drawn: Matrix = Streams([seed], [0]).at(t, purpose).uniform(count)[0].numpy()
    return drawn


def _check_sizes(clients: Sequence[int]) -> None:
    sizes = sorted(set(clients))
    if len(sizes) > 1:
        raise InputError(f"All rounds of a schedule must have the same clients, got {sizes} of them.")


def _square(w: RoundWeights, one: float, both: float) -> sparse.csr_array:
    """The expected W^2, if edges are up at random."""
    identity = sparse.eye_array(w.clients)
    laplacian = identity - w.sparse
    alone = 2 * (identity - from_edge_weights(w.clients, w.edges, w.edge_weights**2))  # the sum of w_e^2 L_e^2
    return sparse.csr_array(identity - 2 * one * laplacian + both * (laplacian @ laplacian - alone) + one * alone)


def _least(w: RoundWeights, subsets: bool) -> float:
    """The smallest eigenvalue of a round's weights, or of their symmetric part; beyond 1,000 clients a bound.

    Leaving out an edge of positive weight raises all eigenvalues, and one of negative weight lowers them.
    """
    matrix = (w.sparse + w.sparse.T) / 2
    if subsets and w.is_symmetric:
        is_positive = w.edge_weights > 0
        matrix = from_edge_weights(w.clients, w.edges[is_positive], w.edge_weights[is_positive])
    if w.clients <= _DENSE_UP_TO:
        return float(np.linalg.eigvalsh(matrix.toarray())[0])
    diagonal = matrix.diagonal()
    return float((diagonal - (abs(matrix).sum(axis=1) - abs(diagonal))).min())  # Gershgorin's circles
