"""The packet: all that one client sends each neighbour in one exchange, and the unit in which bits are counted.

    b"G" | version | run (4 bytes) | round* | client* | d* | dtype and number of messages
    for each message:  kind | parameter* | payload length*
    the payloads | CRC-32 of all before it

Starred numbers are varints (7 bits a byte, lowest first), the others little-endian. Nothing read from the network is
trusted: `decode` checks every field before it uses it, and the checksum first of all.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from gossamer.compression.base import Message
from gossamer.compression.dense import Dense
from gossamer.compression.dithering import Levels
from gossamer.compression.sparse import Sparse
from gossamer.errors import CodecError

_MAGIC = b"G\x01"
_FIXED = len(_MAGIC) + 4 + 1 + 4  # magic and version, run, dtype and count, checksum
_DTYPES = {0: torch.float32, 1: torch.float64}
_MOST_MESSAGES = 16
_MOST_COORDINATES = 1 << 40

message_kinds: dict[int, type[Message]] = {m.kind: m for m in (Dense, Levels, Sparse)}
"""Which class reads which kind of message; other packages add theirs, from 128 on."""


@dataclass(frozen=True)
class Packet:
    """What `decode` found: whose packet it is, and its one-row messages in their order."""

    run: int
    round: int
    client: int
    messages: tuple[Message, ...]


def sizes(messages: Sequence[Message], round: int, clients: Sequence[int]) -> npt.NDArray[np.int64]:
    """The length in bytes of each client's packet, without encoding it."""
    d = messages[0].shape[1]
    shared = _FIXED + _varint_size(round) + _varint_size(d)
    for message in messages:
        size = message.payload_size()
        shared += 1 + _varint_size(message.parameter) + _varint_size(size) + size
    return np.array([shared + _varint_size(client) for client in clients], np.int64)


def encode(messages: Sequence[Message], *, run: int = 0, round: int = 0, clients: Sequence[int]) -> list[bytes]:
    """One packet a row; row r is the packet of `clients[r]`."""
    d, dtype = messages[0].shape[1], messages[0].dtype
    code = next(number for number, known in _DTYPES.items() if known == dtype)
    payloads = [message.payloads() for message in messages]
    packets = []
    for row, client in enumerate(clients):
        parts = [_MAGIC, run.to_bytes(4, "little"), _varint(round), _varint(client), _varint(d)]
        parts.append(bytes([code << 4 | len(messages)]))
        for message, payload in zip(messages, payloads, strict=True):
            parts += [bytes([message.kind]), _varint(message.parameter), _varint(len(payload[row]))]
        parts += [payload[row] for payload in payloads]
        body = b"".join(parts)
        packets.append(body + zlib.crc32(body).to_bytes(4, "little"))
    return packets


def decode(buffer: bytes) -> Packet:
    """The packet in `buffer`, or a CodecError that says what is wrong with it."""
    buffer = bytes(buffer)
    if len(buffer) < _FIXED:
        raise CodecError(f"A packet has at least {_FIXED} bytes, got {len(buffer)}.")
    if buffer[:2] != _MAGIC:
        raise CodecError(f"A packet begins with {_MAGIC!r}, got {buffer[:2]!r}.")
    body, checksum = buffer[:-4], int.from_bytes(buffer[-4:], "little")
    if zlib.crc32(body) != checksum:
        raise CodecError("The checksum of the packet does not fit its bytes.")
    reader = _Reader(body, len(_MAGIC))
    run = int.from_bytes(reader.take(4), "little")
    round, client, d = reader.varint(), reader.varint(), reader.varint()
    code, count = divmod(reader.take(1)[0], 16)
    if code not in _DTYPES or not 1 <= count <= _MOST_MESSAGES or not 1 <= d <= _MOST_COORDINATES:
        raise CodecError(f"The header is impossible: dtype {code}, {count} messages, {d} coordinates.")
    heads = [(reader.take(1)[0], reader.varint(), reader.varint()) for _ in range(count)]
    messages = []
    for kind, parameter, length in heads:
        if kind not in message_kinds:
            raise CodecError(f"Messages of kind {kind} are unknown here.")
        messages.append(message_kinds[kind].parse(reader.take(length), parameter, d, _DTYPES[code]))
    if reader.at != len(body):
        raise CodecError(f"{len(body) - reader.at} bytes follow the last message.")
    return Packet(run, round, client, tuple(messages))


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise CodecError(f"The packet ends {count - len(self.data) + self.at} bytes too soon.")
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 63, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                if byte == 0 and shift:
                    raise CodecError("A number in the header is not in its shortest form.")
                return value
        raise CodecError("A number in the header is too long.")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _varint_size(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))
