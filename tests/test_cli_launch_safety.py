"""`gossamer launch` and those around it: what listens, who is signalled, who may write, and how soon all is over."""

import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import forked
from launching import (
    checkpointed,
    descendants,
    finish,
    listeners,
    nothing_left,
    rank_of,
    ranks_of,
    spec,
    start,
    wait_for,
)
from processes import free_port

pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.mark.slow
def test_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    """And nobody unpickles: torchrun, whose rendezvous does, is not among the processes."""
    spec(tmp_path, rounds=200, clients=3)
    process = start(tmp_path, "-o", "out", "-q")
    heard, commands = set(), set()
    try:
        while process.poll() is None:
            family = descendants(process.pid)
            heard |= listeners(family)
            for pid in family:
                try:
                    commands.add(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
                except OSError:
                    continue
            time.sleep(0.02)
    finally:
        code, err = finish(process)
    assert code == 0, err
    assert heard, "gloo listens for its neighbours"
    assert all(ipaddress.ip_address(address).is_loopback for address in heard), heard
    assert commands
    assert not [command for command in commands if "torch" in command]


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_stop_request_reaches_no_stranger(stranger: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    """Whatever a file in the folder says: the launcher asks its own ranks."""
    spec(tmp_path, rounds=100000)
    process = start(tmp_path, "-o", "out", "-q", "--checkpoint-every", "10")
    wait_for(lambda: checkpointed(tmp_path / "out") > 10)
    first = next(pid for pid in ranks_of(tmp_path) if rank_of(pid) == 0)
    os.kill(first, signal.SIGSTOP)  # so that it does not write the file anew
    time.sleep(0.5)
    named = {"label": "BEER", "seed": 0, "done": 5, "pid": stranger.pid}
    (tmp_path / "out" / "logs" / "progress.json").write_text(json.dumps(named))
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    os.kill(first, signal.SIGCONT)
    code, err = finish(process, 60)
    assert stranger.poll() is None
    assert code == 128 + signal.SIGTERM
    assert "was stopped after round" in err


@pytest.mark.slow
def test_a_launcher_that_is_killed_takes_its_ranks_along(tmp_path: Path) -> None:
    spec(tmp_path, rounds=100000)
    process = start(tmp_path, "-o", "out", "-q", "--checkpoint-every", "50")
    wait_for(lambda: checkpointed(tmp_path / "out") > 0)
    second = forked("launch", "my.toml", "-o", "out", "--resume", "-q", cwd=tmp_path)
    assert second.returncode == 2
    assert f"'out' is in use by process {process.pid} on {socket.gethostname()} since " in second.stderr
    assert len(ranks_of(tmp_path)) == 4, "those that run go on"
    process.kill()
    finish(process)
    wait_for(lambda: ranks_of(tmp_path) == [], 5)
    assert list((tmp_path / "tmp").iterdir()) == []
    third = start(tmp_path, "-o", "out", "--resume", "--checkpoint-every", "50")
    begun = time.time()
    wait_for(lambda: checkpointed(tmp_path / "out", since=begun) > 0)
    third.send_signal(signal.SIGINT)
    code, err = finish(third, 60)
    assert code == 128 + signal.SIGINT
    assert "resumes after round" in err


@pytest.mark.slow
def test_a_rank_that_is_frozen_holds_nobody_up(tmp_path: Path) -> None:
    spec(tmp_path, rounds=100000)
    process = start(tmp_path, "-o", "out", "-q", "--checkpoint-every", "10", "--timeout", "3")
    wait_for(lambda: checkpointed(tmp_path / "out") > 10)
    frozen = next(pid for pid in ranks_of(tmp_path) if rank_of(pid) == 2)
    os.kill(frozen, signal.SIGSTOP)
    wait_for(lambda: set(ranks_of(tmp_path)) <= {frozen}, 30)
    begin = time.monotonic()
    code, err = finish(process, 60)
    assert time.monotonic() - begin < 5
    assert code == 1
    assert "has heard nothing from its neighbour 2 for 3 s" in err
    assert ranks_of(tmp_path) == []


@pytest.mark.slow
def test_restarts_with_the_flags_of_a_static_rendezvous(tmp_path: Path) -> None:
    spec(tmp_path, rounds=2000)
    flags = ["--nnodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    process = start(tmp_path, "-o", "out", *flags, "--max-restarts", "1", "--checkpoint-every", "50")
    wait_for(lambda: checkpointed(tmp_path / "out") > 50)
    os.kill(ranks_of(tmp_path)[0], signal.SIGKILL)
    code, err = finish(process)
    assert code == 0, err
    assert "was ended by SIGKILL. All ranks start again from their checkpoints (1 of 1 restarts)." in err
    assert "resumes after round" in err
    nothing_left(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small disk needs root and `mount`")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_named(small_disk: Path, tmp_path: Path) -> None:
    spec(tmp_path, rounds=2000)
    code, err = finish(start(tmp_path, "-o", str(small_disk / "out"), "-q", "--checkpoint-every", "1"))
    assert code == 1
    assert "no space left on the disk" in err or "No space left on device; free" in err
    assert "exit code" not in err
    assert "Traceback" not in err
    assert ranks_of(tmp_path) == []
