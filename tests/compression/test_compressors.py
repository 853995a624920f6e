import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
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
@settings(deadline=None)
def test_top_k_keeps_the_largest_and_of_equals_the_first(row: list[float], k: int) -> None:
    x = torch.tensor([row])
    message = gs.top_k(k)(x)
    assert isinstance(message, Sparse)
    expected = sorted(sorted(range(len(row)), key=lambda i: (-abs(row[i]), i))[:k])
    assert message.indices[0].tolist() == expected
    assert message.dense()[0].tolist() == [v if i in expected else 0.0 for i, v in enumerate(row)]


def test_top_k_by_fraction() -> None:
    assert gs.top_k(fraction=0.1).kept(124) == 12
    assert gs.top_k(fraction=0.001).kept(124) == 1
    assert gs.top_k(500).alpha(124) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("compressor", [gs.identity(), gs.gsgd(5), gs.top_k(2)], ids=str)
def test_what_is_not_finite_is_refused_with_its_place(compressor: gs.Compressor, bad: float) -> None:
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


def test_a_random_compressor_wants_a_seed() -> None:
    with pytest.raises(gs.InputError, match=r"gsgd\(bits=5\) is random: pass `seed=`"):
        gs.gsgd(5)(torch.ones(1, 2))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gs.gsgd(1), "`bits` must be an integer from 2 to 31, got 1"),
        (lambda: gs.gsgd(5.0), "got 5.0"),  # type: ignore[arg-type]
        (lambda: gs.top_k(0), "`k` must be an integer of 1 or more, got 0"),
        (gs.top_k, "either `k` or `fraction`"),
        (lambda: gs.top_k(3, 0.5), "either `k` or `fraction`"),
        (lambda: gs.top_k(fraction=1.5), r"`fraction` must be in \(0, 1\], got 1.5"),
    ],
)
def test_bad_settings(make, said):  # type: ignore[no-untyped-def]
    with pytest.raises(gs.InputError, match=said):
        make()
