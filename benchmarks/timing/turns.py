"""Measuring in turns: two processes, each with one side of a comparison, and git worktrees of other commits."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LONG = 20.0  # seconds, after which a case ends with its third turn
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A temporary git worktree of a commit."""
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        tree = Path(folder).resolve() / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        done = subprocess.run([*git, "add", "--detach", tree, commit], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"Commit {commit!r} cannot be checked out: {done.stderr.strip()}")
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], capture_output=True, check=False)


def commit_of(tree: Path) -> str:
    """The commit that a worktree is at, in short."""
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def environment(tree: Path, threads: int | None = None) -> dict[str, str]:
    """What a process needs to run the gossamer of a source tree, with so many threads."""
    pools = {} if threads is None else dict.fromkeys(_POOLS, str(threads))
    return os.environ | pools | {"PYTHONPATH": str(tree / "src")}


@dataclass(frozen=True)
class Turn:
    """One answer of a worker."""

    seconds: float
    """Per round."""
    warm_up: float
    """Seconds of the rounds before the first that counts: kernels are compiled in them."""


class Worker:
    """A subprocess that measures one side with one source tree; `speed.py _work` answers it."""

    def __init__(self, tree: Path, threads: int, options: list[str]) -> None:
        command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "speed.py"), "_work", str(threads)]
        self.process = subprocess.Popen(
            [*command, *options],
            env=environment(tree, threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        source = Path(self._answer())
        if not source.is_relative_to(tree):
            self.close()
            raise SystemExit(f"The process for '{tree}' imported gossamer from '{source}'.")

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("A measuring process ended early; its error is printed above.")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise SystemExit(answer["error"])
        return answer

    def ask(self, **question: Any) -> Any:
        """Send a question and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def turn(self, case: str, side: str) -> Turn:
        """Run a side of a case for a while."""
        return Turn(**self.ask(case=case, side=side))

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Times:
    """Seconds per round of both sides, turn by turn."""

    ours: list[float]
    baseline: list[float]
    warm_up: float = 0.0

    @property
    def ratios(self) -> list[float]:
        """How many times as fast as the baseline we are, turn by turn."""
        return [base / own for base, own in zip(self.baseline, self.ours, strict=True)]


def in_turns(ours: Worker, other: Worker, case: str, sides: tuple[str, str], turns: int, scale: float = 1.0) -> Times:
    """Both sides, one after the other, in an order that alternates; the baseline's times are multiplied by `scale`.

    Where two turns take long, three of each are enough.
    """
    taken: tuple[list[float], list[float]] = ([], [])
    workers, warm_up, began = (ours, other), 0.0, time.perf_counter()
    for turn in range(turns):
        if turn >= 3 and time.perf_counter() - began > _LONG:
            break
        began = time.perf_counter() if turn == 1 else began  # the first turn prepares the data and warms up
        for number in (0, 1) if turn % 2 else (1, 0):
            measured = workers[number].turn(case, sides[number])
            taken[number].append(measured.seconds * (scale if number else 1.0))
            warm_up = measured.warm_up if number == 0 else warm_up
    return Times(*taken, warm_up)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, median(values), high
