"""Rules for weights: from the edges of a connected graph to one weight an edge; the diagonal of W takes the rest."""

import numpy as np
import numpy.typing as npt

from gossamer.registry import weights
from gossamer.topology.base import Edges
from gossamer.topology.fastest import fastest
from gossamer.topology.spectrum import laplacian_ends

EdgeWeights = npt.NDArray[np.float64]


@weights.register("metropolis")
def metropolis(clients: int, edges: Edges) -> EdgeWeights:
    """1 / (1 + the larger degree of the edge's two ends): needs only the neighbours' degrees."""
    larger: EdgeWeights = _degrees(clients, edges)[edges].max(axis=1)
    return 1 / (1 + larger)


@weights.register("max_degree")
def max_degree(clients: int, edges: Edges) -> EdgeWeights:
    """1 / (1 + the largest degree) on every edge."""
    return np.full(len(edges), 1 / (1 + _degrees(clients, edges).max(initial=0)))


@weights.register("best_constant")
def best_constant(clients: int, edges: Edges) -> EdgeWeights:
    """The best of all rules with one weight for every edge: 2 over the sum of the Laplacian's extreme eigenvalues."""
    return np.full(len(edges), 2 / sum(laplacian_ends(clients, edges)) if len(edges) else 0.0)


@weights.register("fdla")
def fdla(clients: int, edges: Edges) -> EdgeWeights:
    """Fastest distributed linear averaging: the largest rho of all symmetric weights (Xiao and Boyd, 2004)."""
    return fastest(clients, edges, nonnegative=False)


@weights.register("fmmc")
def fmmc(clients: int, edges: Edges) -> EdgeWeights:
    """Fastest mixing Markov chain: the largest rho of all weights W >= 0 (Boyd, Diaconis and Xiao, 2004)."""
    return fastest(clients, edges, nonnegative=True)


def _degrees(clients: int, edges: Edges) -> npt.NDArray[np.float64]:
    return np.bincount(edges.ravel(), minlength=clients).astype(np.float64)
