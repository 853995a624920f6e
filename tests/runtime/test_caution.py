"""Runs that diverge say so, steps that are far too large are warned of, and threads are used where they pay."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.errors import ConvergenceWarning
from gossamer.problems.quadratic import Quadratic
from gossamer.records.record import LARGE_GROWTH, Record
from gossamer.records.schema import End, Header, Row
from gossamer.runtime.tuning.caution import warn_of_gamma

MIXING = gs.mixing_matrix(gs.ring(6))


def test_a_loss_that_grows_is_said_to_diverge(tmp_path: Path) -> None:
    """Finite to the end, and a million times the loss at the start."""
    problem = gs.quadratic(clients=6, d=8, condition=1.0)
    method = gs.DSGD(lr=2.5)
    with pytest.warns(ConvergenceWarning, match=r"DSGD with seed 0 is diverging: its loss after .*try `lr`"):
        run = gs.simulate(method, problem, MIXING, rounds=60, eval_every=5, record_dir=tmp_path)
    assert run.final.loss > LARGE_GROWTH * run.frame.loss.iloc[0]
    assert run.diverged is not None
    assert "is diverging: its loss after round 60" in run.diverged
    assert "diverged" in repr(run)
    kept = gs.read_record(tmp_path / "DSGD-seed0.jsonl")
    assert kept.end is not None
    assert kept.end.status == "diverging"
    assert kept.diverged == run.diverged
    again = gs.simulate(method, problem, MIXING, rounds=60, eval_every=5, record_dir=tmp_path, resume=True)
    assert again.diverged == run.diverged


def test_a_run_that_recovers_or_starts_at_its_minimum_does_not() -> None:
    header = Header(gossamer="0", label="DSGD", seed=0)
    record = Record(header, [Row(round=0, loss=1.0), Row(round=5, loss=1e7), Row(round=9, loss=0.5)])
    record.finish(9, "try less")
    assert record.end == End("finished", 9)
    for first, last in ((0.0, 5.0), (-1.0, 5.0), (None, 5.0), (1.0, None)):
        assert Record(header, [Row(round=0, loss=first), Row(round=1, loss=last)]).growth() == 0
    assert Record(header).growth() == 0


@pytest.mark.parametrize(
    ("compressor", "gamma", "d", "is_far"),
    [
        (gs.gsgd(5), 0.5, 25_450, True),
        (gs.gsgd(5), 0.2, 25_450, False),
        (gs.gsgd(5), 0.7, 124, False),
        (gs.compression.sign(), 0.3, 124, False),  # guarantees next to nothing, and keeps two thirds
        (gs.identity(), 1.0, 1000, False),
        (gs.compression.natural(), 1.0, 1000, False),
        (gs.rand_k(fraction=0.01), 0.5, 1000, True),
        (gs.top_k(10), 0.8, 124, True),
        (gs.top_k(10), 0.15, 124, False),
    ],
    ids=str,
)
def test_a_gamma_that_is_far_too_large_is_warned_of(compressor: Any, gamma: float, d: int, is_far: bool) -> None:
    for method in (gs.BEER(lr=0.1, gamma=gamma, compressor=compressor), gs.CHOCOSGD(0.1, gamma, compressor)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            warn_of_gamma(method, d, rho=0.2)
        assert [str(one.message)[: len(f"`gamma` = {gamma:g}")] for one in told] == [f"`gamma` = {gamma:g}"] * is_far


def test_simulate_warns_before_it_starts() -> None:
    problem = gs.quadratic(clients=6, d=400)
    with pytest.warns(ConvergenceWarning, match=r"far above what rand_k.* allows at 400 coordinates.*try `gamma` ="):
        gs.simulate(gs.BEER(0.01, 0.9, gs.rand_k(fraction=0.01)), problem, MIXING, rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_gamma(gs.algorithms.LEAD(0.1, 1.0, gs.qsgd(4)), 400, 0.2)  # relies on its mean, not on alpha
        warn_of_gamma(gs.DSGD(0.1), 400, 0.2)


class Counting(Quadratic):
    """Notes the threads that its gradients and its evaluations are computed with."""

    seen: set[tuple[str, int]]
    fails = False

    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        self.seen.add(("gradient", torch.get_num_threads()))
        if self.fails:
            raise RuntimeError("no gradient today")
        return super().gradient(x, batch)

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        self.seen.add(("evaluate", torch.get_num_threads()))
        return super().evaluate(models)


@pytest.mark.parametrize(("d", "expected"), [(10, 1), (200_000, 2)], ids=["small", "large"])
def test_threads_follow_the_size_of_the_work_and_are_given_back(d: int, expected: int) -> None:
    before = torch.get_num_threads()
    problem = Counting(torch.ones(6, d), torch.zeros(6, 1, d) + torch.arange(6)[:, None, None])
    problem.seen = set()
    torch.set_num_threads(2)
    try:
        gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=2)
        assert {count for what, count in problem.seen if what == "gradient"} == {expected}
        assert torch.get_num_threads() == 2
        problem.fails = True
        with pytest.raises(RuntimeError, match="no gradient today"):
            gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_small_module_is_evaluated_by_one_thread() -> None:
    seen = set()

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.add(torch.get_num_threads())
            return super().forward(x)

    torch.manual_seed(0)
    problem = gs.module_problem(nn.Sequential(Watched(30, 4), nn.Tanh(), nn.Linear(4, 2)), "breast_cancer", clients=6)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    problem.fingerprint()  # which looks at the module once
    seen.clear()
    try:
        gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=2, batch_size=4)
    finally:
        torch.set_num_threads(before)
    assert seen == {1}
