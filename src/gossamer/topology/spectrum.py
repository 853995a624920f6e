"""Extreme eigenvalues of Laplacians and mixing matrices: in closed form for known graphs, otherwise computed."""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi

import numpy as np
from scipy import sparse
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from gossamer.topology.base import Edges, Matrix
from gossamer.topology.graphs import exponential_edges, grid_edges, hypercube_edges, torus_edges

_DENSE_UP_TO = 1000  # clients for which all eigenvalues are computed: 0.1 s
_ARPACK_UP_TO = 10_000  # clients from which ARPACK's many vectors take too long
_MOST_STEPS, _STEPS = 2000, 100  # of Lanczos with three vectors, and between two looks at its eigenvalues
_CLOSE_ENOUGH = 1e-7  # residual of an eigenvalue that ends the search
_SHARE_OF_GAP = 1e-3  # residual as a share of the gap, which is good enough if the search ends otherwise


@dataclass(frozen=True)
class Family:
    """The extreme Laplacian eigenvalues of a graph of a known family."""

    smallest: float
    """The smallest eigenvalue above 0."""
    largest: float
    equal_weights: bool = False
    """Whether the weights with the largest rho are all equal. They are on edge-transitive graphs, by convexity, and on
    paths (Boyd, Diaconis, Sun and Xiao, 2006)."""


def family(clients: int, edges: Edges) -> Family | None:
    """The family of a connected graph, or None. Rings, paths, stars and complete graphs may be numbered in any way."""
    if clients == 1:
        return None
    n, degrees = clients, np.bincount(edges.ravel(), minlength=clients)
    if len(edges) == n * (n - 1) // 2:
        return Family(n, n, equal_weights=True)
    if len(edges) == n - 1 and degrees.max() == n - 1:
        return Family(1, n, equal_weights=True)  # star
    if (degrees == 2).all():
        return Family(*_ring(n), equal_weights=True)
    if len(edges) == n - 1 and degrees.max() == 2:
        return Family(*_path(n), equal_weights=True)
    if (
        (degrees == n.bit_length() - 1).all()
        and n == 1 << (n.bit_length() - 1)
        and np.array_equal(edges, hypercube_edges(n))
    ):
        return Family(2, 2 * (n.bit_length() - 1), equal_weights=True)
    for cols in edges[edges[:, 0] == 0, 1].tolist():  # one neighbour of client 0 is in the second row, below it
        rows = n // cols
        if rows * cols != n:
            continue
        if min(rows, cols) > 2 and len(edges) == 2 * n and np.array_equal(edges, torus_edges(rows, cols)):
            return _product(_ring, rows, cols, equal_weights=rows == cols)
        if min(rows, cols) > 1 and len(edges) == 2 * n - rows - cols and np.array_equal(edges, grid_edges(rows, cols)):
            return _product(_path, rows, cols)
    if np.array_equal(edges, exponential_edges(n)):
        steps = np.concatenate([edges[edges[:, 0] == 0, 1], -edges[edges[:, 1] == 0, 0]])
        eigenvalues = (1 - np.cos(2 * pi / n * np.outer(np.arange(1, n), steps))).sum(axis=1)
        return Family(float(eigenvalues.min()), float(eigenvalues.max()))
    return None


