"""100,000 clients on a ring: set up in seconds, and no Python loop over clients in a round."""

import cProfile
import pstats
import time
from typing import Any

import numpy as np
import pytest

import gossamer as gs
from gossamer.compression.coding.wire import varint_size, varint_sizes
from gossamer.errors import InputError
from gossamer.problems.data.partition import split
from gossamer.runtime.exchange.edges import Edges
from gossamer.runtime.planning import memory
from gossamer.runtime.simulation import Simulation
from gossamer.topology import spectrum

METHOD = gs.BEER(lr=0.05, gamma=0.2, compressor=gs.gsgd(5))
MANY = 100_000


def calls(sim: Simulation, first: int) -> int:
    """Python calls of a round."""
    for _ in range(first):
        sim.step()
    profile = cProfile.Profile()
    profile.enable()
    sim.step()
    profile.disable()
    found: Any = pstats.Stats(profile)
    return int(found.total_calls)


def test_set_up_takes_seconds_and_a_round_no_more_calls_than_with_few_clients() -> None:
    begin = time.perf_counter()
    mixing, problem = gs.mixing_matrix(gs.ring(MANY)), gs.quadratic(clients=MANY, d=20)
    sim = Simulation(METHOD, problem, mixing)
    assert time.perf_counter() - begin < 20
    assert mixing.rho == pytest.approx((2 - 2 * np.cos(2 * np.pi / MANY)) / 3, rel=1e-6)
    few = Simulation(METHOD, gs.quadratic(clients=100, d=20), gs.mixing_matrix(gs.ring(100)))
    assert calls(sim, 5) < calls(few, 5) + 5000, "threads add some; a loop over clients would add 100,000"


def test_a_run_is_recorded_and_evaluated_quickly() -> None:
    mixing, problem = gs.mixing_matrix(gs.ring(20_000)), gs.quadratic(clients=20_000, d=20, rows=1)
    begin = time.perf_counter()
    run = gs.simulate(METHOD, problem, mixing, rounds=3)
    assert time.perf_counter() - begin < 20
    assert run.record.header.network is None
    assert run.final.mean_loss > 0, "in closed form, every client's own model is measured"


def test_lengths_of_many_packets() -> None:
    values = [0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**35, 2**56 - 1, 2**56, 2**62, 2**63 - 1]
    assert varint_sizes(values).tolist() == [varint_size(value) for value in values]


@pytest.mark.parametrize(
    "graph",
    [gs.topology.random_regular(400, 4), gs.topology.grid(12, 25), gs.topology.small_world(300, 4, 0.2), gs.ring(301)],
    ids=["regular", "grid", "small world", "ring"],
)
@pytest.mark.parametrize("weights", ["metropolis", "lazy:metropolis"])
def test_the_ends_of_a_large_spectrum_are_those_of_all_eigenvalues(
    graph: Any, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = gs.mixing_matrix(graph, weights).sparse
    exact = np.linalg.eigvalsh(w.toarray())
    monkeypatch.setattr(spectrum, "_DENSE_UP_TO", 10)
    monkeypatch.setattr(spectrum, "_ARPACK_UP_TO", 10)
    second, least = spectrum.ends(w)
    assert 1 - second == pytest.approx(1 - exact[-2], rel=1e-4)
    assert least == pytest.approx(exact[0], abs=1e-5)


@pytest.mark.parametrize("partition", ["sorted", "iid", "by_label", "shards:2", "dirichlet:0.5"])
def test_partitions_are_linear_in_the_clients(partition: str) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 2 * MANY)
    begin = time.perf_counter()
    shares = split(labels, MANY, partition)
    assert time.perf_counter() - begin < 20
    assert len(shares) == MANY
    rows = np.concatenate(shares)
    assert len(np.unique(rows)) == len(rows)


def test_weights_of_a_schedule_are_those_of_its_matrices() -> None:
    schedule = gs.topology.MixingSchedule([gs.mixing_matrix(gs.ring(9)), gs.mixing_matrix(gs.topology.grid(3, 3))])
    edges = Edges(schedule, [4, 0, 7], gs.quadratic(clients=9).device)
    for t in (0, 1):
        edges.begin(t)
        w = schedule.at(t).sparse.toarray()
        for row, i in enumerate(edges.clients):
            assert edges.weights[row, : len(edges.neighbors[row])].tolist() == [w[i, j] for j in edges.neighbors[row]]


def test_a_complete_graph_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 100_000_000)
    problem, mixing = gs.quadratic(clients=2000, d=2), gs.mixing_matrix(gs.ring(2000))
    with pytest.raises(InputError, match=r"complete graph, which with 2,000 clients needs about 1.2 GB .* about 54"):
        gs.simulate(gs.algorithms.CentralizedSGD(lr=0.1), problem, mixing, rounds=2)
