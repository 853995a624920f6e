"""`gossamer join` and `gossamer replay`: processes that are killed, leave, stand still and come back."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from commands import forked
from curve_network import Network, write_peers
from launching import SPEC

from gossamer.runtime.open.history import Begin, Close, Event, Forget, Inherit, Leave, Release, read_history

pytestmark = pytest.mark.usefixtures("no_process_left")
HOW = ("--patience", "0.5", "--gone-after", "3", "--start-timeout", "30")


class Run:
    """A network of `gossamer join` processes on loopback."""

    def __init__(self, folder: Path, clients: int, rounds: int, graph: str = "ring") -> None:
        self.folder, self.rounds, self.network = folder, rounds, Network(folder, clients)
        text = SPEC.format(clients=clients, rounds=rounds, seeds="[0]", every=rounds, more="")
        (folder / "my.toml").write_text(text.replace('name = "ring"', f'name = "{graph}"'))
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def words(self, i: int, *more: str) -> list[str]:
        return ["join", "my.toml", "--peers", str(self.network.peers(i)), "--key", str(self.network.secret(i)), *more]

    def start(self, i: int, *more: str) -> None:
        with (self.folder / f"err{i}").open("a") as err, (self.folder / f"out{i}").open("w") as out:
            self.processes[i] = subprocess.Popen(
                [sys.executable, "-m", "gossamer", *self.words(i, *HOW, *more)],
                cwd=self.folder,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=out,
                stderr=err,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def ended(self, i: int, seconds: float = 120) -> str:
        """What a process printed; it must end well."""
        assert self.processes[i].wait(seconds) == 0, self.log(i)
        return (self.folder / f"out{i}").read_text()

    def events(self, i: int) -> list[Event]:
        path = self.folder / "open" / f"client{i}.history"
        return read_history(path) if path.exists() else []

    def steps(self, i: int) -> int:
        path = self.folder / "open" / f"client{i}.history"
        return path.read_bytes().count(b'"step"') if path.exists() else 0

    def log(self, i: int) -> str:
        return (self.folder / f"err{i}").read_text()

    def wait(self, until: Callable[[], bool], seconds: float = 60) -> None:
        limit = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < limit, {i: self.log(i)[-2000:] for i in self.processes}
            time.sleep(0.05)

    def go_on(self, i: int, rounds: int) -> None:
        """Wait until a client has taken so many more rounds."""
        now = self.steps(i)
        self.wait(lambda: self.steps(i) >= now + rounds)

    def end(self) -> dict[int, str]:
        """What each process that runs printed; all must end well."""
        return {i: self.ended(i) for i in self.processes}


def kinds(events: list[Event], kind: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.slow
def test_the_others_go_on_and_the_history_is_the_run(tmp_path: Path) -> None:
    with Run(tmp_path, 4, rounds=4000) as run:
        for i in range(4):
            run.start(i)
        run.go_on(0, 200)
        run.processes[2].kill()  # lost
        run.processes[2].wait()
        run.wait(lambda: "client 2 closed" in run.log(1) and "client 2 closed" in run.log(3))
        run.go_on(0, 50)
        run.start(2)  # the same command: it goes on with the model of a neighbour
        run.wait(lambda: "takes the model of client" in run.log(2))
        run.go_on(2, 50)
        run.processes[3].send_signal(signal.SIGSTOP)  # late, and not yet gone
        time.sleep(1.5)
        late = run.steps(0)
        run.go_on(0, 20)
        assert run.steps(0) > late
        run.processes[3].send_signal(signal.SIGCONT)
        run.processes[1].send_signal(signal.SIGTERM)  # leaves
        assert "left after round" in run.ended(1)
        run.go_on(0, 50)
        run.start(1, "--via", "peer0")
        run.wait(lambda: "takes the model of client 0" in run.log(1))
        said = run.end()
        assert all("finished after round 4,000 of 4,000" in text for text in said.values())
        assert [len(kinds(run.events(i), Begin)) for i in range(4)] == [1, 2, 3, 1], "no survivor began again"
        assert kinds(run.events(1), Leave)
        assert sum(len(kinds(run.events(i), Inherit)) for i in (0, 2)) == 1
        assert any(
            isinstance(event, Release | Close) and event.neighbor == 1 for i in (0, 2) for event in run.events(i)
        )
        assert kinds(run.events(1), Close)
        done = forked("replay", "my.toml", "--history", "open", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert [row["same_model"] for row in found["clients"]] == [True] * 4
        assert found["mean_model"]["grad_norm"] < 0.06


@pytest.mark.slow
@pytest.mark.parametrize("apart", ["continue", "wait"])
def test_a_graph_that_falls_apart(apart: str, tmp_path: Path) -> None:
    with Run(tmp_path, 3, rounds=2500, graph="path") as run:
        for i in range(3):
            run.start(i, "--apart", apart)
        run.go_on(0, 100)
        run.processes[1].kill()
        run.processes[1].wait()
        run.wait(lambda: "clients [1, 2] are out of reach" in run.log(0))
        run.wait(lambda: "clients [0, 1] are out of reach" in run.log(2))
        now = run.steps(0)
        time.sleep(1.0)
        assert (run.steps(0) > now + 5) == (apart == "continue")
        if apart == "continue":
            del run.processes[1]
        else:
            run.start(1, "--apart", apart)
            run.wait(lambda: "The graph is whole again" in run.log(0))
        assert all("finished" in text for text in run.end().values())


@pytest.mark.slow
def test_a_key_that_is_removed_closes_the_edge(tmp_path: Path) -> None:
    with Run(tmp_path, 3, rounds=3000) as run:
        for i in range(3):
            run.start(i)
        run.go_on(0, 100)
        for i in (0, 1):
            keep = (0, 1)
            write_peers(
                run.network.peers(i),
                {j: run.network.ports[j] for j in keep},
                {j: run.network.keys[j] for j in keep},
            )
            run.processes[i].send_signal(signal.SIGHUP)
        run.wait(lambda: "has no longer a key in the peers file" in run.log(0))
        run.go_on(0, 50)
        alone = run.processes.pop(2)
        run.end()
        alone.kill()
        alone.wait()
        assert not kinds(run.events(0), Forget)


def one_sentence(done: "subprocess.CompletedProcess[str]", code: int, pattern: str) -> None:
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert re.search(pattern, done.stderr), done.stderr


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    run = Run(tmp_path, 3, rounds=10)
    peers = run.network.peers(0)
    good = peers.read_text()
    start = ("--start-timeout", "0.5")
    peers.write_text(good.replace('"peer1"', '"peer0"'))
    one_sentence(forked(*run.words(0), cwd=tmp_path), 2, "has the name 'peer0' twice")
    peers.write_text(good)
    one_sentence(forked(*run.words(0, *start), cwd=tmp_path), 1, "found no neighbour within 0.5 s .*client 1: ")
    one_sentence(forked(*run.words(2, *start), cwd=tmp_path), 1, "client 0: nobody answers there")
    run.network.secret(0).chmod(0o644)
    one_sentence(forked(*run.words(0), cwd=tmp_path), 2, r"can be read by other users \(mode 0644\); run `chmod 600`")
    run.network.secret(0).chmod(0o600)
    one_sentence(
        forked(*run.words(0, "--via", "gamma"), cwd=tmp_path), 2, "No peer has the name.*'gamma'.*peer0, peer1"
    )
    one_sentence(forked(*run.words(0, "--via", "peer0"), cwd=tmp_path), 2, "one of .*got 0")
    one_sentence(
        forked(*run.words(0, "--patience", "0"), cwd=tmp_path), 2, "`patience` must be a number above 0, got 0"
    )
    spec = (tmp_path / "my.toml").read_text()
    (tmp_path / "my.toml").write_text(spec.replace('"beer"', '"squarm_sgd"'))
    one_sentence(forked(*run.words(0), cwd=tmp_path), 2, "SQuARM-SGD, which has no rule for that; use BEER")
    (tmp_path / "my.toml").write_text(spec + '[[methods]]\nname = "dsgd"\nlr = 0.1\n')
    one_sentence(forked(*run.words(0), cwd=tmp_path), 2, "one method and one seed, and the spec has 2 and 1")
    (tmp_path / "my.toml").write_text(spec.replace('name = "ring"\nweights = "fdla"', 'name = "random_matchings"'))
    one_sentence(forked(*run.words(0), cwd=tmp_path), 2, "on a fixed graph of possible edges only")
    (tmp_path / "my.toml").write_text(spec.replace('name = "ring"', 'name = "ring"\ndropout = 1.0'))
    one_sentence(forked(*run.words(0), cwd=tmp_path), 2, "never connected with `dropout` = 1")


@pytest.mark.slow
def test_a_client_whose_neighbours_are_late_does_not_run_ahead(tmp_path: Path) -> None:
    with Run(tmp_path, 3, rounds=300) as run:
        for i in range(3):
            run.start(i)
        run.go_on(0, 20)
        for i in (1, 2):
            run.processes[i].send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        now = run.steps(0)
        time.sleep(1.5)
        assert run.steps(0) <= now + 4, "one round per patience"
        for i in (1, 2):
            run.processes[i].send_signal(signal.SIGCONT)
        run.end()


@pytest.mark.slow
def test_a_client_that_is_stopped_while_it_waits_for_others_ends(tmp_path: Path) -> None:
    with Run(tmp_path, 3, rounds=10) as run:
        run.start(0)
        port = f":{run.network.ports[0]:04X} "
        run.wait(lambda: port in Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text())
        time.sleep(0.3)
        run.processes[0].send_signal(signal.SIGTERM)
        assert run.processes[0].wait(10) == 128 + signal.SIGTERM
        assert "Client 0 was stopped before its first round." in run.log(0)


@pytest.mark.slow
def test_a_client_that_diverges_says_so(tmp_path: Path) -> None:
    with Run(tmp_path, 2, rounds=500, graph="path") as run:
        spec = tmp_path / "my.toml"
        spec.write_text(spec.read_text().replace("lr = 0.1", "lr = 1e308"))
        for i in range(2):
            run.start(i)
        for i in range(2):
            assert run.processes[i].wait(60) == 1, run.log(i)
        logs = [run.log(i) for i in range(2)]
        said = [f"BEER diverged in round 1: the model of client {i} is no longer finite; " in logs[i] for i in range(2)]
        assert any(said)
        # The other one may not have begun by then.
        assert all(one or "found no neighbour" in log for one, log in zip(said, logs, strict=True)), logs


@pytest.mark.slow
def test_joining_by_a_neighbour_that_is_gone(tmp_path: Path) -> None:
    with Run(tmp_path, 4, rounds=4000) as run:
        for i in range(4):
            run.start(i)
        run.go_on(0, 50)
        for i in (1, 2):
            run.processes[i].kill()
            run.processes[i].wait()
        run.start(2, "--via", "peer1")
        run.wait(lambda: "Client 1 gives no model; that of any other neighbour will do." in run.log(2))
        run.wait(lambda: "Client 2 takes the model of client 3" in run.log(2))
        del run.processes[1]
        run.end()
