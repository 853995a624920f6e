"""Lists in a spec: every combination is a run of its own, the same alone, beside others and in another process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer.errors import InputError, StoppedError
from gossamer.records.record import read_record
from gossamer.records.runs import Runs
from gossamer.runtime.experiment import prepare
from gossamer.runtime.planning import jobs
from gossamer.runtime.planning.jobs import run_over_cores, usual_jobs
from gossamer.spec import MOST_COMBINATIONS, parse_spec

TABLE: dict[str, Any] = {
    "rounds": 30,
    "seeds": [0, 1],
    "batch_size": 2,
    "eval_every": 5,
    "problem": {"objective": "quadratic", "clients": 6, "noise": 1.0},
    "graph": {"name": ["ring", "complete"]},
    "methods": [
        {"name": "beer", "lr": [0.1, 0.05], "gamma": 0.4, "compressor": ["gsgd:5", {"name": "top_k", "fraction": 0.5}]},
        {"name": "dsgd", "lr": 0.1, "label": "plain"},
    ],
}
LABELS = [
    *(
        f"BEER lr={lr} {c} {g}"
        for g in ("ring", "complete")
        for lr in (0.1, 0.05)
        for c in ("gsgd:5", "top_k:fraction=0.5")
    ),
    "plain ring",
    "plain complete",
]


def equal(one: Runs, other: Runs) -> None:
    """The same runs, bit for bit, but for their times."""
    assert [(run.label, run.seed) for run in one] == [(run.label, run.seed) for run in other]
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.snapshot, b.snapshot)
        assert a.frame.drop(columns="seconds").equals(b.frame.drop(columns="seconds"))
        assert a.record.header.identity == b.record.header.identity


def test_every_combination_has_its_label_and_equals_a_run_alone() -> None:
    experiment = prepare(parse_spec(TABLE))
    assert list(experiment.methods) == LABELS
    runs = experiment.run()
    assert len(runs) == 2 * len(LABELS)
    problem = gs.quadratic(clients=6, noise=1.0)
    method = gs.BEER(lr=0.05, gamma=0.4, compressor=gs.gsgd(5))
    mixing = gs.mixing_matrix(gs.topology.complete(6))
    alone = gs.simulate(method, problem, mixing, rounds=30, seed=1, batch_size=2, eval_every=5)
    (same,) = (run for run in runs if run.label == "BEER lr=0.05 gsgd:5 complete" and run.seed == 1)
    assert torch.equal(alone.snapshot, same.snapshot)
    assert alone.frame.drop(columns="seconds").equals(same.frame.drop(columns="seconds"))


def test_processes_give_the_same_records(tmp_path: Path) -> None:
    experiment = prepare(parse_spec(TABLE))
    heard: dict[str, int] = {}
    runs = run_over_cores(experiment, 2, record_dir=tmp_path, progress=lambda label, t: heard.update({label: t}))
    equal(runs, experiment.run())
    assert heard == dict.fromkeys(LABELS, 30)
    assert not (tmp_path / "checkpoints").exists()
    with pytest.raises(InputError, match="exists already"):
        run_over_cores(experiment, 2, record_dir=tmp_path)


def test_processes_stop_and_resume(tmp_path: Path) -> None:
    beer = TABLE["methods"][0] | {"compressor": "gsgd:5"}
    table = TABLE | {"rounds": 2000, "eval_every": 500, "graph": {"name": "ring"}, "methods": [beer]}
    experiment = prepare(parse_spec(table))
    moved: list[int] = []
    with pytest.raises(StoppedError):
        run_over_cores(
            experiment,
            2,
            record_dir=tmp_path,
            progress=lambda _, t: moved.append(t),
            should_stop=lambda: any(0 < t < 2000 for t in moved),
        )
    assert list((tmp_path / "checkpoints").glob("*.safetensors")), "stopped with a checkpoint"
    equal(run_over_cores(experiment, 2, record_dir=tmp_path, resume=True), experiment.run())


def test_a_failure_in_a_process_is_that_of_the_run(tmp_path: Path) -> None:
    experiment = prepare(parse_spec(TABLE))
    (tmp_path / "plain-ring-seed0.jsonl").mkdir()
    with pytest.raises(gs.errors.GossamerError, match="plain-ring-seed0"):
        run_over_cores(experiment, 2, record_dir=tmp_path, resume=True)


SPEC = """
rounds = 40000
seeds = [0]
eval_every = 100
problem = { objective = "quadratic", clients = 6 }
graph = { name = "ring" }
[[methods]]
name = "beer"
lr = [0.1, 0.05, 0.02]
gamma = 0.4
compressor = "gsgd:5"
"""


def started(folder: Path) -> "subprocess.Popen[str]":
    (folder / "my.toml").write_text(SPEC)
    command = [sys.executable, "-m", "gossamer", "run", "my.toml", "--jobs", "2", "-o", "out"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + 120
    while len([path for path in (folder / "out").glob("*.jsonl") if path.read_text().count("\n") > 3]) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)
    return process


def of_group(group: int) -> list[int]:
    """The processes of a process group that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, number = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(number) == group and state != "Z":
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("signals", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill"])
def test_ctrl_c_and_a_kill_leave_records_that_resume_and_no_process(signals: signal.Signals, tmp_path: Path) -> None:
    process = started(tmp_path)
    if signals == signal.SIGINT:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Resume it with `gossamer run" in errors
    else:
        process.kill()
        process.communicate(timeout=60)
    end = time.monotonic() + 60
    while Path("/proc").exists() and of_group(process.pid):
        assert time.monotonic() < end, "a process was left behind"
        time.sleep(0.2)
    before = {path.name: len(read_record(path).rows) for path in (tmp_path / "out").glob("*.jsonl")}
    assert len(before) >= 2
    assert all(rows > 1 for rows in before.values())
    assert list((tmp_path / "out" / "checkpoints").glob("*.safetensors"))


def test_lists_that_make_no_sense_are_refused() -> None:
    beer = TABLE["methods"][0]
    with pytest.raises(InputError, match="`lr` must hold at least one value"):
        parse_spec(TABLE | {"methods": [beer | {"lr": []}]})
    many = parse_spec(TABLE | {"methods": [beer | {"lr": [0.1 / (1 + i) for i in range(60)]}]})
    with pytest.raises(InputError, match=rf"240 combinations .* at most {MOST_COMBINATIONS}"):
        prepare(many)
    with pytest.raises(InputError, match="Two methods of the spec are called"):
        prepare(parse_spec(TABLE | {"methods": [beer | {"lr": [0.1, 0.1]}]}))
    wrong: list[Any] = [[], ["ring"], {"name": [1]}, {"name": []}, [{"rows": 3}]]
    for graph in wrong:
        with pytest.raises(InputError, match="graph"):
            parse_spec(TABLE | {"graph": graph})


def test_graphs_may_be_tables() -> None:
    grids = [{"name": "grid", "rows": 2, "cols": 3}, {"name": "grid", "rows": 1, "cols": 6}, {"name": "ring"}]
    experiment = prepare(parse_spec(TABLE | {"graph": grids, "methods": [TABLE["methods"][1]]}))
    assert list(experiment.methods) == ["plain grid:rows=2,cols=3", "plain grid:rows=1,cols=6", "plain ring"]
    edges = [mixing.graph.number_of_edges() for mixing in experiment.networks.values()]
    assert edges == [7, 5, 6]
    with pytest.raises(InputError, match="`gossamer launch` takes one graph, got 3"):
        experiment.check_one_graph("gossamer launch")


def test_processes_are_started_by_default_only_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = prepare(parse_spec(TABLE))
    assert usual_jobs(experiment) == 1, "it is over sooner than a process starts"
    monkeypatch.setattr(jobs, "cores", lambda: 3)
    assert usual_jobs(prepare(parse_spec(TABLE | {"rounds": 10**7}))) == 3
    large = {"objective": "quadratic", "clients": 6, "d": 200_000, "rows": 1}
    one = {"problem": large, "rounds": 10**7, "seeds": [0], "batch_size": 1, "methods": [{"name": "dsgd", "lr": 0.1}]}
    assert usual_jobs(prepare(parse_spec(TABLE | one))) == 1, "large rounds use all cores themselves"
