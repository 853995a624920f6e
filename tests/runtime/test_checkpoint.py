"""Checkpoints are whole or refused with their reason, and a run that goes on is the run that was never interrupted."""

import json
import logging
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import DataError, StoppedError
from gossamer.fingerprint import digest
from gossamer.records.checkpoint import Checkpoints, common, needed, read, write
from gossamer.records.schema import End
from gossamer.registry import methods
from gossamer.runtime.simulation import Simulation

PROBLEM = gs.quadratic(clients=6, d=8, noise=0.2)
MIXING = gs.mixing_matrix(gs.ring(6))
BEER = gs.BEER(lr=0.1, gamma=0.4, compressor=gs.gsgd(3))
SETTINGS: dict[str, Any] = {"rounds": 120, "batch_size": 2, "seeds": [0, 3], "eval_every": 7}


def stopping_after(rounds: int) -> Any:
    asked = iter(range(1, 10**6))
    return lambda: next(asked) % rounds == 0


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", [BEER, gs.CHOCOSGD(lr=0.1, gamma=0.3, compressor=gs.top_k(2)), gs.D2(lr=0.1)])
def test_a_run_that_is_stopped_again_and_again(method: gs.Algorithm, tmp_path: Path) -> None:
    whole = gs.sweep(method, PROBLEM, MIXING, **SETTINGS)
    stop, resume = stopping_after(23), False
    for _ in range(10):
        try:
            runs = gs.sweep(method, PROBLEM, MIXING, record_dir=tmp_path, resume=resume, should_stop=stop, **SETTINGS)
            break
        except StoppedError:
            resume = True
    for one, two in zip(whole, runs, strict=True):
        assert torch.equal(one.x, two.x)
        frames = [run.frame.drop(columns="seconds") for run in (one, two)]
        assert frames[0].equals(frames[1])
        written = gs.read_record(tmp_path / f"{method.info.title}-seed{one.seed}.jsonl")
        assert written.end == End("finished", 120)
        assert [row.round for row in written.rows] == [row.round for row in one.record.rows]
    assert not (tmp_path / "checkpoints").exists()
    again = gs.sweep(method, PROBLEM, MIXING, record_dir=tmp_path, resume=True, **SETTINGS)
    assert all(torch.equal(one.x, two.x) for one, two in zip(runs, again, strict=True)), "read, not run"


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = gs.sweep(BEER, PROBLEM, MIXING, **SETTINGS)
    with pytest.raises(StoppedError, match="stopped after round 50 of 120"):
        gs.sweep(
            BEER, PROBLEM, MIXING, record_dir=tmp_path, checkpoint_every=20, should_stop=stopping_after(50), **SETTINGS
        )
    folder = tmp_path / "checkpoints"
    assert files(folder) == {"BEER-round00000040.safetensors", "BEER-round00000050.safetensors"}
    newest = folder / "BEER-round00000050.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    with caplog.at_level(logging.INFO, "gossamer"):
        runs = gs.sweep(BEER, PROBLEM, MIXING, record_dir=tmp_path, resume=True, **SETTINGS)
    assert "A checkpoint is skipped" in caplog.text
    assert "resumes after round 40" in caplog.text
    assert all(torch.equal(one.x, two.x) for one, two in zip(whole, runs, strict=True))


RNG = np.random.default_rng(0)
ROWS = (RNG.standard_normal((60, 4)), np.arange(60) % 2)
OTHER_ROWS = (ROWS[0] + 1e-3 * (np.arange(60) == 7)[:, None], ROWS[1])


def arrays(rows: Any = ROWS, **more: Any) -> gs.Problem:
    return gs.logistic_regression(rows, clients=6, dtype="float64", **more)


def layers(activation: type[nn.Module] = nn.Tanh, seed: int = 0) -> gs.Problem:
    torch.manual_seed(seed)
    return gs.module_problem(nn.Sequential(nn.Linear(4, 3), activation(), nn.Linear(3, 2)), ROWS, clients=6)


def renumbered() -> gs.MixingMatrix:
    """A ring with the same rho, C and number of edges, in another order."""
    return gs.mixing_matrix(nx.Graph([(0, 2), (2, 4), (4, 1), (1, 3), (3, 5), (5, 0)]))


