"""Default evaluation never dominates: the interval is decided once, before the run, and kept in the record."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gossamer as gs
from gossamer.problems.quadratic import Quadratic
from gossamer.records.record import read_record
from gossamer.runtime.measure import measure
from gossamer.runtime.planning.pace import affordable_interval, stretched
from gossamer.runtime.simulation import Simulation

MIXING = gs.mixing_matrix(gs.ring(4))
METHOD = gs.BEER(lr=0.05, gamma=0.3, compressor=gs.gsgd(4))


class Slow(Quadratic):
    """A quadratic whose evaluation takes as long as it is told to."""

    seconds = 0.2

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        time.sleep(self.seconds * len(models) / 5)  # a snapshot is evaluated at the average and at four clients
        return super().evaluate(models)


def slow() -> Slow:
    made = gs.quadratic(clients=4, d=5)
    assert isinstance(made, Quadratic)
    return Slow(made.curvature, made.centres)


@pytest.mark.parametrize(
    ("usual", "round", "evaluation", "expected"),
    [(10, 1e-3, 1e-3, 10), (10, 1e-3, 0.01, 10), (10, 1e-3, 0.0101, 20), (1, 1e-4, 0.04, 400), (7, 1.0, 0.0, 7)],
)
def test_an_interval_is_the_smallest_multiple_that_pays(
    usual: int, round: float, evaluation: float, expected: int
) -> None:
    assert stretched(usual, round, evaluation) == expected


def test_quick_evaluations_are_made_about_a_hundred_times() -> None:
    run = gs.simulate(METHOD, gs.quadratic(clients=4, d=5), MIXING, rounds=400)
    assert run.record.header.eval_every == 4
    assert len(run.record.rows) == 101


def test_slow_evaluations_take_no_longer_than_the_rounds_and_the_reason_is_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "gossamer.plan"):
        run = gs.simulate(METHOD, slow(), MIXING, rounds=500)
    every = run.record.header.eval_every
    assert every is not None
    assert every > 5
    assert every % 5 == 0
    rounds = [row.round for row in run.record.rows]
    assert rounds == sorted({*range(0, 501, every), 500})
    seconds = run.record.rows[-1].seconds
    assert seconds is not None
    # Rounds vary in time: a factor of three is left for a busy machine. With the usual interval it would be far more.
    assert len(rounds) * Slow.seconds < 3 * (seconds + 2 * Slow.seconds)
    (message,) = caplog.messages
    assert message.startswith("BEER: an evaluation takes ")
    assert f"every {every:,} rounds instead of every 5; ask for more with eval_every." in message


def test_what_takes_long_only_once_is_not_thinned_out() -> None:
    """As kernels that are compiled and data that is read in the first evaluation."""
    problem = slow()
    evaluate, calls = problem.evaluate, list[int]()

    def first_is_slow(models: Tensor) -> dict[str, Tensor]:
        problem.seconds = 0.0 if calls else 5.0
        calls.append(len(models))
        return evaluate(models)

    problem.evaluate = first_is_slow  # type: ignore[method-assign]
    assert gs.simulate(METHOD, problem, MIXING, rounds=500).record.header.eval_every == 5


def test_what_is_asked_for_is_done() -> None:
    problem = slow()
    problem.seconds = 0.02
    run = gs.simulate(METHOD, problem, MIXING, rounds=60, eval_every=1)
    assert [row.round for row in run.record.rows] == list(range(61))


def test_a_trial_leaves_no_trace() -> None:
    sims = [Simulation(METHOD, gs.quadratic(clients=4, d=5, noise=1.0), MIXING, [0, 3], 2) for _ in range(2)]
    assert sims[1].rehearse() is not None
    for sim in sims:
        for _ in range(5):
            sim.step()
    assert sims[0].t == sims[1].t == 5
    assert torch.equal(sims[0].state.x, sims[1].state.x)
    assert sims[0].traffic.counts() == sims[1].traffic.counts()


def test_a_trial_that_diverges_changes_nothing() -> None:
    method = gs.DSGD(lr=1e30)
    sim = Simulation(method, slow(), MIXING)
    assert sim.rehearse() is None
    assert affordable_interval(sim, "DSGD", 2000, 64) == 20
    assert sim.t == 0


class Stop:
    """Stops a run after so many rounds."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_resumed_run_keeps_its_interval(tmp_path: Path) -> None:
    """Also if evaluations have become quick, and with further seeds."""
    problem = slow()
    how: dict[str, Any] = {"rounds": 1000, "record_dir": tmp_path}
    with pytest.raises(gs.errors.StoppedError):
        gs.sweep(METHOD, problem, MIXING, seeds=[0], should_stop=Stop(500), **how)
    every = read_record(tmp_path / "BEER-seed0.jsonl").header.eval_every
    assert every is not None
    assert every > 10
    problem.seconds = 0.0
    runs = gs.sweep(METHOD, problem, MIXING, seeds=[0, 1], resume=True, **how)
    whole = gs.sweep(METHOD, problem, MIXING, rounds=1000, seeds=[0, 1], eval_every=every)
    for run, other in zip(runs, whole, strict=True):
        assert run.record.header.eval_every == every
        frames = [one.frame.drop(columns="seconds") for one in (run, other)]
        assert frames[0].equals(frames[1])
    again = gs.sweep(METHOD, problem, MIXING, seeds=[0, 1], resume=True, **how)
    assert [len(run.record.rows) for run in again] == [len(run.record.rows) for run in runs]
    with pytest.raises(gs.errors.InputError, match=f"`eval_every` is {every} there and 10 here"):
        gs.sweep(METHOD, problem, MIXING, seeds=[0, 1], resume=True, eval_every=10, **how)


def test_own_models_of_very_many_clients_are_not_scored() -> None:
    problem = gs.logistic_regression("breast_cancer", clients=4)
    assert "mean_accuracy" in measure(problem, torch.zeros(1, 4, problem.d))
    problem.clients = 10_001
    assert "mean_accuracy" not in measure(problem, torch.zeros(1, 10_001, problem.d))
