"""The hot loops in plain torch and NumPy: what any faster kernel is held to, bit by bit."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

_WORTH_THREADS = 1 << 20  # numbers to draw, above which threads are faster


def fill_uniform(keys: Sequence[tuple[int, int]], counter: int, out: np.ndarray[Any, Any]) -> None:
    """Fill each row of `out` with uniform numbers in [0, 1): Philox with the row's key, from this counter on."""

    def fill(row: int) -> None:
        bits = np.random.Philox(key=np.array(keys[row], np.uint64), counter=counter)
        np.random.Generator(bits).random(out=out[row], dtype=out.dtype.type)

    threads = min(torch.get_num_threads(), len(keys)) if out.size >= _WORTH_THREADS else 1
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:  # NumPy releases the interpreter while it draws
            list(pool.map(fill, range(len(keys))))
    else:
        for row in range(len(keys)):
            fill(row)


def move(own: Tensor, q: Tensor, a: float = 1.0) -> Tensor:
    """H + a Q, in the type of H."""
    return own + q if a == 1 else own + a * q


def add_weighted(total: Tensor | None, q: Tensor, weight: float) -> Tensor:
    """The sum so far of w_ij q_j, with one more neighbour; the product is rounded before it is added."""
    part = q.double() * weight
    return part if total is None else total.add_(part)


# W is multiplied as a sparse matrix where that was measured to be faster: from 128 clients on, if at most one entry
# in sixteen is not zero. Large products of a sparse W that is narrow in its numbering (a ring, a grid) go in blocks.
# Below that, SciPy adds up a row's neighbours one after another, without fusing the products into the sums: bit for bit
# what a process of its own does, and as fast as a dense product but where most clients are neighbours.
_SPARSE_FROM = 128
_FEW = 16  # clients, with whom it is always so
_SPARSE_SHARE = 1 / 16
_BLOCK_ROWS = 64
_BLOCKS_FROM = 2**23  # numbers in a product


class Mixer:
    """W times rows, in float64; on a CPU the sums run in one order, whatever the number of seeds."""

    def __init__(self, w: Any, device: torch.device) -> None:
        self.clients = w.shape[0]
        self._blocks: list[tuple[Tensor, Tensor]] = []
        self._in_order: Any = None
        is_thin = self.clients <= _FEW or 2 * w.nnz <= self.clients**2
        if is_thin and self.clients < _SPARSE_FROM and device.type == "cpu":
            self._in_order = w.sorted_indices()
        if self.clients < _SPARSE_FROM or w.nnz > _SPARSE_SHARE * self.clients**2:
            self.w = torch.tensor(w.toarray(), dtype=torch.float64, device=device)
            return
        self.w = _csr(w, device)
        if device.type == "cpu":
            blocks = [w[low : low + _BLOCK_ROWS] for low in range(0, self.clients, _BLOCK_ROWS)]
            columns = [np.unique(block.indices) for block in blocks]
            if sum(map(len, columns)) <= 2 * self.clients:  # few rows are read by more than one block
                self._blocks = [
                    (torch.from_numpy(needed).long(), _csr(block[:, needed], device))
                    for needed, block in zip(columns, blocks, strict=True)
                ]

    def __call__(self, q: Tensor) -> Tensor:
        """Sum_j w_ij q_j for each row i."""
        rows = q.view(-1, self.clients, q.shape[1])
        if self._in_order is not None:
            sums = [torch.from_numpy(self._in_order @ one.double().numpy()) for one in rows]
            return sums[0] if len(sums) == 1 else torch.cat(sums)
        if self.w.layout == torch.strided and q.is_cuda:
            return (self.w @ rows.double()).view(q.shape)
        if self.w.layout == torch.strided:
            # Each seed in fresh memory: the order of sums depends on the number of matrices and on their alignment.
            sums = [self.w @ one.to(torch.float64, copy=True) for one in rows]
            return sums[0] if len(sums) == 1 else torch.cat(sums)
        mixed = torch.empty(rows.shape, dtype=torch.float64, device=q.device)
        for seed, one in enumerate(rows):
            if self._blocks and one.numel() >= _BLOCKS_FROM:
                self._in_blocks(one, mixed[seed])
            else:
                torch.mm(self.w, one.double(), out=mixed[seed])
        return mixed.view(q.shape)

    def _in_blocks(self, rows: Tensor, out: Tensor) -> None:
        """The same sums in the same order, without a float64 copy of all rows: what a block reads fits the cache."""
        widest = max(len(needed) for needed, _ in self._blocks)
        taken = rows.new_empty(widest, rows.shape[1])
        wide = torch.empty(taken.shape, dtype=torch.float64)
        for block, (needed, w) in enumerate(self._blocks):
            torch.index_select(rows, 0, needed, out=taken[: len(needed)])
            wide[: len(needed)].copy_(taken[: len(needed)])
            low = block * _BLOCK_ROWS
            torch.mm(w, wide[: len(needed)], out=out[low : low + _BLOCK_ROWS])


def _csr(w: Any, device: torch.device) -> Tensor:
    """A SciPy matrix in compressed rows as a tensor."""
    indptr, indices = (torch.from_numpy(part.astype(np.int64)) for part in (w.indptr, w.indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")  # for the copy
        return torch.sparse_csr_tensor(
            indptr, indices, torch.from_numpy(w.data), size=w.shape, device=device, check_invariants=True
        )
