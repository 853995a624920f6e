# mypy: disable-error-code="no-untyped-def"
"""Weighted sums of neighbours' messages on a GPU, for any sparse W."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.blocks import Blocks
from gossamer.kernels.cuda.dithers import places_of
from gossamer.kernels.cuda.language import EXACT, ceil_div, constexpr, jit, tl

_SIZE = 1024  # coordinates per program


@jit("rows", "clients", "blocks", "size")
def _add(
    out,
    mixed,
    q,
    scale,
    which,
    indptr,
    indices,
    weights,
    a: "tl.float64",
    d,
    rows,
    clients,
    blocks,
    size,
    is_whole: constexpr,
    at_once: constexpr,
):
    """Mixed + a sum_j w_ij q_j; with `scale`, q_j is the product of levels and scales.

    Products are rounded before they are added, neighbours in ascending order: as a process of its own does. Programs
    beside each other take the same coordinates of different rows, so that neighbours' messages are still in the cache.
    """
    row = (tl.program_id(0) % rows).to(tl.int64)
    first = (tl.program_id(0) // rows).to(tl.int64) * at_once
    o = tl.arange(0, at_once)
    mask = o < tl.minimum(d - first, at_once).to(tl.int32)
    i = row % clients
    base = row - i
    low, high = tl.load(indptr + i), tl.load(indptr + i + 1)
    block = tl.zeros((at_once,), tl.int32)
    if which is not None:
        block = tl.load(which + first + o, mask, 0)
    elif not is_whole:
        block = tl.minimum((first + o) // size, blocks - 1).to(tl.int32)
    total = tl.zeros((at_once,), tl.float64)
    for n in range(low, high):
        j = base + tl.load(indices + n)
        part = tl.load(q + j * d + first + o, mask, 0)
        if scale is not None:
            if is_whole:
                part = part.to(scale.dtype.element_ty) * tl.load(scale + j)
            else:
                part = part.to(scale.dtype.element_ty) * tl.load(scale + j * blocks + block, mask, 0.0)
        total += part.to(tl.float64) * tl.load(weights + n)
    at = row * d + first + o
    if mixed is not None:
        total = tl.load(mixed + at, mask, 0.0) + total * a
    tl.store(out + at, total.to(out.dtype.element_ty), mask)


class Mixer:
    """W times rows, in float64: see `reference.Mixer`."""

    def __init__(self, w: Any, device: torch.device) -> None:
        w = w.sorted_indices()
        self.clients = w.shape[0]
        self._w, self._device = w, device

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where each row of W begins, its columns, and their weights."""
        kinds = zip((self._w.indptr, self._w.indices, self._w.data), ("int32", "int32", "float64"), strict=True)
        indptr, indices, weights = (torch.from_numpy(part.astype(kind)).to(self._device) for part, kind in kinds)
        return indptr, indices, weights

    def __call__(self, q: Tensor) -> Tensor:
        """Sum_j w_ij q_j for each row i."""
        return self._sum(None, q.contiguous(), None, None, 1.0)

    def add(self, mixed: Tensor, q: Tensor, a: float = 1.0) -> Tensor:
        """H W + a Q W."""
        return self._sum(mixed.expand(q.shape).contiguous(), q.contiguous(), None, None, a)

    def add_levels(self, mixed: Tensor, scale: Tensor, levels: Tensor, blocks: Blocks, a: float = 1.0) -> Tensor:
        """The same for Q = scale times levels, without Q."""
        return self._sum(mixed.expand(levels.shape).contiguous(), levels.contiguous(), scale.contiguous(), blocks, a)

    def _sum(self, mixed: Tensor | None, q: Tensor, scale: Tensor | None, blocks: Blocks | None, a: float) -> Tensor:
        rows, d = q.shape
        out = torch.empty(q.shape, dtype=torch.float64 if mixed is None else mixed.dtype, device=q.device)
        size, which = (None, None) if blocks is None else places_of(blocks, q.device)
        many = 1 if blocks is None else len(blocks.lengths)
        _add[(rows * ceil_div(d, _SIZE),)](
            out, mixed, q, scale, which, *self._tables, a, d, rows, self.clients, many, size or 1, many == 1, _SIZE,
            num_warps=4, **EXACT,
        )  # fmt: skip
        return out
