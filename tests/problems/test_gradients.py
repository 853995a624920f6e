"""Gradients of every objective, against finite differences and against autograd of what one would write by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.func import functional_call

import gossamer as gs
from gossamer.problems.linear import LinearModel
from gossamer.problems.modules.module import ModuleProblem
from gossamer.problems.quadratic import Quadratic
from gossamer.problems.regression import LogisticRegression, SoftmaxRegression
from gossamer.problems.sine import SinePL

P = gs.problems
RNG = np.random.default_rng(0)
SPARSE = sparse.random_array((160, 23), density=0.15, rng=np.random.default_rng(1), format="csr")
FEATURES, NUMBERS = RNG.standard_normal((47, 4)), RNG.standard_normal(47)
WIDE: dict[str, Any] = {"dtype": "float64", "clients": 5}
MIXED: dict[str, Any] = {"partition": "iid", **WIDE}
IMAGES = (RNG.standard_normal((60, 1, 8, 8)), np.arange(60) % 3)
MIXTURE = "gaussian_mixture:rows=60,features=6,classes=4"


def small_cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3))


def attention() -> nn.Module:
    """No closed form: vmap."""

    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = (torch.softmax(self.a(x), 1) * self.b(x)).sum(dim=1)
            return out

    return Squared()


OBJECTIVES: dict[str, Callable[[], gs.Problem]] = {
    "logistic": lambda: P.logistic_regression("breast_cancer", nonconvex=0.1, **WIDE),
    "logistic, all rows": lambda: P.logistic_regression("breast_cancer", l2=0.1, equal=False, **WIDE),
    "logistic, by label": lambda: P.logistic_regression("breast_cancer", partition="by_label", equal=False, **WIDE),
    "softmax": lambda: P.softmax_regression(MIXTURE, nonconvex=0.1, l2=0.01, **WIDE),
    "softmax, all rows": lambda: P.softmax_regression(MIXTURE + ",seed=3", partition="by_label", equal=False, **WIDE),
    "least squares": lambda: P.least_squares((FEATURES, NUMBERS), nonconvex=0.1, **WIDE),
    "least squares, all rows": lambda: P.least_squares((FEATURES, NUMBERS), equal=False, **WIDE),
    "logistic, sparse": lambda: P.logistic_regression((SPARSE, np.arange(160) % 2), nonconvex=0.1, **MIXED),
    "softmax, sparse": lambda: P.softmax_regression((SPARSE, np.arange(160) % 7), l2=0.1, equal=False, **WIDE),
    "least squares, sparse": lambda: P.least_squares((SPARSE, np.arange(160) / 160), equal=False, **MIXED),
    "quadratic": lambda: P.quadratic(noise=0.3, rows=7, **WIDE),
    "sine": lambda: P.sine_pl(noise=0.3, rows=7, **WIDE),
    "one hidden layer": lambda: P.one_hidden_layer(MIXTURE, hidden=3, **WIDE),
    "one hidden layer, all rows": lambda: P.one_hidden_layer(
        MIXTURE, hidden=3, partition="shards:2", equal=False, **WIDE
    ),
    "cnn": lambda: P.module_problem(small_cnn(), IMAGES, **MIXED),
    "vmap": lambda: P.module_problem(attention(), (FEATURES, NUMBERS), loss=nn.MSELoss(), **MIXED),
}


def naive(problem: gs.Problem, x: Tensor, client: int, rows: list[int]) -> Tensor:
    """f_i over some rows of a client, as one would write it down."""
    if isinstance(problem, Quadratic):
        apart = x - problem.centres[client][rows]
        return (apart * problem.curvature[client] * apart).sum(dim=1).mean() / 2
    if isinstance(problem, SinePL):
        return (x * x + 3 * torch.sin(x) ** 2 + problem.slopes[client][rows].mean(dim=0) * x).sum()
    assert isinstance(problem, LinearModel | ModuleProblem)
    first = sum(problem.rows.counts[:client])
    chosen = [first + row for row in rows]
    a, y = problem.rows.inputs(chosen), problem.rows.labels[chosen]
    if isinstance(problem, ModuleProblem):
        sizes = {name: p.shape for name, p in problem.module.named_parameters()}
        parts = torch.split(x, [size.numel() for size in sizes.values()])
        named = {name: part.view(size) for (name, size), part in zip(sizes.items(), parts, strict=True)}
        return problem.loss(functional_call(problem.module, named, (a,)), y)
    loss = torch.zeros((), dtype=torch.float64)
    for row, label in zip(a, y, strict=True):
        z = x.view(problem.outputs, -1) @ row
        if isinstance(problem, LogisticRegression):
            loss = loss + torch.log(1 + torch.exp(-z[0]))
        elif isinstance(problem, SoftmaxRegression):
            loss = loss - torch.log(torch.exp(z)[label] / torch.exp(z).sum())
        else:
            loss = loss + (z[0] - label) ** 2 / 2
    regulariser = problem.nonconvex * (x**2 / (1 + x**2)).sum() + problem.l2 / 2 * (x**2).sum()
    return loss / len(a) + regulariser


def by_autograd(problem: gs.Problem, x: Tensor, client: int, rows: list[int]) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(naive(problem, leaf, client, rows), leaf)[0]


def counts(problem: gs.Problem) -> list[int]:
    if problem.row_counts is None:
        return [problem.rows_per_client] * problem.clients
    return [int(count) for count in problem.row_counts]


@pytest.fixture(params=OBJECTIVES, scope="module")
def problem(request: pytest.FixtureRequest) -> gs.Problem:
    return OBJECTIVES[request.param]()


def points(problem: gs.Problem, seeds: int = 1) -> Tensor:
    torch.manual_seed(1)
    return 0.3 * torch.randn(seeds * problem.clients, problem.d, dtype=torch.float64)


def test_per_sample_per_client_and_full(problem: gs.Problem) -> None:
    seeds = 2
    x = points(problem, seeds)
    generator = torch.Generator().manual_seed(2)
    for size in (1, 3):
        batch = torch.stack(
            [torch.randint(0, n, (size,), generator=generator) for _ in range(seeds) for n in counts(problem)]
        )
        found = problem.gradient(x, batch)
        for i, own in enumerate(found):
            expected = by_autograd(problem, x[i], i % problem.clients, batch[i].tolist())
            torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-11)
    full = problem.gradient(x)
    for i, own in enumerate(full):
        client = i % problem.clients
        expected = by_autograd(problem, x[i], client, list(range(counts(problem)[client])))
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-11)


def test_finite_differences(problem: gs.Problem) -> None:
    """Along random directions, of every client's own function and of f as it is measured."""
    x = points(problem)
    gradient = problem.gradient(x)
    generator = torch.Generator().manual_seed(3)
    for client in range(problem.clients):
        rows = list(range(counts(problem)[client]))
        direction = torch.randn(problem.d, dtype=torch.float64, generator=generator)
        step = 1e-5 / direction.norm()
        ahead, behind = (naive(problem, x[client] + sign * step * direction, client, rows) for sign in (1, -1))
        assert float((ahead - behind) / (2 * step)) == pytest.approx(
            float(gradient[client] @ direction), rel=1e-6, abs=1e-9
        )
    at = x[0]
    direction = torch.randn(problem.d, dtype=torch.float64, generator=generator)
    step = 1e-5 / direction.norm()
    around = problem.evaluate(torch.stack([at + step * direction, at - step * direction]))["loss"]
    everywhere = problem.gradient(at.expand(problem.clients, -1).contiguous()).mean(dim=0)
    assert float((around[0] - around[1]) / (2 * step)) == pytest.approx(
        float(everywhere @ direction), rel=1e-6, abs=1e-9
    )


