"""`gossamer launch`: the same spec across real processes, stopped, killed and resumed."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from commands import forked
from launching import DSGD, checkpointed, finish, nothing_left, rank_of, ranks_of, same, spec, start, wait_for

import gossamer as gs
from gossamer.records.checkpoint import read

pytestmark = pytest.mark.usefixtures("no_process_left")


def test_launched_is_simulated(tmp_path: Path) -> None:
    spec(tmp_path, clients=3, more=DSGD)
    process = start(tmp_path, "-o", "real", "--json")
    simulated = forked("run", "my.toml", "-o", "simulated", "-q", cwd=tmp_path)
    assert simulated.returncode == 0, simulated.stderr
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert [row["method"] for row in json.loads(out)["methods"]] == ["BEER", "DSGD"]
    assert "BEER: 60 rounds, 3 processes" in err
    for name in ("BEER-seed0", "DSGD-seed0"):
        same(tmp_path / "real", tmp_path / "simulated", name, tolerance=1e-12)
        end = gs.read_record(tmp_path / "real" / f"{name}.jsonl").end
        assert end is not None
        assert end.status == "finished"
        assert {(link.client, link.neighbor) for link in end.links} == {
            (i, j) for i in range(3) for j in range(3) if i != j
        }
        assert all(link.packets_sent == link.packets_received == 60 for link in end.links)
    logs = sorted(path.name for path in (tmp_path / "real" / "logs").glob("rank*.log"))
    assert logs == ["rank0.log", "rank1.log", "rank2.log"]
    lines = (tmp_path / "real" / "links.csv").read_text().splitlines()
    assert lines[0].startswith("method,seed,client,neighbor,packets_sent,bytes_sent")
    assert len(lines) == 1 + 2 * 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hosts", "a,a"], "`hosts` must be different names"),
        (["--hosts", "a:9,b"], "which 'a:9,b' does not match"),
        (
            ["--hosts=-oProxyCommand=id,b"],
            "must not begin with a dash, which ssh takes for an option, got '-oProxy",
        ),
        (["--hosts", "a,me@-b"], "must not begin with a dash, which ssh takes for an option, got 'me@-b'"),
        (["--nproc-per-node", "3"], "The spec has 4 clients, one per process, but --nproc-per-node is 3"),
        (
            ["--nnodes", "2", "--node-rank", "0", "--master-addr", "a", "--max-restarts", "1"],
            "--max-restarts 1 does not work with the static rendezvous",
        ),
        (["--hosts", "a,b", "--nnodes", "2"], "--hosts and --nnodes exclude each other"),
        (["--hosts", "a,b:3", "--port", "65534"], "`port` must be an integer from 1 to 65533, got 65534"),
        (["--port", "5000"], "--port 5000 is for --hosts; on one host nothing listens beyond loopback"),
        (["--timeout", "0"], "`timeout` must be a number above 0"),
        (["--max-restarts", "-1"], "`max-restarts` must be an integer"),
        (["--checkpoint-every", "0"], "`checkpoint-every` must be an integer"),
    ],
)
def test_mistakes(arguments: list[str], said: str, tmp_path: Path) -> None:
    spec(tmp_path)
    done = forked("launch", "my.toml", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_wrong_number_of_processes_and_a_spec_that_differs(tmp_path: Path) -> None:
    path = spec(tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    command = [*torchrun, "3", "-m", "gossamer", "launch", "my.toml", "-o", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert "The spec has 4 clients, one per process, but 3 processes were started; start 4." in done.stderr
    command[4] = "4"
    for said in ("gradient norm", "exists already"):  # shown by rank 0, and not overwritten the second time
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
        assert said in done.stdout + done.stderr
        assert (done.returncode == 0) == (said == "gradient norm")
    other = tmp_path / "other.toml"
    other.write_text(path.read_text().replace("lr = 0.1", "lr = 0.2"))
    script = tmp_path / "differ.py"
    script.write_text(
        "import os, sys\nfrom gossamer.cli import main\n"
        "which = 'other.toml' if os.environ['RANK'] == '2' else 'my.toml'\n"
        "sys.exit(main(['launch', which, '-o', 'other']))\n"
    )
    done = subprocess.run(
        [*torchrun, "4", str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode != 0
    assert "The ranks do not agree: the spec is" in done.stderr
    assert "on rank 2" in done.stderr


@pytest.mark.slow
def test_stopped_and_resumed(tmp_path: Path) -> None:
    spec(tmp_path, rounds=600, seeds="[0, 1]")
    assert finish(start(tmp_path, "-o", "whole", "-q")) == (0, "")
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(tmp_path, "-o", "cut", "--checkpoint-every", "100", "--resume", "-q")
        begun = time.time()
        wait_for(lambda: checkpointed(tmp_path / "cut", since=begun) > 0)  # noqa: B023
        process.send_signal(number)
        code, err = finish(process, 200)
        assert code == 128 + number, err
        assert "was stopped after round" in err
        assert "--resume" in err
    assert finish(start(tmp_path, "-o", "cut", "--checkpoint-every", "100", "--resume", "-q")) == (0, "")
    for name in ("BEER-seed0", "BEER-seed1"):
        same(tmp_path / "whole", tmp_path / "cut", name)
    nothing_left(tmp_path)
    again = forked("launch", "my.toml", "-o", "cut", "-q", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.long)])
def test_killed_many_times(kills: int, tmp_path: Path) -> None:
    """kill -9 of a rank at random rounds: training restarts by itself and ends with the very same models."""
    spec(tmp_path, rounds=1000 + 750 * kills)
    assert finish(start(tmp_path, "-o", "whole", "-q")) == (0, "")
    process = start(tmp_path, "-o", "cut", "--checkpoint-every", "40", "--max-restarts", str(kills), "-q")
    chance, times, seen = random.Random(0), [time.time()], set[int]()
    while len(times) <= kills and process.poll() is None:
        ranks = ranks_of(tmp_path)  # of this attempt, once it goes on
        if len(ranks) == 4 and not seen & set(ranks) and checkpointed(tmp_path / "cut", since=times[-1] + 1) > 0:
            time.sleep(chance.random() * 0.5)
            os.kill(chance.choice(ranks), signal.SIGKILL)
            times.append(time.time())
            seen = set(ranks)
        time.sleep(0.05)
    code, err = finish(process, 300)
    assert code == 0, err
    assert len(times) == kills + 1
    print(f"\n{kills} kills, {(times[-1] - times[1]) / (kills - 1):.1f} s from one to the next")
    same(tmp_path / "whole", tmp_path / "cut", "BEER-seed0")
    nothing_left(tmp_path)


@pytest.mark.slow
def test_a_rank_that_dies_is_named_and_all_end(tmp_path: Path) -> None:
    spec(tmp_path, rounds=100000, clients=6)
    process = start(tmp_path, "-o", "out", "-q", "--checkpoint-every", "10")
    wait_for(lambda: checkpointed(tmp_path / "out") > 10)
    victim = next(pid for pid in ranks_of(tmp_path) if rank_of(pid) == 4)
    os.kill(victim, signal.SIGKILL)
    begin = time.time()
    code, err = finish(process, 200)
    assert time.time() - begin < 10
    assert code == 1
    assert "lost its neighbour 4 in round" in err
    assert "Traceback" not in err
    assert ranks_of(tmp_path) == []


@pytest.mark.slow
def test_divergence_ends_one_run_and_not_the_others(tmp_path: Path) -> None:
    wild = '[[methods]]\nname = "dsgd"\nlr = 1.5e308\nlabel = "wild"\n' + DSGD
    spec(tmp_path, rounds=40, more=wild)
    code, err = finish(start(tmp_path, "-o", "out", "-q", "--tensorboard", "events"))
    assert code == 1, err
    assert "diverged in round" in err
    ends = {path.stem: gs.read_record(path).end for path in (tmp_path / "out").glob("*.jsonl")}
    statuses = {name: end.status for name, end in ends.items() if end is not None}
    assert statuses == {"BEER-seed0": "finished", "DSGD-seed0": "finished", "wild-seed0": "diverged"}
    events = {path.parent.name for path in (tmp_path / "events").rglob("events.out.tfevents.*")}
    assert events == {f"client{rank}" for rank in range(4)}


def test_models_are_kept_beside_the_record(tmp_path: Path) -> None:
    spec(tmp_path, rounds=5)
    assert forked("run", "my.toml", "-o", "out", "-q", cwd=tmp_path).returncode == 0
    models = read(tmp_path / "out" / "BEER-seed0.safetensors").tensors["models"]
    assert models.shape == (4, 31)
    assert models.dtype == torch.float64


@pytest.mark.slow
def test_torchruns_own_flags(tmp_path: Path) -> None:
    """Two launchers, as on two hosts that share no disk."""
    spec(tmp_path, rounds=60)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    flags = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    first = start(tmp_path, "-o", "one", "--node-rank", "0", *flags)
    second = start(tmp_path, "-o", "two", "--node-rank", "1", *flags)
    assert finish(first)[0] == 0
    code, err = finish(second)
    assert code == 0
    assert "the records are on the host of rank 0" in err
    assert forked("run", "my.toml", "-o", "simulated", "-q", cwd=tmp_path).returncode == 0
    same(tmp_path / "one", tmp_path / "simulated", "BEER-seed0", tolerance=1e-12)
    assert {path.name for path in (tmp_path / "two" / "logs").glob("rank*")} == {"rank2.log", "rank3.log"}
