import os
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gossamer as gs
from gossamer import registry
from gossamer.compression import packet
from gossamer.compression.base import CODECS
from gossamer.compression.coding.wire import varint
from gossamer.compression.layout import Layout
from gossamer.compression.sparse import seeded_places
from gossamer.errors import CodecError
from gossamer.kernels import pack, packed_size, unpack
from gossamer.streams import seeded_uniform

COMPRESSORS = [
    factory(**settings)
    for factory in map(registry.compressors.get, registry.compressors)
    for settings in factory.examples  # type: ignore[attr-defined]
]


def with_checksum(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "little")


def hostile(kind: int, d: int, payload: bytes) -> bytes:
    return with_checksum(
        b"\xb1"
        + bytes(4)
        + varint(0)
        + varint(0)
        + varint(d)
        + b"\x01"
        + bytes([kind])
        + varint(len(payload))
        + payload
    )


@st.composite
def vectors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(["float32", "float64"]))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 70)))
    elements = st.floats(-(2.0**99), 2.0**99, width=32 if dtype == "float32" else 64, allow_subnormal=False)
    return torch.from_numpy(draw(hnp.arrays(dtype, shape, elements=elements)))


@given(
    x=vectors(),
    compressor=st.sampled_from(COMPRESSORS),
    seed=st.integers(0, 99),
    round=st.integers(0, 10**6),
    codec=st.sampled_from(CODECS),
)
@settings(max_examples=600)
def test_decoding_gives_back_the_message(x, compressor, seed, round, codec):  # type: ignore[no-untyped-def]
    message = compressor(x, seed=seed)
    clients = range(5, 5 + len(x))
    packets = packet.encode([message], run=2**32 - 1, round=round, clients=clients, codec=codec)
    assert [len(p) for p in packets] == packet.sizes([message], round, clients, codec).tolist()
    for row, buffer in enumerate(packets):
        read = gs.compression.decode(buffer, d=x.shape[1], dtype=x.dtype)
        assert (read.run, read.round, read.client) == (2**32 - 1, round, 5 + row)
        assert torch.equal(read.dense(), message.dense()[row : row + 1])


@pytest.mark.parametrize("bits", [2, 7, 8, 20, 30, 31])
def test_wide_levels_survive(bits: int) -> None:
    x = torch.zeros(1, 30, dtype=torch.float64)
    x[0, :9] = torch.tensor([1e-9, 1e-6, 1e-3, 0.1, 0.3, 0.5, -0.7, 1.0, -2.0])
    for vector in (x, x[:, :9]):
        message = gs.gsgd(bits)(vector, seed=0)
        for codec in CODECS:
            assert torch.equal(gs.compression.decode(message.encode(codec)[0]).dense(), message.dense())


def test_the_interface_of_a_message() -> None:
    x = torch.randn(3, 50)
    message = gs.gsgd(5)(x, seed=0)
    for codec in CODECS:
        packets = message.encode(codec=codec)
        assert message.num_bits(codec=codec).tolist() == [8 * len(p) for p in packets]
        assert torch.equal(gs.compression.decode(packets[0]).dense(), message.dense()[0:1])
    auto, fixed, entropy = (message.num_bits(codec=codec) for codec in ("auto", "fixed", "entropy"))
    assert (auto == np.minimum(fixed, entropy)).all()
    with pytest.raises(gs.InputError, match="`codec` must be one of"):
        message.encode("zip")  # type: ignore[arg-type]


def test_the_receiver_states_what_it_expects() -> None:
    (buffer,) = gs.top_k(1)(torch.ones(1, 30)).encode()
    assert gs.compression.decode(buffer, d=30, dtype=torch.float32, max_bytes=120).dense().sum() == 1
    cases: tuple[tuple[Any, str], ...] = (
        ({"d": 31}, "Expected 31 coordinates, but the packet has 30"),
        ({"dtype": torch.float64}, "Expected torch.float64, but the packet has torch.float32"),
        ({"max_bytes": 119}, "claims 120 bytes of values .30 coordinates., above the limit of 119"),
    )
    for expected, message in cases:
        with pytest.raises(CodecError, match=message):
            gs.compression.decode(buffer, **expected)


