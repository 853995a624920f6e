"""Mixing matrices: the weights W of a graph, their checks, and their spectral gap."""

import os
from functools import cached_property
from pathlib import Path

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy import sparse

from gossamer.errors import InputError, check_integer
from gossamer.registry import normal
from gossamer.registry import weights as rules
from gossamer.topology import weights as _registered  # noqa: F401 (registers the rules)
from gossamer.topology.base import Edges, Graph, Matrix, checked, edges_of
from gossamer.topology.graph_files import as_matrix, read_matrix
from gossamer.topology.spectrum import ends, family, from_edge_weights

_TOLERANCE = 1e-9
_NARROWEST = 1e-11  # a smaller gap is a rounding error


class MixingMatrix:
    """Symmetric weights W with unit row sums on the edges of a connected graph (Assumption 2.1 of the BEER paper).

    Weights may be negative, as FDLA's sometimes are: the theory uses only symmetry, row sums and the spectral gap. Use
    `mixing_matrix` to build one from a graph.
    """

    sparse: sparse.csr_array
    """W as a CSR matrix of float64."""
    graph: Graph
    """The graph, with clients numbered from 0."""
    clients: int
    lambda_min: float
    """The smallest eigenvalue of W."""
    rho: float
    """The spectral gap: 1 - the largest magnitude of the eigenvalues but the first."""
    C: float
    """||W - I||^2, the constant of the BEER paper's lemmas."""

    def __init__(
        self,
        matrix: npt.ArrayLike | sparse.sparray,
        graph: Graph,
        _edges: Edges | None = None,  # given if the graph is already checked
        _ends: tuple[float, float] | None = None,  # second largest and smallest eigenvalue, if known
    ) -> None:
        self.graph = checked(graph) if _edges is None else graph
        if not sparse.issparse(matrix):
            matrix = as_matrix(matrix, "A mixing matrix must be a square matrix of numbers")
        elif matrix.dtype.kind not in "biuf":  # type: ignore[union-attr]
            raise InputError(f"A mixing matrix must be a square matrix of numbers, got {matrix.dtype}.")  # type: ignore[union-attr]
        self.sparse = sparse.csr_array(matrix, dtype=np.float64, copy=True)  # a copy: the user may modify the original
        self.sparse.sum_duplicates()
        self.clients = len(self.graph)
        check_weights(self.sparse, self.clients, edges_of(self.graph) if _edges is None else _edges)
        self._ends = second, least = ends(self.sparse) if _ends is None else _ends
        self.lambda_min, self.C = least, (1 - least) ** 2
        self.rho = 1.0 if self.clients == 1 else 1 - max(abs(second), abs(least))
        if self.rho <= _NARROWEST:
            cut = "zero weights may disconnect the graph, or its diameter is too large"
            remedy = cut if second >= -least else "use (W + I)/2 or smaller weights"
            raise InputError(
                "The mixing matrix does not mix: all eigenvalues but the first must be strictly between -1 and 1, but "
                f"range from {least:.4g} to {second:.4g}; {remedy}."
            )

    def content(self) -> list[npt.NDArray[np.generic]]:
        """What tells W from any other."""
        return [self.sparse.indptr, self.sparse.indices, self.sparse.data]

    def at(self, t: int) -> "MixingMatrix":
        """W_t, which is W in every round."""
        return self

    @cached_property
    def matrix(self) -> Matrix:
        """W as a dense (clients, clients) matrix."""
        return np.asarray(self.sparse.toarray(), np.float64)

    @property
    def is_nonnegative(self) -> bool:
        """Whether all weights, with the diagonal, are 0 or more, as for a Markov chain."""
        return bool(self.sparse.data.min(initial=0) >= -_TOLERANCE)

    @cached_property
    def diameter(self) -> int:
        """The largest number of hops between two clients."""
        return int(nx.diameter(self.graph))

    def neighbors(self, client: int) -> list[int]:
        """The neighbours of `client`, ascending."""
        return sorted(self.graph.neighbors(check_integer("client", client, 0, self.clients - 1)))

    @property
    def degrees(self) -> npt.NDArray[np.int64]:
        """The number of neighbours of each client."""
        return np.array([degree for _, degree in self.graph.degree], np.int64)

    def __repr__(self) -> str:
        edges = self.graph.number_of_edges()
        return f"MixingMatrix(clients={self.clients}, edges={edges}, rho={self.rho:.4g}, C={self.C:.4g})"


