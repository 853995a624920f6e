"""The hot loops compiled by numba. `reference` says what each computes; tests hold the two together bit by bit."""

from gossamer.kernels.cpu.dither import dither
from gossamer.kernels.cpu.examples import linear_gradients, linear_measures
from gossamer.kernels.cpu.expression import lines
from gossamer.kernels.cpu.mixer import Mixer
from gossamer.kernels.cpu.packing import pack, unpack
from gossamer.kernels.cpu.philox import below, uniform
from gossamer.kernels.cpu.selection import keep, largest
from gossamer.kernels.cpu.stack import layer_gradients, layer_measures
from gossamer.kernels.cpu.symbols import powers, signs

__all__ = [
    "Mixer",
    "below",
    "dither",
    "keep",
    "largest",
    "layer_gradients",
    "layer_measures",
    "linear_gradients",
    "linear_measures",
    "lines",
    "pack",
    "powers",
    "signs",
    "uniform",
    "unpack",
]
