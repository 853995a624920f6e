"""Products of models and data rows, whose sums do not depend on what else is computed at the same time."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.kernels.pool import blas

# A BLAS picks its order of sums by the number of matrices, their alignment in memory
# and its threads. The gradient of a client would then depend on how many clients and seeds share a call, and a dithered
# compressor amplifies the difference. So a product with one output is a plain sum in a fixed order (`einsum`). One with
# several is one matrix product per client, by NumPy's BLAS on one thread. On a GPU, torch computes both.


def outputs(x: Tensor, a: Tensor) -> Tensor:
    """z[r, o, b] = sum_f x[r, o, f] a[r, b, f]: the outputs of each row of data."""
    if x.is_cuda:
        return x @ a.mT
    return _product("rof,rbf->rob", x.numpy(), a.numpy(), a.numpy().swapaxes(1, 2))


def combination(p: Tensor, a: Tensor) -> Tensor:
    """g[r, o, f] = sum_b p[r, o, b] a[r, b, f]: the weighted sum of the rows of data."""
    if p.is_cuda:
        return p @ a
    return _product("rob,rbf->rof", p.numpy(), a.numpy(), a.numpy())


def _product(subscripts: str, left: Any, right: Any, as_matrices: Any) -> Tensor:
    if 1 in (left.shape[1], right.shape[1]):  # a BLAS sums vectors in an order that depends on alignment
        return torch.from_numpy(np.einsum(subscripts, left, right, optimize=False))
    with blas().limit(limits=1):
        return torch.from_numpy(np.matmul(left, as_matrices))
