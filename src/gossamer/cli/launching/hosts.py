"""Launches on several hosts: the launcher starts an agent per host by ssh, and the agent starts the ranks of that host.

The launcher writes one JSON object per line to an agent's standard input, and reads events from its standard output:
both travel inside the ssh connection. When the standard input of an agent closes, because its launcher or the
connection has ended, the agent ends its ranks.
"""

import contextlib
import enum
import json
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gossamer.cli.launching.events import Event, Kind, reading
from gossamer.cli.launching.fleet import Events, Host, Job
from gossamer.cli.lines import complain
from gossamer.errors import GossamerError, InputError
from gossamer.runtime.processes.ranks import host_store

_KILL_SECONDS = 1.0
_POLL_SECONDS = 0.05


class _Do(enum.StrEnum):
    """What an agent is to do."""

    STORE = "store"
    """Make the store where ranks find each other, reachable from `peer`."""
    START = "start"
    """Start the ranks of `job`."""
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True)
class _Command:
    """One line from a launcher to an agent."""

    do: _Do
    peer: str = ""
    job: Job | None = None

    @classmethod
    def read(cls, line: bytes) -> "_Command":
        content = json.loads(line)
        job = None if content["job"] is None else Job(**content["job"])
        return cls(_Do(content["do"]), content["peer"], job)


