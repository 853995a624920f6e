"""The inequalities of the proof on runs of an independent BEER on small quadratics, many runs at once."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.theory import Certificate, certify, linear_system, lyapunov, neighbourhood, rounds_to

Array = npt.NDArray[np.float64]


@dataclass
class Quadratics:
    """f_i(x) = (x - c_i)' D_i (x - c_i) / 2 with D_i diagonal."""

    curvature: Array
    center: Array

    @classmethod
    def random(cls, rng: np.random.Generator, clients: int, d: int, low: float, high: float) -> "Quadratics":
        return cls(rng.uniform(low, high, (clients, d)), 2 * rng.standard_normal((clients, d)))

    @property
    def L(self) -> float:
        return float(np.abs(self.curvature).max())

    @property
    def mu(self) -> float:
        return float(self.curvature.mean(0).min())

    def gradients(self, x: Array) -> Array:
        return self.curvature * (x - self.center)

    def f(self, x: Array) -> Array:
        shifted = x[..., None, :] - self.center
        values: Array = (self.curvature * shifted**2).sum(-1).mean(-1) / 2
        return values

    @property
    def f_star(self) -> float:
        best = (self.curvature * self.center).mean(0) / self.curvature.mean(0)
        return float(self.f(best))

    def squared_gradient(self, x: Array) -> Array:
        squared: Array = (self.gradients(x[..., None, :]).mean(-2) ** 2).sum(-1)
        return squared


@dataclass
class Moment:
    """X, H, V, G of one round; runs x clients x d."""

    x: Array
    h: Array
    v: Array
    g: Array

    @property
    def omegas(self) -> Array:
        """Means of Omega_1 to Omega_4 over the runs."""
        x_bar, v_bar = self.x.mean(-2, keepdims=True), self.v.mean(-2, keepdims=True)
        errors = (self.h - self.x, self.g - self.v, self.x - x_bar, self.v - v_bar)
        return np.array([(error**2).sum((-1, -2)).mean() for error in errors])

    @property
    def omega_5(self) -> float:
        return float((self.v.mean(-2) ** 2).sum(-1).mean())

    @property
    def average(self) -> Array:
        average: Array = self.x.mean(-2)
        return average


def top_k(x: Array, k: int) -> Array:
    kept = np.argsort(-np.abs(x), axis=-1)[..., :k]
    out = np.zeros_like(x)
    np.put_along_axis(out, kept, np.take_along_axis(x, kept, -1), -1)
    return out


def beer(
    problem: Quadratics, W: Array, k: int, gamma: float, lr: float, start: Moment, noise: float = 0.0, seed: int = 0
) -> Iterator[Moment]:
    """Algorithm 1, line by line, with gradients that have Gaussian noise of variance noise^2 (over all coordinates)."""
    rng, mix = np.random.default_rng(seed), W - np.eye(len(W))

    def noisy(x: Array) -> Array:
        scale = noise / np.sqrt(x.shape[-1])
        gradients: Array = problem.gradients(x) + (scale * rng.standard_normal(x.shape) if noise else 0.0)
        return gradients

    x, h, g = start.x, start.h, start.g
    stored = noisy(x)
    v = start.v - start.v.mean(-2, keepdims=True) + stored.mean(-2, keepdims=True)  # Lemma gt's premise
    while True:
        yield Moment(x, h, v, g)
        x = x + gamma * mix @ h - lr * v  # line 3
        h = h + top_k(x - h, k)  # lines 4 and 5
        new = noisy(x)
        v = v + gamma * mix @ g + new - stored  # line 6
        g, stored = g + top_k(v - g, k), new  # lines 7 and 8


def ring(clients: int, weight: float) -> Array:
    step = np.roll(np.eye(clients), 1, axis=1)
    W: Array = (1 - weight) * np.eye(clients) + weight / 2 * (step + step.T)
    return W


def constants_of(W: Array) -> tuple[float, float]:
    values = np.sort(np.linalg.eigvalsh(W))
    return float(1 - max(abs(values[0]), abs(values[-2]))), float((1 - values[0]) ** 2)


def hold_every_round(
    problem: Quadratics,
    W: Array,
    k: int,
    gamma: float,
    lr: float,
    start: Moment,
    *,
    noise: float = 0.0,
    rounds: int = 30,
) -> None:
    """Lemma omega-1 and (eq. descent) in every round, until the numbers get too large for floats."""
    clients, d = problem.curvature.shape
    rho, C = constants_of(W)
    A, b1, b2, q = linear_system(k / d, rho, C, problem.L, clients, gamma, lr)
    run = beer(problem, W, k, gamma, lr, start, noise)
    before = next(run)
    for _ in range(rounds):
        after = next(run)
        bound = A @ before.omegas + b1 * before.omega_5 + b2 * noise**2
        assert (after.omegas <= bound * (1 + 1e-9) + 1e-12).all()
        f_bound = (
            problem.f(before.average).mean()
            - lr / 2 * problem.squared_gradient(before.average).mean()
            + q @ before.omegas
            - (lr / 2 - lr**2 * problem.L / 2) * before.omega_5
            + lr * noise**2 / (2 * clients)
        )
        if not noise:  # otherwise it holds only in expectation
            size = 1 + np.abs(problem.f(before.average)).mean() + bound.sum() + before.omega_5
            assert problem.f(after.average).mean() <= f_bound + 1e-9 * size
        before = after
        if bound.max() > 1e60:
            return


