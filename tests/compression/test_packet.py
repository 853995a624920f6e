import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gossamer as gs
from gossamer import registry
from gossamer.compression import packet
from gossamer.compression.bits import pack, packed_size, unpack
from gossamer.errors import CodecError

COMPRESSORS = [
    factory(**settings)
    for factory in map(registry.compressors.get, registry.compressors)
    for settings in factory.examples  # type: ignore[attr-defined]
]


@st.composite
def vectors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(["float32", "float64"]))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 70)))
    elements = st.floats(-(2.0**99), 2.0**99, width=32 if dtype == "float32" else 64, allow_subnormal=False)
    return torch.from_numpy(draw(hnp.arrays(dtype, shape, elements=elements)))


@given(x=vectors(), compressor=st.sampled_from(COMPRESSORS), seed=st.integers(0, 99), round=st.integers(0, 10**6))
@settings(max_examples=300, deadline=None)
def test_decoding_gives_back_the_message(x, compressor, seed, round):  # type: ignore[no-untyped-def]
    message = compressor(x, seed=seed)
    clients = range(5, 5 + len(x))
    packets = packet.encode([message], run=2**32 - 1, round=round, clients=clients)
    assert [len(p) for p in packets] == packet.sizes([message], round, clients).tolist()
    for row, buffer in enumerate(packets):
        read = packet.decode(buffer)
        assert (read.run, read.round, read.client) == (2**32 - 1, round, 5 + row)
        assert torch.equal(read.messages[0].dense(), message.dense()[row : row + 1])


@given(width=st.integers(0, 40), count=st.integers(0, 40), data=st.data())
@settings(deadline=None)
def test_bits_pack_and_unpack(width: int, count: int, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays("int64", (2, count), elements=st.integers(0, 2**width - 1)))
    packed = pack(values, width)
    assert packed.shape == (2, packed_size(count, width))
    for row in range(2):
        assert unpack(packed[row].tobytes(), count, width).tolist() == values[row].tolist()


PACKET = packet.encode([gs.gsgd(5)(torch.randn(1, 20), seed=0), gs.top_k(3)(torch.randn(1, 20))], clients=[300])[0]


@given(st.binary(max_size=200))
@example(b"")
@settings(max_examples=500)
def test_random_bytes_are_refused(buffer: bytes) -> None:
    with pytest.raises(CodecError):
        packet.decode(buffer)


@given(st.integers(0, 8 * len(PACKET) - 1))
def test_a_flipped_bit_is_noticed(bit: int) -> None:
    damaged = bytearray(PACKET)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CodecError):
        packet.decode(bytes(damaged))


@pytest.mark.parametrize("cut", range(len(PACKET)))
def test_a_cut_packet_is_noticed(cut: int) -> None:
    with pytest.raises(CodecError):
        packet.decode(PACKET[:cut])
    with pytest.raises(CodecError):
        packet.decode(PACKET + PACKET[: cut + 1])


@given(at=st.integers(2, len(PACKET) - 5), value=st.integers(0, 255))
@settings(max_examples=500)
def test_a_lie_with_a_right_checksum_is_refused_or_harmless(at: int, value: int) -> None:
    """An attacker can compute CRC-32, so every field is checked on its own as well."""
    import zlib

    body = bytearray(PACKET[:-4])
    body[at] = value
    try:
        read = packet.decode(bytes(body) + zlib.crc32(bytes(body)).to_bytes(4, "little"))
    except CodecError:
        return
    for message in read.messages:
        assert torch.isfinite(message.dense()).all()


def test_figure_1_packet() -> None:
    """Two gsgd_5 messages of 124 coordinates: 6 bits a level, 4 bytes a norm, 20 bytes of header."""
    x = torch.randn(1, 124)
    both = [gs.gsgd(5)(x, seed=0), gs.gsgd(5)(x, seed=1)]
    assert packet.sizes(both, 100, [0]).tolist() == [2 * (4 + 93) + 20]
