"""The bytes in which a client tells its neighbours why the run cannot go on.

0xB2 | run (4 bytes) | 1 if the run diverged | round | since (8 bytes each) | length (2) | sentence | CRC-32
"""

import struct
import zlib

from gossamer.runtime.transport.base import Failure

NOTICE = 0xB2
_HEAD = struct.Struct("<BIBQQH")
_LONGEST = 900


def write_notice(run: int, failure: Failure) -> bytes:
    """The notice of a failure; a long sentence is cut."""
    text = failure.sentence.encode()[:_LONGEST]
    body = _HEAD.pack(NOTICE, run, failure.diverged, failure.round, failure.since, len(text)) + text
    return body + struct.pack("<I", zlib.crc32(body))


def read_notice(run: int, data: bytes) -> Failure | None:
    """The failure in the notice at the start of `data`; None if there is no notice of this run."""
    if len(data) < _HEAD.size + 4:
        return None
    first, theirs, diverged, round, since, length = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    body, checksum = data[:end], data[end : end + 4]
    if first != NOTICE or theirs != run or length > _LONGEST or struct.pack("<I", zlib.crc32(body)) != checksum:
        return None
    return Failure(body[_HEAD.size :].decode(errors="replace"), round, bool(diverged), since)
