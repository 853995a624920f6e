import numpy as np
import pytest
import torch

import gossamer as gs
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


def test_numbers_are_numpys_philox() -> None:
    """The definition that another runtime has to reproduce."""
    import zlib

    key = np.array([11, 2 << 32 | zlib.crc32(b"batch")], np.uint64)
    whole = np.random.Generator(np.random.Philox(key=key, counter=0)).random((30, 8))
    streams = Streams([11], [2])
    for t in range(30):
        assert np.array_equal(streams.uniform("batch", t, 6, torch.float64)[0].numpy(), whole[t, :6])


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
