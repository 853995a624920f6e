"""The search: a contender's twelve settings on one seed, then the best of them on three others, all simulated."""

import json
import queue
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.links.contenders import CONTENDERS, Setting, settings
from benchmarks.links.tasks import TASKS

SEARCHED, FINAL = 100, (0, 1, 2)
_LATER = 1.3  # times the rounds of the best setting so far, after which a setting is given up

Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """What is trained, by whom, and over which graph."""

    task: str = "million"
    split: str = "dirichlet"
    hosts: int = 4
    graph: str = "ring"

    @property
    def target(self) -> float:
        """The accuracy to be reached."""
        return TASKS[self.task].targets[self.split]


@dataclass(frozen=True)
class Search:
    """All trials of one contender on one problem."""

    problem: Problem
    contender: str

    def run(self, device: str) -> Row:
        """Try every setting, then the best with other seeds."""
        import torch

        torch.set_num_threads(1)
        began, best, trials = time.perf_counter(), None, []
        most = CONTENDERS[self.contender].rounds
        for setting in settings(CONTENDERS[self.contender]):
            found = self._attempt(setting, SEARCHED, device, most)
            trials.append({"setting": setting, **found})
            if found["rounds"] is not None and (best is None or found["rounds"] < best["rounds"]):
                best, most = trials[-1], round(_LATER * found["rounds"]) + 2
        finals = []
        if best is not None:
            limit = 2 * CONTENDERS[self.contender].rounds
            finals = [{"seed": seed, **self._attempt(best["setting"], seed, device, limit)} for seed in FINAL]
        chosen, seconds = None if best is None else best["setting"], round(time.perf_counter() - began, 1)
        found = {"target": self.problem.target, "setting": chosen, "final": finals, "trials": trials}
        return self.key | found | {"device": device, "seconds": seconds}

    @property
    def key(self) -> Row:
        """What identifies it among the results."""
        return asdict(self.problem) | {"contender": self.contender}

    def _attempt(self, setting: Setting, seed: int, device: str, rounds: int) -> Row:
        from benchmarks.links.progress import curve

        where, contender = self.problem, CONTENDERS[self.contender]
        how: Any = {"rounds": rounds, "device": device, "graph": where.graph, "target": where.target}
        points = curve(where.task, where.split, where.hosts, contender, setting, seed, **how)
        found = points[-1] if points and points[-1].mean >= where.target else None
        best = round(max((point.mean for point in points), default=0.0), 4)
        return {"rounds": None if found is None else found.round, "best": best} | (
            {} if found is None else {"worst client": round(found.worst, 4)}
        )


def searches(problem: Problem, names: Iterable[str]) -> list[Search]:
    """Of these contenders."""
    return [Search(problem, name) for name in names]


def read(path: Path) -> list[Row]:
    """All searches so far; of several with one key, the last."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    by_key = {(row["task"], row["split"], row["hosts"], row["graph"], row["contender"]): row for row in rows}
    return list(by_key.values())


def run(wanted: Sequence[Search], path: Path, devices: Sequence[str], seconds: float) -> None:
    """Run what is not in the file yet, one process per device, until the time is over; what is under way is then lost.

    Processes on a CPU begin with the last search, the others with the first.
    """
    rows, end = read(path), time.monotonic() + seconds
    missing = [one for one in wanted if not any(one.key.items() <= row.items() for row in rows)]
    print(f"{len(missing)} of {len(wanted)} searches to do.", flush=True)
    context = get_context("spawn")
    with context.Manager() as manager, path.open("a") as file:
        left, done = manager.list(missing), manager.Queue()
        workers = [context.Process(target=_work, args=(left, done, device), daemon=True) for device in devices]
        for worker in workers:
            worker.start()
        count = 0
        while count < len(missing) and time.monotonic() < end:
            is_over = not any(worker.is_alive() for worker in workers)
            try:
                row = done.get(timeout=1.0)
            except queue.Empty:
                if is_over:
                    break
                continue
            count += 1
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{count}/{len(missing)} {_line(row)}", flush=True)
        for worker in workers:
            worker.kill()
            worker.join()
    if count < len(missing):
        print(f"{len(missing) - count} searches are left; run it again to go on.", flush=True)


def _work(left: Any, done: Any, device: str) -> None:
    """Search until nothing is left."""
    while True:
        try:
            one: Search = left.pop(0 if device != "cpu" else -1)
        except IndexError:
            return
        done.put(one.run(device))


def _line(row: Row) -> str:
    rounds = [one["rounds"] for one in row["final"]]
    where = f"{row['task']} {row['split']} {row['graph']} {row['hosts']}"
    return f"{where} {row['contender']:38} {row['setting']} rounds {rounds} ({row['seconds']:.0f} s, {row['device']})"
