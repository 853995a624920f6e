"""Launches on several hosts: the launcher starts an agent per host by ssh, and the agent starts the ranks of that host.

The launcher writes one JSON object per line to an agent's standard input, and reads events from its standard output:
both travel inside the ssh connection. When the standard input of an agent closes, because its launcher or the
connection has ended, the agent ends its ranks.

Every agent makes a key pair for each of its ranks and reports the public keys, with the addresses where the ranks will
listen. The launcher sends the peers file made of them to all agents with the command to start. A secret key never
leaves its host.
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
from gossamer.cli.launching.keys import Places, write_peers
from gossamer.cli.lines import complain
from gossamer.errors import GossamerError, InputError
from gossamer.runtime.transport.peers import Peer, peers_text

_KILL_SECONDS = 1.0
_POLL_SECONDS = 0.05


class _Do(enum.StrEnum):
    """What an agent is to do."""

    KEYS = "keys"
    """Make the keys of the ranks of `job` and choose their ports, reachable from `peer`."""
    START = "start"
    """Start the ranks; `peers` is the content of the peers file."""
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True)
class _Command:
    """One line from a launcher to an agent."""

    do: _Do
    job: Job | None = None
    host: str = ""
    peer: str = ""
    port: int = 0
    peers: str = ""

    @classmethod
    def read(cls, line: bytes) -> "_Command":
        content = json.loads(line)
        job = None if content["job"] is None else Job(**content["job"])
        return cls(**content | {"do": _Do(content["do"]), "job": job})


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
    """A fleet on several hosts, whose ranks meet over links that ask for a key."""

    restarts_itself = False

    def __init__(self, hosts: Mapping[str, int], rsh: str, job: Job, port: int = 0) -> None:
        self.events: Events = queue.SimpleQueue()
        self._hosts, self._rsh, self._job, self._port = hosts, rsh, job, port
        self._agents: list[_Agent] = []
        self._is_started = False

    def start(self, attempt: int) -> None:
        """Start the agents; `poll` starts the ranks once every agent has made its keys."""
        self._is_started, self._agents, first = False, [], 0
        for name, count in self._hosts.items():
            variables = {**self._job.variables, "GOSSAMER_REPORTER": str(int(first == 0))}
            job = replace(self._job, first=first, count=count, attempt=attempt, variables=variables)
            self._agents.append(_Agent(name, self._rsh, job, self.events))
            first += count
        names = [_address(name) for name in self._hosts]
        for at, agent in enumerate(self._agents):
            peer = names[1 if at == 0 else 0] if len(names) > 1 else ""
            agent.send(_Command(_Do.KEYS, job=agent.job, host=names[at], peer=peer, port=self._port))

    def poll(self) -> bool:
        """Start the ranks if all keys are made; record which have ended, and return whether any still runs."""
        if not self._is_started and all(len(agent.peers) == agent.job.count for agent in self._agents):
            self._is_started = True
            text = peers_text(peer for agent in self._agents for _, peer in sorted(agent.peers.items()))
            for agent in self._agents:
                agent.send(_Command(_Do.START, peers=text))
        return self._is_running()

    def _is_running(self) -> bool:
        return sum(agent.poll() for agent in self._agents) > 0  # no short circuit: every agent is polled

    def ask_to_stop(self) -> None:
        """Ask one rank of the first host, which passes the request on."""
        self._agents[0].send(_Command(_Do.STOP))

    def kill(self) -> None:
        """Have every agent kill its ranks, then close the connections."""
        for agent in self._agents:
            agent.is_killed = True
            agent.send(_Command(_Do.KILL))
        deadline = time.monotonic() + _KILL_SECONDS
        while any(agent.process.poll() is None for agent in self._agents) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)  # agents remove their keys
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
        self.peers: dict[int, Peer] = {}
        """The ranks of the host, once their keys are made."""
        self.is_killed = False
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
                if not self.is_killed:
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
        if event.kind is Kind.PEER:
            if event.rank in range(self.job.first, self.job.first + self.job.count):
                address, _, key = event.sentence.partition(" ")
                host = _address(self.name)
                self.peers[event.rank] = Peer(event.rank, f"rank {event.rank} on {host:.80}", address, key.encode())
            return
        if event.kind is Kind.EXIT:
            self._gone.add(event.rank)
        self._events.put(event)


class _Server:
    """An agent: starts, watches and ends the ranks of its host on the launcher's commands."""

    def __init__(self, folder: Path) -> None:
        self.host, self._folder = Host(), folder
        self._job: Job | None = None
        self._places: Places | None = None
        self.is_over = False
        """Whether the ranks were to be killed."""
        self.is_started = False

    def obey(self, command: _Command) -> None:
        """Carry out a command."""
        if command.do is _Do.KEYS and command.job is not None:
            self._job, first = command.job, command.job.first
            ranks = range(first, first + self._job.count)
            self._places = Places(self._folder, command.host, command.peer, ranks, command.port)
            for rank, (address, key) in self._places.found.items():
                self.host.events.put(Event(Kind.PEER, rank, f"{address} {key}"))
        elif command.do is _Do.START and self._job is not None:
            write_peers(self._folder, command.peers)
            self.host.launch(replace(self._job, keys=str(self._folder)))
            self.is_started = True
        elif command.do is _Do.STOP:
            self.host.ask_to_stop()
        elif command.do is _Do.KILL:
            self.host.kill()
            self.is_over = not self.is_started

    def end(self) -> None:
        """End all ranks, and hold the ports no longer."""
        self.host.end()
        if self._places is not None:
            self._places.close()


def serve() -> int:
    """Run as an agent."""
    commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            commands.put(_Command.read(line))
        commands.put(None)

    def send_events(host: Host) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                sys.stdout.buffer.write(host.events.get_nowait().line())
        sys.stdout.flush()

    threading.Thread(target=listen, name="gossamer-launcher", daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:  # accessible to this user only
        server = _Server(Path(folder))
        try:
            while not server.is_over and (not server.is_started or server.host.poll()):
                with contextlib.suppress(queue.Empty):
                    command = commands.get(timeout=_POLL_SECONDS)
                    if command is None:
                        return 1
                    server.obey(command)
                send_events(server.host)
        except (GossamerError, OSError) as error:
            return complain(error, 1)
        finally:
            server.end()
        send_events(server.host)
    return 0


if __name__ == "__main__":
    code = serve()
    sys.stdout.flush()
    os._exit(code)  # skip the interpreter's shutdown: the launcher waits
