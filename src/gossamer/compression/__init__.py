"""Compressors, their messages, and the packets that carry them."""

from gossamer.compression.base import Compressor, Message
from gossamer.compression.dense import identity
from gossamer.compression.dithering import gsgd, qsgd
from gossamer.compression.natural import natural
from gossamer.compression.packet import decode
from gossamer.compression.sign import sign
from gossamer.compression.sparse import rand_k, top_k
from gossamer.compression.wrappers import blockwise, scaled

__all__ = [
    "Compressor",
    "Message",
    "blockwise",
    "decode",
    "gsgd",
    "identity",
    "natural",
    "qsgd",
    "rand_k",
    "scaled",
    "sign",
    "top_k",
]
