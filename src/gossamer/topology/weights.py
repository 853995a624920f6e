"""Weight rules: one weight per edge of a connected graph; the diagonal of W makes the rows sum to 1."""

import numpy as np

from gossamer.registry import weights
from gossamer.topology.base import Edges
from gossamer.topology.fastest import EdgeWeights, fastest
from gossamer.topology.spectrum import laplacian_ends


@weights.register("metropolis")
def metropolis(clients: int, edges: Edges) -> EdgeWeights:
    """1 / (1 + the larger degree of the two clients); needs only the degrees of neighbours."""
    larger: EdgeWeights = _degrees(clients, edges)[edges].max(axis=1)
    return 1 / (1 + larger)


@weights.register("max_degree")
def max_degree(clients: int, edges: Edges) -> EdgeWeights:
    """1 / (1 + the largest degree) on every edge."""
    return np.full(len(edges), 1 / (1 + _degrees(clients, edges).max(initial=0)))


@weights.register("best_constant")
def best_constant(clients: int, edges: Edges) -> EdgeWeights:
    """The best single weight for all edges: 2 / (the sum of the extreme Laplacian eigenvalues)."""
    return np.full(len(edges), 2 / sum(laplacian_ends(clients, edges)) if len(edges) else 0.0)


@weights.register("fdla")
def fdla(clients: int, edges: Edges) -> EdgeWeights:
    """Fastest distributed linear averaging: the symmetric weights with the largest rho (Xiao and Boyd, 2004)."""
    return fastest(clients, edges, nonnegative=False)


@weights.register("fmmc")
def fmmc(clients: int, edges: Edges) -> EdgeWeights:
    """Fastest mixing Markov chain: the weights W >= 0 with the largest rho (Boyd, Diaconis and Xiao, 2004)."""
    return fastest(clients, edges, nonnegative=True)


def _degrees(clients: int, edges: Edges) -> EdgeWeights:
    return np.bincount(edges.ravel(), minlength=clients).astype(np.float64)
