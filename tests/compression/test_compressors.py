import math
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from gossamer import registry
from gossamer.compression import decode, natural, scaled, sign
from gossamer.compression.dithering import Levels
from gossamer.compression.sparse import Sparse
from gossamer.streams import Streams


def test_gsgd_is_appendix_a() -> None:
    x = torch.randn(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    streams = Streams([4], range(6))
    u = streams.uniform("q", 2, 40, torch.float64)
    for bits in (2, 5, 9, 20):
        ours = gs.gsgd(bits)(x, streams.at(2, "q")).dense()
        np.testing.assert_allclose(ours.numpy().T, reference.gsgd(x.numpy().T, u.numpy().T, bits), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("bits", "d", "alpha"), [(5, 124, 1 / (1 + 124 / 256)), (5, 10**6, 1 / (1 + 1000 / 16)), (2, 1, 0.8)]
)
def test_gsgd_alpha(bits: int, d: int, alpha: float) -> None:
    assert gs.gsgd(bits).alpha(d) == pytest.approx(alpha)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-20, 1.0, 1e20, 1e37])
def test_gsgd_stays_within_its_levels(dtype: torch.dtype, size: float) -> None:
    """A one-hot vector sits exactly on the highest level, where rounding could lift it above."""
    x = torch.zeros(2000, 8, dtype=dtype)
    x[:, 3] = torch.linspace(1, 3, 2000, dtype=dtype) * size
    message = gs.gsgd(5)(x, seed=0)
    assert isinstance(message, Levels)
    assert set(message.levels.flatten().tolist()) == {0, 16}
    torch.testing.assert_close(message.dense() * gs.gsgd(5).tau(8), x, rtol=1e-5, atol=0)


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]), min_size=1, max_size=12), st.integers(1, 12))
def test_top_k_keeps_the_largest_and_of_equals_the_first(row: list[float], k: int) -> None:
    x = torch.tensor([row])
    message = gs.top_k(k)(x)
    assert isinstance(message, Sparse)
    expected = sorted(sorted(range(len(row)), key=lambda i: (-abs(row[i]), i))[:k])
    assert message.indices[0].tolist() == expected
    assert message.dense()[0].tolist() == [v if i in expected else 0.0 for i, v in enumerate(row)]


def test_top_k_by_fraction() -> None:
    assert gs.top_k(0.1) == gs.top_k(fraction=0.1)  # type: ignore[arg-type]
    assert gs.top_k(fraction=0.1).kept(124) == 12
    assert gs.top_k(fraction=0.001).kept(124) == 1
    assert gs.top_k(500).alpha(124) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("compressor", [gs.identity(), gs.gsgd(5), gs.top_k(2)], ids=str)
def test_the_error_names_the_place_of_a_value_that_is_not_finite(compressor: gs.Compressor, bad: float) -> None:
    x = torch.ones(3, 5)
    x[1, 4] = bad
    with pytest.raises(gs.GossamerError, match=rf"holds {bad} in row 1, coordinate 4"):
        compressor(x, seed=0)


def test_huge_but_finite_is_not_refused() -> None:
    x = torch.full((2, 5), 1.5e308, dtype=torch.float64)
    assert torch.equal(gs.identity()(x).dense(), x)


@pytest.mark.parametrize("x", [torch.ones(3), torch.ones(2, 0), torch.ones(2, 2, dtype=torch.int64)], ids=str)
def test_bad_tensor(x: torch.Tensor) -> None:
    with pytest.raises(gs.InputError, match=r"takes a \(rows, d\) tensor"):
        gs.top_k(1)(x)


def test_a_random_compressor_needs_a_seed() -> None:
    with pytest.raises(gs.InputError, match=r"gsgd\(bits=5\) is random: pass `seed=`"):
        gs.gsgd(5)(torch.ones(1, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gs.gsgd(1), "`bits` must be an integer from 2 to 31, got 1"),
        (lambda: gs.gsgd(5.0), "got 5.0"),  # type: ignore[arg-type]
        (lambda: gs.top_k(0), "`k` must be an integer of 1 or more, got 0"),
        (gs.top_k, "either `k` or `fraction`"),
        (lambda: gs.top_k(3, 0.5), "either `k` or `fraction`"),
        (lambda: gs.top_k(fraction=1.5), r"`fraction` must be in \(0, 1\], got 1.5"),
    ],
)
def test_bad_settings(make, message):  # type: ignore[no-untyped-def]
    with pytest.raises(gs.InputError, match=message):
        make()


