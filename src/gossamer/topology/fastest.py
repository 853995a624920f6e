"""The weights with the largest rho: they minimize the spectral norm of W - 11'/n over all symmetric W on the graph.

Edge-transitive graphs and paths have a closed form. Other graphs are solved by a semidefinite program up to 128 clients
and by a first-order method, within about 0.1 % of the best rho, up to 500. Larger ones raise an InputError.
"""

import contextlib
import logging
import warnings

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gossamer.errors import InputError
from gossamer.topology.base import Edges
from gossamer.topology.spectrum import family, from_edge_weights

logger = logging.getLogger(__name__)

_CLARABEL_BELOW = 36  # clients: an interior point method, accurate to 1e-8; above this SCS is faster
_PROGRAMME_UP_TO = 128
_CLARABEL_INSTEAD_UP_TO = 80  # clients, if SCS does not converge: 15 s
_FIRST_ORDER_UP_TO = 500
_FIRST_ORDER_WORK = 1_000_000  # clients x edges: about a minute

EdgeWeights = npt.NDArray[np.float64]


def fastest(clients: int, edges: Edges, *, nonnegative: bool) -> EdgeWeights:
    """The edge weights with the largest rho, optionally subject to W >= 0."""
    if len(edges) == 0:
        return np.empty(0)
    known = family(clients, edges)
    if known is not None and known.equal_weights:
        # All edges share one weight c. rho increases with c up to the best constant; W >= 0 requires c <= 1 / degree.
        best = 2 / (known.smallest + known.largest)
        most = 1 / np.bincount(edges.ravel()).max() if nonnegative else np.inf
        return np.full(len(edges), min(best, most))
    logger.info("Computing the fastest weights for %d clients and %d edges", clients, len(edges))
    found = _programme(clients, edges, nonnegative) if clients <= _PROGRAMME_UP_TO else None
    within_reach = clients <= _FIRST_ORDER_UP_TO and clients * len(edges) <= _FIRST_ORDER_WORK
    if found is None and not nonnegative and within_reach:
        found = _first_order(clients, edges)
    if found is None:
        rule, limit = ("fmmc", _PROGRAMME_UP_TO) if nonnegative else ("fdla", _FIRST_ORDER_UP_TO)
        tried = clients <= _PROGRAMME_UP_TO
        why = "the solver did not converge" if tried else f"the limit is {limit} clients with few edges"
        raise InputError(
            f"The weights {rule!r} cannot be computed for this graph of {clients:,} clients and {len(edges):,} edges "
            f"({why}); use 'best_constant' or 'metropolis'."
        )
    return found


def _programme(clients: int, edges: Edges, nonnegative: bool) -> EdgeWeights | None:
    """The semidefinite program: minimize s such that -s I <= W - 11'/n <= s I; None if no solver converges."""
    import cvxpy as cp  # takes a second to import

    n, (i, j), m = clients, edges.T, len(edges)
    # W = I - sum of w_e (e_i - e_j)(e_i - e_j)': column e of `laplacians` is that matrix, flattened row by row.
    places = np.r_[i * n + i, j * n + j, i * n + j, j * n + i], np.tile(range(m), 4)
    laplacians = sparse.csc_array((np.repeat([1.0, 1.0, -1.0, -1.0], m), places), shape=(n * n, m))
    w, s = cp.Variable(m, nonneg=nonnegative), cp.Variable()
    deviation = np.eye(n) - 1 / n - cp.reshape(laplacians @ w, (n, n), order="C")  # type: ignore[attr-defined]
    constraints = [s * np.eye(n) - deviation >> 0, s * np.eye(n) + deviation >> 0]
    if nonnegative:  # on the diagonal too
        incidence = sparse.csr_array((np.ones(2 * m), (np.r_[i, j], np.tile(range(m), 2))), shape=(n, m))
        constraints.append(incidence @ w <= 1)
    programme = cp.Problem(cp.Minimize(s), constraints)
    solvers: dict[str, dict[str, float]] = {cp.CLARABEL: {}} if n < _CLARABEL_BELOW else {}
    solvers[cp.SCS] = {"eps": 1e-8, "max_iters": 4000}
    if _CLARABEL_BELOW <= n <= _CLARABEL_INSTEAD_UP_TO:
        solvers[cp.CLARABEL] = {}
    for solver, settings in solvers.items():
        with warnings.catch_warnings(), contextlib.suppress(cp.SolverError):
            warnings.simplefilter("ignore")  # the status is checked below
            programme.solve(solver=solver, **settings)  # type: ignore[no-untyped-call]
        logger.info("%s ended with status %r", solver, programme.status)
        if programme.status == cp.OPTIMAL:
            break
    else:
        return None
    found = np.asarray(w.value, np.float64)
    if nonnegative:  # project onto the constraints, which solvers meet only within a tolerance
        found = np.maximum(found, 0)
        found /= max(1, np.bincount(edges.ravel(), np.repeat(found, 2)).max())
    return found


def _first_order(clients: int, edges: Edges) -> EdgeWeights:
    """L-BFGS on a smooth bound of the norm, mu log sum exp(|eigenvalues| / mu), with mu reduced in five stages.

    The bound is within mu log(2n) of the norm: 0.1 % of rho in the last stage. Long stages with small changes of mu
    make L-BFGS converge on sparse graphs too.
    """
    from scipy.optimize import minimize

    n, (i, j) = clients, edges.T

    def spectrum(w: EdgeWeights) -> tuple[EdgeWeights, EdgeWeights]:
        return np.linalg.eigh(from_edge_weights(n, edges, w).toarray() - 1 / n)

    def smooth(w: EdgeWeights, mu: float) -> tuple[float, EdgeWeights]:
        eigenvalues, vectors = spectrum(w)
        norm = np.abs(eigenvalues).max()
        up, down = np.exp((eigenvalues - norm) / mu), np.exp((-eigenvalues - norm) / mu)
        total = up.sum() + down.sum()
        share = (up - down) / total  # the weight of each eigenvalue, whose derivative by w_e is -(v_i - v_j)^2
        used = np.abs(share) > 1e-14
        slopes = (vectors[i][:, used] - vectors[j][:, used]) ** 2
        return norm + mu * np.log(total), -slopes @ share[used]

    options = {"maxiter": 400, "maxcor": 80, "ftol": 1e-12, "gtol": 1e-9}
    best = np.full(len(edges), 1 / (1 + np.bincount(edges.ravel()).max()))
    w, norm = best, float(np.abs(spectrum(best)[0]).max())
    for relative in (0.5, 0.1, 0.02, 0.005, 0.001):
        mu = relative * (1 - norm) / np.log(2 * n)
        w = minimize(smooth, w, (mu,), jac=True, method="L-BFGS-B", options=options).x
        reached = float(np.abs(spectrum(w)[0]).max())
        if reached < norm:
            best, norm = w, reached
    return best
