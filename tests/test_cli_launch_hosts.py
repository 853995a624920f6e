"""`gossamer launch --hosts`: several hosts on one machine, what they expose, and links that are cut."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import checkpointed, descendants, finish, listeners, rank_of, ranks_of, same, spec, start, wait_for

pytestmark = pytest.mark.usefixtures("no_process_left")


def namespaces() -> str:
    """Why there are none, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command `ip` is not installed"
    probe = f"gsm-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return f"network namespaces cannot be made: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Three hosts on one machine, joined by a bridge; their names are their addresses."""
    if reason := namespaces():
        pytest.skip(reason)
    # Named after this process: what a run that was killed, or one beside this, has left is not in the way.
    switch, (high, low) = f"gsm-switch-{os.getpid()}", divmod(os.getpid() % 2**16, 256)
    names = [f"10.{high}.{low}.{i}" for i in (1, 2, 3)]
    for name in [*names, switch]:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    commands = [
        f"ip netns add {switch}",
        f"ip -n {switch} link add br0 type bridge",
        f"ip -n {switch} link set br0 up",
    ]
    for number, name in enumerate(names):
        commands += [
            f"ip netns add {name}",
            f"ip -n {name} link set lo up",
            f"ip link add eth0 netns {name} type veth peer name p{number} netns {switch}",
            f"ip -n {name} addr add {name}/24 dev eth0",
            f"ip -n {name} link set eth0 up",
            f"ip -n {switch} link set p{number} master br0",
            f"ip -n {switch} link set p{number} up",
        ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield names
    finally:
        for name in [*names, switch]:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.slow
def test_several_hosts(hosts: list[str], tmp_path: Path) -> None:
    """And one of them loses a rank: the models are those of a run on one host where nothing happens."""
    spec(tmp_path, rounds=1200, clients=5)
    assert finish(start(tmp_path, "-o", "whole", "-q")) == (0, "")
    more = ["--rsh", "ip netns exec", "--max-restarts", "2", "--checkpoint-every", "50", "-q"]
    process = start(tmp_path, "-o", "real", "--hosts", f"{hosts[0]},{hosts[1]}:1,{hosts[2]}", *more)
    wait_for(lambda: checkpointed(tmp_path / "real") > 60, 100)
    os.kill(ranks_of(tmp_path)[2], signal.SIGKILL)
    code, err = finish(process)
    assert code == 0, err
    same(tmp_path / "whole", tmp_path / "real", "BEER-seed0")


@pytest.mark.slow
def test_what_several_hosts_expose(hosts: list[str], tmp_path: Path) -> None:
    """Ranks, and the place where they meet, listen on the addresses of their hosts; torchrun is not used."""
    spec(tmp_path, rounds=100000, clients=3)
    process = start(
        tmp_path, "-o", "out", "-q", "--checkpoint-every", "10", "--rsh", "ip netns exec", "--hosts", ",".join(hosts)
    )
    heard, commands = set(), set()

    def look() -> bool:
        family = descendants(process.pid)
        heard.update(listeners(family))
        for pid in family:
            try:
                commands.add(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return checkpointed(tmp_path / "out") > 10

    wait_for(look, 120)
    assert heard == set(hosts)
    assert not [command for command in commands if "torch" in command]
    begin = time.monotonic()
    process.kill()
    finish(process)
    wait_for(lambda: ranks_of(tmp_path) == [], 5)
    assert time.monotonic() - begin < 5


@pytest.mark.slow
@pytest.mark.parametrize("what", ["cut", "frozen"])
def test_a_host_that_is_silent_holds_nobody_up(what: str, hosts: list[str], tmp_path: Path) -> None:
    spec(tmp_path, rounds=100000, clients=4)
    more = ["--rsh", "ip netns exec", "--timeout", "3", "--checkpoint-every", "10", "-q"]
    process = start(tmp_path, "-o", "out", "--hosts", f"{hosts[0]}:2,{hosts[1]},{hosts[2]}", *more)
    wait_for(lambda: checkpointed(tmp_path / "out") > 10, 120)
    far = next(pid for pid in ranks_of(tmp_path) if rank_of(pid) == 2)
    if what == "cut":
        subprocess.run(["ip", "-n", hosts[1], "link", "set", "eth0", "down"], check=True)
    else:
        os.kill(far, signal.SIGSTOP)
    wait_for(lambda: set(ranks_of(tmp_path)) <= {far}, 40)
    begin = time.monotonic()
    code, err = finish(process, 60)
    assert time.monotonic() - begin < 5
    assert code == 1
    assert "has heard nothing from its neighbour" in err
    assert ranks_of(tmp_path) == []


@pytest.mark.slow
def test_a_host_that_cannot_be_reached(tmp_path: Path) -> None:
    spec(tmp_path, clients=4)
    code, err = finish(start(tmp_path, "-o", "out", "-q", "--rsh", "false", "--hosts", "alpha,beta"), 60)
    assert code == 1
    assert "The connection to host 'alpha' ended with exit code 1." in err
    assert "Traceback" not in err
