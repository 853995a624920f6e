"""A launch on several hosts, and a stranger in their network: nothing read, nothing joined, nothing stopped."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import forked
from launching import checkpointed, descendants, finish, listening, same, spec, start, wait_for
from namespaces import joined, switch
from strangers import MOST_PLAIN

import gossamer as gs
from gossamer.runtime.transport.peers import read_peers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("no_process_left")]
STRANGER = Path(__file__).parents[1] / "strangers.py"
ROUNDS = (25_000, 100_000)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Three hosts of a run, and one more in the same network."""
    with joined(4) as names:
        yield names


def test_a_launch_among_strangers(hosts: list[str], tmp_path: Path) -> None:
    """With more rounds where they were over before the attack."""
    for rounds in ROUNDS:
        folder = tmp_path / str(rounds)
        folder.mkdir()
        if attacked(hosts, folder, rounds):
            return
    pytest.fail(f"the training of {rounds:,} rounds was over before the attack")


def attacked(hosts: list[str], tmp_path: Path, rounds: int) -> bool:
    """Train and attack; False if there was no training any more."""
    spec(tmp_path, rounds=rounds, clients=4)
    recorder = subprocess.Popen(
        ["ip", "netns", "exec", switch(), sys.executable, str(STRANGER), "record", "p0", str(tmp_path / "wire.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with recorder:
        assert recorder.stdout is not None
        recorder.stdout.readline()
        more = ["--rsh", "ip netns exec", "--checkpoint-every", "100", "-q"]
        process = start(tmp_path, "-o", "out", "--hosts", f"{hosts[0]}:2,{hosts[1]},{hosts[2]}", *more)
        wait_for(lambda: checkpointed(tmp_path / "out") > 0, 120)
        recorder.communicate()
    (peers_file,) = {path.read_text() for path in (tmp_path / "tmp").glob("*/peers.toml")}
    (tmp_path / "peers.toml").write_text(peers_file)
    peers = read_peers(tmp_path / "peers.toml")
    # Of two neighbours the one with the larger number connects; so the last client does not listen.
    places = {peers[client].address for client in (0, 1, 2)}
    assert listening(descendants(process.pid)) == places

    stranger = ["ip", "netns", "exec", hosts[3], sys.executable, str(STRANGER)]
    before = checkpointed(tmp_path / "out")
    done = subprocess.run(
        [*stranger, str(tmp_path / "peers.toml"), str(tmp_path / "wire.json")],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    after, is_running = checkpointed(tmp_path / "out"), process.poll() is None
    if not is_running:
        finish(process, 60)
        return False
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["open"]) == places
    nothing = {"messages": 0, "handshakes": 0}
    for name, many in (("no key", 3), ("wrong key", 3), ("stolen name", 9)):
        assert found[name] == [nothing] * many
    assert len(found["replayed"]) >= 2
    assert max(found["replayed"] + found["garbage"]) < MOST_PLAIN
    assert found["held"] == [1000] * 3

    code, err = finish(process, 400)
    assert (code, err) == (0, "")
    assert after > before
    assert forked("run", "my.toml", "-o", "simulated", "-q", cwd=tmp_path).returncode == 0
    same(tmp_path / "out", tmp_path / "simulated", "BEER-seed0", tolerance=1e-12)
    end = gs.read_record(tmp_path / "out" / "BEER-seed0.jsonl").end
    assert end is not None
    assert all(link.packets_sent == link.packets_received == rounds for link in end.links)
    assert list((tmp_path / "tmp").iterdir()) == []
    return True
