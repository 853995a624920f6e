"""Candidates side by side are what they are alone; the search finds better steps and writes them."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import gossamer

import gossamer as gs
from gossamer import algorithms as al
from gossamer.errors import StoppedError
from gossamer.registry import methods
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.tuning.candidates import Candidates
from gossamer.runtime.tuning.tune import Search, tune, with_steps

PROBLEM = gs.quadratic(clients=6, d=12, noise=0.3, dtype="float64")
MIXING = gs.mixing_matrix(gs.ring(6))


@pytest.mark.parametrize("name", methods.names())
def test_candidates_are_what_they_are_alone(name: str) -> None:
    cls: Any = methods.get(name)
    compressor = {"compressor": gs.qsgd(16)} if "compressor" in cls.__dataclass_fields__ else {}
    method = cls(**dict(cls.examples[0]) | compressor)
    steps = [
        {"lr": lr, **({"gamma": gamma} if compressor else {})} for lr, gamma in ((0.01, 0.1), (0.02, 0.05), (1e9, 1))
    ]
    together = Candidates(method, PROBLEM, MIXING, steps, batch_size=2)
    for _ in range(60):
        together.step()
    if name not in (
        "porter",
        "all_reduce_adamw",
    ):  # whose gradients are clipped, or whose steps have a length of their own
        assert together.alive == [0, 1], "the last diverges, and the others go on"
    for place in (0, 1):
        alone = Simulation(with_steps(method, steps[place]), PROBLEM, MIXING, batch_size=2)
        for _ in range(60):
            alone.step()
        assert torch.allclose(together.models()[place], alone.models()[0], rtol=1e-9, atol=1e-12)


def test_a_search_begins_with_auto_and_ends_no_worse() -> None:
    method = gs.auto_steps(gs.BEER, PROBLEM, MIXING, gs.gsgd(3), rounds=60)
    heard: list[int] = []
    search = Search(trials=20, rounds=60, at_once=6)
    tuned = tune(method, PROBLEM, MIXING, search, progress=lambda so_far: heard.append(len(so_far.trials)))
    assert heard == [6, 12, 18, 20]
    assert tuned.automatic.steps == {"lr": method.lr, "gamma": method.gamma}
    assert tuned.best.norm <= tuned.automatic.norm
    again = tune(method, PROBLEM, MIXING, search)
    assert [trial.steps for trial in again.trials] == [trial.steps for trial in tuned.trials]
    best = with_steps(method, tuned.best.steps)
    run = gs.simulate(best, PROBLEM, MIXING, rounds=60, eval_every=1)
    assert run.frame.grad_norm.iloc[-6:].mean() == pytest.approx(tuned.best.norm, rel=1e-6)


def test_a_schedule_keeps_its_form_and_a_search_can_be_stopped() -> None:
    method = al.DSGD(lr=al.schedules.cosine(0.1, 60))
    tuned = tune(method, PROBLEM, MIXING, Search(trials=4, rounds=30, at_once=2))
    assert with_steps(method, tuned.best.steps).lr == al.schedules.cosine(tuned.best.steps["lr"], 60)
    asked = iter(range(1000))
    some = tune(method, PROBLEM, MIXING, Search(trials=40, rounds=30, at_once=4), should_stop=lambda: next(asked) > 100)
    assert len(some.trials) == 12
    with pytest.raises(StoppedError):
        tune(method, PROBLEM, MIXING, Search(trials=4, rounds=30), should_stop=lambda: True)
    with pytest.raises(gs.InputError, match="eta_min"):
        tune(al.DSGD(lr=al.schedules.cosine(0.1, 60, 0.01)), PROBLEM, MIXING, Search(trials=4, rounds=30))


def test_clients_that_part_have_diverged() -> None:
    """The average of gradient tracking on these weights does well long after the clients have lost one another."""
    problem, mixing = gs.quadratic(clients=10, dtype="float64"), gs.mixing_matrix(gs.ring(10), "fdla")
    tuned = tune(al.GradientTracking(lr=0.1), problem, mixing, Search(trials=24, rounds=50), whole=250)
    best = with_steps(al.GradientTracking(lr=0.1), tuned.best.steps)
    run = gs.simulate(best, problem, mixing, rounds=250)
    assert run.final.grad_norm < tuned.start
    assert run.final.consensus < 10


SPEC = """# Mine.
rounds = 100

[problem]
objective = "quadratic"   # small
clients = 6

[graph]
name = "ring"

[[methods]]
name = "beer"
lr = "auto"   # not for long
gamma = 0.3
compressor = "gsgd:5"

[[methods]]
label = "falling"
name = "dsgd"
lr = "step:0.1,50"
"""


@pytest.mark.slow
def test_the_command_writes_the_spec_that_won(tmp_path: Path) -> None:
    spec = tmp_path / "mine.toml"
    spec.write_text(SPEC)
    done = gossamer(
        "tune", str(spec), "--trials", "6", "--rounds", "40", "-o", str(tmp_path / "best.toml"), "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    text = (tmp_path / "best.toml").read_text()
    assert "# Mine." in text
    assert "# small" in text
    written = tomllib.loads(text)["methods"]
    assert written[0]["lr"] == found["methods"][0]["best"]["lr"]
    assert written[0]["gamma"] == found["methods"][0]["best"]["gamma"]
    assert written[1]["lr"] | {"lr": 0} == {"name": "step", "lr": 0, "step_size": 50, "gamma": 0.1}
    assert gossamer("run", str(tmp_path / "best.toml"), "-o", str(tmp_path / "out"), "-q", cwd=tmp_path).returncode == 0
    refused = gossamer("tune", str(spec), "-o", str(tmp_path / "best.toml"), cwd=tmp_path)
    assert refused.returncode == 2
    assert "exists already" in refused.stderr
    one = gossamer(
        "tune",
        str(spec),
        "--method",
        "falling",
        "--trials",
        "3",
        "--force",
        "-o",
        str(tmp_path / "best.toml"),
        cwd=tmp_path,
    )
    assert one.returncode == 0
    assert "falling" in one.stdout
    assert "BEER" not in one.stdout
    assert tomllib.loads((tmp_path / "best.toml").read_text())["methods"][0]["lr"] == "auto"
    for arguments, sentence in (
        (["--method", "nobody"], "no method 'nobody'; valid methods: 'BEER', 'falling'"),
        (["--rounds", "0"], "`rounds` must be an integer of 1 or more, got 0"),
        (["-o", str(tmp_path), "--force"], "is a folder"),
        (["--trials", "0"], "`trials` must be an integer of 1 or more, got 0"),
        (["-o", str(tmp_path / "no" / "where.toml")], "does not exist"),
    ):
        wrong = gossamer("tune", str(spec), *arguments, cwd=tmp_path)
        assert wrong.returncode == 2, arguments
        assert sentence in wrong.stderr
        assert wrong.stderr.count("\n") == 1