def test_an_excessive_claim_is_refused_before_anything_is_allocated() -> None:
    huge = packet.encode([gs.top_k(1)(torch.ones(1, 1))], clients=[0])[0]
    reader = bytearray(huge[:-4])
    at = reader.index(varint(1), 6)  # d, a varint of 1, becomes 2^40
    reader[at : at + 1] = varint(2**40)
    with pytest.raises(CodecError, match="above the limit"):
        gs.compression.decode(bytes(reader) + zlib.crc32(bytes(reader)).to_bytes(4, "little"))


def claiming(whole: bytes, d: int) -> bytes:
    """The packet with another number of coordinates in its header, and a matching checksum."""
    start = 5 + len(varint(300)) + len(varint(300))  # after run, round and client
    old = 1 if whole[start] < 128 else 2
    return with_checksum(whole[:start] + varint(d) + whole[start + old : -4])


@pytest.mark.parametrize("d", [2**22, 2**26, 2**40, 2**62])
def test_a_large_claim_without_d_is_refused_before_any_message_is_read(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every kind of message, fixed or entropy-coded, with blocks or without; each packet has two messages."""
    monkeypatch.setattr(packet, "_parse", lambda *_: pytest.fail("a message was read"))
    packets = [claiming(whole, d) for whole in PACKETS_OF_TWO]
    tracemalloc.start()
    try:
        for buffer in packets:
            with pytest.raises(CodecError, match=f"claims .* above the limit of 16,777,216; .* pass `d={d}` or"):
                gs.compression.decode(buffer)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_an_expected_or_allowed_packet_may_be_large() -> None:
    d = 2**23
    (buffer,) = gs.top_k(1)(torch.ones(1, d)).encode()
    with pytest.raises(CodecError, match="claims 33,554,432 bytes of values"):
        gs.compression.decode(buffer)
    assert gs.compression.decode(buffer, d=d).dense().sum() == 1
    assert gs.compression.decode(buffer, max_bytes=4 * d).dense().sum() == 1
    with pytest.raises(CodecError, match="above the limit of 100"):
        gs.compression.decode(buffer, d=d, max_bytes=100)


def small_packets_of_large_messages(d: int) -> dict[str, bytes]:
    """The shortest packet of each kind, written by hand: a few bytes for d coordinates."""
    one = np.float32(1).tobytes()
    tensors = [d - 1000, *[1] * 1000]
    layout = varint(d - 1000) + varint(len(tensors)) + b"".join(map(varint, tensors))
    scales = one * len(tensors)
    return {
        "levels, a table": hostile(128 + 2, d, varint(32) + one + b"\0"),
        "levels, gaps": hostile(128 + 2, d, varint(32) + one + b"\xfe\0"),
        "levels, a histogram": hostile(128 + 2, d, varint(32) + one + b"\xff\x01\xff"),
        "levels, blocks": hostile(128 + 2, d, varint(33) + layout + scales + b"\xfe\0"),
        "powers": hostile(128 + 5, d, one + b"\0\0" + b"\0"),
        "signs": hostile(128 + 4, d, b"\0" + one + b"\xff\x01\xff"),
        "signs, blocks": hostile(128 + 4, d, layout + scales + b"\xff\x01\xff"),
        "sparse": hostile(3, d, b"\x01" + one + bytes(-(-((d - 1).bit_length()) // 8))),
        "seeded": hostile(6, d, b"\x01" + b"\0" + bytes(7) + one),
        "seeded, blocks": hostile(6, d, b"\x01" + layout + bytes(7) + one * len(tensors)),
        "silence": hostile(7, d, b""),
    }


def test_a_claim_within_the_limit_takes_memory_in_proportion() -> None:
    """Runs in a process whose address space is limited, so that torch's memory counts too."""
    script = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import gossamer as gs
from test_packet import small_packets_of_large_messages
d = 1 << 22
for small in small_packets_of_large_messages(20_000).values():
    gs.compression.decode(small).dense()  # tables are built, and kernels and libraries loaded, on first use
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 16 * 4 * d,) * 2)
for kind, buffer in small_packets_of_large_messages(d).items():
    try:
        assert gs.compression.decode(buffer).dense().shape == (1, d)
    except (MemoryError, RuntimeError) as error:
        print(kind, error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("k", [1, 3, 40])
def test_places_are_the_same_however_blocks_are_padded(k: int) -> None:
    tensors = (40, 1, 7, 2)
    layout, seed = Layout(50, 40, tensors), torch.tensor([7, 8])
    found = seeded_places(seed, k, layout)
    for row, one in enumerate((7, 8)):
        drawn = seeded_uniform(torch.tensor([one]), "rand_k", 50)[0].numpy()
        begin, expected = 0, []
        for length in tensors:
            order = np.argsort(-drawn[begin : begin + length])[:k]
            expected += sorted(begin + int(place) for place in order)
            begin += length
        assert found[row].tolist() == expected


@given(width=st.integers(0, 40), count=st.integers(0, 40), data=st.data())
def test_bits_pack_and_unpack(width: int, count: int, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays("int64", (2, count), elements=st.integers(0, 2**width - 1)))
    packed = pack(values, width)
    assert packed.shape == (2, packed_size(count, width))
    for row in range(2):
        assert unpack(packed[row].tobytes(), count, width).tolist() == values[row].tolist()


def packets_of_all_kinds() -> list[bytes]:
    x = torch.randn(1, 40, generator=torch.Generator().manual_seed(0))
    x[0, 5:30] = 0
    found = [
        packet.encode([c(x, seed=1), c(x, seed=2)], run=5, round=300, clients=[300], codec=codec)[0]
        for c in COMPRESSORS
        for codec in ("fixed", "entropy")
    ]
    wide = torch.randn(1, 400, generator=torch.Generator().manual_seed(1))
    return [*found, gs.gsgd(9)(wide, seed=0).encode("entropy")[0], gs.top_k(30)(wide).encode("entropy")[0]]


PACKETS = packets_of_all_kinds()
PACKETS_OF_TWO = PACKETS[:-2]


@given(st.binary(max_size=200))
@example(b"")
@settings(max_examples=2000)
def test_random_bytes_are_refused(buffer: bytes) -> None:
    with pytest.raises(CodecError):
        gs.compression.decode(buffer)


@pytest.mark.parametrize("number", range(len(PACKETS)))
def test_flipped_bits_and_cuts_are_noticed(number: int) -> None:
    """Every single bit, every length."""
    whole = PACKETS[number]
    gs.compression.decode(whole)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CodecError):
            gs.compression.decode(bytes(damaged))
    for cut in range(len(whole)):
        with pytest.raises(CodecError):
            gs.compression.decode(whole[:cut])
        with pytest.raises(CodecError):
            gs.compression.decode(whole + whole[: cut + 1])