def _ring(n: int) -> tuple[float, float]:
    return 2 - 2 * cos(2 * pi / n), 2 - 2 * cos(2 * pi * (n // 2) / n)


def _path(n: int) -> tuple[float, float]:
    return 2 - 2 * cos(pi / n), 2 + 2 * cos(pi / n)


def _product(side: Callable[[int], tuple[float, float]], rows: int, cols: int, equal_weights: bool = False) -> Family:
    """A Cartesian product: its eigenvalues are the sums of those of its factors."""
    (low, high), (other_low, other_high) = side(rows), side(cols)
    return Family(min(low, other_low), high + other_high, equal_weights)


def laplacian_ends(clients: int, edges: Edges) -> tuple[float, float]:
    """The smallest eigenvalue above 0 and the largest of the graph's Laplacian."""
    known = family(clients, edges)
    if known is not None:
        return known.smallest, known.largest
    step = 1 / (2 * np.bincount(edges.ravel()).max())
    second, least = ends(from_edge_weights(clients, edges, np.full(len(edges), step)))
    return (1 - second) / step, (1 - least) / step


def from_edge_weights(clients: int, edges: Edges, w: Matrix) -> sparse.csr_array:
    """W with these weights on the edges, and the diagonal that makes the rows sum to 1."""
    i, j = edges.T
    off = sparse.coo_array((np.tile(w, 2), (np.r_[i, j], np.r_[j, i])), shape=(clients, clients)).tocsr()
    return sparse.csr_array(off + sparse.diags_array(1 - off.sum(axis=1)))


def ends(w: sparse.csr_array) -> tuple[float, float]:
    """The second largest and the smallest eigenvalue of a symmetric W with unit row sums."""
    clients = w.shape[0]
    if clients == 1:
        return 0.0, float(w.toarray()[0, 0])
    if clients <= _DENSE_UP_TO:
        eigenvalues = np.linalg.eigvalsh(w.toarray())
        return float(eigenvalues[-2]), float(eigenvalues[0])
    # Lanczos is fast if the gap is wide. If it is narrow the graph has small cuts, so that W - I has sparse triangular
    # factors and shift-and-invert is fast.
    start = np.cos(np.arange(clients) ** 2)  # a fixed vector without any symmetry of the graph
    if clients > _ARPACK_UP_TO:
        return _ends_of_many(w, start)
    second = _lanczos(w, start, k=2, which="LA")
    if second is None:
        second = float(eigsh(w, k=2, sigma=1 + 1e-9, v0=start, return_eigenvectors=False).min())
    least = _lanczos(w, start, k=1, which="SA")
    if least is None:
        # Many eigenvalues are near the smallest. It limits the gap only near -1; otherwise six digits are enough.
        least = _lanczos(w, start, k=1, which="SA", tolerance=1e-6)
        if least is None or least < -0.99:
            least = float(eigsh(w, k=1, sigma=-1 - 1e-9, v0=start, return_eigenvectors=False).min())
    return second, least


def _lanczos(w: sparse.csr_array, start: object, k: int, which: str, tolerance: float = 1e-10) -> float | None:
    try:
        found = eigsh(w, k=k, which=which, v0=start, tol=tolerance, ncv=40, maxiter=50, return_eigenvectors=False)
    except ArpackNoConvergence:
        return None
    return float(found.min())


def _ends_of_many(w: sparse.csr_array, start: Matrix) -> tuple[float, float]:
    """As `ends`, for many clients: Lanczos with three vectors in memory, which finds both ends in one pass."""
    second, least, residual, residual_least = _both_ends(w, start)
    if residual > max(_CLOSE_ENOUGH, _SHARE_OF_GAP * (1 - second)):
        second = float(eigsh(w, k=2, sigma=1 + 1e-9, v0=start, return_eigenvectors=False).min())
    if least < -0.99 and residual_least > max(_CLOSE_ENOUGH, _SHARE_OF_GAP * (1 + least)):
        least = float(eigsh(w, k=1, sigma=-1 - 1e-9, v0=start, return_eigenvectors=False).min())
    return second, least


def _both_ends(w: sparse.csr_array, start: Matrix) -> tuple[float, float, float, float]:
    """The largest eigenvalue but that of the constant vector, the smallest, and the residuals of both.

    Vectors lose their orthogonality, which repeats eigenvalues that have converged and changes none of them.
    """
    v, before, beta = start - start.mean(), np.zeros_like(start), 0.0
    v /= np.linalg.norm(v)
    diagonal, off, found = list[float](), list[float](), (1.0, -1.0, np.inf, np.inf)
    while len(diagonal) < min(_MOST_STEPS, w.shape[0] - 1):
        u = w @ v - beta * before
        diagonal.append(float(u @ v))
        u -= diagonal[-1] * v
        u -= u.mean()  # stay orthogonal to the constant vector, whose eigenvalue is 1
        beta = float(np.linalg.norm(u))
        if beta < 1e-14 or len(diagonal) % _STEPS == 0 or len(diagonal) == w.shape[0] - 1:
            found = _ritz(diagonal, off, beta)
            if max(found[2:]) < _CLOSE_ENOUGH:
                break
        off.append(beta)
        before, v = v, u / beta
    return found


def _ritz(diagonal: list[float], off: list[float], beta: float) -> tuple[float, float, float, float]:
    """The ends of a tridiagonal matrix, and how far off they may be as eigenvalues of the whole."""
    last, values = len(diagonal) - 1, list[float]()
    for at in (last, 0):
        value, vector = eigh_tridiagonal(diagonal, off[:last], select="i", select_range=(at, at))
        values += [float(value[0]), beta * abs(float(vector[-1, 0]))]
    return values[0], values[2], values[1], values[3]
