"""The benchmark of slow links: hosts are what they say, real runs are those of the simulator, tables add up."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.links.cells import CELLS, CONFIRMED
from benchmarks.links.contenders import CONTENDERS, settings
from benchmarks.links.hosts import Hosts, Refused, probe
from benchmarks.links.matrix import Cell, confirmed, fleet, measured
from benchmarks.links.progress import PowerSGD, curve, rounds_of
from benchmarks.links.search import FINAL, Problem, Search, read
from benchmarks.links.table import Results, bars, draw, reference, whole
from benchmarks.links.tasks import problem as problem_of

_LISTEN = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
link, _ = server.accept()
while data := link.recv(1 << 16):
    link.sendall(data[:1])
"""
_SEND = """
import socket, sys, time
link = socket.create_connection((sys.argv[1], 5000))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for size in [1] * 5 + [int(sys.argv[2])]:
    began = time.monotonic()
    link.sendall(bytes(size))
    link.shutdown(socket.SHUT_WR) if size > 1 else None
    while link.recv(1 << 16) and size == 1 and not times.append(time.monotonic() - began):
        break
else:
    while link.recv(1 << 16):
        pass
    times.append(time.monotonic() - began)
print(sorted(times[:5])[2], times[-1])
"""


@pytest.fixture(scope="module")
def _hosts() -> Iterator[None]:
    try:
        probe()
    except Refused as reason:
        pytest.skip(f"hosts cannot be made here: {reason}")
    before = _namespaces()
    yield
    assert _namespaces() == before


def _namespaces() -> set[str]:
    return {path.name for path in Path("/var/run/netns").glob("*")} if Path("/var/run/netns").is_dir() else set()


@pytest.mark.slow
@pytest.mark.usefixtures("_hosts")
@pytest.mark.parametrize(("delay_ms", "mbit"), [(10.0, 20.0), (0.0, 20.0), (10.0, 5.0)])
def test_links_have_their_rate_and_their_delay(delay_ms: float, mbit: float) -> None:
    size = 500_000
    with Hosts(2, delay_ms) as hosts:
        hosts.shape(mbit)
        command = hosts.command(1, sys.executable, "-c", _LISTEN, hosts.address(1))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
            assert listener.stdout is not None
            listener.stdout.readline()
            command = hosts.command(0, sys.executable, "-c", _SEND, hosts.address(1), str(size))
            there = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        trip, sending = map(float, there.stdout.split())
        assert 2 * delay_ms / 1e3 <= trip <= 2 * delay_ms / 1e3 + 0.01
        assert 0.9 * size * 8 / (mbit * 1e6) <= sending <= 1.5 * size * 8 / (mbit * 1e6) + 0.2


@pytest.mark.slow
@pytest.mark.usefixtures("_hosts")
def test_real_runs_are_those_of_the_simulator(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(data_dir))
    names = ["CHOCO-SGD, blockwise_gsgd_3,256, H 5", "DDP float32", "all-reduce, H 5", "MoTEF, blockwise_gsgd_3,256"]
    problem, many = Problem("hidden", hosts=2), 3
    with fleet(2, 0.0) as runner:
        for name in names:
            setting = settings(CONTENDERS[name])[1]
            cell = Cell(problem, name, 100.0, 0.0)
            real = runner.run(cell, setting, seed=1, rounds=many, snapshots=str(tmp_path), every=1)
            models = np.stack([np.load(tmp_path / f"{i}.npy")[-1] for i in range(2)])
            rounds = rounds_of("hidden", "dirichlet", 2, CONTENDERS[name], setting, 1)
            simulated = next(itertools.islice(rounds, many - 1, None)).expand(2, -1)
            start = problem_of("hidden", "dirichlet", 2).x0()  # rounding may change a level of a message here and there
            apart, moved = torch.from_numpy(models) - simulated, simulated - start
            assert float(apart.norm() / moved.norm()) < 0.05, name
            assert len(real) == 2
            row = measured(cell, real)
            assert 0 < row["seconds"] < 5
            assert row["wire"] > 1000
            assert row["payload"] is None or row["payload"] < row["wire"]
        row = confirmed(runner, cell, setting, 0, 2)
        assert (row["rounds"], row["time"]) == (None, None)


