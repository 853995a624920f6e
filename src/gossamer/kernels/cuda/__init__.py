"""The hot loops compiled by Triton. `reference` says what each computes; tests hold the two together bit by bit.

Products are not fused into sums, division is IEEE's, and sums of neighbours are formed in ascending order, so that the
numbers are those of a CPU. The one exception is the order in which the squares of a norm are added: in float32 norms
may differ by one unit in the last place, which is rare; in float64 by a few.
"""

import torch
from torch import Tensor

from gossamer.kernels.cuda.bits import pack_rows, unpack_rows
from gossamer.kernels.cuda.checks import are_finite, note_bad
from gossamer.kernels.cuda.dithers import dither, follow
from gossamer.kernels.cuda.generated import lines
from gossamer.kernels.cuda.radix import keep, largest
from gossamer.kernels.cuda.sums import Mixer
from gossamer.kernels.cuda.words import below, uniform
from gossamer.kernels.reference import Powered, signs, to_powers
from gossamer.kernels.stream import Stream

__all__ = ["Mixer", "are_finite", "below", "dither", "follow", "keep", "largest", "lines", "note_bad"]
__all__ += ["pack_rows", "powers", "signs", "uniform", "unpack_rows"]


def powers(value: Tensor, own: Tensor | None, stream: Stream, dtype: torch.dtype) -> Powered:
    """See `reference.powers`: torch's own kernels, with numbers drawn on the device."""
    return to_powers(value, own, uniform(stream, value.shape[1], dtype))
