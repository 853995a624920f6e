"""The processes of a launch: start, watch and end ranks, on this host or through torchrun."""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gossamer.cli.launching.events import KEYS, LAUNCHED, STORE, Event, Kind, Lifeline, reading

Events = queue.SimpleQueue[Event]
_KILL_SECONDS = 2.0  # for torchrun to end its ranks


class Fleet(Protocol):
    """All ranks of a run, as `supervise` sees them."""

    events: Events
    restarts_itself: bool
    """Whether failed ranks are restarted without a call of `start`."""

    def start(self, attempt: int) -> None:
        """Start every rank."""

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
    keys: str = ""
    """The folder of the keys, on several hosts."""
    variables: Mapping[str, str] = field(default_factory=dict)


class _Processes(ABC):
    """Processes that share two pipes: one for their events, one for the stop request."""

    def __init__(self, lock: int | None = None) -> None:
        self.events: Events = queue.SimpleQueue()
        self._keep = () if lock is None else (lock,)
        self._folder = ""  # of the store, if it is a file
        self._open()

    def _open(self) -> None:
        """Make the pipes of one attempt."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._gone: set[int] = set()
        self._lifeline = Lifeline()
        ours, theirs = os.pipe()
        self._theirs, self._reader = os.fdopen(theirs, "wb"), reading(ours, self.events.put)

    def _start(self, rank: int, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as stream:
            self._processes[rank] = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=self._lifeline.theirs,
                stdout=self._theirs,
                stderr=stream,
                pass_fds=self._keep,  # the lock is held until the last rank has ended
                start_new_session=True,  # the launcher handles Ctrl-C
            )

    def _started(self) -> None:
        """Close this process's copies of the pipes, once all processes have theirs."""
        self._lifeline.theirs.close()
        self._theirs.close()

    def poll(self) -> bool:
        """Record which processes have ended; return whether any still runs."""
        for rank, process in self._processes.items():
            if rank not in self._gone and process.poll() is not None:
                self._gone.add(rank)
                self.events.put(Event(Kind.EXIT, rank, code=int(process.returncode)))
        return len(self._gone) < len(self._processes)

    def ask_to_stop(self) -> None:
        """Ask one rank, which passes the request on."""
        self._lifeline.ask_to_stop()

    @abstractmethod
    def kill(self) -> None:
        """Kill all processes that still run."""

    def end(self) -> None:
        """End all processes and remove temporary files; all events have arrived on return."""
        self.kill()
        for process in self._processes.values():
            process.wait()
        self._lifeline.end()
        self._started()
        self._reader.join(1.0)
        shutil.rmtree(self._folder, ignore_errors=True)


class Host(_Processes):
    """The ranks of this host, as children of this process: a fleet, or a part of one on several hosts."""

    restarts_itself = False

    def __init__(self, job: Job | None = None, lock: int | None = None) -> None:
        super().__init__(lock)
        self._job = job

    def start(self, attempt: int) -> None:
        """Start every rank; the store is a file in a private folder, and nothing listens beyond loopback."""
        assert self._job is not None
        if attempt:
            self._open()
        self._folder = tempfile.mkdtemp(prefix="gossamer-")  # accessible to this user only
        self.launch(replace(self._job, attempt=attempt, store=str(Path(self._folder) / "store")))

    def launch(self, job: Job) -> None:
        """Start the ranks of a job, each with its own log."""
        logs, command = Path(job.logs), [sys.executable, "-m", "gossamer", *job.arguments]
        logs.mkdir(parents=True, exist_ok=True)
        for local in range(job.count):
            rank = job.first + local
            about = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": job.size, "LOCAL_WORLD_SIZE": job.count}
            own = {**about, "GOSSAMER_ATTEMPT": job.attempt, LAUNCHED: 1, STORE: job.store, KEYS: job.keys}
            variables = {**job.variables, **{name: str(value) for name, value in own.items()}}
            self._start(rank, command, variables, logs / f"rank{rank}.log")
        self._started()

    def kill(self) -> None:
        """Send SIGKILL, which also ends frozen ranks."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()


class Torchrun(_Processes):
    """The ranks of this host in a launch by torchrun, which restarts ranks itself."""

    def __init__(self, command: Sequence[str], log: Path, variables: Mapping[str, str], restarts: int) -> None:
        super().__init__()
        self.restarts_itself = restarts > 0
        self._command, self._log = command, log
        # By default torchrun waits 30 s for a frozen rank; `supervise` has waited already.
        self._variables = {**variables, LAUNCHED: "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0"}

    def start(self, attempt: int) -> None:
        """Start torchrun; ranks inherit its standard streams."""
        self._start(-1, self._command, self._variables, self._log)
        self._started()

    def kill(self) -> None:
        """Terminate torchrun, which kills its ranks; if it does not end, kill it and close the ranks' input."""
        for process in self._processes.values():
            if process.poll() is not None:
                continue
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_SECONDS)
            self._lifeline.end()
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
