"""Methods on networks that change: exactness, invariants, packets, records, specs, and real processes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import forked
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import finish, nothing_left, same, start

import gossamer as gs
from benchmarks.schedules import METHODS, NETWORKS, run
from gossamer import registry
from gossamer.runtime.experiment import prepare
from gossamer.runtime.simulation import Simulation
from gossamer.spec import parse_spec
from gossamer.testing import loopback
from gossamer.topology import MixingSchedule, build_network, one_peer_exponential, random_matchings, unreliable

BEER = gs.BEER(lr=0.1, gamma=0.4, compressor=gs.gsgd(5))
TRACKING = gs.algorithms.GradientTracking(lr=0.05)
NAMES = ["one_peer_exponential", "random_matchings:seed=1", "ring:dropout=0.2", "ring:sleeping=0.2"]


def quadratic(clients: int, d: int = 10, **more: Any) -> Any:
    """Clients that differ in curvature and minimiser."""
    return gs.quadratic(clients=clients, d=d, condition=10.0, dtype="float64", **more)


def gap(sim: Simulation) -> float:
    """|mean V - mean gradient|."""
    return float((sim.state.v.mean(dim=0) - sim.state.old.mean(dim=0)).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "clients"),
    [
        ("one_peer_exponential", 8),
        ("one_peer_exponential", 16),
        ("random_matchings:seed=1", 16),
        ("ring:dropout=0.2", 8),
        ("ring:sleeping=0.2", 8),
    ],
)
def test_beer_is_exact_on_every_schedule(name: str, clients: int) -> None:
    problem = quadratic(clients)
    sim = Simulation(BEER, problem, build_network(name, clients))
    norm = np.inf
    while norm > 1e-10:
        assert sim.t < 6000
        for _ in range(20):
            sim.step()
            assert gap(sim) <= 1e-12
        every = problem.evaluate(sim.state.x)["grad_norm"]
        norm = max(every.max().item(), problem.evaluate(sim.state.x.mean(dim=0)[None])["grad_norm"].item())


@pytest.mark.slow
def test_one_neighbour_per_round_costs_less_than_half_of_the_ring() -> None:
    """With the best steps that `benchmarks/schedules.py` found for each."""
    found = json.loads((Path(__file__).parents[2] / "docs" / "results" / "schedules.json").read_text())
    cost = {}
    for name in ("ring", "one-peer hypercube"):
        (row,) = (row for row in found if (row["method"], row["network"]) == ("BEER, gsgd_5", name))
        measured = run(METHODS[row["method"]][0](**row["setting"]), build_network(NETWORKS[name], 16), float("inf"))
        assert measured["kbit"] == row["kbit"], "the committed table is what runs"
        cost[name] = measured["kbit"]
    assert cost["one-peer hypercube"] <= cost["ring"] / 2


@given(st.sampled_from(NAMES), st.sampled_from([4, 8]), st.integers(0, 2**32), st.integers(1, 25))
@settings(deadline=None, max_examples=15)
def test_the_tracker_follows_the_mean_gradient(name: str, clients: int, seed: int, rounds: int) -> None:
    noisy = quadratic(clients, d=6, noise=0.5)
    network = unreliable(build_network(name, clients), dropout=0.1, seed=seed)  # whatever else fails
    sim = Simulation(BEER, noisy, network, seeds=[seed], batch_size=2)
    tracking = Simulation(TRACKING, noisy, network, seeds=[seed], batch_size=2)
    for _ in range(rounds):
        sim.step()
        tracking.step()
        assert gap(sim) <= 1e-12
        found = tracking.state.y.mean(dim=0) - tracking.state.gradient.mean(dim=0)
        assert found.abs().max() <= 1e-12
    h = sim.state.h.settled()
    edges = sim.exchange.edges
    assert edges is not None
    for row, neighbors in enumerate(edges.neighbors):
        for slot, j in enumerate(neighbors):
            assert torch.equal(h.heard[row, slot], h.sent[j, edges.neighbors[j].index(row)]), "both ends agree"


@pytest.mark.parametrize("name", [*NAMES, "random_matchings:dropout=0.3"])
@pytest.mark.parametrize(
    "method", [BEER, gs.CHOCOSGD(lr=0.05, gamma=0.3, compressor=gs.top_k(2)), gs.DSGD(lr=0.05), TRACKING], ids=repr
)
def test_simulated_equals_packets(name: str, method: Any) -> None:
    problem, network = quadratic(8, d=5, noise=0.1), build_network(name, 8)
    run = gs.simulate(method, problem, network, rounds=15, batch_size=2)
    looped = loopback(method, problem, network, rounds=15, batch_size=2)
    assert torch.equal(looped.x, run.x)
    assert looped.bits == run.final.bits
    assert 8 * sum(client.exchange.bytes_total for client in looped.clients) == run.final.bits_total
    assert {client.exchange.packets for client in looped.clients} == {run.final.packets}


@pytest.mark.parametrize("clients", [5, 8])
@pytest.mark.parametrize(
    "method",
    [gs.DSGD(lr=0.05), TRACKING, gs.algorithms.GradientTracking(lr=0.05, order="adapt-then-combine")],
    ids=repr,
)
def test_directed_schedules(method: Any, clients: int) -> None:
    problem, network = quadratic(clients, d=5), one_peer_exponential(clients, directed=True)
    run = gs.simulate(method, problem, network, rounds=40)
    looped = loopback(method, problem, network, rounds=40)
    assert torch.equal(looped.x, run.x)
    assert looped.bits == run.final.bits
    if not isinstance(method, gs.DSGD):
        faster = gs.simulate(replace(method, lr=0.2), problem, network, rounds=2000)
        assert faster.final.grad_norm < 1e-8


@pytest.mark.parametrize("name", registry.methods.names())
def test_methods_that_need_symmetry_refuse_a_directed_schedule(name: str) -> None:
    cls: Any = registry.methods.get(name)
    method = cls(**cls.examples[0] | ({"compressor": gs.qsgd(64)} if "compressor" in cls.__dataclass_fields__ else {}))
    problem, network = quadratic(5, noise=0.1), one_peer_exponential(5, directed=True)
    if method.info.allows_directed or method.info.is_centralized:
        assert gs.simulate(method, problem, network, rounds=2, batch_size=2).final["round"] == 2
        return
    for runner in (gs.simulate, loopback):
        with pytest.raises(
            gs.InputError, match="needs symmetric weights in every round, but this schedule is directed"
        ):
            runner(method, problem, network, rounds=2, batch_size=2)


def test_a_method_that_never_uses_some_rounds() -> None:
    method = gs.algorithms.SQuARMSGD(lr=0.05, gamma=0.2, compressor=gs.top_k(2), local_steps=2)
    with pytest.raises(gs.InputError, match="never connected for SQuARM-SGD, which communicates in every 2th round"):
        gs.simulate(method, quadratic(16), one_peer_exponential(16), rounds=2)
    gs.simulate(method, quadratic(8), one_peer_exponential(8), rounds=2)  # its period of 3 has no common factor


def test_resuming_a_random_schedule(tmp_path: Path) -> None:
    problem = quadratic(6)
    how: Any = {"rounds": 30, "eval_every": 10}
    whole = gs.simulate(BEER, problem, random_matchings(6, seed=1), **how)
    stops = iter([False] * 12 + [True])
    with pytest.raises(gs.StoppedError):
        gs.simulate(
            BEER, problem, random_matchings(6, seed=1), record_dir=tmp_path, should_stop=lambda: next(stops), **how
        )
    with pytest.raises(gs.InputError, match="mixing matrix is not the same"):
        gs.simulate(BEER, problem, random_matchings(6, seed=2), record_dir=tmp_path, resume=True, **how)
    again = gs.simulate(BEER, problem, random_matchings(6, seed=1), record_dir=tmp_path, resume=True, **how)
    assert torch.equal(again.x, whole.x)
    assert again.final.bits_total == whole.final.bits_total


SPEC: dict[str, Any] = {
    "rounds": 20,
    "problem": {"objective": "quadratic", "clients": 8, "d": 5},
    "methods": [{"name": "beer", "lr": 0.1, "gamma": 0.3, "compressor": "gsgd:5"}, {"name": "dsgd", "lr": 0.05}],
}


@pytest.mark.parametrize(
    ("graph", "same_as"),
    [
        ({"name": "one_peer_exponential"}, one_peer_exponential(8)),
        ({"name": "random_matchings", "seed": 1}, random_matchings(8, seed=1)),
        ({"name": "matchings", "graph": "ring"}, gs.topology.matchings(gs.ring(8))),
        (
            {"name": "ring", "weights": "fdla", "dropout": 0.2, "failure_seed": 3},
            unreliable(gs.mixing_matrix(gs.ring(8), "fdla"), dropout=0.2, seed=3),
        ),
        (
            {"name": "alternating", "graphs": ["ring", {"name": "random_matchings", "seed": 2}], "sleeping": 0.1},
            unreliable(gs.topology.alternating([gs.ring(8), random_matchings(8, 2)]), sleeping=0.1),
        ),
    ],
)
def test_specs(graph: Any, same_as: MixingSchedule) -> None:
    experiment = prepare(parse_spec(SPEC | {"graph": graph}))
    for ours, theirs in zip(experiment.mixing.content(), same_as.content(), strict=True):
        assert np.array_equal(ours, theirs)
    assert len(experiment.run()) == 2


def test_specs_with_several_graphs_and_auto() -> None:
    graphs = [{"name": "ring"}, {"name": "random_matchings", "seed": 1}, {"name": "random_matchings", "seed": 2}]
    method = {"name": "beer", "lr": "auto", "gamma": "auto", "compressor": "gsgd:5"}
    runs = prepare(parse_spec(SPEC | {"graph": graphs, "methods": [method]})).run()
    assert [run.label for run in runs] == [
        "BEER ring",
        "BEER random_matchings:seed=1",
        "BEER random_matchings:seed=2",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graph": {"name": "ring", "dropout": 1.0}}, "never connected with `dropout` = 1"),
        ({"graph": {"name": "one_peer_exponential", "directed": True}}, "BEER needs symmetric weights"),
        ({"graph": {"name": "random_matchings", "sed": 1}}, "has no setting 'sed'"),
        ({"graph": {"name": "random_matchings", "seed": 1.5}}, "`seed` must be an integer"),
        (
            {
                "graph": {"name": "one_peer_exponential"},
                "methods": [{"name": "beer", "lr": "certified", "gamma": "certified", "compressor": "gsgd:5"}],
            },
            "theory covers a fixed graph",
        ),
    ],
)
def test_mistakes_in_specs(change: Any, message: str) -> None:
    with pytest.raises(gs.InputError, match=message):
        prepare(parse_spec(SPEC | change))


LAUNCHED = """
rounds = 40
eval_every = 10
batch_size = 4
[problem]
objective = "quadratic"
clients = 4
d = 10
noise = 0.1
dtype = "float64"
[graph]
name = "{graph}"
{more}
[[methods]]
name = "beer"
lr = 0.05
gamma = 0.3
compressor = "gsgd:5"
[[methods]]
name = "gradient_tracking"
label = "GT"
lr = 0.05
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(
    ("graph", "more"),
    [("one_peer_exponential", ""), ("random_matchings", "seed = 1"), ("ring", "dropout = 0.2\nsleeping = 0.1")],
)
def test_launched_is_simulated(tmp_path: Path, graph: str, more: str) -> None:
    (tmp_path / "my.toml").write_text(LAUNCHED.format(graph=graph, more=more) + "\n")
    process = start(tmp_path, "-o", "real")
    simulated = forked("run", "my.toml", "-o", "simulated", "-q", cwd=tmp_path)
    assert simulated.returncode == 0, simulated.stderr
    code, err = finish(process, 100)
    assert code == 0, err
    for name in ("BEER-seed0", "GT-seed0"):
        same(tmp_path / "real", tmp_path / "simulated", name, tolerance=1e-12)
        ours, theirs = (gs.read_record(tmp_path / folder / f"{name}.jsonl") for folder in ("real", "simulated"))
        assert [row.packets for row in ours.rows] == [row.packets for row in theirs.rows]
    nothing_left(tmp_path)


@pytest.mark.usefixtures("no_process_left")
def test_processes_refuse_a_directed_schedule(tmp_path: Path) -> None:
    text = LAUNCHED.format(graph="one_peer_exponential", more="directed = true")
    (tmp_path / "my.toml").write_text(
        text.replace(text[text.index('[[methods]]\nname = "beer') : text.index('[[methods]]\nname = "grad')], "")
    )
    done = forked("launch", "my.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "Processes need edges that are used in both directions" in done.stderr
    assert forked("run", "my.toml", "-q", cwd=tmp_path).returncode == 0


def test_the_command_shows_the_rate(tmp_path: Path) -> None:
    done = forked("topology", "one_peer_exponential", "--clients", "16", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "exact averages" in done.stdout
    assert "BEER's theory covers a fixed graph" in done.stdout
    done = forked("topology", "random_matchings:seed=1", "--clients", "16", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert round(facts["rho"], 4) == 0.5333
    assert facts["is_random"]
    done = forked("topology", "ring:dropout=1", "--clients", "16", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "never connected" in done.stderr