QUADRATIC: dict[str, Any] = {"methods": BEER, "problem": PROBLEM, "mixing": MIXING, **SETTINGS}
LOGISTIC: dict[str, Any] = QUADRATIC | {"problem": arrays()}
NETWORK: dict[str, Any] = QUADRATIC | {"problem": layers()}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "lr": (QUADRATIC, {"methods": replace(BEER, lr=0.05)}, r"`method.lr` is 0.1 there and 0.05 here"),
    "compressor": (QUADRATIC, {"methods": replace(BEER, compressor=gs.gsgd(4))}, "`method.compressor`"),
    "batch size": (QUADRATIC, {"batch_size": 3}, "`batch_size` is 2 there and 3 here"),
    "rounds": (QUADRATIC, {"rounds": 130}, "`rounds` is 120 there and 130 here"),
    "codec": (QUADRATIC, {"codec": "entropy"}, "`codec`"),
    "another quadratic": (QUADRATIC, {"problem": gs.quadratic(clients=6, d=8, noise=0.2, seed=1)}, "the problem "),
    "dtype": (QUADRATIC, {"problem": gs.quadratic(clients=6, d=8, noise=0.2, dtype="float64")}, "`problem.dtype`"),
    "graph": (QUADRATIC, {"mixing": renumbered()}, "the mixing matrix is not the same"),
    "x0": (QUADRATIC, {"x0": torch.ones(8)}, "the starting point `x0` is not the same"),
    "rule of x0": (QUADRATIC, {"x0": "normal"}, "the starting point `x0`"),
    "array data": (LOGISTIC, {"problem": arrays(OTHER_ROWS)}, "the problem "),
    "partition": (LOGISTIC, {"problem": arrays(partition="iid")}, "`problem.partition`"),
    "regulariser": (LOGISTIC, {"problem": arrays(l2=0.1)}, "`problem.l2` is 0.0 there and 0.1 here"),
    "activation": (NETWORK, {"problem": layers(nn.ReLU)}, "the problem "),
    "parameters": (NETWORK, {"problem": layers(seed=1)}, "the problem "),
}


