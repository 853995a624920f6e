"""`gossamer launch --hosts`: several hosts on one machine, what they expose, and links that are cut."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import forked
from launching import (
    checkpointed,
    descendants,
    finish,
    listening,
    nothing_left,
    rank_of,
    ranks_of,
    same,
    spec,
    start,
    wait_for,
)
from namespaces import joined
from processes import free_port
from strangers import with_a_wrong_key, without_a_key

import gossamer as gs
from gossamer.runtime.transport.peers import Peer, read_peers

pytestmark = pytest.mark.usefixtures("no_process_left")


ON_LOOPBACK = ["--hosts", "localhost:2,127.0.0.1", "--rsh", "sh -c '\"$@\"'"]
"""Two hosts that are this one; the command gets the name of the host as $0."""


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    with joined(3) as names:
        yield names


def peers_of(folder: Path) -> dict[int, Peer]:
    """Those of the launch that runs, once all agents have written the same file."""
    texts = {path.read_text() for path in (folder / "tmp").glob("*/peers.toml")}
    assert len(texts) == 1
    (folder / "peers.toml").write_text(texts.pop())
    return read_peers(folder / "peers.toml")


@pytest.mark.slow
def test_a_launch_on_hosts_is_simulated_and_listens_where_a_key_is_asked_for(tmp_path: Path) -> None:
    spec(tmp_path, rounds=2500)
    process = start(tmp_path, "-o", "real", *ON_LOOPBACK, "--checkpoint-every", "10")
    wait_for(lambda: checkpointed(tmp_path / "real") > 0)
    peers = peers_of(tmp_path)
    listen = listening(descendants(process.pid))
    assert listen == {peer.address for client, peer in peers.items() if client < 3}  # the last one connects to others
    files = [path for path in (tmp_path / "tmp").rglob("*") if path.is_file()]
    assert sorted(path.parent.name for path in files if path.name == "key.secret") == [f"rank{i}" for i in range(4)]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files if path.name in ("key.secret", "peers.toml"))
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "tmp").iterdir())
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(one, peers[i], 0.5) for i in range(3) for one in (without_a_key, with_a_wrong_key)]
        assert [one.result() for one in found] == [{"messages": 0, "handshakes": 0}] * 6
    assert process.poll() is None
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert "BEER: 2,500 rounds, 4 processes" in err
    assert "gradient norm" in out
    assert forked("run", "my.toml", "-o", "simulated", "-q", cwd=tmp_path).returncode == 0
    same(tmp_path / "real", tmp_path / "simulated", "BEER-seed0", tolerance=1e-12)
    end = gs.read_record(tmp_path / "real" / "BEER-seed0.jsonl").end
    assert end is not None
    assert all(link.packets_sent == link.packets_received == 2500 for link in end.links)
    nothing_left(tmp_path)


@pytest.mark.slow
def test_a_rank_that_is_killed_a_stop_and_a_resumed_run(tmp_path: Path) -> None:
    spec(tmp_path, rounds=3000)
    assert forked("run", "my.toml", "-o", "whole", "-q", cwd=tmp_path).returncode == 0
    more = [*ON_LOOPBACK, "--checkpoint-every", "50", "--max-restarts", "1", "-o", "cut"]
    process = start(tmp_path, *more)
    wait_for(lambda: checkpointed(tmp_path / "cut") > 50)
    before = peers_of(tmp_path)
    killed = time.time()
    os.kill(ranks_of(tmp_path)[1], signal.SIGKILL)
    wait_for(lambda: checkpointed(tmp_path / "cut", since=killed + 5) > 0)
    assert {peer.key for peer in peers_of(tmp_path).values()}.isdisjoint(peer.key for peer in before.values())
    process.send_signal(signal.SIGINT)
    code, err = finish(process, 60)
    assert code == 130, err
    assert "was ended by SIGKILL. All ranks start again from their checkpoints (1 of 1 restarts)." in err
    assert "was stopped after round" in err
    assert list((tmp_path / "tmp").iterdir()) == []
    code, err = finish(start(tmp_path, *more, "--resume", "-q"))
    assert (code, err) == (0, "")
    same(tmp_path / "whole", tmp_path / "cut", "BEER-seed0", tolerance=1e-12)
    nothing_left(tmp_path)


@pytest.mark.slow
def test_ports_that_were_chosen(tmp_path: Path) -> None:
    """One host, whose clients listen at loopback; and a port that is taken."""
    spec(tmp_path, rounds=100000, clients=3)
    first = next(port for port in iter(free_port, 0) if port < 65000)
    more = ["--hosts", "alpha", "--rsh", ON_LOOPBACK[3], "--port", str(first), "--checkpoint-every", "10", "-q"]
    process = start(tmp_path, "-o", "out", *more)
    wait_for(lambda: checkpointed(tmp_path / "out") > 0)
    assert listening(descendants(process.pid)) == {f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"}
    code, err = finish(start(tmp_path, "-o", "other", *more))
    assert code == 1
    assert f"Host 'alpha' cannot listen at 127.0.0.1:{first}: Address already in use; choose another --port." in err
    process.send_signal(signal.SIGINT)
    assert finish(process, 60)[0] == 130
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_hosts_whose_specs_differ(tmp_path: Path) -> None:
    """Each host has its own folder; the graph in one of them is another."""
    for name in ("127.0.0.1", "127.0.0.2"):
        (tmp_path / name).mkdir()
        spec(tmp_path / name)
    path = spec(tmp_path)
    more = ["-q", "--hosts", "127.0.0.1,127.0.0.2", "--rsh", "sh -c 'cd $0 && exec \"$@\"'"]
    (tmp_path / "127.0.0.2" / "my.toml").write_text(path.read_text().replace('name = "ring"', 'name = "star"'))
    code, err = finish(start(tmp_path, "-o", "out", *more))
    assert code == 2
    assert re.search(r"The spec of rank [23] has another graph than that of the launcher; copy the same files", err)
    (tmp_path / "127.0.0.2" / "my.toml").write_text(path.read_text().replace("lr = 0.1", "lr = 0.2"))
    code, err = finish(start(tmp_path, "-o", "out", *more))
    assert code == 2
    assert "The ranks do not agree: the spec is" in err


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
    """Ranks listen where the peers file says, and nobody else does; torchrun is not used."""
    spec(tmp_path, rounds=100000, clients=3)
    process = start(
        tmp_path, "-o", "out", "-q", "--checkpoint-every", "10", "--rsh", "ip netns exec", "--hosts", ",".join(hosts)
    )
    heard, commands = set(), set()

    def look() -> bool:
        family = descendants(process.pid)
        heard.update(listening(family))
        for pid in family:
            try:
                commands.add(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return checkpointed(tmp_path / "out") > 10

    wait_for(look, 120)
    peers = peers_of(tmp_path)
    assert [peer.address.rpartition(":")[0] for peer in peers.values()] == hosts
    assert heard == {peers[0].address, peers[1].address}
    assert not [command for command in commands if "torch" in command]
    begin = time.monotonic()
    process.kill()
    finish(process)
    wait_for(lambda: ranks_of(tmp_path) == [] and list((tmp_path / "tmp").iterdir()) == [], 5)
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
    assert re.search(r"Rank \d (lost|has heard nothing from) its neighbour [23] ", err)
    assert ranks_of(tmp_path) == []


@pytest.mark.slow
def test_a_host_that_cannot_be_reached(tmp_path: Path) -> None:
    spec(tmp_path, clients=4)
    code, err = finish(start(tmp_path, "-o", "out", "-q", "--rsh", "false", "--hosts", "alpha,beta"), 60)
    assert code == 1
    assert "The connection to host 'alpha' ended with exit code 1." in err
    assert "Traceback" not in err