def test_gsgd_is_scaled_qsgd() -> None:
    x = torch.randn(4, 60, dtype=torch.float64)
    ours, theirs = gs.gsgd(5)(x, seed=3).dense(), scaled(gs.qsgd(16))(x, seed=3).dense()
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)
    assert scaled(gs.qsgd(16)).alpha(60) == gs.gsgd(5).alpha(60)


def test_constants() -> None:
    assert gs.qsgd(16).omega(124) == 124 / 256
    assert gs.qsgd(16).alpha(124) == pytest.approx(1 - 124 / 256)
    with pytest.raises(gs.InputError, match=r"qsgd\(levels=16\) is no contraction for 1000 coordinates.*scaled"):
        gs.qsgd(16).alpha(1000)
    assert gs.rand_k(10).alpha(100) == 0.1
    assert gs.rand_k(10).omega(100) is None
    assert gs.rand_k(10, unbiased=True).omega(100) == 9
    assert sign().alpha(100) == 0.01
    assert natural().omega(10**6) == 1 / 8
    million = 10**6
    assert gs.gsgd(5).alpha(million) == pytest.approx(1 / 63.5)
    assert gs.blockwise(gs.gsgd(5), 256).alpha(million) == 0.5
    assert gs.blockwise(gs.gsgd(5), 256).alpha(16) == gs.gsgd(5).alpha(16)
    assert gs.blockwise(gs.gsgd(5), 256, tensors=(100, 28)).alpha(128) == gs.gsgd(5).alpha(100)
    assert scaled(natural()).alpha(5) == pytest.approx(8 / 9)


def test_is_unbiased() -> None:
    unbiased = [
        gs.identity(),
        gs.qsgd(4),
        natural(),
        gs.rand_k(3, unbiased=True),
        gs.blockwise(gs.qsgd(4), 8),
    ]
    biased = [
        gs.gsgd(5),
        gs.top_k(3),
        gs.rand_k(3),
        sign(),
        scaled(gs.qsgd(4)),
        gs.blockwise(sign(), 8),
    ]
    assert all(compressor.is_unbiased and compressor.omega(20) is not None for compressor in unbiased)
    assert not any(compressor.is_unbiased or compressor.omega(20) is not None for compressor in biased)


@pytest.mark.parametrize("d", [1, 7, 8, 9, 23])
@pytest.mark.parametrize(
    "operator",
    [gs.gsgd(4), gs.top_k(2), sign(), natural(), gs.identity(), gs.qsgd(3)],
    ids=str,
)
def test_blocks_are_compressed_on_their_own(operator: gs.Compressor, d: int) -> None:
    x = torch.randn(3, d, dtype=torch.float64)
    whole = gs.blockwise(operator, 8)(x, seed=4).dense()
    for start in range(0, d - d % 8, 8):
        block = x.clone()
        block[:, :start], block[:, start + 8 :] = 0, 0
        alone = gs.blockwise(operator, 8)(block, seed=4).dense()
        torch.testing.assert_close(whole[:, start : start + 8], alone[:, start : start + 8])


def test_blocks_do_not_cross_tensors() -> None:
    x = torch.ones(1, 10)
    x[0, 6:] = 100
    message = gs.blockwise(sign(), 4, tensors=(6, 4))(x)
    assert torch.equal(message.dense(), x), "blocks of 4, 2 and 4, each with entries of equal size"
    across = gs.blockwise(sign(), 4)(x)
    assert not torch.equal(across.dense(), x)
    with pytest.raises(gs.InputError, match="`tensors` sum to 10 coordinates, but the vector has 9"):
        gs.blockwise(sign(), 4, tensors=(6, 4))(x[:, :9])


def test_rand_k_sends_a_seed_and_k_values() -> None:
    x = torch.randn(200, 40)
    message = gs.rand_k(4)(x, seed=0)
    dense = message.dense()
    assert ((dense != 0).sum(dim=1) == 4).all()
    assert torch.equal(dense[dense != 0], x[dense != 0])
    assert message.payload_size() == 1 + 1 + 7 + 4 * 4
    chosen = (dense != 0).float().mean(dim=0)
    assert (chosen - 0.1).abs().max() < 0.1, "every coordinate is chosen equally often"
    unbiased = gs.rand_k(4, unbiased=True)(x, seed=0).dense()
    torch.testing.assert_close(unbiased, dense * 10)


def test_natural_gives_powers_of_two() -> None:
    x = torch.cat([torch.randn(5, 200), torch.full((5, 1), 3e38), torch.zeros(5, 1)], dim=1)
    dense = natural()(x, seed=0).dense()
    mantissa, _ = torch.frexp(dense[dense != 0].double())
    assert (mantissa.abs() == 0.5).all()
    assert (dense[:, -1] == 0).all()
    tiny = torch.full((1, 4), 1e-44)
    assert natural()(tiny, seed=0).dense().min() > 0, "denormal numbers are kept"


