"""The packet: all that one client sends each neighbour in one exchange, and the unit in which bits are counted.

    0xB1 (magic and version) | run (4 bytes) | round* | client* | d* | dtype, number of messages, 128 for a stop
    the round to stop at*, if one is agreed on
    for each message:  kind, +128 if entropy-coded | payload length*
    the payloads | CRC-32 of all before it

Starred numbers are varints, the others little-endian. A packet knows its own length, so it can be found at the start of
a larger buffer. Nothing read from the network is trusted: `decode` checks the checksum, and every field before it uses
it.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.compression.base import Codec, Message
from gossamer.compression.coding.wire import Reader, varint, varint_size
from gossamer.compression.dense import Dense
from gossamer.compression.dithering import Levels
from gossamer.compression.natural import Powers
from gossamer.compression.partial import Silence
from gossamer.compression.sign import Signs
from gossamer.compression.sparse import Seeded, Sparse
from gossamer.errors import CodecError, InputError

_FIRST = 0xB1
_FIXED = 1 + 4 + 1 + 4  # magic and version, run, dtype and count, checksum
_DTYPES = {0: torch.float32, 1: torch.float64}
_CODED = 128
_STOP = 128
_MOST_MESSAGES = 15
_MOST_BYTES = 1 << 24  # 4 million float32 coordinates, decoded in well under a second

message_kinds: dict[int, type[Message]] = {m.kind: m for m in (Dense, Levels, Sparse, Signs, Powers, Seeded, Silence)}
"""Which class reads which kind of message; other packages add theirs, from 64 to 127."""


@dataclass(frozen=True)
class Packet:
    """What `decode` found: whose packet it is, and its one-row messages in their order."""

    run: int
    round: int
    client: int
    messages: tuple[Message, ...]
    stop: int | None = None
    """The round that all clients are to stop at, once one of them was told to."""

    def dense(self) -> Tensor:
        """The numbers of a packet that holds one message, (1, d)."""
        if len(self.messages) != 1:
            raise CodecError(f"The packet holds {len(self.messages)} messages; take `messages[i].dense()`.")
        return self.messages[0].dense()


def sizes(
    messages: Sequence[Message], round: int, clients: Sequence[int], codec: Codec = "fixed"
) -> npt.NDArray[np.int64]:
    """The length in bytes of each row's packet; in fixed width it is known without encoding.

    `clients` are the clients of the first rows; further rows (more seeds) repeat them.
    """
    rows, d = messages[0].shape
    round, clients = int(round), [int(client) for client in clients]
    total = np.full(rows, _FIXED + varint_size(round) + varint_size(d) + len(messages))
    total += np.resize([varint_size(client) for client in clients], rows)
    for message in messages:
        if codec == "fixed":
            lengths = message.payload_sizes().tolist()
        else:
            lengths = [len(payload) for _, payload in message.payloads(codec)]
        total += [n + varint_size(n) for n in lengths]
    return total


def stop_size(stop: int | None) -> int:
    """Bytes that a round to stop at adds to a packet."""
    return 0 if stop is None else varint_size(stop)


def encode(
    messages: Sequence[Message],
    *,
    run: int = 0,
    round: int = 0,
    clients: Sequence[int],
    codec: Codec = "fixed",
    stop: int | None = None,
) -> list[bytes]:
    """One packet a row; row r is the packet of `clients[r]`."""
    if not 1 <= len(messages) <= _MOST_MESSAGES:
        raise InputError(f"A packet holds 1 to {_MOST_MESSAGES} messages, got {len(messages)}.")
    if len(clients) != messages[0].shape[0]:
        raise InputError(f"The messages have {messages[0].shape[0]} rows, but {len(clients)} clients were named.")
    run, round, clients = int(run), int(round), [int(client) for client in clients]
    if run >> 32 or (round | min(clients) | max(clients)) >> 63:  # a negative number has bits above any place
        raise InputError(
            f"`run` is of 32 bits, `round` and `client` of 63; got {run}, {round}, {min(clients)} or more."
        )
    if any((message.shape, message.dtype) != (messages[0].shape, messages[0].dtype) for message in messages[1:]):
        raise InputError("The messages of a packet must be of one shape and one dtype.")
    d, dtype = messages[0].shape[1], messages[0].dtype
    code = next(number for number, known in _DTYPES.items() if known == dtype)
    payloads = [message.payloads(codec) for message in messages]
    kinds = [message.kinds() for message in messages]
    start = bytes([_FIRST]) + run.to_bytes(4, "little") + varint(round)
    middle = varint(d) + bytes([code << 4 | len(messages) | (0 if stop is None else _STOP)])
    middle += b"" if stop is None else varint(stop)
    packets = []
    for row, client in enumerate(clients):
        parts = [start, varint(client), middle]
        for kind, payload in zip(kinds, payloads, strict=True):
            coded, data = payload[row]
            parts.append(bytes([kind[row] + _CODED * coded]) + varint(len(data)))
        parts += [payload[row][1] for payload in payloads]
        body = b"".join(parts)
        packets.append(body + zlib.crc32(body).to_bytes(4, "little"))
    return packets


def decode(
    buffer: bytes, *, d: int | None = None, dtype: torch.dtype | None = None, max_bytes: int | None = None
) -> Packet:
    """The packet in `buffer`, or a CodecError that says what is wrong with it.

    A packet of a few bytes may claim any number of coordinates, since zeros compress to nothing. The claim is checked
    before memory is allocated for it: give `d` where it is known.

    Args:
        buffer: The bytes of one packet.
        d: How many coordinates are expected; another number is refused.
        dtype: The type that is expected; another is refused.
        max_bytes: Refuse messages whose decoded numbers take more bytes than this together. The default is 16 MiB
            (4 million float32 coordinates in one message); with `d`, which bounds the size itself, there is no limit.
    """
    if not isinstance(buffer, bytes | bytearray | memoryview):
        raise CodecError(f"A packet is bytes, got {type(buffer).__name__}.")
    buffer = bytes(buffer)
    header = _header(buffer)
    if len(buffer) < header.length:
        raise CodecError(f"The packet ends {header.length - len(buffer)} bytes too soon.")
    if len(buffer) > header.length:
        raise CodecError(f"{len(buffer) - header.length} bytes follow the end.")
    if zlib.crc32(memoryview(buffer)[:-4]) != int.from_bytes(buffer[-4:], "little"):
        raise CodecError("The checksum of the packet does not fit its bytes.")
    if d is not None and header.d != d:
        raise CodecError(f"{d} coordinates were expected, but the packet is of {header.d}.")
    if dtype is not None and header.dtype != dtype:
        raise CodecError(f"{dtype} was expected, but the packet is of {header.dtype}.")
    if max_bytes is None and d is None:
        max_bytes = _MOST_BYTES
    if max_bytes is not None and (claim := len(header.messages) * header.d * header.dtype.itemsize) > max_bytes:
        raise CodecError(
            f"The packet claims {claim:,} bytes of numbers ({header.d:,} coordinates), above the limit of "
            f"{max_bytes:,}; if that is expected, pass `d={header.d}` or a larger `max_bytes`."
        )
    reader = Reader(buffer, header.end)
    messages = []
    for kind, coded, length in header.messages:
        if kind not in message_kinds:
            raise CodecError(f"Messages of kind {kind} are unknown here.")
        messages.append(_parse(message_kinds[kind], Reader(reader.take(length)), coded, header.d, header.dtype))
    return Packet(header.run, header.round, header.client, tuple(messages), header.stop)


def length(buffer: bytes) -> int:
    """The length of the packet that `buffer` begins with, as its header says; the buffer may be longer, or cut off."""
    return _header(buffer).length


@dataclass(frozen=True)
class _Header:
    run: int
    round: int
    client: int
    d: int
    dtype: torch.dtype
    stop: int | None
    messages: tuple[tuple[int, bool, int], ...]
    """Of each message: kind, whether it is entropy-coded, and the length of its payload."""
    end: int
    """Where the payloads begin."""

    @property
    def length(self) -> int:
        return self.end + sum(size for _, _, size in self.messages) + 4


def _header(buffer: bytes) -> _Header:
    if len(buffer) < _FIXED + 5:
        raise CodecError(f"A packet has at least {_FIXED + 5} bytes, got {len(buffer)}.")
    if buffer[0] != _FIRST:
        raise CodecError(f"A packet of this version begins with {_FIRST:#x}, got {buffer[0]:#x}.")
    reader = Reader(buffer, 1)
    run = int.from_bytes(reader.take(4), "little")
    round, client, d = reader.varint(), reader.varint(), reader.varint()
    byte = reader.take(1)[0]
    code, count = divmod(byte & ~_STOP, 16)
    if code not in _DTYPES or count == 0 or d == 0:
        raise CodecError(f"The header is impossible: dtype {code}, {count} messages, {d} coordinates.")
    stop = reader.varint() if byte & _STOP else None
    heads = []
    for _ in range(count):
        coded, kind = divmod(reader.take(1)[0], _CODED)
        heads.append((kind, bool(coded), reader.varint()))
    return _Header(run, round, client, d, _DTYPES[code], stop, tuple(heads), reader.at)


def _parse(kind: type[Message], payload: Reader, coded: bool, d: int, dtype: torch.dtype) -> Message:
    if coded and kind.entropy is Message.entropy:
        raise CodecError(f"Messages of kind {kind.kind} are never entropy-coded.")
    message = kind.parse(payload, coded, d, dtype)
    payload.end()
    return message
