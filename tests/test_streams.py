import contextlib
import zlib

import numpy as np
import pytest
import torch

import gossamer as gs
from gossamer.kernels import cpu, only_reference, reference
from gossamer.streams import Streams


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 4, 7, 100])
def test_a_draw_depends_on_seed_client_purpose_and_round_alone(dtype: torch.dtype, width: int) -> None:
    together = Streams([3, 9], range(5))
    rounds = [together.uniform("h", t, width, dtype).clone() for t in range(40)]
    alone = Streams([9], [4])
    for t in (0, 39, 17, 18, 5):  # in any order, from fresh blocks
        assert torch.equal(alone.uniform("h", t, width, dtype)[0], rounds[t][9])
        assert torch.equal(Streams([9], [4]).uniform("h", t, width, dtype)[0], rounds[t][9])


def test_rows_drawn_by_threads_are_the_same() -> None:
    before = torch.get_num_threads()
    drawn = []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            drawn.append(Streams([1, 2], range(4)).uniform("h", 3, 200_000, torch.float32).clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*drawn)


def test_different_keys_draw_different_numbers() -> None:
    streams = Streams([0, 1], range(3))
    drawn = [streams.uniform(p, t, 50, torch.float64)[r] for p in ("h", "g") for t in (0, 1) for r in range(6)]
    stacked = torch.stack(drawn)
    assert len(set(stacked.flatten().tolist())) == stacked.numel()


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python's own integers, from the paper (Salmon et al., SC 2011)."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k, q % 2**32, (p >> 32) ^ d ^ m, p % 2**32
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return [a, b, c, d]


# The vectors that the authors of Random123 publish with it (kat_vectors, philox 4x32 10).
PUBLISHED = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_the_generator_gives_its_published_vectors(counter: str, key: str, words: str) -> None:
    counters, keys, expected = ([int(word, 16) for word in text.split()] for text in (counter, key, words))
    assert philox(counters, keys) == expected
    found = reference.philox(*([np.array([word], np.uint64) for word in part] for part in (counters, keys)))
    assert [int(word[0]) for word in found] == expected


@pytest.mark.parametrize("backend", ["compiled", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_each_number_comes_from(backend: str, dtype: torch.dtype) -> None:
    """The definition that another runtime has to reproduce."""
    seed, client, t = 11 << 32 | 5, 2, 7
    assert cpu  # which loads the kernels
    with only_reference() if backend == "reference" else contextlib.nullcontext():
        drawn = Streams([seed], [client]).uniform("batch", t, 150, dtype)[0].tolist()
    for j, number in enumerate(drawn):
        group, rest = divmod(j, 64 if dtype == torch.float32 else 32)
        run, beside = divmod(rest, 16)
        words = philox([16 * group + beside, t, client, zlib.crc32(b"batch")], [5, 11])
        if dtype == torch.float32:
            assert number == (words[run] >> 8) / 2**24
        else:
            assert number == ((words[2 * run] >> 5) * 2**26 + (words[2 * run + 1] >> 6)) / 2**53


def test_numbers_are_uniform_and_independent() -> None:
    """Chi-squared over 256 bins, and correlations between neighbours, rounds, clients, purposes and seeds."""
    streams = Streams([0, 1], range(2))
    drawn = torch.stack([streams.uniform(p, t, 1 << 16, torch.float32) for p in ("h", "g") for t in (0, 1)])
    flat = drawn.view(-1, 1 << 16).double()
    counts = torch.stack([torch.histc(row, 256, 0, 1) for row in flat])
    expected = flat.shape[1] / 256
    chi = ((counts - expected) ** 2 / expected).sum(dim=1)
    assert ((chi - 255).abs() < 6 * (2 * 255) ** 0.5).all()
    together = torch.corrcoef(torch.cat([flat, flat[:, torch.arange(1, (1 << 16) + 1) % (1 << 16)]]))
    together.fill_diagonal_(0)
    assert together.abs().max() < 6 / 256  # six deviations of the correlation of 2^16 independent pairs


def test_distributions() -> None:
    draw = Streams([0], range(4)).at(3, "x")
    uniform = draw.uniform(50_000)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean().item() - 0.5) < 0.005
    normal = draw.normal(50_000)
    assert torch.isfinite(normal).all()
    assert abs(normal.mean().item()) < 0.02
    assert abs(normal.std().item() - 1) < 0.02
    below = draw.below(7, 50_000)
    assert set(below.flatten().tolist()) == set(range(7))


@pytest.mark.parametrize("seed", [-1, 1.5, True, 2**64])
def test_bad_seed(seed: object) -> None:
    with pytest.raises(gs.InputError, match="`seed` must be an integer"):
        Streams([seed], [0])  # type: ignore[list-item]