def parse_hosts(text: str, clients: int) -> dict[str, int]:
    """The number of clients per host in `a,b:3,c`; hosts without a number share the rest."""
    hosts: dict[str, int | None] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition(":")
        if not name or name in hosts or (number and not number.isdecimal()):
            raise InputError(f"`hosts` must be different names such as a,b or a:2,b:3, got {text!r}.")
        if name.startswith("-") or _address(name).startswith("-"):
            raise InputError(f"A host name must not begin with a dash, which ssh takes for an option, got {name!r}.")
        hosts[name] = int(number) if number else None
    rest = clients - sum(number or 0 for number in hosts.values())
    open_ = [name for name, number in hosts.items() if number is None]
    shares = {name: rest // len(open_) + (at < rest % len(open_)) for at, name in enumerate(open_)}
    found = {name: shares[name] if number is None else number for name, number in hosts.items()}
    if sum(found.values()) != clients or min(found.values()) < 1:
        raise InputError(f"The spec has {clients} clients, one per process, which {text!r} does not match.")
    return found


def _address(name: str) -> str:
    """A host's name without the user name for ssh."""
    return name.rpartition("@")[2]


class SeveralHosts:
    """A fleet on several hosts, with its store on the first of them."""

    restarts_itself = False

    def __init__(self, hosts: Mapping[str, int], rsh: str, job: Job) -> None:
        self.events: Events = queue.SimpleQueue()
        self._hosts, self._rsh, self._job = hosts, rsh, job
        self._agents: list[_Agent] = []
        self._is_started = False

    def start(self, attempt: int) -> None:
        """Start the agents; `poll` starts the ranks once the first agent has made the store."""
        self._is_started, self._agents, first = False, [], 0
        for name, count in self._hosts.items():
            variables = {**self._job.variables, "GOSSAMER_REPORTER": str(int(first == 0))}
            job = replace(self._job, first=first, count=count, attempt=attempt, variables=variables)
            self._agents.append(_Agent(name, self._rsh, job, self.events))
            first += count
        others = [_address(name) for name in self._hosts][1:]
        self._agents[0].send(_Command(_Do.STORE, peer=others[0] if others else ""))

    def poll(self) -> bool:
        """Start the ranks if the store is ready; record which have ended, and return whether any still runs."""
        if not self._is_started and self._agents and self._agents[0].store:
            self._is_started = True
            for agent in self._agents:
                agent.send(_Command(_Do.START, job=replace(agent.job, store=self._agents[0].store)))
        return self._is_running()

    def _is_running(self) -> bool:
        return sum(agent.poll() for agent in self._agents) > 0  # no short circuit: every agent is polled

    def ask_to_stop(self) -> None:
        """Ask one rank of the first host, which passes the request on."""
        self._agents[0].send(_Command(_Do.STOP))

    def kill(self) -> None:
        """Have every agent kill its ranks, then close the connections."""
        for agent in self._agents:
            agent.send(_Command(_Do.KILL))
        deadline = time.monotonic() + _KILL_SECONDS
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        for agent in self._agents:
            agent.process.kill()

    def end(self) -> None:
        """End all agents and ranks; all events have arrived on return."""
        if self._is_running():
            self.kill()
        deadline = time.monotonic() + _KILL_SECONDS
        for agent in self._agents:
            with contextlib.suppress(OSError):
                agent.stdin.close()  # ends the agent
        for agent in self._agents:
            agent.end(deadline)


class _Agent:
    """The agent of one host, seen from the launcher."""

    def __init__(self, name: str, rsh: str, job: Job, events: Events) -> None:
        self.name, self.job, self._events = name, job, events
        self.store = ""
        self._gone: set[int] = set()
        words, path = shlex.split(rsh), Path(job.logs) / f"host-{_address(name)}.log"
        variables = [f"{key}={value}" for key, value in job.variables.items()]
        command = ["env", *variables, sys.executable, "-m", "gossamer.cli.launching.hosts"]
        if words and Path(words[0]).name == "ssh":  # ssh passes one string to a shell in the home folder
            command = [f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(command)}"]
        self._log = path
        with path.open("ab") as log:
            self.process = subprocess.Popen(
                [*words, name, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # the launcher handles Ctrl-C
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin = self.process.stdin
        self._reader = reading(os.dup(self.process.stdout.fileno()), self._receive)
        self.process.stdout.close()

    def send(self, command: _Command) -> None:
        """Send a command; `poll` notices an agent that has ended."""
        with contextlib.suppress(OSError, ValueError):
            self.stdin.write(json.dumps(asdict(command)).encode() + b"\n")
            self.stdin.flush()

    def poll(self) -> bool:
        """Whether any of its ranks still runs or has yet to start."""
        ranks = set(range(self.job.first, self.job.first + self.job.count))
        if ranks > self._gone and self.process.poll() is not None:
            self._reader.join(1.0)  # its last events
            if ranks > self._gone:
                code = self.process.returncode
                lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
                last = f": {lines[-1].strip()[:200]}" if lines else ""
                sentence = f"The connection to host {self.name!r} ended with exit code {code}{last}"
                self._events.put(Event(Kind.END, self.job.first, sentence.rstrip(".") + ".", code=1))
                for rank in sorted(ranks - self._gone):
                    self._gone.add(rank)
                    self._events.put(Event(Kind.EXIT, rank, code=1))
        return ranks > self._gone

    def end(self, deadline: float) -> None:
        """Wait for the agent until the deadline, then kill it."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(1.0)

    def _receive(self, event: Event) -> None:
        if event.kind is Kind.STORE:
            self.store = event.sentence
            return
        if event.kind is Kind.EXIT:
            self._gone.add(event.rank)
        self._events.put(event)


def serve() -> int:
    """Run as an agent: start, watch and end the ranks of this host on the launcher's commands."""
    commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
    host, is_started, store = Host(), False, None

    def listen() -> None:
        for line in sys.stdin.buffer:
            commands.put(_Command.read(line))
        commands.put(None)

    def send_events() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                sys.stdout.buffer.write(host.events.get_nowait().line())
        sys.stdout.flush()

    threading.Thread(target=listen, name="gossamer-launcher", daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        try:
            while not is_started or host.poll():
                with contextlib.suppress(queue.Empty):
                    command = commands.get(timeout=_POLL_SECONDS)
                    if command is None:
                        return 1
                    if command.do is _Do.STORE:
                        # With one host the store is a file, and nothing listens beyond loopback.
                        store, place = host_store(command.peer) if command.peer else (None, str(Path(folder) / "store"))
                        host.events.put(Event(Kind.STORE, sentence=place))
                    elif command.do is _Do.START and command.job is not None:
                        host.launch(command.job)
                        is_started = True
                    elif command.do is _Do.STOP:
                        host.ask_to_stop()
                    elif command.do is _Do.KILL:
                        host.kill()
                send_events()
        except (GossamerError, OSError) as error:
            return complain(error, 1)
        finally:
            host.end()
            del store
        send_events()
    return 0


if __name__ == "__main__":
    code = serve()
    sys.stdout.flush()
    os._exit(code)  # skip the interpreter's shutdown: the launcher waits
