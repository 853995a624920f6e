"""The matrix: every cell is really run between hosts, for some 30 rounds, or whole runs to the target."""

import contextlib
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from benchmarks.links.contenders import CONTENDERS
from benchmarks.links.hosts import Hosts
from benchmarks.links.search import Problem, Row
from benchmarks.links.tasks import problem

_PORT = 29555
_MOST_SECONDS = 900.0  # of one cell: what takes longer hangs
_FAST = 300.0  # Mbit/s while a cell is set up


@dataclass(frozen=True)
class Cell:
    """One contender on one problem over one kind of link."""

    problem: Problem
    contender: str
    mbit: float | None = 20.0
    delay_ms: float = 10.0
    codec: str = "auto"

    @property
    def key(self) -> Row:
        """What identifies it among the results."""
        links = {"mbit": self.mbit, "delay_ms": self.delay_ms, "codec": self.codec}
        return asdict(self.problem) | {"contender": self.contender} | links


class Fleet:
    """One process per host, which take cells one after another; a context manager that ends them."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self._workers: list[subprocess.Popen[str]] = []
        self._lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        script = str(Path(__file__).with_name("worker.py"))
        for i in range(self.hosts.count):
            own = {"RANK": str(i), "WORLD_SIZE": str(self.hosts.count), "MASTER_ADDR": self.hosts.address(0)}
            own |= {"MASTER_PORT": str(_PORT), "GLOO_SOCKET_IFNAME": self.hosts.interface, "OMP_NUM_THREADS": "1"}
            worker = subprocess.Popen(
                self.hosts.command(i, sys.executable, script),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | own, process_group=0,
            )  # fmt: skip
            self._workers.append(worker)
            threading.Thread(target=self._listen, args=(i, worker), daemon=True).start()
        return self

    def _listen(self, i: int, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        with worker.stdout as lines:
            for line in lines:
                self._lines.put((i, line))
        self._lines.put((i, ""))

    def _tell(self, line: str) -> None:
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(line + "\n")
            worker.stdin.flush()

    def _hear(self) -> list[Row]:
        """One line of every worker."""
        heard: dict[int, Row] = {}
        end = time.monotonic() + _MOST_SECONDS
        while len(heard) < len(self._workers):
            try:
                i, line = self._lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"A cell took more than {_MOST_SECONDS:g} s.") from None
            if not line:
                raise RuntimeError(f"The process of host {i} ended.")
            heard[i] = json.loads(line)
        return [heard[i] for i in sorted(heard)]

    def run(self, cell: Cell, setting: Row, **job: Any) -> list[Row]:
        """What every host measured."""
        about = {"problem": asdict(cell.problem), "contender": cell.contender, "codec": cell.codec, "setting": setting}
        self.hosts.shape(_FAST if cell.delay_ms else None)
        self._tell(json.dumps(about | job))
        self._hear()
        self.hosts.shape(cell.mbit)
        self._tell("go")
        return [line["result"] for line in self._hear()]

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
            assert worker.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.close()


@contextlib.contextmanager
def fleet(count: int, delay_ms: float) -> Iterator[Fleet]:
    """Hosts, and a process on each."""
    with Hosts(count, delay_ms) as hosts:
        hosts.shape(_FAST if delay_ms else None)
        with Fleet(hosts) as made:
            yield made


def measured(cell: Cell, hosts: Sequence[Row]) -> Row:
    """The row of a cell: seconds per round and their quartiles on the slowest host, and the means of the rest."""
    seconds = np.array(max((host["seconds"] for host in hosts), key=sum))
    steps = CONTENDERS[cell.contender].steps
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    mean, gradient = float(seconds.mean()), statistics.fmean(host["gradient"] for host in hosts)
    waiting = [host["waiting"] for host in hosts if "waiting" in host]
    row = {"seconds": mean, "quartiles": [float(low), float(middle), float(high)], "timed": len(seconds)}
    row |= {"gradient": gradient, "wire": statistics.fmean(host["wire"] for host in hosts)}
    row["payload"] = statistics.fmean(host["payload"] for host in hosts) if waiting else None
    # Of an all-reduce, all that is not computing.
    row["waiting"] = statistics.fmean(waiting) if waiting else max(0.0, 1 - steps * gradient / mean)
    return cell.key | {name: _rounded(value) for name, value in row.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def reached(cell: Cell, hosts: Sequence[Row], folder: Path, every: int) -> tuple[int, float] | None:
    """The round and the seconds in which the mean model is at the target, from the models that the hosts left."""
    from benchmarks.links.progress import accuracy

    where = cell.problem
    found = problem(where.task, where.split, where.hosts)
    models = [np.load(folder / f"{i}.npy", mmap_mode="r") for i in range(where.hosts)]
    for number, rows in enumerate(zip(*models, strict=True), 1):
        mean = torch.from_numpy(np.mean(rows, axis=0))
        with torch.no_grad():
            if accuracy(found, mean) >= where.target:
                t = number * every
                return t, max(sum(host["seconds"][:t]) for host in hosts)
    return None


def confirmed(runner: Fleet, cell: Cell, setting: Row, seed: int, rounds: int) -> Row:
    """A whole run until the target, and how long it took; models are measured afterwards."""
    every = 1 if rounds <= 60 else max(2, rounds // 60)
    rounds = -(-rounds // every) * every
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        hosts = runner.run(cell, setting, seed=seed, rounds=rounds, snapshots=folder, every=every)
        found = reached(cell, hosts, Path(folder), every)
    known = {"rounds": None, "time": None} if found is None else {"rounds": found[0], "time": _rounded(found[1])}
    return cell.key | {"seed": seed} | known
