"""Eigenvalues and least squares of sparse rows, a SciPy matrix A, without making A dense."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_SMALL = 1024  # rows or features up to which A A' or A'A is a dense matrix
_FEW = 16  # rows of a client up to which the products of its rows are computed for all clients at once
_BLOCK_NUMBERS = 1 << 22  # of rows that are made dense at once


def largest_square(a: Any) -> float:
    """The largest eigenvalue of A'A: exact to rounding if one side of A is small, else by Lanczos iteration."""
    if min(a.shape) <= _SMALL:
        return float(np.linalg.eigvalsh(_gram(a))[-1])
    from scipy.sparse.linalg import svds

    start = np.ones(min(a.shape))  # random by default, and results should repeat
    return float(svds(a, k=1, v0=start, return_singular_vectors=False)[0]) ** 2


def largest_mean_square(a: Any, counts: Sequence[int]) -> float:
    """The largest eigenvalue of A_i'A_i / rows over all clients i, whose numbers of rows are `counts`."""
    sizes = np.array(counts)
    first, largest = np.cumsum(sizes) - sizes, 0.0
    for size in np.unique(sizes):
        begins = first[sizes == size]
        if size <= _FEW:
            largest = max(largest, float(np.linalg.eigvalsh(_grams(a, begins, size))[:, -1].max()) / size)
        else:
            largest = max(largest, *(largest_square(a[begin : begin + size]) / size for begin in begins))
    return largest


def smallest_square(a: Any, shift: float) -> float | None:
    """The smallest eigenvalue above 0 of A'A + shift; `shift` or None if both sides of A are large."""
    if min(a.shape) > _SMALL:
        return shift or None
    eigenvalues = np.linalg.eigvalsh(_gram(a)) + shift
    if a.shape[1] > a.shape[0]:  # A'A has more eigenvalues than A A', all 0
        eigenvalues = np.append(shift, eigenvalues)
    above = eigenvalues[eigenvalues > 1e-12 * eigenvalues[-1]]
    return float(above.min()) if len(above) else None


def least_residual(a: Any, y: Array, shift: float) -> float:
    """The minimum over x of ||A x - y||^2 + shift ||x||^2, by orthogonal factors, or by LSMR if A is wide."""
    width = a.shape[1]
    if width > _SMALL:
        from scipy.sparse.linalg import lsmr

        x = lsmr(a, y, damp=shift**0.5, atol=1e-15, btol=1e-15, conlim=0, maxiter=100 * min(a.shape))[0]
        return float(np.square(a @ x - y).sum() + shift * np.square(x).sum())
    # R of [A y; sqrt(shift) 0], block by block: the residuals of x are those of the whole.
    r: Array = np.hstack([shift**0.5 * np.eye(width), np.zeros((width, 1))])
    step = max(1, _BLOCK_NUMBERS // (width + 1))
    for begin in range(0, a.shape[0], step):
        some = slice(begin, begin + step)
        block = np.hstack([a[some].toarray(), y[some, None]])
        r = np.asarray(np.linalg.qr(np.vstack([r, block]), mode="r"))
    x = np.linalg.lstsq(r[:, :-1], r[:, -1], rcond=None)[0]
    return float(np.square(r[:, :-1] @ x - r[:, -1]).sum())


def _gram(a: Any) -> Array:
    """A A' or A'A, the smaller one; apart from zeros they have the same eigenvalues."""
    found: Array = (a @ a.T if a.shape[0] <= a.shape[1] else a.T @ a).toarray()
    return found


def _grams(a: Any, begins: Array, size: int) -> Array:
    """(clients, size, size): A_i A_i' of each client with so many rows."""
    grams = np.empty((len(begins), size, size))
    for i in range(size):
        one = a[begins + i]
        for j in range(i, size):
            grams[:, i, j] = grams[:, j, i] = (one * a[begins + j]).sum(axis=1)
    return grams