def mixing_matrix(
    graph: Graph, weights: str | os.PathLike[str] | npt.ArrayLike | sparse.sparray = "metropolis"
) -> MixingMatrix:
    """The mixing matrix of a graph.

    Args:
        graph: Any connected, undirected networkx graph. Clients are numbered 0, 1, ... in the order of its nodes.
        weights: The name of a rule (`"metropolis"`, `"max_degree"`, `"best_constant"`, `"fdla"`, `"fmmc"`, or a lazy
            version of one, (W + I)/2, such as `"lazy:fdla"`), a matrix, or a .csv or .npy file that holds one.

    >>> import gossamer as gs
    >>> gs.mixing_matrix(gs.ring(10), weights="fdla")
    MixingMatrix(clients=10, edges=10, rho=0.1743, C=3.333)
    """
    if isinstance(weights, os.PathLike) or (isinstance(weights, str) and Path(weights).suffix in (".csv", ".npy")):
        return MixingMatrix(read_matrix(weights), graph)
    if not isinstance(weights, str):
        if not sparse.issparse(weights):
            weights = as_matrix(weights, "`weights` must be the name of a rule or a square matrix of numbers")
        return MixingMatrix(weights, graph)
    graph = checked(graph)
    clients, edges = len(graph), edges_of(graph)
    w = by_rule(weights, clients, edges)
    known = family(clients, edges)
    found = None
    if known is not None and np.ptp(w) == 0:  # W = I - w L
        found = (1 - float(w[0]) * known.smallest, 1 - float(w[0]) * known.largest)
    return MixingMatrix(from_edge_weights(clients, edges, w), graph, edges, found)


def lazy(mixing: MixingMatrix) -> MixingMatrix:
    """(W + I)/2: no eigenvalue is negative, and the distance of the second largest to 1 is halved."""
    if not isinstance(mixing, MixingMatrix):
        raise InputError(f"`lazy` takes a MixingMatrix, got {type(mixing).__name__}; a rule is weights='lazy:fdla'.")
    second, least = mixing._ends
    half = (mixing.sparse + sparse.eye_array(mixing.clients)) / 2
    return MixingMatrix(half, mixing.graph, edges_of(mixing.graph), ((1 + second) / 2, (1 + least) / 2))


def by_rule(name: str, clients: int, edges: Edges) -> npt.NDArray[np.float64]:
    """The weights of a rule, one for each edge."""
    first, _, rest = name.partition(":")
    lazily = normal(first) == "lazy"
    if lazily and not rest:
        raise InputError("The weights 'lazy' need the name of a rule, such as 'lazy:metropolis'.")
    w: npt.NDArray[np.float64] = rules.get(rest if lazily else name)(clients, edges)
    return w / 2 if lazily else w  # W = I - sum of w_e (...), so halving w halves W - I


def check_weights(w: sparse.csr_array, n: int, edges: Edges) -> None:
    """Check size, finiteness, symmetry, row sums, and that non-zero weights lie on edges of the graph."""
    if w.shape != (n, n):
        raise InputError(f"A mixing matrix of {n} clients must be {n} x {n}, got {' x '.join(map(str, w.shape))}.")
    if not np.isfinite(w.data).all():
        raise InputError("A mixing matrix must hold finite numbers, got NaN or Inf.")
    entries = w.tocoo()
    (i, j), values = entries.coords, entries.data
    gaps = abs(w - w.T).tocoo()
    if gaps.data.max(initial=0) > _TOLERANCE:
        at = gaps.data.argmax()
        a, b = gaps.coords[0][at], gaps.coords[1][at]
        raise InputError(f"A mixing matrix must be symmetric, but W[{a}, {b}] = {w[a, b]} and W[{b}, {a}] = {w[b, a]}.")
    sums = w.sum(axis=1)
    row = int(np.abs(sums - 1).argmax())
    if abs(sums[row] - 1) > _TOLERANCE:
        raise InputError(f"The rows of a mixing matrix must sum to 1, but row {row} sums to {sums[row]}.")
    low, high = edges.T
    off = (np.abs(values) > _TOLERANCE) & (i < j) & ~np.isin(i.astype(np.int64) * n + j, low * n + high)
    if off.any():
        at = int(off.argmax())
        raise InputError(
            f"W[{i[at]}, {j[at]}] = {values[at]}, but the graph has no edge between clients {i[at]} and {j[at]}."
        )