@pytest.mark.slow
@pytest.mark.usefixtures("_hosts")
def test_an_interrupted_measurement_leaves_nothing_behind(tmp_path: Path) -> None:
    before = _namespaces()
    command = [sys.executable, "-m", "benchmarks.links", "--measure", "--results", str(tmp_path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL) as process:
        limit = time.monotonic() + 60
        while len(_namespaces()) < len(before) + 4 and time.monotonic() < limit:
            time.sleep(0.1)
        assert len(_namespaces()) > len(before)
        process.terminate()
        assert process.wait(30) == 143
    assert _namespaces() == before


def test_the_matrix_is_of_known_contenders_and_is_not_too_large() -> None:
    assert len(CELLS) <= 120
    assert len({str(cell) for cell in CELLS}) == len(CELLS)
    assert len(CONFIRMED) >= 8
    assert all(len(settings(contender)) == 12 for contender in CONTENDERS.values())


def test_powersgd_is_exact_on_gradients_of_its_rank() -> None:
    shapes, draw = [torch.Size([30, 20]), torch.Size([5])], torch.Generator().manual_seed(0)
    low = (torch.randn(30, 2, generator=draw) @ torch.randn(2, 20, generator=draw)).flatten()
    gradients = torch.cat([low, torch.ones(5)]).expand(3, -1)
    for rank, is_exact in ((2, True), (1, False)):
        hook = PowerSGD(rank, shapes)
        for t in range(4):
            found = hook(gradients, t)
        assert torch.allclose(found, gradients[0], atol=1e-4) == is_exact
        assert torch.equal(found[-5:], torch.ones(5))


def test_a_search_keeps_the_setting_with_the_fewest_rounds(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(data_dir))
    few = [{"inner": "momentum", "lr": 0.3}, {"inner": "momentum", "lr": 0.001}]
    monkeypatch.setattr("benchmarks.links.search.settings", lambda contender: few)
    monkeypatch.setattr("benchmarks.links.search.FINAL", (0,))
    monkeypatch.setattr(Problem, "target", 0.5)
    row = Search(Problem("hidden"), "DDP float32").run("cpu")
    assert row["setting"] == few[0]
    assert row["trials"][1]["rounds"] is None
    assert row["final"][0]["rounds"] < 20
    assert curve("hidden", "dirichlet", 4, CONTENDERS["DDP float32"], few[1], 0, rounds=4)[-1].mean < 0.5


def _written(folder: Path) -> Results:
    ours, ddp = "CHOCO-SGD, blockwise_gsgd_3,256, H 20", "DDP float32"
    final: Any = {"final": [{"seed": seed, "rounds": 10 + seed} for seed in FINAL], "setting": {}}
    searched = [
        vars(Problem(split=split)) | {"contender": name} | final
        for name in (ours, ddp)
        for split in ("dirichlet", "digit")
    ]
    (folder / "links_search.jsonl").write_text("".join(json.dumps(row) + "\n" for row in searched))
    more = {"delay_ms": 10.0, "codec": "auto", "wire": 1e5, "waiting": 0.5}
    cells = [
        vars(Problem()) | {"contender": name, "mbit": mbit, "seconds": seconds} | more
        for mbit in (1.0, 10.0, 20.0, 100.0)
        for name, seconds in ((ours, 0.1), (ddp, 2.0))
    ]
    (folder / "links.json").write_text(json.dumps(cells))
    run = {
        "contender": ours,
        "mbit": 20.0,
        "delay_ms": 10.0,
        "codec": "auto",
        "simulated": 10,
        "rounds": 11,
        "time": 1.1,
    }
    (folder / "links_confirmed.json").write_text(json.dumps([vars(Problem()) | run]))
    return Results(folder)


def test_tables_multiply_rounds_by_seconds_and_add_one_average(tmp_path: Path) -> None:
    found = _written(tmp_path)
    assert found.time(Problem(), "DDP float32", 20.0) == pytest.approx(11 * 2.0)
    assert found.time(Problem(), "CHOCO-SGD, blockwise_gsgd_3,256, H 20", 20.0) == pytest.approx(11 * 0.1 + 2.0)
    assert found.time(Problem(split="digit"), "DDP float32", 20.0) == pytest.approx(11 * 2.0)
    assert found.time(Problem(split="digit"), "CHOCO-SGD, blockwise_gsgd_3,256, H 20", 20.0) is None
    assert "(7.1x)" in bars(found)
    assert reference(found).splitlines()[2].startswith("| CHOCO-SGD")
    assert "+10%" in whole(found)
    draw(tmp_path)
    assert (tmp_path / "links.png").stat().st_size > 10_000


def test_committed_results_are_those_of_the_table() -> None:
    folder = Path(__file__).parents[1] / "docs" / "results"
    found = Results(folder)
    assert {json.dumps(cell.key) for cell in CELLS} >= {
        json.dumps({name: row[name] for name in CELLS[0].key}) for row in found.measured
    }
    assert bars(found) in (folder / "links.md").read_text()
    assert len(read(folder / "links_search.jsonl")) >= 100
    assert os.path.getsize(folder / "links.png") > 10_000
