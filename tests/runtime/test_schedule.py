"""Networks that change: W_t repeats a schedule, and each edge has its own surrogate."""

from typing import Any

import numpy as np
import pytest
import torch

import gossamer as gs
from gossamer import registry
from gossamer.runtime.simulation import Simulation
from gossamer.testing import loopback
from gossamer.topology import MixingSchedule, matchings

N = 8
SCHEDULE = matchings(gs.ring(N))
# f_i(x) = ||A_i (x - b_i)||^2 / 2: curvatures and minimisers differ between the clients.
PROBLEM = gs.quadratic(clients=N, d=12, condition=10.0, dtype="float64")
BEER = gs.BEER(lr=0.1, gamma=0.5, compressor=gs.gsgd(5))


def test_alternating_matchings() -> None:
    assert len(SCHEDULE.rounds) == 2
    for w in SCHEDULE.rounds:
        assert w.degrees.tolist() == [1] * N
        assert np.allclose(w.sparse.sum(axis=1), 1)
    assert SCHEDULE.graph.number_of_edges() == N
    assert SCHEDULE.at(5) is SCHEDULE.rounds[1]


def test_beer_is_exact_and_tracks_the_mean_gradient_in_every_round() -> None:
    sim = Simulation(BEER, PROBLEM, SCHEDULE)
    for _ in range(3000):
        sim.step()
        gap = sim.state.v.mean(dim=0) - sim.state.old.mean(dim=0)
        assert gap.abs().max() <= 1e-12
    norm = PROBLEM.evaluate(sim.state.x.mean(dim=0)[None])["grad_norm"].item()
    apart = (sim.state.x - sim.state.x.mean(dim=0)).norm().item()
    assert norm <= 1e-8
    assert apart <= 1e-8


def test_one_surrogate_for_all_neighbours_would_not_do() -> None:
    """Why each edge has its own: on matchings, a client misses what was said to its other neighbour."""
    sim = Simulation(BEER, PROBLEM, SCHEDULE)
    sim.step()
    sim.step()
    h = sim.state.h.settled()
    assert h.sent.shape == (N, 2, PROBLEM.d)
    assert not torch.equal(h.sent[:, 0], h.sent[:, 1])
    for row in range(N):
        for slot, neighbor in enumerate(sorted(SCHEDULE.graph.neighbors(row))):
            there = sorted(SCHEDULE.graph.neighbors(neighbor)).index(row)
            assert torch.equal(h.heard[row, slot], h.sent[neighbor, there]), "both ends of an edge know its surrogate"


def admitted(name: str) -> Any:
    cls: Any = registry.methods.get(name)
    settings = dict(cls.examples[0])
    if "compressor" in cls.__dataclass_fields__:
        settings["compressor"] = gs.qsgd(64)
    return cls(**settings)


@pytest.mark.parametrize("name", registry.methods.names())
def test_simulated_equals_packets(name: str) -> None:
    method = admitted(name)
    run = gs.simulate(method, PROBLEM, SCHEDULE, rounds=12, batch_size=2)
    looped = loopback(method, PROBLEM, SCHEDULE, rounds=12, batch_size=2)
    assert torch.equal(looped.x, run.x)
    assert looped.bits == run.final.bits


@pytest.mark.parametrize(
    "method",
    [
        gs.DSGD(lr=0.05),
        gs.algorithms.SQuARMSGD(lr=0.05, gamma=0.2, compressor=gs.top_k(2), local_steps=2, threshold=1e3),
    ],
    ids=["clients without a neighbour", "clients that send nothing"],
)
def test_bits_are_those_of_the_packets_that_are_sent(method: Any) -> None:
    schedule, problem = matchings(gs.ring(5)), gs.quadratic(clients=5, d=8, noise=0.1, dtype="float64")
    assert min(w.degrees.min() for w in schedule.rounds) == 0
    run = gs.simulate(method, problem, schedule, rounds=9, batch_size=2)
    looped = loopback(method, problem, schedule, rounds=9, batch_size=2)
    assert torch.equal(looped.x, run.x)
    assert looped.bits == run.final.bits


def test_one_client() -> None:
    schedule = MixingSchedule([np.eye(1)])
    run = gs.simulate(BEER, gs.quadratic(clients=1, d=4), schedule, rounds=5)
    assert run.final.bits == 0


@pytest.mark.parametrize("name", ["beer", "choco_sgd", "lead", "c_gt", "squarm_sgd", "dsgd"])
def test_means_are_kept_whatever_edges_are_used(name: str) -> None:
    still = gs.quadratic(clients=N, d=5, noise=0.0, dtype="float64")
    still.curvature.zero_()
    sim = Simulation(admitted(name), still, matchings(gs.topology.erdos_renyi(N, 0.5)), x0="normal")
    before = sim.state.x.mean(dim=0)
    for _ in range(50):
        sim.step()
    assert (sim.state.x.mean(dim=0) - before).abs().max() <= 1e-12


def test_seeds_saving_and_records(tmp_path: Any) -> None:
    how: Any = {"rounds": 40, "batch_size": 2, "eval_every": 10}
    runs = gs.sweep(BEER, PROBLEM, SCHEDULE, seeds=[3, 4], **how)
    alone = gs.simulate(BEER, PROBLEM, SCHEDULE, seed=4, **how)
    assert torch.equal(runs[1].x, alone.x)
    stops = iter([False] * 20 + [True])
    with pytest.raises(gs.StoppedError):
        gs.sweep(BEER, PROBLEM, SCHEDULE, seeds=[3, 4], record_dir=tmp_path, should_stop=lambda: next(stops), **how)
    other = MixingSchedule([w.sparse for w in reversed(SCHEDULE.rounds)])
    with pytest.raises(gs.InputError, match="mixing matrix is not the same"):
        gs.sweep(BEER, PROBLEM, other, seeds=[3, 4], record_dir=tmp_path, resume=True, **how)
    again = gs.sweep(BEER, PROBLEM, SCHEDULE, seeds=[3, 4], record_dir=tmp_path, resume=True, **how)
    assert all(torch.equal(one.x, two.x) for one, two in zip(runs, again, strict=True))


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ([], "at least one round"),
        ([np.eye(2), np.eye(3)], "same clients"),
        ([np.eye(4)], "does not mix|connected|not connected"),
        ([np.array([[0.5, 0.4], [0.5, 0.6]])], "symmetric"),
    ],
)
def test_mistakes(matrices: Any, message: str) -> None:
    with pytest.raises(gs.InputError, match=message):
        MixingSchedule(matrices)