@pytest.mark.parametrize("is_over", [False, True], ids=["stopped", "finished"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_run_never_goes_on_as_another(change: str, is_over: bool, tmp_path: Path) -> None:
    first, other, reason = CHANGES[change]
    if is_over:
        gs.sweep(**first, record_dir=tmp_path)
    else:
        with pytest.raises(StoppedError):
            gs.sweep(**first, record_dir=tmp_path, checkpoint_every=20, should_stop=stopping_after(50))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(gs.InputError, match=f"is of another run: {reason}"):
        gs.sweep(**first | other, record_dir=tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, "nothing is changed"
    expected = gs.sweep(**first)
    again = gs.sweep(**first, record_dir=tmp_path, resume=True)
    assert all(torch.equal(one.x, two.x) for one, two in zip(expected, again, strict=True))


def test_when_all_checkpoints_are_damaged_nothing_is_begun_anew(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        gs.sweep(**QUADRATIC, record_dir=tmp_path, checkpoint_every=20, should_stop=stopping_after(50))
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes().replace(b'\\"packets\\": ', b'\\"packets\\": 1'))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=r"Every checkpoint of BEER .* is damaged; remove them to begin again"):
        gs.sweep(**QUADRATIC, record_dir=tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_one_run_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    def again() -> bool:
        with pytest.raises(gs.InputError, match=r"is in use by process \d+ on"):
            subprocess_simulate(tmp_path)
        return False

    gs.sweep(**QUADRATIC | {"rounds": 2}, record_dir=tmp_path, should_stop=again)


def subprocess_simulate(folder: Path) -> None:
    """Another process, as far as a lock can tell: a fork."""
    code = multiprocessing.get_context("fork").Queue()
    process = multiprocessing.get_context("fork").Process(target=_in_a_fork, args=(folder, code))
    process.start()
    sentence = code.get(timeout=60)
    process.join()
    if sentence:
        raise gs.InputError(sentence)


def _in_a_fork(folder: Path, code: Any) -> None:
    try:
        gs.sweep(**QUADRATIC, record_dir=folder, resume=True)
        code.put("")
    except gs.InputError as error:
        code.put(str(error))


class Scaled(nn.Module):
    """Settings that neither print nor show in evaluation mode."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.factor = nn.Linear(4, 2), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x * self.factor if self.training else x)
        return out


def test_plain_attributes_of_a_module_count() -> None:
    one, other, same = (gs.module_problem(Scaled(factor), ROWS, clients=6) for factor in (1.0, 3.0, 1.0))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_the_seed_of_a_partition_and_the_content_of_a_file_count(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    lines = [f"{(-1) ** i} 1:{i % 7} 2:{i * i % 11} 3:{i % 3}" for i in range(60)]
    path.write_text("\n".join(lines))

    def problem(seed: int = 0) -> gs.Problem:
        return gs.logistic_regression(path, clients=6, partition="iid", seed=seed)

    gs.sweep(**QUADRATIC | {"problem": problem()}, record_dir=tmp_path / "runs")
    with pytest.raises(gs.InputError, match=r"the problem .* is not the same"):
        gs.sweep(**QUADRATIC | {"problem": problem(1)}, record_dir=tmp_path / "runs", resume=True)
    path.write_text("\n".join([lines[0].replace("3:0", "3:1"), *lines[1:]]))
    with pytest.raises(gs.InputError, match=r"the problem .* is not the same"):
        gs.sweep(**QUADRATIC | {"problem": problem()}, record_dir=tmp_path / "runs", resume=True)


def test_fingerprints_are_cheap_and_of_the_content() -> None:
    again = gs.quadratic(clients=6, d=8, noise=0.2)
    assert again.fingerprint() == PROBLEM.fingerprint() == PROBLEM.fingerprint()
    assert layers().fingerprint() == layers().fingerprint()
    assert PROBLEM.only(1).fingerprint() != PROBLEM.only(2).fingerprint() != PROBLEM.fingerprint()
    assert gs.Problem.content(PROBLEM) != gs.Problem.content(gs.quadratic(clients=6, d=8, noise=0.2, seed=1))
    assert digest(torch.zeros(2, 3)) != digest(torch.zeros(3, 2)) != digest(torch.zeros(3, 2).double())
    with pytest.raises(TypeError, match="got object"):
        digest(object())


def test_more_seeds_are_added_beside_those_that_are_there(tmp_path: Path) -> None:
    whole = gs.sweep(**QUADRATIC | {"seeds": [0, 1, 2, 3]})
    gs.sweep(**QUADRATIC | {"seeds": [1]}, record_dir=tmp_path)
    with pytest.raises(StoppedError):
        gs.sweep(**QUADRATIC | {"seeds": [0, 2]}, record_dir=tmp_path, should_stop=stopping_after(50))
    kept = (tmp_path / "BEER-seed1.jsonl").read_bytes()
    with pytest.raises(gs.InputError, match=r"`seeds.*` is \[0, 2\] there and \[0\] here"):
        gs.sweep(**QUADRATIC | {"seeds": [0]}, record_dir=tmp_path, resume=True)
    runs = gs.sweep(**QUADRATIC | {"seeds": [0, 1, 2, 3]}, record_dir=tmp_path, resume=True)
    assert [run.seed for run in runs] == [0, 1, 2, 3]
    assert all(torch.equal(one.x, two.x) for one, two in zip(whole, runs, strict=True))
    assert (tmp_path / "BEER-seed1.jsonl").read_bytes() == kept, "read, not run"


def test_seeds_that_diverged_stay_so(tmp_path: Path) -> None:
    steep = gs.quadratic(clients=6, d=8, dtype="float32")
    method = gs.DSGD(lr=40.0)
    settings: dict[str, Any] = {"rounds": 60, "seeds": [0, 1], "eval_every": 5, "x0": "normal"}
    whole = gs.sweep(method, steep, MIXING, **settings)
    assert all(run.diverged for run in whole)
    with pytest.raises(StoppedError):
        gs.sweep(method, steep, MIXING, record_dir=tmp_path, should_stop=stopping_after(15), **settings)
    runs = gs.sweep(method, steep, MIXING, record_dir=tmp_path, resume=True, **settings)
    assert [run.diverged for run in runs] == [run.diverged for run in whole]


@pytest.mark.parametrize("name", methods.names())
def test_every_state_is_packed_and_unpacked(name: str, tmp_path: Path) -> None:
    cls: Any = methods.get(name)
    takes = "compressor" in cls.__dataclass_fields__
    method = cls(**cls.examples[0], **({"compressor": gs.qsgd(16)} if takes else {}))
    simulation = Simulation(method, PROBLEM, MIXING)
    with torch.no_grad():
        simulation.step()
        write(tmp_path / "a.safetensors", simulation.session.save(), {})
        simulation.step()
        other = Simulation(method, PROBLEM, MIXING)
        other.session.restore(1, read(tmp_path / "a.safetensors").tensors)
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
        whole[:-1] + b"\xff": "checksum does not match",
        whole.replace(b'\\"round\\": 3', b'\\"round\\": 7'): "checksum does not match",
        whole.replace(b'\\"format\\": 2', b'\\"format\\": 9'): "format 9",
    }
    for data, reason in cases.items():
        path.write_bytes(data)
        with pytest.raises(DataError, match=reason):
            read(path)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(DataError, match="was not written by Gossamer"):
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
