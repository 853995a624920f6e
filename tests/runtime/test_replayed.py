"""Rounds that are replayed: on a GPU as a CUDA graph, elsewhere by a stand-in that repeats the recorded round."""

import dataclasses
import logging
from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer.algorithms.schedules import cosine
from gossamer.registry import methods
from gossamer.runtime import session
from gossamer.runtime.device import capture
from gossamer.runtime.device.tape import Later, Unfit
from gossamer.runtime.loop import Hook
from gossamer.runtime.simulation import Simulation

MIXING = gs.mixing_matrix(gs.ring(6))
CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")],
)
DEVICES = ["cpu", CUDA]


class StandIn:
    """Repeats the rounds that a graph would have recorded, in the same memory."""

    def __init__(self, sim: Simulation, recorded: Any, rounds: int) -> None:
        self._sim, self._recorded, self._many = sim, recorded, rounds

    def replay(self) -> None:
        self._recorded.packets[:] = capture._rounds(self._sim, self._recorded, self._many)


def record(sim: Simulation) -> Any:
    recorded = capture._prepared(sim)
    recorded.packets = capture._rounds(sim, recorded, 1)
    recorded.graphs = {many: StandIn(sim, recorded, many) for many in (1, capture._TOGETHER)}
    return recorded


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[int]:
    """Has rounds replayed on the test's device, and notes which."""
    rounds: list[int] = []
    if request.node.callspec.params["device"] == "cpu":
        monkeypatch.setattr(capture, "_record", record)
        monkeypatch.setattr(capture.Replayed, "_reason", lambda self: None)
        monkeypatch.setattr(session, "_is_slow_to_ask", lambda x: True)
    whole = capture._Recorded.replay

    def noted(self: Any, many: int) -> None:
        rounds.extend(range(int(self.t), int(self.t) + many))
        whole(self, many)

    monkeypatch.setattr(capture._Recorded, "replay", noted)
    return rounds


def both(monkeypatch: pytest.MonkeyPatch, method: gs.Algorithm, problem: gs.Problem, **settings: Any) -> list[Any]:
    """The runs with and without a graph."""
    found = [gs.sweep([method], problem, MIXING, **settings)]
    with monkeypatch.context() as without:
        without.setattr(capture.Replayed, "step", lambda self: False)
        found.append(gs.sweep([method], problem, MIXING, **settings))
    return found


def check_equal(one: Any, two: Any) -> None:
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a.x, b.x)
        assert (a.diverged, a.record.end) == (b.diverged, b.record.end)
        for name in set(a.frame.columns) - {"seconds"}:
            assert a.frame[name].equals(b.frame[name]), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["beer", "choco_sgd", "dsgd", "lead", "gradient_tracking", "motef", "docom", "d2"])
