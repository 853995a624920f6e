"""Rounds that are repeated as a list of kernels on a CPU."""

import contextlib
import dataclasses
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor

import gossamer as gs
from gossamer import algorithms as al
from gossamer.algorithms.schedules import cosine
from gossamer.kernels import only_reference, pool
from gossamer.registry import compressors, methods
from gossamer.runtime.device.capture import _tensors
from gossamer.runtime.device.tape import OnlyKernels, Unfit, apart
from gossamer.runtime.simulation import Simulation

MIXING = gs.mixing_matrix(gs.ring(6))
BEER = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(5))


def rows(seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    features = sparse.random_array((600, 40), density=0.1, rng=random, format="csr")
    return features, np.sign(random.standard_normal(600))


PROBLEM = gs.logistic_regression(rows(), clients=6)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Switches tapes off inside."""
    monkeypatch.setenv("GOSSAMER_GRAPH", "0")
    return monkeypatch


def models(
    method: gs.Algorithm, rounds: int = 12, batch_size: int | None = 8, **more: Any
) -> tuple[Tensor, Simulation]:
    sim = Simulation(method, PROBLEM, MIXING, [3, 4], batch_size, **more)
    for _ in range(rounds):
        sim.step()
    return sim.models().clone(), sim


def is_replayed(sim: Simulation) -> bool:
    return sim.replayed._recorded is not None


BLOCKS = {"name": "blockwise", "operator": "gsgd:3", "size": 16}


@pytest.mark.parametrize("compressor", ["gsgd:5", "qsgd:300", BLOCKS], ids=str)
@pytest.mark.parametrize("batch_size", [8, None])
@pytest.mark.parametrize("lr", [0.1, cosine(0.1, 30)], ids=["constant", "cosine"])
def test_beer_is_replayed_and_the_same(
    compressor: Any, batch_size: int | None, lr: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = gs.BEER(lr=lr, gamma=0.3, compressor=compressors.build(compressor))
    found, sim = models(method, batch_size=batch_size)
    assert is_replayed(sim)
    traffic = sim.traffic.counts()
    monkeypatch.setenv("GOSSAMER_GRAPH", "0")
    expected, sim = models(method, batch_size=batch_size)
    assert not is_replayed(sim)
    assert torch.equal(found, expected)
    assert traffic == sim.traffic.counts()


@pytest.mark.parametrize("name", methods.names())
def test_every_method_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls: Any = methods.get(name)
    has_compressor = any(field.name == "compressor" for field in dataclasses.fields(cls))
    for example in cls.examples:
        method = cls(**({"compressor": gs.qsgd(16)} if has_compressor else {}) | dict(example))
        monkeypatch.delenv("GOSSAMER_GRAPH", raising=False)
        found, _ = models(method)
        monkeypatch.setenv("GOSSAMER_GRAPH", "0")
        expected, _ = models(method)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("name", methods.names())
def test_every_method_is_the_same_in_long_rows(name: str, dtype: Any) -> None:
    """Rows so long that the lines of a step are computed in one pass, with numbers that only kernels touch."""
    problem = gs.quadratic(clients=6, d=6000, dtype=dtype)
    cls: Any = methods.get(name)
    has_compressor = any(field.name == "compressor" for field in dataclasses.fields(cls))
    for example in cls.examples:
        found = []
        for context in (contextlib.nullcontext, only_reference):
            method = cls(**({"compressor": gs.qsgd(16)} if has_compressor else {}) | dict(example))
            with context():
                sim = Simulation(method, problem, MIXING, [0])
                for _ in range(4):
                    sim.step()
                found.append(sim.models().clone())
        assert torch.equal(*found)


LAYERS = gs.problems.one_hidden_layer("digits", clients=6, hidden=8)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_hidden_layer_is_replayed_and_the_same(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where several threads each take some clients through a chain of kernels."""
    monkeypatch.setattr(pool, "_WORTH", 0)
    found = []
    for switch in ("1", "0"):
        monkeypatch.setenv("GOSSAMER_GRAPH", switch)
        sim = Simulation(BEER, LAYERS, MIXING, [3, 4], 8)
        with pool.workers(threads):
            for _ in range(15):
                sim.step()
            found.append((sim.models().clone(), sim.traffic.counts(), is_replayed(sim)))
    assert [replayed for _, _, replayed in found] == [True, False]
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_most_of_a_state_is_written_over_in_place() -> None:
    _, sim = models(BEER, rounds=30)
    recorded: Any = sim.replayed._recorded
    there, back = (side.state for side in recorded.graphs[1]._sides)
    for at in ("x", "v", "h.own", "h.mixed", "g.own", "g.mixed"):
        one, other = (attrgetter(at)(state) for state in (there, back))
        assert one.data_ptr() == other.data_ptr(), at
    assert there.old.data_ptr() != back.old.data_ptr()  # the new gradient is computed while the old one is needed


def test_chains_end_where_other_rows_are_needed() -> None:
    """`across` has what a kernel reads from all rows, and what it writes."""
    done: list[tuple[str, int, int]] = []

    def call(name: str, rows: int = 8, across: Any = None) -> pool.Call:
        return pool.Call(rows, rows, lambda begin, end: done.append((name, begin, end)), across)

    q, one, two = (np.empty((8, 3)) for _ in range(3))
    calls = [
        call("a"),
        call("b"),
        call("sum", across=(q, one)),
        call("sum", across=(q, two)),
        call("c"),
        call("few", 4),
    ]
    assert len(pool.chained(calls)) == 3  # a b | sum sum c | few
    assert len(pool.chained([*calls[:3], call("sum of sums", across=(one[:, 1:], two))])) == 3
    for chain in pool.chained(calls):
        assert chain.run()
    assert [name for name, _, _ in done] == ["a", "b", "sum", "sum", "c", "few"]
    assert apart(calls[:4], models=np.empty((8, 3))) == (calls[:2], calls[2:4])
    assert apart(calls[:4], models=one) == (calls[:3], calls[3:4])  # the models are checked at the end of a round
    bad = pool.Call(8, 8, lambda begin, end: False)
    (chain,) = pool.chained([bad, call("never")])
    assert not chain.run()
    assert done[-1][0] == "few"


def test_divergence_has_the_same_round_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    method = gs.BEER(lr=1e4, gamma=1.0, compressor=gs.gsgd(2))
    problem = gs.problems.least_squares(rows(), clients=6)
    runs = []
    for switch in ("1", "0"):
        monkeypatch.setenv("GOSSAMER_GRAPH", switch)
        runs.append(gs.simulate(method, problem, MIXING, rounds=400, batch_size=8, eval_every=50))
    assert runs[0].diverged
    assert runs[0].diverged == runs[1].diverged
    assert torch.equal(runs[0].x, runs[1].x)
    assert [row.loss for row in runs[0].record.rows] == [row.loss for row in runs[1].record.rows]


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_an_interrupted_round_leaves_the_state_of_the_round_before(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels write in place; Ctrl-C between two of them must not leave half a round behind."""
    _, sim = models(BEER, rounds=8)
    _ = sim.state
    run, left = pool.Call.run, iter(range(at))

    def interrupted(call: pool.Call) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return run(call)

    with monkeypatch.context() as patch:
        patch.setattr(pool.Call, "run", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                sim.step()
                if sim.t % 5 == 0:
                    _ = sim.state
    t, found, bits = sim.t, sim.state, sim.traffic.counts()
    monkeypatch.setenv("GOSSAMER_GRAPH", "0")
    _, expected = models(BEER, rounds=t)
    assert all(torch.equal(a, b) for a, b in zip(_tensors(found), _tensors(expected.state), strict=True))
    assert bits == expected.traffic.counts()


def test_a_state_from_outside_and_fewer_seeds(without: pytest.MonkeyPatch) -> None:
    def course() -> list[Tensor]:
        sim = Simulation(BEER, PROBLEM, MIXING, [0, 1, 2], 8)
        seen = []
        for t in range(20):
            sim.step(measure=t == 9)
            if t == 11:
                sim.state = dataclasses.replace(sim.state, x=sim.state.x + 1)
            if t == 14:
                sim.drop([1])
            seen.append(sim.models().clone() if t % 3 == 0 else sim.state.x.clone())
        return seen

    expected = course()
    without.delenv("GOSSAMER_GRAPH")
    assert all(torch.equal(a, b) for a, b in zip(course(), expected, strict=True))


def test_killed_and_resumed(tmp_path: Any) -> None:
    how: Any = {"rounds": 40, "batch_size": 8, "eval_every": 7}
    whole = gs.simulate(BEER, PROBLEM, MIXING, **how)
    stops = iter([False] * 20 + [True])
    with pytest.raises(gs.StoppedError):
        gs.simulate(BEER, PROBLEM, MIXING, record_dir=tmp_path, should_stop=lambda: next(stops), **how)
    again = gs.simulate(BEER, PROBLEM, MIXING, record_dir=tmp_path, resume=True, **how)
    assert torch.equal(again.x, whole.x)


def test_what_cannot_be_replayed_is_not() -> None:
    ones = torch.ones(3)
    with OnlyKernels(), pytest.raises(Unfit, match="add outside of kernels"):  # type: ignore[no-untyped-call]
        ones + 1
    periodic = al.SQuARMSGD(lr=0.1, gamma=0.3, compressor=gs.gsgd(5), local_steps=2)
    assert not is_replayed(models(periodic)[1])
    with only_reference():
        assert not is_replayed(models(BEER)[1])


def test_a_round_that_hides_a_computation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's own arithmetic is not seen when a round is recorded; the comparison with real rounds finds it."""
    honest = type(PROBLEM).gradient

    def hidden(self: Any, x: Tensor, batch: Tensor | None = None) -> Tensor:
        gradient = honest(self, x, batch)
        return torch.from_numpy(gradient.numpy() * (1 + np.abs(x.numpy()).max()))

    monkeypatch.setattr(type(PROBLEM), "gradient", hidden)
    found, sim = models(BEER)
    assert not is_replayed(sim)
    monkeypatch.setenv("GOSSAMER_GRAPH", "0")
    assert torch.equal(found, models(BEER)[0])
