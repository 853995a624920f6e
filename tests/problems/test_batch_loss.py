"""The loss of a minibatch is what its gradient is the gradient of."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

import gossamer as gs
from gossamer.problems.base import Problem
from gossamer.runtime.gradients.oracle import BatchOracle, LocalOracle
from gossamer.streams import Streams


class Squares(Problem):
    """A problem of somebody else, who defines no loss of a batch."""

    clients, d, rows_per_client = 3, 2, 1
    dtype, device = torch.float64, torch.device("cpu")

    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        return x

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        return {"loss": models.square().sum(dim=1) / 2, "grad_norm": models.norm(dim=1)}


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *layers, nn.Linear(8, 10))


def module(gradients: Any, *layers: nn.Module, **how: Any) -> Any:
    return gs.module_problem(network(*layers), "digits", clients=3, gradients=gradients, dtype="float64", **how)


PROBLEMS: dict[str, Callable[[], Any]] = {
    "quadratic": lambda: gs.quadratic(clients=3, noise=1.0, dtype="float64"),
    "sine": lambda: gs.problems.sine_pl(clients=3, noise=1.0, dtype="float64"),
    "logistic": lambda: gs.logistic_regression("breast_cancer", clients=3, nonconvex=0.05, l2=0.1, dtype="float64"),
    "softmax": lambda: gs.problems.softmax_regression("digits", clients=3, dtype="float64"),
    "squares": lambda: gs.problems.least_squares("breast_cancer", clients=3, dtype="float64"),
    "closed": lambda: module("closed", nn.Tanh()),
    "vmap": lambda: module("vmap", nn.Tanh()),
    "loop": lambda: module("loop", nn.Tanh()),
    "unequal": lambda: module("loop", nn.Tanh(), partition="dirichlet:0.5", equal=False),
    "batch norm": lambda: module("loop", nn.BatchNorm1d(8), nn.Tanh()),
    "dropout": lambda: module("loop", nn.Dropout(0.5), nn.Tanh()),
}


@pytest.mark.parametrize("rows", [5, None])
@pytest.mark.parametrize("name", PROBLEMS)
def test_its_slope_is_the_gradient(name: str, rows: int | None) -> None:
    problem = PROBLEMS[name]()
    torch.manual_seed(1)
    x = (problem.x0() + 0.1 * torch.randn(6, problem.d, dtype=torch.float64)).contiguous()  # two seeds
    batch = None if rows is None else torch.randint(problem.rows_per_client, (6, rows))
    more: Any = {"seeds": torch.arange(6) + 7} if problem.is_random else {}

    def buffers() -> Any:
        return {"buffers": problem.new_buffers(6)} if problem.has_buffers else {}

    kept = buffers()
    gradient = problem.gradient(x, batch, **more, **buffers())
    direction = torch.randn(6, problem.d, dtype=torch.float64)
    up, down = (problem.batch_loss(x + h * direction, batch, **more, **kept) for h in (1e-5, -1e-5))
    assert up.shape == (6,)
    assert torch.allclose((up - down).double() / 2e-5, (gradient * direction).sum(dim=1), rtol=1e-5, atol=1e-7)
    assert all(b.equal(problem.new_buffers(6)[which]) for which, b in kept.get("buffers", {}).items())


def test_sparse_rows_give_the_same() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((90, 40)) * (rng.random((90, 40)) < 0.1)
    labels = np.arange(90) % 2
    problems: list[Any] = [
        gs.logistic_regression((rows, labels), clients=3, dtype="float64") for rows in (features, csr_array(features))
    ]
    assert problems[1].rows.sparse is not None
    x, batch = torch.randn(3, problems[0].d, dtype=torch.float64), torch.randint(30, (3, 7))
    for rows in (batch, None):
        one, two = (problem.batch_loss(x, rows) for problem in problems)
        assert torch.allclose(one, two, rtol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_client_alone_has_the_same(name: str) -> None:
    problem = PROBLEMS[name]()
    x, batch = problem.x0()[None].repeat(3, 1) + 0.1, torch.arange(6).view(3, 2)
    more: Any = {"seeds": torch.full((3,), 5)} if problem.is_random else {}
    every = problem.batch_loss(x, batch, **more)
    for client in range(3):
        one: Any = {"seeds": more["seeds"][:1]} if more else {}
        alone = problem.only(client).batch_loss(x[:1], batch[client : client + 1], **one)
        assert torch.allclose(alone, every[client : client + 1], rtol=1e-9)


def test_who_defines_no_loss_has_none() -> None:
    problem = Squares()
    assert problem.batch_loss(torch.zeros(3, 2)) is None
    assert problem.only(1).batch_loss(torch.zeros(1, 2)) is None
    oracle = BatchOracle(problem.only(1), Streams([0], [1]), 0, None, {})
    oracle.asked = []
    oracle(torch.ones(1, 2, dtype=torch.float64))
    assert oracle.loss() is None


@pytest.mark.parametrize("name", ["quadratic", "batch norm", "dropout"])
def test_the_oracle_knows_the_loss_of_its_round(name: str) -> None:
    problem = PROBLEMS[name]().only(2)
    given = problem, Streams([0], [2]), 4, 5, problem.new_buffers(1)
    rows = Streams([0], [2]).at(4, "batch").below(problem.rows_per_client, 5)
    more: Any = {"seeds": Streams([0], [2]).at(4, "module").seeds()} if problem.is_random else {}
    x = problem.x0()[None] + 0.1
    expected = float(problem.batch_loss(x, rows, **more)[0])
    plain = BatchOracle(*given)
    plain.asked = []
    plain(x)
    plain(x + 1)  # as methods that take several gradients do: the first counts
    assert plain.loss() == expected
    if name == "quadratic":  # others have no gradients of single rows
        by_row = BatchOracle(*given)
        by_row.asked = []
        by_row.samples(x)
        assert by_row.loss() == expected
    unwatched = BatchOracle(*given)
    unwatched(x)
    assert unwatched.loss() is None
    local = LocalOracle(gs.LocalSteps(torch.optim.AdamW, steps=3, lr=0.1), *given)
    local.asked = []
    local(x)
    drawn = Streams([0], [2]).at(4, "batch").below(problem.rows_per_client, 15)[:, :5]
    assert local.loss() == float(problem.batch_loss(x, drawn, **more)[0])