def test_the_mean_of_the_clients_is_the_whole(problem: gs.Problem) -> None:
    x = points(problem)
    for at in x[:2]:
        mean = problem.gradient(at.expand(problem.clients, -1).contiguous()).mean(dim=0)
        measured = problem.evaluate(at[None])
        assert float(measured["grad_norm"][0]) == pytest.approx(float(mean.norm()), rel=1e-10)
        losses = [float(naive(problem, at, i, list(range(n)))) for i, n in enumerate(counts(problem))]
        assert float(measured["loss"][0]) == pytest.approx(float(np.mean(losses)), rel=1e-10)


def test_one_client_alone_has_the_same_gradients(problem: gs.Problem) -> None:
    n = problem.clients
    x = problem.x0() + 0.1 * torch.randn(n, problem.d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    batch = torch.arange(3).expand(n, 3) + torch.arange(n)[:, None] % 2
    for client in range(n):
        own = slice(client, client + 1)
        for one in (
            problem.only(client),
            gs.Problem.only(problem, client),
        ):  # its own way, and the one that always works
            assert one.clients == 1
            counts = problem.row_counts
            assert one.rows_per_client == (problem.rows_per_client if counts is None else int(counts[client]))
            assert torch.equal(one.x0(), problem.x0())
            for rows in (None, batch):
                whole = problem.gradient(x, rows)[own]
                alone = one.gradient(x[own], None if rows is None else rows[own])
                assert torch.allclose(alone, whole, rtol=1e-10, atol=1e-12)


def test_every_objective_runs(problem: gs.Problem) -> None:
    """A few rounds of BEER, whatever the problem: it goes down."""
    mixing = gs.mixing_matrix(gs.ring(problem.clients), "fdla")
    run = gs.simulate(
        gs.BEER(lr=0.02, gamma=0.5, compressor=gs.gsgd(5)), problem, mixing, rounds=40, batch_size=1, seed=0
    )
    assert run.diverged is None
    assert run.frame.loss.iloc[-1] < run.frame.loss.iloc[0] or run.frame.grad_norm.iloc[0] < 1e-3


ALONE: dict[str, tuple[Callable[..., gs.Problem], Any, dict[str, Any]]] = {
    "logistic": (P.logistic_regression, "breast_cancer", {}),
    "logistic, all rows": (P.logistic_regression, "breast_cancer", {"equal": False}),
    "softmax": (P.softmax_regression, "digits", {}),
    "softmax, all rows": (P.softmax_regression, MIXTURE.replace("60", "400"), {"equal": False}),
    "least squares": (P.least_squares, (FEATURES.repeat(20, 0), NUMBERS.repeat(20)), {}),
    "logistic, sparse": (P.logistic_regression, (SPARSE, np.arange(160) % 2), {"equal": False}),
    "softmax, sparse": (P.softmax_regression, (SPARSE, np.arange(160) % 7), {"partition": "iid"}),
    "least squares, sparse": (P.least_squares, (SPARSE, np.arange(160) / 160), {}),
    "quadratic": (P.quadratic, None, {"noise": 0.3, "rows": 57, "d": 37}),
    "sine": (P.sine_pl, None, {"noise": 0.3, "rows": 57, "d": 37}),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_do_not_depend_on_what_is_beside_them(name: str, dtype: str) -> None:
    """Bit by bit: the same rows for one client, one seed, three seeds, one thread and two."""
    make, data, more = ALONE[name]
    whole = make(*([] if data is None else [data]), clients=7, dtype=dtype, **more)
    n, seeds = whole.clients, 3
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(seeds * n, whole.d, generator=generator, dtype=torch.float64).to(whole.dtype)
    least = whole.rows_per_client
    batches: list[Tensor | None] = [None]
    batches += [torch.randint(least, (seeds * n, size), generator=generator) for size in (1, 2, 7, 16, 17, 32, 53)]
    threads = torch.get_num_threads()
    try:
        for batch in batches:
            torch.set_num_threads(2)
            together = whole.gradient(x, batch)
            torch.set_num_threads(1)
            for seed in range(seeds):
                rows = slice(seed * n, (seed + 1) * n)
                assert torch.equal(whole.gradient(x[rows], None if batch is None else batch[rows]), together[rows])
            for client in range(n):
                own = slice(client, client + 1)
                alone = whole.only(client).gradient(x[own].clone(), None if batch is None else batch[own].clone())
                assert torch.equal(alone, together[own]), f"client {client}, batch {batch is not None and batch.shape}"
    finally:
        torch.set_num_threads(threads)
