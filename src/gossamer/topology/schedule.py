"""Networks that change: a schedule t -> W_t of mixing weights that repeats."""

from collections.abc import Sequence
from functools import cached_property

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy import sparse

from gossamer.errors import InputError
from gossamer.topology.base import Graph, Matrix, checked, ordered
from gossamer.topology.graph_files import as_matrix
from gossamer.topology.mixing import MixingMatrix, check_weights
from gossamer.topology.spectrum import from_edge_weights


class RoundWeights:
    """The weights W_t of one round: symmetric, with unit row sums. Its graph need not be connected."""

    def __init__(self, matrix: npt.ArrayLike | sparse.sparray) -> None:
        if not sparse.issparse(matrix):
            matrix = as_matrix(matrix, "The weights of a round must be a square matrix of numbers")
        self.sparse = sparse.csr_array(matrix, dtype=np.float64, copy=True)
        self.sparse.sum_duplicates()
        self.sparse.eliminate_zeros()
        entries = self.sparse.tocoo()
        pairs = np.stack(entries.coords, axis=1).astype(np.int64)
        self.edges = pairs[pairs[:, 0] < pairs[:, 1]]
        check_weights(self.sparse, self.sparse.shape[0], self.edges)

    def neighbors(self, client: int) -> list[int]:
        """The clients that `client` talks to in this round, rising."""
        row = self.sparse.indices[self.sparse.indptr[client] : self.sparse.indptr[client + 1]]
        return sorted(int(j) for j in row if j != client)

    @cached_property
    def degrees(self) -> npt.NDArray[np.int64]:
        """How many neighbours each client has in this round."""
        return np.bincount(self.edges.ravel(), minlength=self.sparse.shape[0]).astype(np.int64)


class MixingSchedule:
    """W_t = matrices[t mod period]. The union of the graphs must be connected, each of them need not be.

    On a schedule a method keeps a surrogate for each edge. BEER's theory covers a fixed W only.
    """

    def __init__(self, matrices: Sequence[npt.ArrayLike | sparse.sparray | MixingMatrix]) -> None:
        if not matrices:
            raise InputError("A schedule needs the weights of at least one round, got none.")
        self.rounds = [RoundWeights(w.sparse if isinstance(w, MixingMatrix) else w) for w in matrices]
        sizes = sorted({w.sparse.shape[0] for w in self.rounds})
        if len(sizes) > 1:
            raise InputError(f"All rounds of a schedule must have the same clients, got {sizes} of them.")
        graph = nx.empty_graph(sizes[0])
        for w in self.rounds:
            graph.add_edges_from(w.edges.tolist())
        self.mean = MixingMatrix(sum(w.sparse for w in self.rounds) / len(self.rounds), graph)
        """The mean of W_t over a period, which must mix. `sparse`, `rho`, `C` and `matrix` are those of the mean."""
        self.clients, self.graph, self.degrees = self.mean.clients, self.mean.graph, self.mean.degrees
        self.sparse, self.rho, self.C = self.mean.sparse, self.mean.rho, self.mean.C

    def content(self) -> list[npt.NDArray[np.generic]]:
        """What tells the schedule from any other."""
        return [part for w in self.rounds for part in (w.sparse.indptr, w.sparse.indices, w.sparse.data)]

    def at(self, t: int) -> RoundWeights:
        """W_t."""
        return self.rounds[t % len(self.rounds)]

    @property
    def matrix(self) -> Matrix:
        """The mean of W_t over a period, dense."""
        return self.mean.matrix

    @cached_property
    def lambda_min(self) -> float:
        """The smallest eigenvalue of any W_t."""
        return min(float(np.linalg.eigvalsh(w.sparse.toarray())[0]) for w in self.rounds)

    @property
    def diameter(self) -> int:
        """Rounds after which news has reached everyone, at most."""
        return self.mean.diameter * len(self.rounds)

    def __repr__(self) -> str:
        edges = self.graph.number_of_edges()
        return f"MixingSchedule(clients={self.clients}, rounds={len(self.rounds)}, edges={edges}, rho={self.rho:.4g})"


Mixing = MixingMatrix | MixingSchedule


def matchings(graph: Graph) -> MixingSchedule:
    """Every edge of a graph in turn, in rounds in which each client talks to at most one neighbour, with weight 1/2.

    >>> import gossamer as gs
    >>> gs.topology.matchings(gs.ring(8))
    MixingSchedule(clients=8, rounds=2, edges=8, rho=0.1464)
    """
    graph = checked(graph)
    colors = nx.greedy_color(nx.line_graph(graph), "largest_first")
    many = max(colors.values(), default=-1) + 1
    by_color = [ordered([edge for edge, one in colors.items() if one == color]) for color in range(many)]
    rounds = [from_edge_weights(len(graph), edges, np.full(len(edges), 0.5)) for edges in by_color]
    return MixingSchedule(rounds or [np.eye(len(graph))])
