"""The hot loops of a round. The rest of the library calls only what is here; `reference` is the readable backend."""

from gossamer.kernels.csr import Csr as Csr
from gossamer.kernels.csr import Examples as Examples
from gossamer.kernels.csr_reference import Loss as Loss
from gossamer.kernels.reference import Mixer as Mixer
from gossamer.kernels.reference import add_weighted as add_weighted
from gossamer.kernels.reference import combination as combination
from gossamer.kernels.reference import dither as dither
from gossamer.kernels.reference import fill_uniform as fill_uniform
from gossamer.kernels.reference import move as move
from gossamer.kernels.reference import outputs as outputs
from gossamer.kernels.reference import pack as pack
from gossamer.kernels.reference import packed_size as packed_size
from gossamer.kernels.reference import unpack as unpack
