"""The hot loops compiled by Triton. `reference` says what each computes; tests hold the two together bit by bit.

Products are not fused into sums, division is IEEE's, and sums of neighbours are formed in ascending order, so that the
numbers are those of a CPU. The one exception is the order in which the squares of a norm are added: in float32 norms
may differ by one unit in the last place, which is rare; in float64 by a few.
"""

from gossamer.kernels.cuda.bits import pack_rows, unpack_rows
from gossamer.kernels.cuda.dithers import dither, follow
from gossamer.kernels.cuda.generated import lines
from gossamer.kernels.cuda.radix import largest
from gossamer.kernels.cuda.sums import Mixer
from gossamer.kernels.cuda.words import uniform

__all__ = ["Mixer", "dither", "follow", "largest", "lines", "pack_rows", "uniform", "unpack_rows"]
