"""Surrogates in float32: less memory, and a floor that rises with the rounds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gossamer as gs
from gossamer.algorithms.base import map_state
from gossamer.errors import InputError, StoppedError
from gossamer.runtime.experiment import prepare
from gossamer.runtime.simulation import Simulation
from gossamer.spec import parse_spec

PROBLEM = gs.quadratic(clients=8, d=10)
MIXING = gs.mixing_matrix(gs.ring(8))
METHOD = gs.BEER(lr=0.2, gamma=0.4, compressor=gs.gsgd(5))


def tensors(sim: Simulation) -> list[Tensor]:
    """All tensors of a state."""
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    map_state(sim.state, note)
    return found


def test_what_is_lost_and_what_is_saved() -> None:
    """The numbers of docs/concepts.md."""
    runs = {kind: gs.simulate(METHOD, PROBLEM, MIXING, rounds=3000, surrogates=kind) for kind in ("float64", "float32")}
    norms = {kind: run.frame.set_index("round").grad_norm for kind, run in runs.items()}
    assert norms["float64"][3000] < 1e-6
    assert 3e-6 < norms["float32"][1020] < 1e-4
    assert 1e-5 < norms["float32"][3000] < 5e-4
    assert runs["float32"].record.header.surrogates == "float32"
    for kind, bytes_each in (("float64", 48), ("float32", 28)):
        sim = Simulation(METHOD, PROBLEM, MIXING, surrogates=kind)  # type: ignore[arg-type]
        sim.step()
        assert sum(x.element_size() for x in tensors(sim)) == bytes_each


@pytest.mark.parametrize(
    "mixing", [MIXING, gs.topology.MixingSchedule([MIXING, gs.mixing_matrix(gs.topology.path(8))])]
)
def test_every_sum_stays_in_float32(mixing: Any) -> None:
    for method in (METHOD, gs.D2(lr=0.05), gs.algorithms.LEAD(lr=0.05, gamma=0.2, compressor=gs.qsgd(16))):
        if method.info.title != "BEER" and mixing is not MIXING:
            continue
        sim = Simulation(method, PROBLEM, mixing, surrogates="float32")
        for _ in range(3):
            sim.step()
        assert {x.dtype for x in tensors(sim)} == {torch.float32}


def test_it_is_part_of_a_runs_identity_and_resumes(tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 60, "seeds": [0, 1], "surrogates": "float32"}
    whole = gs.sweep(METHOD, PROBLEM, MIXING, **how)
    calls = iter(range(1000))
    with pytest.raises(StoppedError):
        gs.sweep(METHOD, PROBLEM, MIXING, record_dir=tmp_path, should_stop=lambda: next(calls) == 30, **how)
    with pytest.raises(InputError, match="`surrogates` is 'float32' there and 'float64' here"):
        gs.sweep(METHOD, PROBLEM, MIXING, rounds=60, seeds=[0, 1], record_dir=tmp_path, resume=True)
    for run, other in zip(
        whole, gs.sweep(METHOD, PROBLEM, MIXING, record_dir=tmp_path, resume=True, **how), strict=True
    ):
        assert torch.equal(run.snapshot, other.snapshot)


def test_float64_models_and_other_words_are_refused() -> None:
    wide = gs.quadratic(clients=8, d=10, dtype="float64")
    with pytest.raises(InputError, match="need models in float32, got float64"):
        gs.simulate(METHOD, wide, MIXING, rounds=5, surrogates="float32")
    with pytest.raises(InputError, match="`surrogates`"):
        gs.simulate(METHOD, PROBLEM, MIXING, rounds=5, surrogates="half")  # type: ignore[arg-type]


def test_a_spec_may_ask_for_it() -> None:
    table = {
        "rounds": 20,
        "surrogates": "float32",
        "problem": {"objective": "quadratic", "clients": 8},
        "graph": {"name": "ring"},
        "methods": [{"name": "beer", "lr": 0.2, "gamma": 0.4, "compressor": "gsgd:5"}],
    }
    (run,) = prepare(parse_spec(table)).run()
    assert run.record.header.surrogates == "float32"
    assert torch.equal(run.snapshot, gs.simulate(METHOD, PROBLEM, MIXING, rounds=20, surrogates="float32").snapshot)
    with pytest.raises(InputError, match="`surrogates`"):
        parse_spec(table | {"surrogates": "float16"})
