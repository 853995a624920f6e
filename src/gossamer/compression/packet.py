"""The packet: all that one client sends to each neighbour in one exchange. Counted bits are 8 x its length in bytes.

Byte layout, in order. A varint holds 7 bits per byte, lowest first; other integers are little-endian.

=============  =======  =====================================================  =================================
field          type     content                                                checked by `decode`
=============  =======  =====================================================  =================================
magic          1 byte   0xB1: magic number and version                         equals 0xB1
run            uint32   the run that the packet belongs to                     (by the receiver)
round          varint   the round, below 2^63                                  shortest form, at most 63 bits
client         varint   the sender, below 2^63                                 shortest form, at most 63 bits
d              varint   coordinates of every message                           at least 1; `d` and `max_bytes`
flags          1 byte   bits 0-3: number of messages, 1 to 15                  at least 1
                        bit 4: 0 for float32, 1 for float64                    equals `dtype`, if given
                        bits 5-6: number of the exchange in the round, mod 4   (by the receiver)
                        bit 7: whether `stop` follows
stop           varint   2 x the round to stop at, + 1 if all go on after it;   shortest form, at most 63 bits
                        only if bit 7 of `flags` is set
per message:
  kind         1 byte   bits 0-6: `Message.kind`; bit 7: entropy-coded         known kind; has an entropy codec
  length       varint   bytes of its payload                                   sum matches the buffer's length
payloads       bytes    one after another, each as its `Message` class writes  `Message.parse` uses all its bytes
checksum       uint32   CRC-32 of all bytes before it                          equals the computed CRC-32
=============  =======  =====================================================  =================================

====  =======  =====================================================================================================
kind  class    payload in fixed width; floats are of the packet's dtype, packed integers start at the lowest bit
====  =======  =====================================================================================================
1     Dense    d floats
2     Levels   varint 2 highest + (1 if there are blocks), layout (only then), a float per block, packed levels
3     Sparse   varint k, k floats, k packed indices
4     Signs    layout, a float per block, d bits
5     Powers   float factor, int16 largest exponent, d packed codes of 9 bits
6     Seeded   varint k, layout, 7-byte seed, k floats per block (all of a shorter one)
7     Silence  nothing
8     Half     float scale, d float16 values in [-2, 2]
====  =======  =====================================================================================================

A layout is the varint 0 for a single block; otherwise the block size, the number of tensors and their sizes, varints.
An entropy-coded payload ends in the bytes of `coding.entropy` instead of packed integers or bits.

The lengths are in the header, so a packet can be found at the start of a larger buffer. Nothing that is read from the
network is trusted: the header is checked as it is read, then the length of the buffer, then the checksum, then `d`,
`dtype` and `max_bytes`. Only then are payloads parsed.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.compression.base import Codec, Message
from gossamer.compression.coding.wire import Reader, varint, varint_size, varint_sizes
from gossamer.compression.dense import Dense, Half
from gossamer.compression.dithering import Levels
from gossamer.compression.natural import Powers
from gossamer.compression.partial import Silence
from gossamer.compression.sign import Signs
from gossamer.compression.sparse import Seeded, Sparse
from gossamer.errors import CodecError, InputError

_FIRST = 0xB1
_FIXED = 1 + 4 + 1 + 4  # magic, run, flags, checksum
_DTYPES = (torch.float32, torch.float64)
_CODED = 128
_STOP = 128
_MOST_MESSAGES = 15
MOST_HEADER = 256  # bytes around the payloads, at most
_MOST_BYTES = 1 << 24  # 4 million float32 coordinates, decoded in well under a second

EXCHANGES = 4
"""A packet carries the number of its exchange modulo this; the header has two bits for it."""

message_kinds: dict[int, type[Message]] = {
    m.kind: m for m in (Dense, Levels, Sparse, Signs, Powers, Seeded, Silence, Half)
}
"""The class that reads each kind of message. Other packages add theirs under 64 to 127."""


@dataclass(frozen=True)
class Packet:
    """A decoded packet: the fields of its header, and its one-row messages in order."""

    run: int
    round: int
    client: int
    messages: tuple[Message, ...]
    stop: int | None = None
    """The round at which all clients stop, if a stop was requested."""
    exchange: int = 0
    """The number of the exchange within the round, modulo `EXCHANGES`."""

    def dense(self) -> Tensor:
        """The decoded values of a packet with a single message, (1, d)."""
        if len(self.messages) != 1:
            raise CodecError(f"The packet holds {len(self.messages)} messages; use `messages[i].dense()`.")
        return self.messages[0].dense()


def sizes(
    messages: Sequence[Message], round: int, clients: Sequence[int], codec: Codec = "fixed"
) -> npt.NDArray[np.int64]:
    """The length in bytes of each row's packet. With the fixed codec nothing has to be encoded.

    `clients` names the clients of the first rows; further rows (more seeds) repeat them.
    """
    rows, d = messages[0].shape
    total = np.full(rows, _FIXED + varint_size(int(round)) + varint_size(d) + len(messages))
    total += np.resize(varint_sizes(clients), rows)
    for message in messages:
        if codec == "fixed":
            lengths = np.asarray(message.payload_sizes(), np.int64)
        else:
            lengths = np.array([len(payload) for _, payload in message.payloads(codec)], np.int64)
        total += lengths + varint_sizes(lengths)
    return total


def stop_size(stop: int | None) -> int:
    """Bytes that a requested stop adds to a packet."""
    return 0 if stop is None else varint_size(stop)


def encode(
    messages: Sequence[Message],
    *,
    run: int = 0,
    round: int = 0,
    clients: Sequence[int],
    codec: Codec = "fixed",
    stop: int | None = None,
    exchange: int = 0,
) -> list[bytes]:
    """One packet per row, of 1 to 15 messages of one shape and dtype; `clients` are the senders.

    The codec `"auto"` takes the shorter of `"fixed"` and `"entropy"`. The fields are those of `Packet`; `exchange` is
    taken modulo `EXCHANGES`, in bits that are otherwise unused, so it never changes the length.
    """
    if not 1 <= len(messages) <= _MOST_MESSAGES:
        raise InputError(f"A packet holds 1 to {_MOST_MESSAGES} messages, got {len(messages)}.")
    if len(clients) != messages[0].shape[0]:
        raise InputError(f"The messages have {messages[0].shape[0]} rows, but `clients` has {len(clients)}.")
    run, round, exchange, clients = int(run), int(round), int(exchange), [int(client) for client in clients]
    if run >> 32 or (round | exchange | min(clients) | max(clients)) >> 63:  # also true for a negative number
        raise InputError(
            "`run` must be in [0, 2^32), `round`, `exchange` and `clients` in [0, 2^63); got "
            f"run={run}, round={round}, exchange={exchange}, clients from {min(clients)} to {max(clients)}."
        )
    if any((message.shape, message.dtype) != (messages[0].shape, messages[0].dtype) for message in messages[1:]):
        raise InputError("The messages of a packet must have the same shape and dtype.")
    d, dtype = messages[0].shape[1], messages[0].dtype
    payloads = [message.payloads(codec) for message in messages]
    kinds = [message.kinds() for message in messages]
    start = bytes([_FIRST]) + run.to_bytes(4, "little") + varint(round)
    flags = len(messages) | _DTYPES.index(dtype) << 4 | exchange % EXCHANGES << 5
    middle = varint(d) + (bytes([flags]) if stop is None else bytes([flags | _STOP]) + varint(stop))
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
    """Decode one packet.

    A packet of a few bytes can claim any number of coordinates, because zeros compress to nothing. The claim is checked
    before memory is allocated for it, so pass `d` where it is known.

    `max_bytes` is the most that the decoded values of all messages may take. The default is 16 MiB (4 million float32
    coordinates in one message), or no limit if `d` is given, which bounds the size already.

    Raises:
        CodecError: If the bytes are not a valid packet, or not the expected one.
    """
    if not isinstance(buffer, bytes | bytearray | memoryview):
        raise CodecError(f"A packet must be bytes, got {type(buffer).__name__}.")
    buffer = bytes(buffer)
    header = _header(buffer)
    if len(buffer) < header.length:
        raise CodecError(f"The packet is {header.length - len(buffer)} bytes too short.")
    if len(buffer) > header.length:
        raise CodecError(f"{len(buffer) - header.length} unexpected bytes follow the packet.")
    if zlib.crc32(memoryview(buffer)[:-4]) != int.from_bytes(buffer[-4:], "little"):
        raise CodecError("The checksum of the packet does not match its content.")
    if d is not None and header.d != d:
        raise CodecError(f"Expected {d} coordinates, but the packet has {header.d}.")
    if dtype is not None and header.dtype != dtype:
        raise CodecError(f"Expected {dtype}, but the packet has {header.dtype}.")
    if max_bytes is None and d is None:
        max_bytes = _MOST_BYTES
    if max_bytes is not None and (claim := len(header.messages) * header.d * header.dtype.itemsize) > max_bytes:
        raise CodecError(
            f"The packet claims {claim:,} bytes of values ({header.d:,} coordinates), above the limit of "
            f"{max_bytes:,}; if this is expected, pass `d={header.d}` or a larger `max_bytes`."
        )
    reader = Reader(buffer, header.end)
    messages = []
    for kind, coded, length in header.messages:
        if kind not in message_kinds:
            raise CodecError(f"Unknown kind of message {kind}.")
        messages.append(_parse(message_kinds[kind], Reader(reader.take(length)), coded, header.d, header.dtype))
    return Packet(header.run, header.round, header.client, tuple(messages), header.stop, header.exchange)


def joined(messages: Sequence[Message]) -> Message:
    """One message with the rows of several, in order: of symbols where they are alike, else of values."""
    first = messages[0]
    if isinstance(first, Levels) and all(isinstance(one, Levels) for one in messages):
        alike: list[Levels] = messages  # type: ignore[assignment]
        if all((one.layout, one.highest) == (first.layout, first.highest) for one in alike):
            scale, levels = (torch.cat([getattr(one, name) for one in alike]) for name in ("scale", "levels"))
            return Levels(scale, levels, first.highest, first.layout)
    return Dense(torch.cat([message.dense() for message in messages]))


def length(buffer: bytes) -> int:
    """The length of the packet at the start of `buffer`, read from its header alone."""
    return _header(buffer).length


@dataclass(frozen=True)
class _Header:
    run: int
    round: int
    client: int
    d: int
    dtype: torch.dtype
    stop: int | None
    exchange: int
    messages: tuple[tuple[int, bool, int], ...]
    """For each message: its kind, whether it is entropy-coded, and the length of its payload."""
    end: int
    """Offset of the first payload."""

    @property
    def length(self) -> int:
        return self.end + sum(size for _, _, size in self.messages) + 4


def _header(buffer: bytes) -> _Header:
    if len(buffer) < _FIXED + 5:
        raise CodecError(f"A packet needs at least {_FIXED + 5} bytes, got {len(buffer)}.")
    if buffer[0] != _FIRST:
        raise CodecError(f"Invalid first byte {buffer[0]:#x}; expected {_FIRST:#x}.")
    reader = Reader(buffer, 1)
    run = int.from_bytes(reader.take(4), "little")
    round, client, d = reader.varint(), reader.varint(), reader.varint()
    flags = reader.take(1)[0]
    count, dtype, exchange = flags & 15, _DTYPES[flags >> 4 & 1], flags >> 5 & 3
    if count == 0 or d == 0:
        raise CodecError(f"Invalid header: {count} messages of {d} coordinates; expected at least 1 of each.")
    stop = reader.varint() if flags & _STOP else None
    heads = []
    for _ in range(count):
        coded, kind = divmod(reader.take(1)[0], _CODED)
        heads.append((kind, bool(coded), reader.varint()))
    return _Header(run, round, client, d, dtype, stop, exchange, tuple(heads), reader.at)


def _parse(kind: type[Message], payload: Reader, coded: bool, d: int, dtype: torch.dtype) -> Message:
    if coded and kind.entropy is Message.entropy:
        raise CodecError(f"Messages of kind {kind.kind} have no entropy codec.")
    message = kind.parse(payload, coded, d, dtype)
    payload.end()
    return message
