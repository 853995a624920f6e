"""What travels on an authenticated link, in one ZeroMQ message each. Integers are little-endian.

A connection begins with one greeting from each end:

====  =======  =====================================================================
byte  type     content
====  =======  =====================================================================
0     uint8    1 (hello, from the end that connects) or 2 (welcome, the answer)
1     uint8    version of this format
2     uint32   run
6     uint32   channel
10    uint32   sender
14    uint32   receiver
18    uint64   a random number of the sending process: another one is another process
26    uint64   number of the last frame that the sender has from the receiver
====  =======  =====================================================================

After that each end sends frames. The frames of one direction are numbered 1, 2, 3, ... over all connections of a link,
and a frame with any other number than the next is refused.

====  =======  =====================================================================
byte  type     content
====  =======  =====================================================================
0     uint8    3 (acknowledgement), 4 (packet), 5 (notice), 6 (alive), 7 (goodbye)
1     uint64   number of the frame; 0 for an acknowledgement
9     uint64   number of the last frame that the sender has
17    bytes    a packet (`compression.packet`: run, round, sender) or a notice; else nothing
====  =======  =====================================================================
"""

import enum
import struct
from dataclasses import dataclass

_GREETING = struct.Struct("<BBIIIIQQ")
_HEAD = struct.Struct("<BQQ")
_VERSION = 1
HEAD_SIZE = _HEAD.size


class Kind(enum.IntEnum):
    """The first byte."""

    HELLO = 1
    WELCOME = 2
    ACK = 3
    PACKET = 4
    NOTICE = 5
    ALIVE = 6
    BYE = 7


@dataclass(frozen=True)
class Greeting:
    """What a connection begins with."""

    kind: Kind
    run: int
    channel: int
    sender: int
    receiver: int
    process: int
    received: int

    def pack(self) -> bytes:
        """The bytes."""
        facts = (self.run, self.channel, self.sender, self.receiver, self.process, self.received)
        return _GREETING.pack(self.kind, _VERSION, *facts)


@dataclass(frozen=True)
class Frame:
    """What follows."""

    kind: Kind
    number: int
    received: int
    body: bytes = b""

    def pack(self) -> bytes:
        """The bytes."""
        return _HEAD.pack(self.kind, self.number, self.received) + self.body


def read(data: memoryview) -> Greeting | Frame | None:
    """A greeting or a frame; None if the bytes are neither."""
    kind = data[0] if len(data) else 0
    if kind in (Kind.HELLO, Kind.WELCOME):
        if len(data) != _GREETING.size:
            return None
        _, version, *facts = _GREETING.unpack(data)
        return Greeting(Kind(kind), *facts) if version == _VERSION else None
    if not Kind.ACK <= kind <= Kind.BYE or len(data) < _HEAD.size:
        return None
    _, number, received = _HEAD.unpack(data[: _HEAD.size])
    has_body = kind in (Kind.PACKET, Kind.NOTICE)
    if has_body != (len(data) > _HEAD.size) or (kind == Kind.ACK) != (number == 0):
        return None
    return Frame(Kind(kind), number, received, bytes(data[_HEAD.size :]))
