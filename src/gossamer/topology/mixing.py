"""Mixing matrices: the weights W, what they promise, and how fast they mix."""

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
from gossamer.topology import weights as _registered  # noqa: F401 (names the rules)
from gossamer.topology.base import Edges, Graph, Matrix, checked, edges_of
from gossamer.topology.files import as_matrix, read_matrix
from gossamer.topology.spectrum import ends, family, from_edge_weights

_TOLERANCE = 1e-9
_NARROWEST = 1e-11  # a gap below this is a rounding error


class MixingMatrix:
    """Symmetric weights W with unit row sums on the edges of a connected graph (Assumption 2.1 of the BEER paper).

    Weights may be negative (FDLA's sometimes are): the theory uses symmetry, row sums and the spectral gap alone.
    `mixing_matrix` makes one from a graph.
    """

    sparse: sparse.csr_array
    """W in compressed rows, float64."""
    graph: Graph
    """Who may talk to whom, clients numbered from 0."""

    def __init__(
        self,
        matrix: npt.ArrayLike | sparse.sparray,
        graph: Graph,
        _edges: Edges | None = None,  # of a graph that was checked already
        _ends: tuple[float, float] | None = None,  # second largest and smallest eigenvalue, where a rule knows them
    ) -> None:
        self.graph = checked(graph) if _edges is None else graph
        if not sparse.issparse(matrix):
            matrix = as_matrix(matrix, "A mixing matrix must be a square matrix of numbers")
        elif matrix.dtype.kind not in "biuf":  # type: ignore[union-attr]
            raise InputError(f"A mixing matrix must be a square matrix of numbers, got {matrix.dtype} ones.")  # type: ignore[union-attr]
        self.sparse = sparse.csr_array(matrix, dtype=np.float64, copy=True)  # the user's own stays as it is
        self.sparse.sum_duplicates()
        check_weights(self.sparse, len(self.graph), edges_of(self.graph) if _edges is None else _edges)
        if _ends is not None:
            self._ends = _ends
        if self.rho <= _NARROWEST:
            second, least = self._ends
            apart = "some weights are 0 and part the graph, or it is too long to mix"
            remedy = apart if second >= -least else "try (W + I)/2, or smaller weights"
            raise InputError(
                f"The mixing matrix does not mix: its eigenvalues but for the first reach from {least:.4g} to "
                f"{second:.4g}, and must lie inside -1 and 1; {remedy}."
            )

    def at(self, t: int) -> "MixingMatrix":
        """W_t, which is W in every round."""
        return self

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return int(self.sparse.shape[0])

    @cached_property
    def matrix(self) -> Matrix:
        """W, dense, (clients, clients)."""
        return np.asarray(self.sparse.toarray(), np.float64)

    @cached_property
    def _ends(self) -> tuple[float, float]:
        return ends(self.sparse)

    @property
    def rho(self) -> float:
        """The spectral gap: 1 - the largest size of an eigenvalue other than the first."""
        return 1.0 if self.clients == 1 else 1 - max(map(abs, self._ends))

    @property
    def C(self) -> float:
        """||W - I||^2, the constant of the BEER paper's lemmas."""
        return (1 - self.lambda_min) ** 2

    @property
    def lambda_min(self) -> float:
        """The smallest eigenvalue of W."""
        return self._ends[1]

    @property
    def is_nonnegative(self) -> bool:
        """Whether no weight is below 0, the diagonal included (as a Markov chain asks)."""
        return bool(self.sparse.data.min(initial=0) >= -_TOLERANCE)

    @cached_property
    def diameter(self) -> int:
        """Hops between the two clients that are farthest apart: what news needs to reach everyone."""
        return int(nx.diameter(self.graph))

    def neighbors(self, client: int) -> list[int]:
        """The clients that `client` talks to, rising."""
        return sorted(self.graph.neighbors(check_integer("client", client, 0, self.clients - 1)))

    @property
    def degrees(self) -> npt.NDArray[np.int64]:
        """How many neighbours each client has."""
        return np.array([degree for _, degree in self.graph.degree], np.int64)

    def __repr__(self) -> str:
        edges = self.graph.number_of_edges()
        return f"MixingMatrix(clients={self.clients}, edges={edges}, rho={self.rho:.4g}, C={self.C:.4g})"


def mixing_matrix(
    graph: Graph, weights: str | os.PathLike[str] | npt.ArrayLike | sparse.sparray = "metropolis"
) -> MixingMatrix:
    """The mixing matrix of a graph.

    Args:
        graph: Any connected, undirected networkx graph; its clients are numbered 0, 1, ... in the order of its nodes.
        weights: The name of a rule (`"metropolis"`, `"max_degree"`, `"best_constant"`, `"fdla"`, `"fmmc"`, or any of
            them made lazy, (W + I)/2, as in `"lazy:fdla"`), the matrix itself, or the .csv or .npy file it is in.

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
    w = _by_rule(weights, clients, edges)
    known = family(clients, edges)
    found = None
    if known is not None and np.ptp(w) == 0:  # W = I - w L
        found = (1 - float(w[0]) * known.smallest, 1 - float(w[0]) * known.largest)
    return MixingMatrix(from_edge_weights(clients, edges, w), graph, edges, found)


def lazy(mixing: MixingMatrix) -> MixingMatrix:
    """(W + I)/2: no eigenvalue below 0, and the gap of W to its second largest halved."""
    if not isinstance(mixing, MixingMatrix):
        raise InputError(f"`lazy` takes a MixingMatrix, got {type(mixing).__name__}; by name, weights='lazy:fdla'.")
    second, least = mixing._ends
    half = (mixing.sparse + sparse.eye_array(mixing.clients)) / 2
    return MixingMatrix(half, mixing.graph, edges_of(mixing.graph), ((1 + second) / 2, (1 + least) / 2))


def _by_rule(name: str, clients: int, edges: Edges) -> npt.NDArray[np.float64]:
    first, _, rest = name.partition(":")
    lazily = normal(first) == "lazy"
    if lazily and not rest:
        raise InputError("The weights 'lazy' need a rule to make lazy, as in 'lazy:metropolis'.")
    w: npt.NDArray[np.float64] = rules.get(rest if lazily else name)(clients, edges)
    return w / 2 if lazily else w  # W = I - sum of w_e (...), so halving w halves W - I


def check_weights(w: sparse.csr_array, n: int, edges: Edges) -> None:
    """Right size, finite, symmetric, unit row sums, nothing off the graph: or a sentence with the place."""
    if w.shape != (n, n):
        raise InputError(f"A mixing matrix of {n} clients is {n} x {n}, got {' x '.join(map(str, w.shape))}.")
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
