"""What a problem knows of itself, against numbers worked out in another way."""

import numpy as np
import pytest
import torch
from torch import nn

import gossamer as gs

P = gs.problems
RNG = np.random.default_rng(0)
MIXTURE = "gaussian_mixture:rows=60,features=4,classes="
DATA = (RNG.standard_normal((60, 4)), RNG.standard_normal(60))


def hessian(problem: gs.Problem, x: torch.Tensor, client: int) -> torch.Tensor:
    """By central differences of the client's gradient."""
    step = 1e-5
    columns = []
    for direction in torch.eye(problem.d, dtype=torch.float64):
        ahead, behind = (
            problem.gradient((x + sign * step * direction).expand(problem.clients, -1).contiguous())[client]
            for sign in (1, -1)
        )
        columns.append((ahead - behind) / (2 * step))
    return torch.stack(columns)


@pytest.mark.parametrize(
    "problem",
    [
        P.logistic_regression(MIXTURE + "2", clients=5, dtype="float64", nonconvex=0.1),
        P.softmax_regression(MIXTURE + "3", clients=5, dtype="float64", l2=0.1, equal=False),
        P.least_squares(DATA, clients=5, dtype="float64", l2=0.1),
        P.quadratic(clients=5, d=4, dtype="float64"),
        P.sine_pl(clients=5, d=4, dtype="float64"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_smoothness_bounds_every_hessian_and_is_not_far_from_one(problem: gs.Problem) -> None:
    largest = problem.smoothness()
    assert largest is not None
    torch.manual_seed(0)
    seen = 0.0
    for x in (torch.zeros(problem.d, dtype=torch.float64), 0.5 * torch.randn(problem.d, dtype=torch.float64)):
        for client in range(problem.clients):
            seen = max(seen, float(torch.linalg.matrix_norm(hessian(problem, x, client), 2)))
    assert 0.6 * largest <= seen <= largest * (1 + 1e-6)


@pytest.mark.parametrize(
    "problem",
    [
        P.least_squares(DATA, clients=5, dtype="float64", nonconvex=0.0),
        P.least_squares(DATA, clients=7, dtype="float64", l2=0.1, equal=False),
        P.logistic_regression("breast_cancer", clients=5, dtype="float64", nonconvex=0.0, l2=0.05),
        P.quadratic(clients=5, d=4, dtype="float64"),
        P.sine_pl(clients=5, d=3, dtype="float64"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_the_pl_condition_and_the_minimum(problem: gs.Problem) -> None:
    """||grad f||^2 >= 2 mu (f - f*) at many points, and nothing below f*."""
    mu, least = problem.pl_constant(), problem.minimum()
    assert mu is not None
    assert least is not None
    torch.manual_seed(0)
    points = torch.cat([scale * torch.randn(40, problem.d, dtype=torch.float64) for scale in (0.1, 1, 3)])
    measured = problem.evaluate(points)
    assert (measured["loss"] >= least - 1e-10).all()
    assert (measured["grad_norm"] ** 2 >= 2 * mu * (measured["loss"] - least) - 1e-9).all()
    assert problem.minimum() == least, "and it is kept"


def test_what_is_not_known_is_none() -> None:
    assert P.logistic_regression("breast_cancer", clients=5).pl_constant() is None
    assert P.least_squares(DATA, clients=5, nonconvex=0.1).pl_constant() is None
    network = P.one_hidden_layer("digits", hidden=4, clients=3)
    assert network.pl_constant() is None
    assert network.minimum() is None


def test_smoothness_of_a_module_by_power_iteration() -> None:
    """Of the least smooth client, as for the linear ones; the loss is twice theirs."""
    torch.manual_seed(0)
    scaled = DATA[0] * np.where(np.arange(60) < 15, 10, 1)[:, None]
    pair = (scaled, np.arange(60.0)[:, None])
    problem = P.module_problem(nn.Linear(4, 1), pair, loss=nn.MSELoss(), clients=4, partition="iid", dtype="float64")
    same = P.least_squares((scaled, pair[1][:, 0]), clients=4, partition="iid", dtype="float64")
    assert problem.smoothness() == pytest.approx(2 * same.smoothness(), rel=1e-2)
    ones = torch.tensor([[1.0, -1.0]] * 8), torch.zeros(8, 1)
    flat = P.module_problem(nn.Linear(2, 1, bias=False), ones, loss=nn.MSELoss(), clients=2, partition="iid")
    assert flat.smoothness() == pytest.approx(4), "whichever direction it starts from"


def test_least_squares_knows_its_minimum_exactly() -> None:
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    problem = P.least_squares((features, labels), clients=4, partition="iid", equal=False, dtype="float64")
    a = problem.rows.features.numpy()
    weights = np.sqrt(problem.rows.weights.numpy()) if problem.rows.weights is not None else np.ones(len(a))
    x = np.linalg.lstsq(a * weights[:, None], problem.rows.labels.numpy() * weights)[0]
    assert problem.minimum() == pytest.approx(float(problem.evaluate(torch.from_numpy(x)[None])["loss"][0]), rel=1e-6)
    empty = P.least_squares((np.zeros((8, 2)), np.arange(8.0)), clients=2, intercept=False)
    assert empty.pl_constant() is None


def test_noise_is_exact_for_unequal_clients() -> None:
    problem = P.least_squares(
        (RNG.standard_normal((41, 3)), RNG.standard_normal(41)), clients=4, equal=False, dtype="float64"
    )
    x = torch.zeros(4, problem.d, dtype=torch.float64)
    variances = []
    for i, mine in enumerate(problem.rows.by_client()):
        rows = [torch.tensor([[min(r, n - 1)] for n in problem.rows.counts]) for r in range(mine.stop - mine.start)]
        each = torch.stack([problem.gradient(x, row)[i] for row in rows])
        variances.append(float((each - each.mean(dim=0)).square().sum(dim=1).mean()))
    assert problem.gradient_noise() == pytest.approx(np.mean(variances))


def test_the_minimum_of_logistic_regression(data_dir: object) -> None:
    """Against scikit-learn's solver."""
    from sklearn.linear_model import LogisticRegression

    problem = P.logistic_regression("breast_cancer", clients=4, nonconvex=0.0, l2=0.1, dtype="float64")
    rows = problem.rows.features.numpy()
    signs = np.where(np.arange(len(rows)) % 2, 1.0, -1.0)
    model = LogisticRegression(C=1 / (0.1 * len(rows)), fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(rows * signs[:, None], signs)
    x = torch.from_numpy(model.coef_)
    assert problem.minimum() == pytest.approx(float(problem.evaluate(x)["loss"][0]), abs=1e-10)


def test_heterogeneity_and_noise() -> None:
    problem = P.sine_pl(clients=6, d=4, heterogeneity=2.5, noise=0.7, rows=2000, dtype="float64")
    for x in (None, torch.randn(4, dtype=torch.float64)):
        assert problem.heterogeneity(x) == pytest.approx(2.5)
    spread = problem.slopes - problem.slopes.mean(dim=1, keepdim=True)
    exact = float(spread.square().sum(dim=2).mean())
    assert problem.gradient_noise(samples=2000) == pytest.approx(exact)
    assert problem.gradient_noise(samples=2000, batch_size=10) == pytest.approx(exact / 10)
    assert problem.gradient_noise(samples=300) == pytest.approx(exact, rel=0.2)
    assert P.quadratic(noise=0.0).gradient_noise() == pytest.approx(0, abs=1e-10)
    with pytest.raises(gs.InputError, match=r"has 4 coordinates, got shape \(5,\)"):
        problem.heterogeneity(torch.zeros(5))
    with pytest.raises(gs.InputError, match="must be a tensor or an array, got method"):
        problem.heterogeneity(problem.x0)  # type: ignore[arg-type]
    sorted_, mixed = (P.logistic_regression("breast_cancer", clients=5, partition=p) for p in ("sorted", "iid"))
    assert sorted_.heterogeneity() > 5 * mixed.heterogeneity()


def test_minibatch_gradients_scatter_as_the_noise_says() -> None:
    problem = P.logistic_regression("breast_cancer", clients=3, dtype="float64")
    x = torch.zeros(3, problem.d, dtype=torch.float64)
    full = problem.gradient(x)
    torch.manual_seed(0)
    batches = torch.randint(0, problem.rows_per_client, (3000, 3, 8))
    scatter = np.mean([float((problem.gradient(x, b) - full).square().sum(dim=1).mean()) for b in batches])
    assert scatter == pytest.approx(problem.gradient_noise(batch_size=8), rel=0.05)
