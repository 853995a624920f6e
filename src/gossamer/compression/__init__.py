"""Compressors, their messages, and the packets that carry them."""

from gossamer.compression.base import Compressor, Message
from gossamer.compression.dense import identity
from gossamer.compression.dithering import gsgd
from gossamer.compression.sparse import top_k

__all__ = ["Compressor", "Message", "gsgd", "identity", "top_k"]
