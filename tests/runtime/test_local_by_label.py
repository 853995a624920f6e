"""Local steps and rounds of each method in one comparison."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer.runtime.experiment import prepare
from gossamer.runtime.planning.jobs import run_over_cores
from gossamer.spec import parse_spec

MIXING = gs.mixing_matrix(gs.ring(4))
CHOCO = gs.CHOCOSGD(lr=1.0, gamma=0.5, compressor=gs.gsgd(5))
SPEC: dict[str, Any] = {
    "rounds": 20,
    "batch_size": 5,
    "codec": "fixed",
    "problem": {"objective": "logistic_regression", "data": "breast_cancer", "clients": 4, "dtype": "float64"},
    "graph": {"name": "ring"},
    "methods": [{"name": "beer", "lr": 1.0, "gamma": 0.5, "compressor": "gsgd:5"}],
}


def problem() -> gs.Problem:
    return gs.logistic_regression("breast_cancer", clients=4, dtype="float64")


def test_methods_of_one_sweep_have_their_own_local_steps_and_rounds() -> None:
    adam, sgd = gs.LocalSteps("AdamW", 3, lr=0.01), gs.LocalSteps("SGD", 2, lr=0.1)
    named = {"a": CHOCO, "b": CHOCO, "c": gs.DSGD(lr=0.1)}
    rounds, local = {"a": 4, "b": 7, "c": 9}, {"a": adam, "b": sgd}
    one = problem()
    runs = gs.sweep(named, one, MIXING, rounds=rounds, batch_size=5, local={**local, "c": None})
    for run, (label, method) in zip(runs, named.items(), strict=True):
        how: Any = {"rounds": rounds[label], "batch_size": 5, "local": local.get(label)}
        assert torch.equal(run.x, gs.simulate(method, one, MIXING, **how).x)
        assert run.record.header.local == (None if label == "c" else repr(local[label]))
        assert run.final["round"] == rounds[label]


def own_steps() -> dict[str, Any]:
    """A spec whose methods take AdamW, SGD and no local steps."""
    beer = SPEC["methods"][0]
    methods = [
        beer,
        beer | {"label": "own", "rounds": 5, "local": {"optimizer": "SGD", "steps": 2, "lr": 0.1}},
        beer | {"label": "none", "lr": 0.1, "local": False},
    ]
    return SPEC | {"local": {"optimizer": "AdamW", "steps": 3, "lr": 0.01}, "methods": methods}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_methods_of_a_spec_have_their_own_local_steps(jobs: int, tmp_path: Path) -> None:
    experiment = prepare(parse_spec(own_steps()))
    runs = experiment.run() if jobs == 1 else run_over_cores(experiment, jobs, record_dir=tmp_path)
    told = [run.record.header.local for run in runs]
    assert told == ["LocalSteps(AdamW, steps=3, lr=0.01)", "LocalSteps(SGD, steps=2, lr=0.1)", None]
    assert [run.final["round"] for run in runs] == [20, 5, 20]
    given = problem()
    method = gs.BEER(lr=1.0, gamma=0.5, compressor=gs.gsgd(5))
    alone = gs.simulate(method, given, MIXING, rounds=5, batch_size=5, local=gs.LocalSteps("SGD", 2, lr=0.1))
    assert torch.equal(runs[1].x, alone.x)
    usual = gs.simulate(replace(method, lr=0.1), given, MIXING, rounds=20, batch_size=5)
    assert torch.equal(runs[2].x, usual.x), "and begins with a full gradient"


def _two(**more: Any) -> None:
    gs.sweep({"a": CHOCO, "b": gs.DSGD(lr=0.1)}, problem(), MIXING, batch_size=5, **more)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: _two(rounds={"a": 3}), "`rounds` has no value for 'b'; give one for every method, or one for all."),
        (lambda: _two(rounds={"a": 3, "b": 0}), "`rounds` must be an integer of 1 or more, got 0."),
        (lambda: _two(rounds=3, local={"c": None}), "`local` has no label 'c'; valid labels: 'a', 'b'."),
        (lambda: _two(rounds=3, local={"a": "AdamW"}), "`local` must be gossamer.LocalSteps(torch.optim.AdamW"),
        (
            lambda: parse_spec(SPEC | {"methods": [SPEC["methods"][0] | {"local": True}]}),
            "`local` of a method must be a table, or false for none, got True.",
        ),
    ],
)
def test_mistakes_are_sentences(make: Any, sentence: str) -> None:
    with pytest.raises(gs.InputError, match=re.escape(sentence)):
        make()
