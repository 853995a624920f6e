"""The same gradients on a GPU."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

import gossamer as gs
from gossamer.problems.modules.replay import Replay

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
P = gs.problems
SPARSE = sparse.random_array((60, 30), density=0.1, rng=np.random.default_rng(0), format="csr")
IMAGES = (np.random.default_rng(0).standard_normal((60, 1, 8, 8)), np.arange(60) % 3)
MIXTURE = "gaussian_mixture:rows=60,features=6,classes=4"


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3))


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 3))


MAKERS: dict[str, Any] = {
    "logistic": lambda **on: P.logistic_regression("breast_cancer", equal=False, partition="by_label", **on),
    "softmax": lambda **on: P.softmax_regression(MIXTURE, **on),
    "sparse": lambda **on: P.logistic_regression((SPARSE, np.arange(60) % 2), **on),
    "least squares": lambda **on: P.least_squares((np.eye(40), np.arange(40.0)), **on),
    "quadratic": lambda **on: P.quadratic(noise=0.3, **on),
    "sine": lambda **on: P.sine_pl(noise=0.3, **on),
    "one hidden layer": lambda **on: P.one_hidden_layer("digits", hidden=5, **on),
    "cnn": lambda **on: P.cnn("digits", **on),
    "resnet": lambda **on: P.resnet("digits", blocks=1, norm="group", **on),
    "batch norm": lambda **on: P.module_problem(normed(), IMAGES, partition="iid", **on),
}


@pytest.fixture
def without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes half a minute for each network."""
    monkeypatch.setenv("GOSSAMER_COMPILE", "0")


def test_compiled_gradients() -> None:
    one, two = (P.cnn("digits", clients=4, gradients=kind, device="cuda") for kind in ("compiled", "vmap"))
    x = one.x0() + 0.1 * torch.randn(8, one.d, device="cuda")
    batch = torch.randint(0, one.rows_per_client, (8, 5), device="cuda")
    scale = float(two.gradient(x, batch).abs().max())
    torch.testing.assert_close(one.gradient(x, batch), two.gradient(x, batch), rtol=1e-3, atol=1e-4 * scale)
    torch.testing.assert_close(one.gradient(x), two.gradient(x), rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.usefixtures("without_compiling")
@pytest.mark.parametrize("name", MAKERS)
def test_gradients_and_measurements(name: str) -> None:
    one, two = (MAKERS[name](clients=4, dtype="float64", device=device) for device in ("cpu", "cuda"))
    torch.manual_seed(1)
    x = one.x0() + 0.1 * torch.randn(8, one.d, dtype=torch.float64)
    batch = torch.randint(0, one.rows_per_client, (8, 5))
    for chosen in (batch, None):
        there = two.gradient(x.cuda(), None if chosen is None else chosen.cuda())
        torch.testing.assert_close(there.cpu(), one.gradient(x, chosen), rtol=1e-6, atol=1e-8)
    for measure in ("evaluate", "score"):
        here, there = getattr(one, measure)(x), getattr(two, measure)(x.cuda())
        for column, values in here.items():
            torch.testing.assert_close(there[column].cpu(), values, rtol=1e-6, atol=1e-8)


def test_sparse_rows_are_dense_on_a_gpu_if_they_fit() -> None:
    problem = P.logistic_regression((SPARSE, np.arange(60) % 2), clients=4, device="cuda")
    assert problem.rows.sparse is None
    assert problem.rows.features.is_cuda
    wide = sparse.csr_array((np.ones(60), (np.arange(60), np.arange(60))), shape=(60, 2_000_000_000))
    with pytest.raises(gs.InputError, match=r"'data' has 60 rows of 2,000,000,001 features, 447.0 GiB \("):
        P.logistic_regression((wide, np.arange(60) % 2), clients=4, device="cuda")


def test_convolutions_are_compiled_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert P.cnn("digits", clients=4, device="cuda").gradients == "compiled"
    problem = P.module_problem(normed(), IMAGES, clients=4, partition="iid", device="cuda")
    assert problem.gradients == "compiled", "batch norm, too"
    monkeypatch.setenv("GOSSAMER_COMPILE", "0")
    problem = P.module_problem(normed(), IMAGES, clients=4, partition="iid", device="cuda")
    assert problem.gradients == "vmap"
    buffers = problem.new_buffers(4)
    x = problem.x0().expand(4, -1).contiguous()
    problem.gradient(x, torch.zeros(4, 3, dtype=torch.int64, device="cuda"), buffers)
    assert buffers["1.num_batches_tracked"].tolist() == [1] * 4


def test_dropout_follows_the_stream_on_a_gpu() -> None:
    problem = P.module_problem(dropping(), IMAGES, clients=4, partition="iid", device="cuda")
    assert problem.gradients == "loop"
    mixing = gs.mixing_matrix(gs.ring(4))
    one, two = (gs.simulate(gs.DSGD(lr=0.1), problem, mixing, rounds=5, batch_size=4, seed=3) for _ in range(2))
    torch.testing.assert_close(one.x, two.x)


def test_replayed_gradients_are_the_same() -> None:
    def models(*, replayed: bool) -> torch.Tensor:
        problem = P.cnn("digits", clients=4, dtype="float64", gradients="vmap", device="cuda")
        assert isinstance(problem._side_by_side, Replay)
        if not replayed:
            problem._side_by_side = problem._side_by_side.function
        problem.is_replayable = False  # the gradients alone
        run = gs.simulate(gs.DSGD(lr=0.01), problem, gs.mixing_matrix(gs.ring(4)), rounds=20, batch_size=8)
        return run.snapshot  # with the buffers of batch norm

    torch.testing.assert_close(models(replayed=True), models(replayed=False), rtol=1e-9, atol=1e-11)


class Own(nn.Flatten):
    """A layer of a user's, which may do more than launch kernels."""


def test_a_users_own_layers_are_not_replayed() -> None:
    module = nn.Sequential(Own(), nn.Linear(64, 3), nn.BatchNorm1d(3))
    problem = P.module_problem(module, IMAGES, clients=4, partition="iid", device="cuda")
    assert not isinstance(problem._side_by_side, Replay)
    assert not problem.is_replayable