@given(data=st.data())
@settings(max_examples=10_000 if os.environ.get("CI") else 2_000)
def test_a_forged_packet_is_refused_or_decodes_to_a_valid_message(data: st.DataObject) -> None:
    """An attacker can compute CRC-32, so every field is checked; a packet that passes is finite and in bounds."""
    body = bytearray(data.draw(st.sampled_from(PACKETS))[:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(1, len(body) - 1))
        action = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if action == "set":
            body[at] = data.draw(st.integers(0, 255))
        elif action == "cut" and len(body) > 20:
            del body[at : at + data.draw(st.integers(1, 5))]
        else:
            body[at:at] = data.draw(st.binary(max_size=5))
        if len(body) < 3:
            return
    try:
        read = gs.compression.decode(with_checksum(bytes(body)), max_bytes=1 << 16)
    except CodecError:
        return
    for message in read.messages:
        dense = message.dense()
        assert dense.shape[0] == 1
        assert torch.isfinite(dense).all()


def test_blocks_that_claim_too_much_are_refused() -> None:
    n = 100_000
    wide = varint(1) + varint(n) + varint(n) + b"\x01" * n + bytes(7) + bytes(4 * n)
    with pytest.raises(CodecError, match="do not match"):
        gs.compression.decode(hostile(6, n, wide))
    with pytest.raises(CodecError, match="Invalid number of blocks"):
        gs.compression.decode(hostile(4, 2**22, varint(1) + varint(1) + varint(2**22)))


@pytest.mark.parametrize("value", [None, "abc", 3.5, -1, 10**13])
def test_anything_but_bytes_is_refused(value: Any) -> None:
    with pytest.raises(CodecError, match="A packet must be bytes"):
        gs.compression.decode(value)


def test_figure_1_packet() -> None:
    """Two gsgd_5 messages of 124 coordinates: 6 bits per level, 4 bytes per norm, 19 bytes around them."""
    x = torch.randn(1, 124)
    both = [gs.gsgd(5)(x, seed=0), gs.gsgd(5)(x, seed=1)]
    assert packet.sizes(both, 100, [0]).tolist() == [2 * (4 + 93) + 19]


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_the_exchange_number_adds_no_bytes(compressor: gs.Compressor) -> None:
    for dtype in (torch.float32, torch.float64):
        message = compressor(torch.ones(1, 9, dtype=dtype), seed=0)
        for stop in (None, 300):
            first = packet.encode([message], clients=[1], round=7, stop=stop)[0]
            assert packet.decode(first).exchange == 0
            for exchange in (0, 1, 2, 3, 4, 17):
                (buffer,) = packet.encode([message], clients=[1], round=7, stop=stop, exchange=exchange)
                assert len(buffer) == len(first) == packet.length(buffer)
                assert (buffer == first) == (exchange % packet.EXCHANGES == 0)
                read = packet.decode(buffer, d=9, dtype=dtype)
                assert (read.exchange, read.round, read.stop) == (exchange % packet.EXCHANGES, 7, stop)
                assert torch.equal(read.dense(), message.dense())


def test_the_flags_byte_is_laid_out_as_documented() -> None:
    message = gs.identity()(torch.ones(1, 3, dtype=torch.float64))
    (buffer,) = packet.encode([message] * 5, clients=[0], stop=2, exchange=2)
    assert buffer[:5] == b"\xb1\0\0\0\0"
    assert buffer[5:8] == b"\0\0\x03", "round, client and d"
    assert buffer[8] == 5 | 1 << 4 | 2 << 5 | 1 << 7
    assert buffer[9:12] == b"\x02\x01\x18", "stop, then kind and length of the first message"


def test_encoding_refuses_invalid_arguments() -> None:
    message = gs.identity()(torch.ones(2, 3))
    cases: tuple[tuple[Any, str], ...] = (
        ({"messages": [], "clients": [0]}, "1 to 15 messages"),
        ({"messages": [message] * 16, "clients": [0, 1]}, "1 to 15 messages"),
        ({"messages": [message], "clients": [0]}, "2 rows"),
        ({"messages": [message], "clients": [0, 1], "run": 2**32}, "`run`"),
        ({"messages": [message], "clients": [0, -1]}, "clients from -1 to 0"),
        ({"messages": [message], "clients": [0, 1], "exchange": -1}, "exchange=-1"),
        ({"messages": [message, gs.identity()(torch.ones(2, 4))], "clients": [0, 1]}, "the same shape and dtype"),
    )
    for arguments, reason in cases:
        with pytest.raises(gs.InputError, match=reason):
            packet.encode(**arguments)