def anywhere(rng: np.random.Generator, runs: int, clients: int, d: int) -> Moment:
    x, h, v, g = (np.tile(rng.standard_normal((1, clients, d)), (runs, 1, 1)) for _ in range(4))
    return Moment(x, h, v, g)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    clients=st.integers(2, 6),
    k=st.integers(1, 6),
    weight=st.floats(0.05, 0.98),
    gamma=st.floats(0.001, 1.0),
    lr=st.floats(1e-4, 3.0),
    low=st.sampled_from([-1.0, 0.0, 0.5]),
)
def test_the_recursions_hold_for_any_steps(
    seed: int, clients: int, k: int, weight: float, gamma: float, lr: float, low: float
) -> None:
    """For any gamma, lr and start, convex or not, even if the run diverges."""
    rng = np.random.default_rng(seed)
    problem = Quadratics.random(rng, clients, 6, low, 1.0)
    hold_every_round(problem, ring(clients, weight), k, gamma, lr, anywhere(rng, 1, clients, 6))


@pytest.mark.parametrize("factor", [1.0, 10.0, 100.0])
def test_the_recursions_hold_at_certified_steps_and_far_above(factor: float) -> None:
    rng = np.random.default_rng(3)
    problem, W = Quadratics.random(rng, 5, 6, -1.0, 1.0), ring(5, 2 / 3)
    found = certify(2 / 6, *constants_of(W), problem.L)
    start = anywhere(rng, 1, 5, 6)
    hold_every_round(problem, W, 2, factor * found.gamma, factor * found.lr, start, rounds=300)


@pytest.mark.parametrize("lr", [1e-3, 0.1, 0.5])
def test_the_recursions_hold_with_noise(lr: float) -> None:
    """Means over 2,000 runs."""
    rng = np.random.default_rng(4)
    problem = Quadratics.random(rng, 4, 6, -1.0, 1.0)
    hold_every_round(problem, ring(4, 2 / 3), 3, 0.1, lr, anywhere(rng, 2000, 4, 6), noise=3.0, rounds=15)


def phi_of(problem: Quadratics, moment: Moment, certificate: Certificate) -> float:
    gap = float(problem.f(moment.average).mean()) - problem.f_star
    clients = len(problem.center)
    return lyapunov(max(gap, 0.0), moment.omegas.tolist(), certificate.weights_for(clients))


def usual_start(problem: Quadratics, runs: int = 1) -> Moment:
    """The start of Algorithm 1: one point for all clients, H = G = 0, V = gradients."""
    zero = np.zeros((runs, *problem.center.shape))
    return Moment(zero + 1.0, zero, problem.gradients(zero + 1.0), zero)


@pytest.mark.parametrize(("clients", "k"), [(2, 6), (2, 3), (5, 4)])
def test_the_lyapunov_function_decreases_as_certified(clients: int, k: int) -> None:
    rng = np.random.default_rng(5)
    problem = Quadratics.random(rng, clients, 6, 0.2, 1.0)
    W = np.full((clients, clients), 1 / clients)
    found = certify(k / 6, *constants_of(W), problem.L)
    run = beer(problem, W, k, found.gamma, found.lr, usual_start(problem))
    before = next(run)
    for _ in range(500):
        after = next(run)
        decrease = found.lr / 2 * problem.squared_gradient(before.average)[0]
        assert phi_of(problem, after, found) <= phi_of(problem, before, found) * (1 + 1e-12) - decrease
        before = after


def test_the_target_is_reached_when_predicted() -> None:
    rng = np.random.default_rng(6)
    problem, W = Quadratics.random(rng, 2, 3, 0.5, 1.0), np.full((2, 2), 0.5)
    best = certify(1.0, 1.0, 1.0, problem.L)
    found = certify(1.0, 1.0, 1.0, problem.L, gamma=best.gamma, lr=best.lr / 2)
    start = usual_start(problem)
    phi = phi_of(problem, start, found)
    epsilon = (2 * phi / (found.lr * 4000)) ** 0.5
    rounds = rounds_to(epsilon, found, phi)
    assert rounds == pytest.approx(4000, abs=1)
    run = beer(problem, W, 3, found.gamma, found.lr, start)
    squared = [problem.squared_gradient(next(run).average)[0] for _ in range(rounds)]
    assert np.mean(squared) <= epsilon**2


def test_the_target_is_reached_when_predicted_under_pl() -> None:
    rng = np.random.default_rng(7)
    problem, W = Quadratics.random(rng, 2, 3, 0.5, 1.0), np.full((2, 2), 0.5)
    found = certify(1.0, 1.0, 1.0, problem.L, problem.mu)
    start = usual_start(problem)
    phi = phi_of(problem, start, found)
    rounds = rounds_to(phi / 50, found, phi)
    assert 1000 < rounds < 20_000
    run = beer(problem, W, 3, found.gamma, found.lr, start)
    before = next(run)
    for _ in range(rounds):
        after = next(run)
        assert phi_of(problem, after, found) <= (1 - found.lr * problem.mu) * phi_of(problem, before, found) * (
            1 + 1e-12
        )
        before = after
    assert problem.f(before.average)[0] - problem.f_star <= phi_of(problem, before, found) <= phi / 50


def test_noise_leaves_no_more_than_the_neighbourhood() -> None:
    rng = np.random.default_rng(8)
    problem, W = Quadratics.random(rng, 2, 3, 0.5, 1.0), np.full((2, 2), 0.5)
    best = certify(1.0, 1.0, 1.0, problem.L)
    found = certify(1.0, 1.0, 1.0, problem.L, gamma=best.gamma, lr=best.lr / 2)
    start = usual_start(problem, runs=50)
    run = beer(problem, W, 3, found.gamma, found.lr, start, noise=2.0)
    squared = [problem.squared_gradient(next(run).average).mean() for _ in range(3000)]
    first = 2 * phi_of(problem, start, found) / (found.lr * 3000)
    assert np.mean(squared) <= first + neighbourhood(2.0, 1, found, 2)
