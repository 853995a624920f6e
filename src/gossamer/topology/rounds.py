"""The weights of one round of a schedule."""

from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gossamer.errors import InputError
from gossamer.topology.base import Edges, Matrix, ordered
from gossamer.topology.graph_files import as_matrix
from gossamer.topology.mixing import check_weights
from gossamer.topology.spectrum import from_edge_weights

_TOLERANCE = 1e-9


class RoundWeights:
    """The weights W_t of one round. The graph of a round need not be connected.

    W_t is symmetric with unit row sums: an edge is used in both directions, with the same weight, or not at all. With
    `directed`, W_t is doubly stochastic instead: no weight is below 0, and all rows and columns sum to 1. w_ij is the
    weight that client i gives to what it receives from client j.
    """

    def __init__(self, matrix: npt.ArrayLike | sparse.sparray, *, directed: bool = False) -> None:
        if not sparse.issparse(matrix):
            matrix = as_matrix(matrix, "The weights of a round must be a square matrix of numbers")
        w = sparse.csr_array(matrix, dtype=np.float64, copy=True)
        w.sum_duplicates()
        w.eliminate_zeros()
        pairs = np.stack(w.tocoo().coords, axis=1).astype(np.int64)
        self.edges: Edges = ordered(pairs[pairs[:, 0] != pairs[:, 1]])
        """The edges in use, whichever direction they have."""
        if directed:
            _check_doubly_stochastic(w)
        else:
            check_weights(w, w.shape[0], self.edges)
            _check_both_ends(w)
        self.is_symmetric = not directed or bool(abs(w - w.T).max() <= _TOLERANCE)
        """Whether every edge is used in both directions, with the same weight."""
        self.sparse = sparse.csr_array((w + w.T) / 2) if self.is_symmetric else w  # equal to the last bit
        self.sparse.sort_indices()

    @classmethod
    def on_edges(cls, clients: int, edges: Edges, weights: Matrix) -> "RoundWeights":
        """Symmetric weights on these edges; the diagonal makes the rows sum to 1."""
        return cls(from_edge_weights(clients, edges, weights))

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return int(self.sparse.shape[0])

    @cached_property
    def edge_weights(self) -> Matrix:
        """The weight of each edge of a symmetric W_t."""
        if not len(self.edges):  # SciPy's answer to an empty question is a matrix
            return np.zeros(0)
        return np.asarray(self.sparse[self.edges[:, 0], self.edges[:, 1]], np.float64).ravel()

    def neighbors(self, client: int) -> list[int]:
        """The clients from which `client` receives in this round, ascending."""
        return _others(self.sparse, client)

    def receivers(self, client: int) -> list[int]:
        """The clients to which `client` sends in this round, ascending; its neighbours, if W_t is symmetric."""
        return _others(self._by_sender, client)

    @cached_property
    def _by_sender(self) -> sparse.csr_array:
        return self.sparse if self.is_symmetric else sparse.csr_array(self.sparse.T)

    @cached_property
    def degrees(self) -> npt.NDArray[np.int64]:
        """To how many clients each client sends in this round."""
        w = self._by_sender
        return np.asarray(np.diff(w.indptr) - (w.diagonal() != 0), np.int64)


def _others(w: sparse.csr_array, client: int) -> list[int]:
    row = w.indices[w.indptr[client] : w.indptr[client + 1]]
    return sorted(int(j) for j in row if j != client)


def _check_both_ends(w: sparse.csr_array) -> None:
    """Refuse an edge that only one of its ends would use, however small its weight."""
    used = sparse.csr_array((np.ones(len(w.data)), w.indices, w.indptr), shape=w.shape)
    alone = (used - used.T).tocoo()
    at = np.flatnonzero(alone.data > 0)
    if len(at):
        i, j = (int(part[at[0]]) for part in alone.coords)
        raise InputError(
            f"Both ends must use an edge, but W[{i}, {j}] = {w[i, j]} and W[{j}, {i}] = 0; set both or neither."
        )


def _check_doubly_stochastic(w: sparse.csr_array) -> None:
    """Refuse anything but weights of 0 or more whose rows and columns all sum to 1."""
    if w.shape[0] != w.shape[1]:
        raise InputError(f"The weights of a round must be a square matrix, got {w.shape[0]} x {w.shape[1]}.")
    if not np.isfinite(w.data).all():
        raise InputError("The weights of a round must be finite numbers, got NaN or Inf.")
    if w.data.min(initial=0) < 0:
        raise InputError(f"Directed weights must be 0 or more, got {w.data.min()}.")
    for name, sums in (("row", w.sum(axis=1)), ("column", w.sum(axis=0))):
        worst = int(np.abs(sums - 1).argmax())
        if abs(sums[worst] - 1) > _TOLERANCE:
            raise InputError(
                f"Directed weights must be doubly stochastic, but {name} {worst} sums to {sums[worst]}; otherwise "
                "averages drift."
            )
