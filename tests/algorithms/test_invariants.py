"""What the equations preserve, on random problems, graphs and settings."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.algorithms import Surrogate
from gossamer.problems.quadratic import Quadratic
from gossamer.runtime.simulation import Simulation

COMPRESSORS = st.sampled_from([gs.identity(), gs.gsgd(2), gs.gsgd(5), gs.top_k(1), gs.top_k(fraction=0.4)])


@st.composite
def worlds(draw: st.DrawFn, dtype: str = "float64") -> tuple[Quadratic, gs.MixingMatrix]:
    n = draw(st.integers(2, 8))
    graph = nx.cycle_graph(n) if n > 2 else nx.path_graph(n)
    for i in range(n):
        for j in range(i + 2, n):
            if draw(st.booleans()):
                graph.add_edge(i, j)
    problem = gs.quadratic(
        clients=n,
        d=draw(st.integers(1, 12)),
        condition=draw(st.floats(1, 100)),
        heterogeneity=draw(st.floats(0, 10)),
        noise=draw(st.floats(0, 2)),
        seed=draw(st.integers(0, 100)),
        dtype=dtype,
    )
    return problem, gs.mixing_matrix(graph, "metropolis")


@given(
    world=worlds(),
    compressor=COMPRESSORS,
    lr=st.floats(1e-3, 0.3),
    gamma=st.floats(0.01, 0.3),
    batch=st.sampled_from([None, 1, 5]),
    start=st.sampled_from(["full", "minibatch"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_beer_tracks_the_mean_gradient(world, compressor, lr, gamma, batch, start, seed):  # type: ignore[no-untyped-def]
    problem, mixing = world
    method = gs.BEER(lr=lr, gamma=gamma, compressor=compressor, start=start)
    sim = Simulation(method, problem, mixing, [seed], batch, "normal")
    for _ in range(30):
        before = sim.state.x.mean(dim=0)
        sim.step()
        state = sim.state
        scale = 1 + state.old.abs().max() + state.v.abs().max() + state.g.own.abs().max()
        assert (state.v.mean(dim=0) - state.old.mean(dim=0)).abs().max() <= 1e-12 * scale
        size = 1 + before.abs().max() + state.h.own.abs().max()
        assert (state.x.mean(dim=0) - (before - lr * state.v.mean(dim=0))).abs().max() <= 1e-12 * size


@given(world=worlds(), lr=st.floats(1e-3, 0.3), gamma=st.floats(0.05, 1.0))
@settings(max_examples=30)
def test_beer_without_compression_is_gradient_tracking(world, lr, gamma):  # type: ignore[no-untyped-def]
    """With H^0 = X^0 and G^0 = V^0, on the mixing matrix W' = I + gamma (W - I)."""
    problem, mixing = world
    sim = Simulation(gs.BEER(lr=lr, gamma=gamma, compressor=gs.identity()), problem, mixing, x0="normal")
    x0 = sim.state.x
    v0 = problem.gradient(x0)
    sim.state = replace(sim.state, h=Surrogate("h", x0, sim.exchange.mix(x0)))

    def gradient(X: reference.Array, t: int) -> reference.Array:
        return np.asarray(problem.gradient(torch.from_numpy(X.T.copy())).numpy().T)

    W = np.eye(mixing.clients) + gamma * (mixing.matrix - np.eye(mixing.clients))
    expected = reference.gradient_tracking(x0.numpy().T, v0.numpy().T, W, gradient, lr)
    for t, (x,) in zip(range(50), expected, strict=False):
        sim.step()
        if t == 0:
            sim.state = replace(sim.state, g=Surrogate("g", v0, sim.exchange.mix(v0)))
        assert np.abs(sim.state.x.numpy().T - x).max() <= 1e-10 * (1 + np.abs(x).max())


def test_step_zero_sends_no_message_for_g() -> None:
    problem, mixing = gs.quadratic(clients=4, d=32), gs.mixing_matrix(gs.ring(4))
    sim = Simulation(gs.BEER(lr=0.1, gamma=0.5, compressor=gs.gsgd(5)), problem, mixing)
    paper = []
    for _ in range(3):
        sim.step()
        paper.append(sim.traffic.nominal_on_one_link(0))
    assert paper == [5 * 32, 3 * 5 * 32, 5 * 5 * 32]
    assert sim.traffic.packets == 3, "the two messages of a round leave in one packet"


def test_d2_says_when_a_matrix_is_beyond_it() -> None:
    problem, mixing = gs.quadratic(clients=10), gs.mixing_matrix(gs.ring(10), "fdla")
    with pytest.raises(gs.InputError, match=r"above -1/3, got -0\.826.*lazy"):
        gs.simulate(gs.D2(lr=0.1, lazy=False), problem, mixing, rounds=5)


@pytest.mark.slow
def test_d2_in_float32_does_not_drift() -> None:
    problem = gs.quadratic(clients=8, d=20, noise=1e-4)
    run = gs.simulate(
        gs.D2(lr=0.02), problem, gs.mixing_matrix(gs.ring(8)), rounds=30_000, batch_size=4, eval_every=100
    )
    early, late = run.frame.grad_norm[100:150].mean(), run.frame.grad_norm[250:].mean()
    assert late < 1e-5
    assert late < 1.5 * early


@pytest.mark.long
@pytest.mark.timeout(600)
def test_forty_thousand_float32_rounds_do_not_drift() -> None:
    """Sums that never forget are float64: the tracker keeps to the mean gradient, and the gradient norm stays down."""
    problem = gs.quadratic(clients=8, d=50, condition=10, heterogeneity=3.0, dtype="float32")
    mixing = gs.mixing_matrix(gs.ring(8), "fdla")
    sim = Simulation(gs.BEER(lr=0.1, gamma=0.4, compressor=gs.gsgd(5)), problem, mixing)
    drift, norms = [], []
    for t in range(1, 40_001):
        sim.step()
        if t % 1000 == 0:
            drift.append((sim.state.v.mean(dim=0) - sim.state.old.double().mean(dim=0)).abs().max().item())
            norms.append(problem.evaluate(sim.state.x.double().mean(dim=0)[None])["grad_norm"].item())
    # float64 rounding itself adds some 5e-17 a round; float32 sums drift by 1e-8 a round.
    assert max(drift) < 1e-10, drift
    assert norms[0] < 1e-4, norms
    assert max(norms[10:]) <= 1.5 * min(norms[:10]), norms
