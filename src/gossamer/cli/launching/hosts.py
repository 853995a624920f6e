"""Several hosts: the launcher starts one agent per host, by ssh, and each agent starts the ranks of its host.

The launcher writes one JSON object per line to an agent's standard input, and reads events from its standard output:
both travel inside the ssh connection. An agent whose standard input ends, because its launcher or the connection has
ended, ends its ranks.
"""

import contextlib
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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gossamer.cli.launching.events import Event, reading
from gossamer.cli.launching.fleet import Events, Host, Job
from gossamer.cli.lines import complain
from gossamer.errors import GossamerError, InputError
from gossamer.runtime.processes.ranks import host_store

_KILL_SECONDS = 1.0
_POLL_SECONDS = 0.05


def parse_hosts(text: str, clients: int) -> dict[str, int]:
    """`a,b:3,c` as the number of clients of each host; those without a number share the rest."""
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
        raise InputError(f"The spec has {clients} clients, which {text!r} does not hold: one process per client.")
    return found


def _address(name: str) -> str:
    """A host's name without the user that ssh is to log in as."""
    return name.rpartition("@")[2]


class SeveralHosts:
    """A fleet on several hosts; its ranks meet at a store on the first of them."""

    restarts_itself = False

    def __init__(self, hosts: Mapping[str, int], rsh: str, job: Job) -> None:
        self.events: Events = queue.SimpleQueue()
        self._hosts, self._rsh, self._job = hosts, rsh, job
        self._agents: list[_Agent] = []
        self._is_started = False

    def start(self, attempt: int) -> None:
        """Start the agents; ranks are started when the first agent has told where they meet."""
        self._is_started, self._agents, first = False, [], 0
        for name, count in self._hosts.items():
            variables = {**self._job.variables, "GOSSAMER_REPORTER": str(int(first == 0))}
            job = replace(self._job, first=first, count=count, attempt=attempt, variables=variables)
            self._agents.append(_Agent(name, self._rsh, job, self.events))
            first += count
        others = [_address(name) for name in self._hosts][1:]
        self._agents[0].send({"do": "store", "peer": others[0] if others else ""})

    def poll(self) -> bool:
        """Note which ranks have ended; whether any still runs."""
        if not self._is_started and self._agents and self._agents[0].store:
            self._is_started = True
            for agent in self._agents:
                agent.send({"do": "start", "job": asdict(replace(agent.job, store=self._agents[0].store))})
        return self._is_running()

    def _is_running(self) -> bool:
        return sum(agent.poll() for agent in self._agents) > 0  # every agent is asked

    def ask_to_stop(self) -> None:
        """Have one rank of the first host read the request."""
        self._agents[0].send({"do": "stop"})

    def kill(self) -> None:
        """Have every agent kill its ranks; connections that do not answer are cut."""
        for agent in self._agents:
            agent.send({"do": "kill"})
        deadline = time.monotonic() + _KILL_SECONDS
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        for agent in self._agents:
            agent.process.kill()

    def end(self) -> None:
        """Whatever still runs ends; every event has arrived."""
        if self._is_running():
            self.kill()
        deadline = time.monotonic() + _KILL_SECONDS
        for agent in self._agents:
            agent.ask_to_end()
        for agent in self._agents:
            agent.end(deadline)


class _Agent:
    """The agent of one host, as its launcher sees it."""

    def __init__(self, name: str, rsh: str, job: Job, events: Events) -> None:
        self.name, self.job, self._events = name, job, events
        self.store = ""
        self._gone: set[int] = set()
        words, path = shlex.split(rsh), Path(job.logs) / f"host-{_address(name)}.log"
        variables = [f"{key}={value}" for key, value in job.variables.items()]
        command = ["env", *variables, sys.executable, "-m", "gossamer.cli.launching.hosts"]
        if words and Path(words[0]).name == "ssh":  # which hands one string to a shell in the home folder
            command = [f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(command)}"]
        self._log = path
        with path.open("ab") as log:
            self.process = subprocess.Popen(
                [*words, name, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the launcher's to handle
            )
        assert self.process.stdout is not None
        self._reader = reading(os.dup(self.process.stdout.fileno()), self._hear)
        self.process.stdout.close()

    def send(self, command: dict[str, Any]) -> None:
        """Tell the agent to do something; one that has ended is noticed by `poll`."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()

    def poll(self) -> bool:
        """Whether any of its ranks still runs, or is still to start."""
        ranks = set(range(self.job.first, self.job.first + self.job.count))
        if ranks > self._gone and self.process.poll() is not None:
            self._reader.join(1.0)  # what it has said before its end
            if ranks > self._gone:
                code = self.process.returncode
                lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
                last = f": {lines[-1].strip()[:200]}" if lines else ""
                sentence = f"The connection to host {self.name!r} ended with exit code {code}{last}"
                self._events.put(Event("end", self.job.first, sentence.rstrip(".") + ".", code=1))
                for rank in sorted(ranks - self._gone):
                    self._gone.add(rank)
                    self._events.put(Event("exit", rank, code=1))
        return ranks > self._gone

    def ask_to_end(self) -> None:
        """End the agent's standard input, and with it the agent."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def end(self, deadline: float) -> None:
        """Wait until the agent has ended, or end it."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(1.0)

    def _hear(self, event: Event) -> None:
        if event.kind == "store":
            self.store = event.sentence
            return
        if event.kind == "exit":
            self._gone.add(event.rank)
        self._events.put(event)


def serve() -> int:
    """Be an agent: start, watch and end the ranks of this host, as the launcher says."""
    commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    events: Events = queue.SimpleQueue()
    host, is_started, store = Host(events), False, None

    def listen() -> None:
        for line in sys.stdin.buffer:
            commands.put(json.loads(line))
        commands.put(None)

    def tell() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                sys.stdout.buffer.write(events.get_nowait().line())
        sys.stdout.flush()

    threading.Thread(target=listen, name="gossamer-launcher", daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        try:
            while not is_started or host.poll():
                with contextlib.suppress(queue.Empty):
                    command = commands.get(timeout=_POLL_SECONDS)
                    if command is None:
                        return 1
                    if command["do"] == "store":
                        # On a host of its own, ranks meet at a file, and nothing listens beyond loopback.
                        peer = command["peer"]
                        store, place = host_store(peer) if peer else (None, str(Path(folder) / "store"))
                        events.put(Event("store", sentence=place))
                    elif command["do"] == "start":
                        host.start(Job(**command["job"]))
                        is_started = True
                    elif command["do"] == "stop":
                        host.ask_to_stop()
                    elif command["do"] == "kill":
                        host.kill()
                tell()
        except (GossamerError, OSError) as error:
            return complain(error, 1)
        finally:
            host.end()
            del store
        tell()
    return 0


if __name__ == "__main__":
    code = serve()
    sys.stdout.flush()
    os._exit(code)  # the launcher waits, and nothing is left to tear down
