"""What members of an open run say to each other, one message per frame of the transport. Integers are little-endian.

======  ===========  =========================================================================================
byte 0  message      content
======  ===========  =========================================================================================
1       Ask          uint8 status, 16 bytes of what both ends must have in common, 16 of the first model
2       Start        uint64 edge, uint64 round, uint8 whether a model follows, the model's bytes
3       Term         uint64 edge, a packet (`compression.packet`)
4       Closed       uint64 edge
5       Handover     uint64 edge, uint64 debt, uint32 client, uint8 number of the tracker, float64 values
6       Left         uint64 edge, uint32 heir (2^32 - 1 for none)
7       Done         uint64 edge
8       View         records of `view.py`
9       Refused      a sentence in UTF-8, at most 500 bytes
======  ===========  =========================================================================================
"""

import enum
import struct
from dataclasses import dataclass

from gossamer.errors import CodecError

NOBODY = 2**32 - 1
_MOST_SENTENCE = 500


class Status(enum.IntEnum):
    """Where a client stands when it asks for an edge."""

    BEGINS = 0
    """At the start of the run."""
    WANTS = 1
    """It waits for a neighbour's model."""
    RUNS = 2


@dataclass(frozen=True)
class Ask:
    """Open an edge."""

    status: Status
    digest: bytes
    first: bytes
    """Of the model with which the sender began; the same for all that begin."""


@dataclass(frozen=True)
class Start:
    """The edge is open; both ends start at this model, or at the start of the run."""

    edge: int
    t: int
    model: bytes | None


@dataclass(frozen=True)
class Term:
    """The next packet."""

    edge: int
    packet: bytes


@dataclass(frozen=True)
class Closed:
    """The edge is closed at the sender's end."""

    edge: int


@dataclass(frozen=True)
class Handover:
    """What the edge between the sender, which leaves, and a client has added to a tracker."""

    edge: int
    debt: int
    """The number of the edge between the sender and that client."""
    client: int
    tracker: int
    values: bytes


@dataclass(frozen=True)
class Left:
    """The sender has left on purpose."""

    edge: int
    heir: int


@dataclass(frozen=True)
class Done:
    """The sender has taken all its rounds."""

    edge: int


@dataclass(frozen=True)
class View:
    """Who has which edges."""

    records: bytes


@dataclass(frozen=True)
class Refused:
    """Why there will be no edge."""

    sentence: str


Said = Ask | Start | Term | Closed | Handover | Left | Done | View | Refused


def write(said: Said) -> bytes:
    """The bytes of a message."""
    match said:
        case Ask():
            return struct.pack("<BB16s16s", 1, said.status, said.digest, said.first)
        case Start():
            return struct.pack("<BQQB", 2, said.edge, said.t, said.model is not None) + (said.model or b"")
        case Term():
            return struct.pack("<BQ", 3, said.edge) + said.packet
        case Closed():
            return struct.pack("<BQ", 4, said.edge)
        case Handover():
            return struct.pack("<BQQIB", 5, said.edge, said.debt, said.client, said.tracker) + said.values
        case Left():
            return struct.pack("<BQI", 6, said.edge, said.heir)
        case Done():
            return struct.pack("<BQ", 7, said.edge)
        case View():
            return b"\x08" + said.records
        case Refused():
            return b"\x09" + said.sentence.encode()[:_MOST_SENTENCE]


def read(data: bytes) -> Said:
    """A message; a CodecError if the bytes are none."""
    try:
        match data[0]:
            case 1:
                _, status, digest, first = struct.unpack("<BB16s16s", data)
                return Ask(Status(status), digest, first)
            case 2:
                _, edge, t, has_model = struct.unpack_from("<BQQB", data)
                if has_model > 1 or bool(has_model) != (len(data) > 18):
                    raise ValueError
                return Start(edge, t, data[18:] if has_model else None)
            case 3:
                return Term(struct.unpack_from("<BQ", data)[1], data[9:])
            case 4:
                return Closed(struct.unpack("<BQ", data)[1])
            case 5:
                _, edge, debt, client, tracker = struct.unpack_from("<BQQIB", data)
                return Handover(edge, debt, client, tracker, data[22:])
            case 6:
                return Left(*struct.unpack("<BQI", data)[1:])
            case 7:
                return Done(struct.unpack("<BQ", data)[1])
            case 8:
                return View(data[1:])
            case 9 if len(data) <= 1 + _MOST_SENTENCE:
                text = data[1:].decode(errors="replace")
                return Refused("".join(one if one.isprintable() else "?" for one in text))
    except (struct.error, ValueError, IndexError):
        pass
    raise CodecError(f"{len(data)} bytes are no message of an open run.")
