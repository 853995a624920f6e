"""Compressors, their messages, and the packets that carry them.

Compressors
    `identity`, `float16`, `gsgd`, `qsgd`, `top_k`, `rand_k`, `sign` and `natural`; `scaled` and `blockwise` wrap
    another one.

Packets
    `encode` turns messages into bytes, `decode` reads them back as a `Packet`, `measure` reports errors and bits.

For authors of compressors
    Subclass `Compressor`. Return one of the messages `Dense`, `Half`, `Levels`, `Sparse`, `Seeded`, `Signs` and
    `Powers`, or a subclass of `Message`. A `Layout` describes the blocks of coordinates that share a norm.

>>> import torch
>>> from gossamer import compression
>>> message = compression.sign()(torch.tensor([[3.0, -1.0]]))
>>> (packet,) = compression.encode([message], clients=[0])
>>> compression.decode(packet).dense()
tensor([[ 2., -2.]])
"""

from gossamer.compression.assess import Assessment, measure
from gossamer.compression.base import CODECS, Codec, Compressor, Message
from gossamer.compression.dense import Dense, Half, float16, identity
from gossamer.compression.dithering import Levels, gsgd, qsgd
from gossamer.compression.layout import Layout
from gossamer.compression.natural import Powers, natural
from gossamer.compression.packet import Packet, decode, encode
from gossamer.compression.partial import Partial
from gossamer.compression.sign import Signs, sign
from gossamer.compression.sparse import Seeded, Sparse, rand_k, top_k
from gossamer.compression.wrappers import blockwise, scaled

__all__ = [
    "CODECS",
    "Assessment",
    "Codec",
    "Compressor",
    "Dense",
    "Half",
    "Layout",
    "Levels",
    "Message",
    "Packet",
    "Partial",
    "Powers",
    "Seeded",
    "Signs",
    "Sparse",
    "blockwise",
    "decode",
    "encode",
    "float16",
    "gsgd",
    "identity",
    "measure",
    "natural",
    "qsgd",
    "rand_k",
    "scaled",
    "sign",
    "top_k",
]
