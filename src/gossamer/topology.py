"""Who may talk to whom (graphs), with what weight (mixing matrices), and how well that mixes (rho, C)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
import numpy.typing as npt

from gossamer.errors import InputError, check_integer
from gossamer.registry import graphs, weights

Matrix = npt.NDArray[np.float64]
Graph: TypeAlias = "nx.Graph[Any]"
_TOLERANCE = 1e-9


@graphs.register("ring")
def ring(clients: int) -> Graph:
    """A cycle: each client talks to two neighbours."""
    clients = check_integer("clients", clients, 2)
    graph: Graph = nx.cycle_graph(clients) if clients > 2 else nx.path_graph(2)
    return graph


@graphs.register("complete")
def complete(clients: int) -> Graph:
    """Everybody talks to everybody."""
    clients = check_integer("clients", clients, 2)
    graph: Graph = nx.complete_graph(clients)
    return graph


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """Symmetric weights W with unit row sums on the edges of a connected graph (Assumption 2.1 of the BEER paper).

    Weights may be negative (FDLA's sometimes are): the theory uses symmetry, row sums and the spectral gap alone.
    """

    matrix: Matrix
    """W, dense, (clients, clients)."""
    graph: Graph
    """Who may talk to whom, clients numbered from 0."""

    def __post_init__(self) -> None:
        if not isinstance(self.matrix, np.ndarray) or set(self.graph) != set(range(len(self.graph))):
            raise InputError("A MixingMatrix takes an array and a graph on 0, 1, ...; mixing_matrix() makes both so.")
        w, n = self.matrix, self.graph.number_of_nodes()
        if w.ndim != 2 or w.shape != (n, n):
            raise InputError(f"A mixing matrix of {n} clients is {n} x {n}, got {' x '.join(map(str, w.shape))}.")
        if not np.isfinite(w).all():
            raise InputError("A mixing matrix must hold finite numbers, got NaN or Inf.")
        i, j = np.unravel_index(np.abs(w - w.T).argmax(), w.shape)
        if abs(w[i, j] - w[j, i]) > _TOLERANCE:
            raise InputError(
                f"A mixing matrix must be symmetric, but W[{i}, {j}] = {w[i, j]} and W[{j}, {i}] = {w[j, i]}."
            )
        row = int(np.abs(w.sum(axis=1) - 1).argmax())
        if abs(w[row].sum() - 1) > _TOLERANCE:
            raise InputError(f"The rows of a mixing matrix must sum to 1, but row {row} sums to {w[row].sum()}.")
        outside = (np.abs(w) > _TOLERANCE) & (nx.to_numpy_array(self.graph, nodelist=range(n)) == 0)
        np.fill_diagonal(outside, False)
        if outside.any():
            i, j = np.argwhere(outside)[0]
            raise InputError(f"W[{i}, {j}] = {w[i, j]}, but the graph has no edge between clients {i} and {j}.")
        if self.rho <= _TOLERANCE:
            raise InputError(
                f"The mixing matrix does not mix: its spectral gap rho is {self.rho:.1e}, and must be above 0."
            )

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return int(self.matrix.shape[0])

    @cached_property
    def eigenvalues(self) -> Matrix:
        """Of W, rising."""
        return np.asarray(np.linalg.eigvalsh(self.matrix), np.float64)

    @property
    def rho(self) -> float:
        """The spectral gap: 1 - the largest size of an eigenvalue other than the first."""
        if self.clients == 1:
            return 1.0
        return float(1 - np.abs(self.eigenvalues[:-1]).max())

    @property
    def C(self) -> float:
        """||W - I||^2, the constant of the BEER paper's lemmas."""
        return float((1 - self.lambda_min) ** 2)

    @property
    def lambda_min(self) -> float:
        """The smallest eigenvalue of W."""
        return float(self.eigenvalues[0])

    def neighbors(self, client: int) -> list[int]:
        """The clients that `client` talks to, rising."""
        return sorted(self.graph.neighbors(client))

    @property
    def degrees(self) -> npt.NDArray[np.int64]:
        """How many neighbours each client has."""
        return np.array([self.graph.degree[i] for i in range(self.clients)], np.int64)

    def __repr__(self) -> str:
        edges = self.graph.number_of_edges()
        return f"MixingMatrix(clients={self.clients}, edges={edges}, rho={self.rho:.4g}, C={self.C:.4g})"


def mixing_matrix(graph: Graph, weights: str | Matrix = "metropolis") -> MixingMatrix:
    """The mixing matrix of a graph.

    Args:
        graph: Any connected, undirected networkx graph; its clients are numbered 0, 1, ... in the order of its nodes.
        weights: The name of a rule (`"metropolis"`, `"fdla"`), or the matrix itself.

    >>> import gossamer as gs
    >>> gs.mixing_matrix(gs.ring(10), weights="fdla")
    MixingMatrix(clients=10, edges=10, rho=0.1743, C=3.333)
    """
    graph = _checked(graph)
    if isinstance(weights, str):
        return MixingMatrix(_rule(weights)(graph), graph)
    try:
        matrix = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    if matrix.ndim != 2:
        raise InputError(f"`weights` must be the name of a rule or a square matrix of numbers, got {weights!r}.")
    return MixingMatrix(matrix, graph)


def _rule(name: str) -> Callable[[Graph], Matrix]:
    return weights.get(name)


def _checked(graph: Graph) -> Graph:
    """The graph with clients numbered from 0, or a sentence about what is wrong with it."""
    if not isinstance(graph, nx.Graph) or graph.is_directed() or graph.is_multigraph():
        raise InputError(f"A graph is an undirected networkx.Graph, got {type(graph).__name__}.")
    if graph.number_of_nodes() == 0:
        raise InputError("The graph has no clients.")
    loops = list(nx.selfloop_edges(graph))
    if loops:
        raise InputError(f"The graph joins client {loops[0][0]} to itself; remove the self loop.")
    if not nx.is_connected(graph):
        part = min(nx.connected_components(graph), key=len)
        shown = ", ".join(str(node) for node in sorted(part, key=str)[:5])
        raise InputError(
            f"The graph is not connected: client{'s' if len(part) > 1 else ''} {shown} cannot reach the rest; "
            "add an edge."
        )
    # Nodes that are 0..n-1 already keep their numbers, whatever order they were added in.
    nodes = sorted(graph) if set(graph) == set(range(len(graph))) else list(graph)
    numbers = {node: number for number, node in enumerate(nodes)}
    plain: Graph = nx.Graph()
    plain.add_nodes_from(range(len(nodes)))
    plain.add_edges_from((numbers[a], numbers[b]) for a, b in graph.edges)
    return plain


@weights.register("metropolis")
def metropolis(graph: Graph) -> Matrix:
    """w_ij = 1 / (1 + max(degree_i, degree_j)) on edges; the diagonal takes the rest."""
    w = np.zeros((len(graph), len(graph)))
    for i, j in graph.edges:
        w[i, j] = w[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
    np.fill_diagonal(w, 1 - w.sum(axis=1))
    return w


@weights.register("fdla")
def fdla(graph: Graph) -> Matrix:
    """Fastest distributed linear averaging: the symmetric weights of largest rho (Xiao and Boyd, 2004).

    On an edge-transitive graph all edges share one weight, the best constant 2 / (lambda_max + lambda_2) of the
    Laplacian; rings and complete graphs are recognised.
    """
    n, edges = graph.number_of_nodes(), graph.number_of_edges()
    is_ring = n >= 2 and all(degree == min(2, n - 1) for _, degree in graph.degree)
    is_complete = edges == n * (n - 1) // 2
    if not (is_ring or is_complete):
        raise InputError(
            f"FDLA weights are known here for rings and complete graphs, not for this graph of {n} clients and "
            f"{edges} edges; use weights='metropolis', or pass your own matrix."
        )
    laplacian = np.asarray(nx.laplacian_matrix(graph, nodelist=range(n)).todense(), dtype=np.float64)
    spectrum = np.linalg.eigvalsh(laplacian)
    return np.eye(n) - (2 / (spectrum[-1] + spectrum[1]) if n > 1 else 0) * laplacian
