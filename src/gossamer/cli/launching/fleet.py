"""The processes of a launch: start, watch and end ranks, on this host or through torchrun."""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gossamer.cli.launching.events import LAUNCHED, STORE, Event, Kind, Lifeline, reading

Events = queue.SimpleQueue[Event]
_KILL_SECONDS = 2.0  # for torchrun to end its ranks


class Fleet(Protocol):
    """All ranks of a run, as `supervise` sees them."""

    events: Events
    restarts_itself: bool
    """Whether failed ranks are restarted without a call of `start`."""

    def start(self, attempt: int) -> None:
        """Start every rank, with a new store."""

    def poll(self) -> bool:
        """Record which processes have ended; return whether any still runs."""

    def ask_to_stop(self) -> None:
        """Ask all ranks to stop after the same round."""

    def kill(self) -> None:
        """Kill all ranks that still run."""

    def end(self) -> None:
        """End all processes and remove temporary files; all events have arrived on return."""


@dataclass(frozen=True)
class Job:
    """The ranks to start on one host."""

    arguments: Sequence[str]
    """Of `gossamer`."""
    logs: str
    size: int
    """Ranks on all hosts."""
    first: int = 0
    count: int = 0
    attempt: int = 0
    store: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


class Host:
    """The ranks of this host, as children of this process."""

    def __init__(self, events: Events, lock: int | None = None) -> None:
        self.events, self._keep = events, () if lock is None else (lock,)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._gone: set[int] = set()
        self._lifeline = Lifeline()
        ours, self._theirs = os.pipe()
        self._reader = reading(ours, events.put)

    def start(self, job: Job) -> None:
        """Start the ranks, each with its own log."""
        Path(job.logs).mkdir(parents=True, exist_ok=True)
        for local in range(job.count):
            rank = job.first + local
            about = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": job.size, "LOCAL_WORLD_SIZE": job.count}
            own = {**about, "GOSSAMER_ATTEMPT": job.attempt, LAUNCHED: 1, STORE: job.store}
            with (Path(job.logs) / f"rank{rank}.log").open("ab") as log:
                self._processes[rank] = subprocess.Popen(
                    [sys.executable, "-m", "gossamer", *job.arguments],
                    env={**os.environ, **job.variables, **{name: str(value) for name, value in own.items()}},
                    stdin=self._lifeline.theirs,
                    stdout=self._theirs,
                    stderr=log,
                    pass_fds=self._keep,  # the lock is held until the last rank has ended
                    start_new_session=True,  # the launcher handles Ctrl-C
                )
        self._lifeline.started()
        os.close(self._theirs)
        self._theirs = -1

    def poll(self) -> bool:
        """Record which ranks have ended; return whether any still runs."""
        for rank, process in self._processes.items():
            if rank not in self._gone and process.poll() is not None:
                self._gone.add(rank)
                self.events.put(Event(Kind.EXIT, rank, code=int(process.returncode)))
        return len(self._gone) < len(self._processes)

    def ask_to_stop(self) -> None:
        """Ask one rank, which passes the request on."""
        self._lifeline.ask_to_stop()

    def kill(self) -> None:
        """Send SIGKILL, which also ends frozen ranks."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()

    def end(self) -> None:
        """End all processes; all events have arrived on return."""
        self.kill()
        for process in self._processes.values():
            process.wait()
        self._lifeline.end()
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1
        self._reader.join(1.0)


class OneHost:
    """A fleet on this host alone; its store is a file in a private folder, and nothing listens beyond loopback."""

    restarts_itself = False

    def __init__(self, job: Job, lock: int | None = None) -> None:
        self.events: Events = queue.SimpleQueue()
        self._job, self._lock = job, lock
        self._host: Host | None = None
        self._folder = ""

    def start(self, attempt: int) -> None:
        """Start every rank, with a new store."""
        self._folder = tempfile.mkdtemp(prefix="gossamer-")  # accessible to this user only
        self._host = Host(self.events, self._lock)
        self._host.start(replace(self._job, attempt=attempt, store=str(Path(self._folder) / "store")))

    def poll(self) -> bool:
        """Record which ranks have ended; return whether any still runs."""
        return self._host is not None and self._host.poll()

    def ask_to_stop(self) -> None:
        """Ask one rank, which passes the request on."""
        if self._host is not None:
            self._host.ask_to_stop()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._host is not None:
            self._host.kill()

    def end(self) -> None:
        """End all ranks and remove the store."""
        if self._host is not None:
            self._host.end()
        self._host = None
        shutil.rmtree(self._folder, ignore_errors=True)


class Torchrun:
    """The ranks of this host in a launch by torchrun, which restarts ranks itself."""

    def __init__(self, command: Sequence[str], log: Path, variables: Mapping[str, str], restarts: int) -> None:
        self.events: Events = queue.SimpleQueue()
        self.restarts_itself = restarts > 0
        self._command, self._log = [*command], log
        # By default torchrun waits 30 s for a frozen rank; `supervise` has waited already.
        self._variables = {**variables, LAUNCHED: "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0"}
        self._lifeline = Lifeline()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_gone = False

    def start(self, attempt: int) -> None:
        """Start torchrun; ranks inherit its standard streams."""
        ours, theirs = os.pipe()
        self._reader = reading(ours, self.events.put)
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    env={**os.environ, **self._variables},
                    stdin=self._lifeline.theirs,
                    stdout=theirs,
                    stderr=log,
                    start_new_session=True,
                )
        finally:
            os.close(theirs)
            self._lifeline.started()

    def poll(self) -> bool:
        """Record whether torchrun has ended; return whether it still runs."""
        if self._process is None or self._is_gone:
            return False
        if self._process.poll() is not None:
            self._is_gone = True
            self.events.put(Event(Kind.EXIT, code=int(self._process.returncode)))
        return not self._is_gone

    def ask_to_stop(self) -> None:
        """Ask one rank, which passes the request on."""
        self._lifeline.ask_to_stop()

    def kill(self) -> None:
        """Terminate torchrun, which kills its ranks; if it does not end, kill it and close the ranks' input."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        deadline = time.monotonic() + _KILL_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self._lifeline.end()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def end(self) -> None:
        """End all processes; all events have arrived on return."""
        self.kill()
        self._lifeline.end()
        if self._process is not None:
            self._reader.join(1.0)
