# mypy: disable-error-code="no-untyped-def"
"""Whether numbers on a GPU are finite, noted there without waiting for it."""

import torch
from torch import Tensor

from gossamer.kernels.cuda.language import ceil_div, constexpr, jit, tl

_SIZE = 4096  # numbers per program
_NEVER = 1 << 62


@jit()
def _note(bad, t, x, count, size: constexpr):
    first = tl.program_id(0).to(tl.int64) * size
    o = tl.arange(0, size)
    v = tl.load(x + first + o, o < tl.minimum(count - first, size).to(tl.int32), 0.0)
    if tl.max((~(tl.abs(v) < float("inf"))).to(tl.int32)) > 0:  # what is not a number is not below anything
        tl.atomic_min(bad, tl.load(t))


def note_bad(bad: Tensor, t: Tensor, *values: Tensor) -> None:
    """Lower `bad` to t if a number is not finite."""
    for x in values:
        _note[(ceil_div(x.numel(), _SIZE),)](bad, t, x.contiguous(), x.numel(), _SIZE, num_warps=8)


def are_finite(*values: Tensor) -> bool:
    """Whether all numbers are finite."""
    bad = torch.full((2,), _NEVER, device=values[0].device)
    note_bad(bad[:1], bad[1:].zero_(), *values)
    return int(bad[0]) == _NEVER