def test_a_graph_changes_nothing(name: str, device: str, replaying: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = gs.logistic_regression("breast_cancer", clients=6, device=device)
    factory: Any = methods.get(name)
    more = {"compressor": gs.qsgd(16)} if "compressor" in {field.name for field in dataclasses.fields(factory)} else {}
    method = factory(**{"lr": 0.05, **factory.examples[0], **more})
    settings: Any = {"rounds": 40, "batch_size": 8, "seeds": [0, 3], "eval_every": 15}
    check_equal(*both(monkeypatch, method, problem, **settings))
    assert set(replaying) >= {5, 20, 36}
    assert 14 not in replaying, "rounds that are measured are taken as they are"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "compressor",
    [
        gs.top_k(fraction=0.1),
        gs.blockwise(gs.gsgd(2), 8),
        gs.rand_k(3),
        gs.compression.natural(),
        gs.compression.sign(),
    ],
    ids=str,
)
def test_every_compressor(
    compressor: gs.Compressor, device: str, replaying: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = gs.logistic_regression("breast_cancer", clients=6, device=device)
    method = gs.BEER(lr=0.02, gamma=0.1, compressor=compressor)
    check_equal(*both(monkeypatch, method, problem, rounds=20, batch_size=8, eval_every=20))
    assert 10 in replaying


@pytest.mark.parametrize("device", DEVICES)
def test_packets_that_are_looked_at(device: str, replaying: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of an entropy-coded packet depends on what it holds."""
    problem = gs.logistic_regression("breast_cancer", clients=6, device=device)
    method = gs.BEER(lr=0.02, gamma=0.1, compressor=gs.gsgd(5))
    check_equal(*both(monkeypatch, method, problem, rounds=20, batch_size=8, eval_every=20, codec="entropy"))
    assert 10 in replaying


@pytest.mark.parametrize("device", DEVICES)
def test_a_schedule_and_what_is_handed_on(device: str, replaying: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The step size changes in every round, and the reevaluated tracker keeps the old model as it is."""
    problem = gs.logistic_regression("breast_cancer", clients=6, device=device)
    lr = cosine(0.1, 30)
    method = gs.BEER(lr=lr, gamma=0.3, compressor=gs.gsgd(5), tracker="reevaluated")
    check_equal(*both(monkeypatch, method, problem, rounds=30, batch_size=8, eval_every=30))
    assert 20 in replaying


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("checked", [4, 256])
def test_divergence_is_found_in_the_same_round(
    checked: int, device: str, replaying: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One seed is lost after the other; those that are left go on as if nothing had happened."""
    monkeypatch.setattr(capture, "_CHECKED", checked)
    problem = gs.quadratic(clients=6, d=4, noise=1.0, device=device)
    method = gs.BEER(lr=3.0, gamma=0.5, compressor=gs.gsgd(5))
    settings: Any = {"rounds": 400, "seeds": [0, 1, 2], "x0": "normal", "eval_every": 50}
    with_graph, without = both(monkeypatch, method, problem, **settings)
    check_equal(with_graph, without)
    assert all(run.diverged for run in without)
    ends = {run.record.end.round for run in without}
    assert not ends & {round + 1 for round in range(50, 401, 50)}, "a due round would have found it anyway"
    assert max(replaying) >= min(ends), "rounds after the bad one were replayed, and taken back"


@pytest.mark.parametrize("device", DEVICES)
def test_periods_run_without(
    device: str, replaying: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = gs.logistic_regression("breast_cancer", clients=6, device=device)
    method = methods.get("d_get")(lr=0.05, period=5)
    with caplog.at_level(logging.DEBUG, "gossamer"):
        check_equal(*both(monkeypatch, method, problem, rounds=20, batch_size=8, eval_every=20))
    assert not replaying
    assert "kernel by kernel" in caplog.text


@pytest.mark.parametrize("device", DEVICES)
def test_hooks_that_look_see_every_round(device: str, replaying: list[int]) -> None:
    class Watch(Hook):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def after(self, loop: Any) -> None:
            self.seen.append(loop.t)

    problem, watch = gs.quadratic(clients=6, d=4, device=device), Watch()
    method = gs.BEER(lr=0.1, gamma=0.5, compressor=gs.gsgd(5))
    gs.simulate(method, problem, MIXING, rounds=20, eval_every=20, hooks=[watch])
    assert watch.seen == list(range(1, 21))
    assert device == "cpu" or not replaying  # a tape takes each round once


def test_a_later_round_is_known_by_what_lies_before_it() -> None:
    t: Any = Later(4)
    assert t
    assert t != 0
    assert t > 3
    assert t >= 4
    assert not t == 1  # noqa: SIM201
    assert not t < 4
    assert not t <= 3
    for wrong in (lambda: t == 4, lambda: t > 4, lambda: t < 5, lambda: t >= 5, lambda: t == 1.5):
        with pytest.raises(Unfit, match="compares the number of the round"):
            wrong()  # type: ignore[no-untyped-call]
    for wrong in (lambda: t % 2, lambda: t + 1, lambda: int(t), lambda: torch.ones(2) * t):
        with pytest.raises(TypeError):
            wrong()