def test_wrappers_refuse_invalid_operators() -> None:
    for make, message in (
        (lambda: scaled(gs.top_k(3)), "unbiased compressor, such as qsgd"),
        (lambda: scaled(5), "got 5"),  # type: ignore[arg-type]
        (lambda: gs.blockwise(gs.blockwise(sign(), 3), 2), "Blocks of blocks"),
        (lambda: gs.blockwise(scaled(gs.blockwise(gs.qsgd(2), 9)), 2), "Blocks of blocks"),
        (lambda: gs.blockwise(sign(), 2, tensors=5), "`tensors` must be a list of sizes, got 5"),  # type: ignore[arg-type]
        (lambda: gs.blockwise("scaled:" * 3000 + "natural", 4), "is longer than 1000 characters"),  # type: ignore[arg-type]
        (lambda: gs.blockwise(sign(), 0), "`size` must be an integer of 1 or more, got 0"),
        (lambda: gs.blockwise("gzip", 4), "Unknown compressor 'gzip'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(gs.InputError, match=message):
            make()


def test_a_compressor_that_does_not_contract_is_refused_before_a_run() -> None:
    problem, mixing = gs.quadratic(clients=4, d=1000), gs.mixing_matrix(gs.ring(4))
    with pytest.raises(gs.InputError, match="no contraction for 1000 coordinates"):
        gs.simulate(gs.BEER(lr=0.1, gamma=0.1, compressor=gs.qsgd(4)), problem, mixing, rounds=5)


@pytest.mark.parametrize(
    ("compressor", "x"),
    [
        (gs.gsgd(5), torch.full((2, 2), 3e38)),
        (gs.qsgd(3), torch.full((2, 1), 1.7976931348623157e308, dtype=torch.float64)),
        (gs.rand_k(2, unbiased=True), torch.full((2, 7), 3e38)),
        (gs.blockwise(gs.gsgd(5), 2), torch.full((2, 4), 1.7e308, dtype=torch.float64)),
    ],
    ids=str,
)
def test_a_norm_that_overflows_is_refused(compressor: gs.Compressor, x: torch.Tensor) -> None:
    with pytest.raises(gs.GossamerError, match="row 0 is too large to compress in float"):
        compressor(x, seed=0)
    assert torch.isfinite(sign()(x).dense()).all(), "a mean does not overflow"


def test_levels_beyond_float32_are_refused() -> None:
    with pytest.raises(gs.InputError, match="float32 allows at most 16,777,216 levels, got 16,777,219"):
        gs.qsgd(16_777_219)(torch.ones(1, 1), seed=0)
    x = torch.ones(1, 1, dtype=torch.float64)
    message = gs.qsgd(16_777_219)(x, seed=0)
    assert torch.equal(decode(message.encode()[0]).dense(), x)


def test_rand_k_sends_no_padding() -> None:
    tensors = (200, 1, 1, 1)
    compressor = gs.blockwise(gs.rand_k(20, unbiased=True), 200, tensors=tensors)
    x = torch.randn(50, 203)
    message = compressor(x, seed=0)
    dense = message.dense()
    assert ((dense != 0).sum(dim=1) == 20 + 3).all()
    assert torch.equal(dense[:, 200:], x[:, 200:]), "a block of one coordinate is kept whole, unscaled"
    kept = dense[:, :200] != 0
    torch.testing.assert_close(dense[:, :200][kept], 10 * x[:, :200][kept])
    assert message.payload_size() < 23 * 4 + 20


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", registry.compressors.names())
def test_cuda_equals_cpu(name: str, dtype: torch.dtype) -> None:
    factory: Any = registry.compressors.get(name)
    x = torch.randn(5, 300, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for settings_ in factory.examples:
        compressor = factory(**settings_)
        on_cpu, on_gpu = compressor(x, seed=1), compressor(x.cuda(), seed=1)
        assert on_gpu.dense().is_cuda
        # A norm that is rounded differently may change a level: often with 2^19 levels (hence atol), rarely with few.
        close = torch.isclose(on_gpu.dense().cpu(), on_cpu.dense(), rtol=1e-5, atol=4e-6 * float(x.norm(dim=1).max()))
        assert close.double().mean() > 0.999, str(compressor)
        assert torch.equal(decode(on_gpu.encode("auto")[0]).dense(), on_gpu.dense()[:1].cpu())
