"""The search: every contender with its twelve settings on one seed, then the best of them on three others."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.links.contenders import CONTENDERS, Setting, settings
from benchmarks.links.tasks import TASKS

SEARCHED, FINAL = 100, (0, 1, 2)

Row = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run to be done."""

    task: str
    split: str
    hosts: int
    graph: str
    contender: str
    setting: Setting
    seed: int
    device: str

    @property
    def key(self) -> Row:
        """What identifies it in the file of results."""
        return {name: value for name, value in vars(self).items() if name != "device"}


def reached(points: list[list[float]] | list[tuple[int, float, float]], target: float, column: int) -> int | None:
    """The first round in which an accuracy is at the target; column 1 is the mean model, 2 the worst client's."""
    return next((int(point[0]) for point in points if point[column] >= target), None)


def attempt(trial: Trial) -> Row:
    """Run it."""
    import torch

    from benchmarks.links.progress import curve

    torch.set_num_threads(1)
    began = time.perf_counter()
    contender, target = CONTENDERS[trial.contender], TASKS[trial.task].target(trial.split)
    assert target is not None
    points = curve(
        trial.task, trial.split, trial.hosts, contender, trial.setting, trial.seed, device=trial.device, graph=trial.graph
    )
    best = max((point[1] for point in points), default=0.0)
    found = {"rounds": reached(points, target, 1), "rounds worst": reached(points, target, 2), "best": best}
    few = points[:: max(1, len(points) // 40)]
    shown = [[t, round(a, 4), round(b, 4)] for t, a, b in few]
    return trial.key | found | {"seconds": round(time.perf_counter() - began, 2), "curve": shown}


def read(path: Path) -> list[Row]:
    """All runs so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def same(row: Row, key: Row) -> bool:
    """Whether a run is the one that is looked for."""
    return json.dumps({name: row[name] for name in key}) == json.dumps(key)


def searched(where: Row, names: list[str], device: str) -> Iterator[Trial]:
    """The trials of the search."""
    for name in names:
        for setting in settings(CONTENDERS[name]):
            yield Trial(**where, contender=name, setting=setting, seed=SEARCHED, device=device)


def chosen(rows: list[Row], where: Row, name: str) -> Row | None:
    """The best run of the search: the fewest rounds until the mean model is at the target."""
    keys = [where | {"contender": name, "setting": setting, "seed": SEARCHED} for setting in settings(CONTENDERS[name])]
    mine = [row for key in keys for row in rows if same(row, key)]
    never = 10**9
    best = min(mine, key=lambda row: (row["rounds"] or never, row["rounds worst"] or never), default=None)
    return best if best is not None and best["rounds"] is not None else None


def final(rows: list[Row], where: Row, names: list[str], device: str) -> Iterator[Trial]:
    """The chosen settings with the other seeds."""
    for name in names:
        best = chosen(rows, where, name)
        if best is not None:
            for seed in FINAL:
                yield Trial(**where, contender=name, setting=best["setting"], seed=seed, device=device)


def run(trials: list[Trial], path: Path, jobs: int, seconds: float) -> None:
    """Run what is not in the file yet, until the time is over."""
    rows, end = read(path), time.monotonic() + seconds
    missing = [trial for trial in trials if not any(same(row, trial.key) for row in rows)]
    print(f"{len(missing)} of {len(trials)} runs to do.", flush=True)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, path.open("a") as file:
        waiting = {pool.submit(attempt, trial): trial for trial in missing}
        for done, future in enumerate(as_completed(waiting), 1):
            row = future.result()
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(
                f"{done}/{len(missing)} {row['split']:9} {row['contender']:40} {row['setting']} seed {row['seed']}: "
                f"{row['rounds']} {row['rounds worst']} best {row['best']:.3f} in {row['seconds']} s",
                flush=True,
            )
            if time.monotonic() > end:
                print(f"Stopped after {seconds:g} s; run it again to go on.", file=sys.stderr)
                pool.shutdown(cancel_futures=True)
                return
