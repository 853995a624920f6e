"""Checkpoints are whole or refused with their reason, and a run that goes on is the run that was never interrupted."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer.errors import DataError, StoppedError
from gossamer.registry import methods
from gossamer.runtime.checkpoint import Checkpoints, common, needed, pack, read, unpack, write
from gossamer.runtime.simulated import Simulation

PROBLEM = gs.quadratic(clients=6, d=8, noise=0.2)
MIXING = gs.mixing_matrix(gs.ring(6))
BEER = gs.BEER(lr=0.1, gamma=0.4, compressor=gs.gsgd(3))
SETTINGS: dict[str, Any] = {"rounds": 120, "batch_size": 2, "seed": [0, 3], "eval_every": 7}


def stopping_after(rounds: int) -> Any:
    asked = iter(range(1, 10**6))
    return lambda: next(asked) % rounds == 0


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", [BEER, gs.CHOCOSGD(lr=0.1, gamma=0.3, compressor=gs.top_k(2)), gs.D2(lr=0.1)])
def test_a_run_that_is_stopped_again_and_again(method: gs.Algorithm, tmp_path: Path) -> None:
    whole = gs.simulate(method, PROBLEM, MIXING, **SETTINGS)
    stop, resume = stopping_after(23), False
    for _ in range(10):
        try:
            runs = gs.simulate(
                method, PROBLEM, MIXING, record_dir=tmp_path, resume=resume, should_stop=stop, **SETTINGS
            )
            break
        except StoppedError:
            resume = True
    for one, two in zip(whole, runs, strict=True):
        assert torch.equal(one.x, two.x)
        frames = [run.frame.drop(columns="seconds") for run in (one, two)]
        assert frames[0].equals(frames[1])
        written = gs.read_record(tmp_path / f"{method.title}-seed{one.seed}.jsonl")
        assert written.end == {"status": "finished", "round": 120}
        assert [row["round"] for row in written.rows] == [row["round"] for row in one.record.rows]
    assert not (tmp_path / "checkpoints").exists()
    again = gs.simulate(method, PROBLEM, MIXING, record_dir=tmp_path, resume=True, **SETTINGS)
    assert all(torch.equal(one.x, two.x) for one, two in zip(runs, again, strict=True)), "read, not run"


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = gs.simulate(BEER, PROBLEM, MIXING, **SETTINGS)
    with pytest.raises(StoppedError, match="stopped after round 50 of 120"):
        gs.simulate(
            BEER, PROBLEM, MIXING, record_dir=tmp_path, checkpoint_every=20, should_stop=stopping_after(50), **SETTINGS
        )
    folder = tmp_path / "checkpoints"
    assert files(folder) == {"BEER-round00000040.safetensors", "BEER-round00000050.safetensors"}
    newest = folder / "BEER-round00000050.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    with caplog.at_level(logging.INFO, "gossamer"):
        runs = gs.simulate(BEER, PROBLEM, MIXING, record_dir=tmp_path, resume=True, **SETTINGS)
    assert "A checkpoint is passed over" in caplog.text
    assert "goes on after round 40" in caplog.text
    assert all(torch.equal(one.x, two.x) for one, two in zip(whole, runs, strict=True))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StoppedError):
        gs.simulate(BEER, PROBLEM, MIXING, record_dir=tmp_path, should_stop=stopping_after(50), **SETTINGS)
    other = gs.BEER(lr=0.05, gamma=0.4, compressor=gs.gsgd(3))
    with caplog.at_level(logging.INFO, "gossamer"):
        runs = gs.simulate(other, PROBLEM, MIXING, record_dir=tmp_path, resume=True, **SETTINGS)
    assert "is of another run: `method` is" in caplog.text
    assert all(
        torch.equal(a.x, b.x) for a, b in zip(gs.simulate(other, PROBLEM, MIXING, **SETTINGS), runs, strict=True)
    )


def test_seeds_that_diverged_stay_so(tmp_path: Path) -> None:
    steep = gs.quadratic(clients=6, d=8, dtype="float32")
    method = gs.DSGD(lr=40.0)
    settings: dict[str, Any] = {"rounds": 60, "seed": [0, 1], "eval_every": 5, "x0": "normal"}
    whole = gs.simulate(method, steep, MIXING, **settings)
    assert all(run.diverged for run in whole)
    with pytest.raises(StoppedError):
        gs.simulate(method, steep, MIXING, record_dir=tmp_path, should_stop=stopping_after(15), **settings)
    runs = gs.simulate(method, steep, MIXING, record_dir=tmp_path, resume=True, **settings)
    assert [run.diverged for run in runs] == [run.diverged for run in whole]


@pytest.mark.parametrize("name", methods.names())
def test_every_state_is_packed_and_unpacked(name: str, tmp_path: Path) -> None:
    cls: Any = methods.get(name)
    takes = "compressor" in cls.__dataclass_fields__
    method = cls(**cls.examples[0], **({"compressor": gs.qsgd(16)} if takes else {}))
    simulation = Simulation(method, PROBLEM, MIXING)
    with torch.no_grad():
        simulation.step()
        write(tmp_path / "a.safetensors", pack(simulation.state), {})
        state = unpack(
            method.init(PROBLEM.x0().expand(6, -1)), read(tmp_path / "a.safetensors").tensors, PROBLEM.device
        )
        simulation.step()
        other = Simulation(method, PROBLEM, MIXING)
        other.state, other.t = state, 1
        other.step()
    assert torch.equal(other.state.x, simulation.state.x)


def test_files_that_are_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write(path, {"a": torch.arange(6.0).view(2, 3), "zero": torch.zeros(())}, {"round": 3})
    kept = read(path)
    assert kept.round == 3
    assert torch.equal(kept.tensors["a"], torch.arange(6.0).view(2, 3))
    whole = path.read_bytes()
    cases = {
        b"": "torn or damaged",
        b"hello": "torn or damaged",
        whole[:-1]: "torn or damaged",
        whole[:-1] + b"\xff": "checksum does not fit",
        whole.replace(b'\\"format\\": 1', b'\\"format\\": 9'): "format 9",
    }
    for data, reason in cases.items():
        path.write_bytes(data)
        with pytest.raises(DataError, match=reason):
            read(path)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(DataError, match="not a file of Gossamer's"):
        read(path)
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "nowhere.safetensors")


def test_old_ones_go_and_half_written_ones_too(tmp_path: Path) -> None:
    (tmp_path / ".run-round00000007.safetensors.tmp").write_bytes(b"half")
    kept = Checkpoints(tmp_path, "run", {"lr": 0.1}, keep=3)
    assert files(tmp_path) == set()
    for number in range(0, 50, 10):
        kept.save(number, {"x": torch.ones(2)}, {})
    Checkpoints(tmp_path, "runner", {}, keep=3).save(1, {"x": torch.ones(2)}, {})
    assert kept.rounds() == [40, 30, 20]
    kept.finish()
    assert files(tmp_path) == {"runner-round00000001.safetensors"}


def test_how_many_ranks_must_keep() -> None:
    for diameter in range(12):
        for every in range(1, 15):
            # Two ranks a diameter apart, each with its last checkpoints, one of them just before its next.
            keep = needed(diameter, every)
            for ahead in range(100, 100 + 2 * every):
                behind = ahead - diameter
                one = list(range(0, ahead + 1, every))[-keep:]
                two = list(range(0, behind + 1, every))[-keep:]
                assert common([one, two]) is not None
    assert common([[1, 2], [3]]) is None
    assert json.dumps(common([[10, 20], [20, 30], [10, 20]])) == "20"


def test_checkpoints_need_a_folder() -> None:
    with pytest.raises(gs.InputError, match="name a folder"):
        gs.simulate(BEER, PROBLEM, MIXING, rounds=3, resume=True)
    with pytest.raises(gs.InputError, match="checkpoint_every"):
        gs.simulate(BEER, PROBLEM, MIXING, rounds=3, record_dir="x", checkpoint_every=0)
