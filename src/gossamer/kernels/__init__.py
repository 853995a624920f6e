"""The hot loops of a round. The rest of the library calls only what is here; `reference` is the readable backend."""

from gossamer.kernels.reference import (
    Mixer,
    add_weighted,
    combination,
    dither,
    fill_uniform,
    move,
    outputs,
    pack,
    packed_size,
    unpack,
)

__all__ = [
    "Mixer",
    "add_weighted",
    "combination",
    "dither",
    "fill_uniform",
    "move",
    "outputs",
    "pack",
    "packed_size",
    "unpack",
]
