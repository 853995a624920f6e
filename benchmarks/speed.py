"""How fast rounds are: every case as a ratio to a named baseline that is measured in the same run.

    python benchmarks/speed.py                       all cases on the CPU, and on a GPU if there is one
    python benchmarks/speed.py --against COMMIT      also the cases against another commit
    python benchmarks/speed.py --device gpu --json gpu.json
    python benchmarks/speed.py --merge gpu.json      put these rows into docs/results/speed.json
    python benchmarks/speed.py --short               what CI runs: fails if a ratio got 1.5 times worse

Both sides of a case run in processes of their own, with as many threads as the case says, and take turns. The table
shows medians, and the quartiles of the ratio. Rounds that warm up (kernels are compiled in them) are not counted; their
seconds are in the column `warm_up_s`. `--write` puts the results into docs/results/speed.json, speed.csv, speed.png and
into the tables of docs/speed.md. The cases need a9a and MNIST in $GOSSAMER_DATA or `--data-dir`.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.timing import results as kept
from benchmarks.timing.cases import BEFORE, LINEAR, SHORT, Answers, Case, cases, floor_ms, graphs
from benchmarks.timing.results import Bar, Point, Results, Row, row
from benchmarks.timing.turns import Times, Worker, checked_out, commit_of, environment, in_turns, quartiles
from benchmarks.timing.works import Setting

REPRODUCED = {"fig1": ["--seeds", "3"], "fig2": [], "fig4": []}
_JUDGED_MS = 1.0
"""Growth is judged from this time on; below it the fixed cost of a round counts most."""


def work(threads: int, options: argparse.Namespace) -> None:
    """Answer questions on standard input; the first answer is the path of gossamer."""
    import torch

    import gossamer as gs

    torch.set_num_threads(threads)
    answers = Answers(setting_of(options))
    print(json.dumps(gs.__file__), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, float] | dict[str, str]
        try:
            answer = answers.machine() if question["case"] is None else answers.turn(**question)
        except gs.GossamerError as error:  # such as missing data
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


class Bench:
    """Measures cases on the CPU, and prints each row as soon as it is there."""

    def __init__(self, options: argparse.Namespace, before: Path | None) -> None:
        self.options, self.before, self.setting = options, before, setting_of(options)
        self.results = Results({"cpu": kept.facts(speeds={})})
        self.commit = "" if before is None else f"commit {commit_of(before)}"
        self._workers: dict[tuple[Path, int, int], Worker] = {}

    def worker(self, tree: Path, threads: int, number: int = 0) -> Worker:
        """The process for a source tree; `number` tells apart two with the same tree."""
        key = (tree, threads, number)
        if key not in self._workers:
            self._workers[key] = Worker(tree, threads, worker_options(self.options))
        return self._workers[key]

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()

    def times(self, name: str, case: Case) -> Times:
        """Both sides in turns."""
        ours = self.worker(ROOT, case.threads)
        if case.baseline is None:
            assert self.before is not None
            other, sides = self.worker(self.before, case.threads), ("ours", "ours")
        else:
            other, sides = self.worker(ROOT, case.threads, 1), ("ours", "baseline")
        return in_turns(ours, other, name, sides, self.options.turns, case.scale)

    def speeds(self, threads: int) -> dict[str, float]:
        """Of copies and matrix products, measured once."""
        known: dict[str, dict[str, float]] = self.results.machines["cpu"]["speeds"]
        if str(threads) not in known:
            known[str(threads)] = self.worker(ROOT, threads).ask(case=None)
        return known[str(threads)]

    def measure(self, name: str, case: Case) -> Row:
        """The row of a case."""
        times = self.times(name, case)
        floor = None if self.setting.tiny else floor_ms(case.floor, self.speeds(case.threads))
        note = self.commit if case.baseline is None else ""
        found = row(name, case.measures, "cpu", case.against, times, case.bar, floor_ms=floor, note=note)
        if case.axis:
            small, large = (1e3 * quartiles(side)[1] for side in (times.baseline, times.ours))
            self._points(case, (small / case.scale, large))
            if small / case.scale < _JUDGED_MS:
                found = kept.unjudged(found, f"not judged: {kept.shown(small / case.scale)} is below 1 ms")
        self.tell(found)
        return found

    def _points(self, case: Case, both: tuple[float, float]) -> None:
        known = {(one.axis, one.at) for one in self.results.growth}
        for size, ms in zip(case.sizes, both, strict=True):
            point = Point("cpu", case.axis, *size, float(f"{ms:.4g}"))
            if (point.axis, point.at) not in known:
                self.results.growth.append(point)

    def edges(self) -> None:
        """One row for all graphs: how far the worst is above a straight line through their times."""
        for name, case in graphs(self.setting).items():
            times = self.times(name, case)
            self._points(case, (1e3 * quartiles(times.baseline)[1], 1e3 * quartiles(times.ours)[1]))
        points = [one for one in self.results.growth if one.axis == "edges"]
        at, ms = np.array([one.edges for one in points]), np.array([one.ms for one in points])
        slope, start = np.polyfit(at, ms, 1)
        line = start + slope * at
        worst = int(np.argmin(line / ms))
        found = row(
            f"growth from {at.min():,} to {at.max():,} edges",
            f"BEER, gsgd_5, {points[0].clients:,} clients; rings, regular and exponential graphs; the worst of them",
            "cpu",
            "a straight line through all graphs",
            Times([float(ms[worst]) / 1e3], [float(line[worst]) / 1e3]),
            LINEAR,
        )
        self.tell(found if ms.min() >= _JUDGED_MS else kept.unjudged(found, "not judged: below 1 ms"))

    def reproduce(self) -> None:
        """`gossamer reproduce` as a user calls it, once per source tree."""
        assert self.before is not None
        for figure, more in REPRODUCED.items():
            name = " ".join(["gossamer reproduce", figure, *more])
            if is_chosen(name, self.options.case):
                before, now = (_reproduced(tree, figure, more, self.options) for tree in (self.before, ROOT))
                times = Times([now], [before])
                self.tell(row(name, "the whole command, once", "cpu", BEFORE, times, Bar(ratio=4), note=self.commit))

    def tell(self, found: Row) -> None:
        """Keep and print a row."""
        self.results.rows = [one for one in self.results.rows if one.name != found.name] + [found]
        print(found.line(), flush=True)
        save(self.results, self.options)


def _reproduced(tree: Path, figure: str, more: list[str], options: argparse.Namespace) -> float:
    where = [] if options.data_dir is None else ["--data-dir", str(Path(options.data_dir).resolve())]
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder:
        command = [sys.executable, "-m", "gossamer", "reproduce", figure, *more, *where, "-q", "-o", "out"]
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environment(tree), check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def on_cpu(bench: Bench, options: argparse.Namespace) -> None:
    """All cases that were asked for."""
    for name, case in cases(bench.setting).items():
        if is_chosen(name, options.case) and (case.baseline is not None or bench.before is not None):
            bench.measure(name, case)
    if is_chosen("growth edges", options.case):
        bench.edges()
    if options.reproduce:
        bench.reproduce()


def on_gpu(found: Results, options: argparse.Namespace) -> None:
    """Add all cases of the GPU, or none where there is no device."""
    import torch

    from benchmarks.timing import gpu

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.tiny:
        print("No CUDA device is available; the cases of the GPU are left out.", flush=True)
        return

    def tell(line: str) -> None:
        print(line, flush=True)
        save(found, options)  # in case the next one does not end

    setting = Setting(options.data_dir, options.tiny, device)
    gpu.measure(found, setting, min(options.turns, 5), options.case, options.long, tell)


def save(found: Results, options: argparse.Namespace) -> None:
    """Write the results so far, if a file is named."""
    if options.json:
        options.json.write_text(kept.as_json(found))


def short(bench: Bench, committed: Path) -> int:
    """Exit code 1 if a ratio is much worse than the committed one, in two measurements."""
    before = kept.read(committed)
    known = cases(bench.setting)
    if not {one.name for one in before.rows} & set(SHORT):
        raise SystemExit(f"'{committed}' has none of the cases of `--short`; `make bench` writes it.")
    rows = [bench.measure(name, known[name]) for name in SHORT]
    again = kept.regressions(rows, before)
    if again:
        print(f"Measuring {len(again)} of {len(rows)} again.", flush=True)
    sentences = kept.regressions([bench.measure(name, known[name]) for name in again], before)
    for sentence in sentences.values():
        print(sentence, file=sys.stderr)
    return 1 if sentences else 0


def write(found: Results, json_path: Path, page: Path) -> None:
    """Put results in the places of older ones: JSON, CSV, figure, and the tables of the documentation."""
    from benchmarks.timing.figure import draw

    whole = kept.merged(kept.read(json_path), found)
    json_path.write_text(kept.as_json(whole))
    kept.write_csv(whole.rows, json_path.with_suffix(".csv"))
    draw(whole.growth, json_path.with_suffix(".png"))
    page.write_text(kept.with_tables(page.read_text(), whole))


def show(found: Results) -> None:
    """The table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*kept.HEADINGS)
    for one in found.rows:
        table.add_row(*kept.cells(one))
    console = Console()
    Console(width=None if console.is_terminal else 200).print(table)


def is_chosen(name: str, texts: list[str]) -> bool:
    """Whether a name contains one of the texts, or there are none."""
    return not texts or any(text in name for text in texts)


def setting_of(options: argparse.Namespace) -> Setting:
    """What cases depend on."""
    return Setting(options.data_dir, options.tiny)


def worker_options(options: argparse.Namespace) -> list[str]:
    """The options that a measuring process needs."""
    folder = [] if options.data_dir is None else ["--data-dir", options.data_dir]
    return [*folder, *(["--tiny"] if options.tiny else [])]


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="also measure the cases against this commit")
    parser.add_argument("--reproduce", action="store_true", help="also time `gossamer reproduce`; takes many minutes")
    parser.add_argument("--device", choices=("cpu", "gpu", "all"), default="all")
    parser.add_argument("--case", action="append", default=[], help="only cases whose name contains this; repeatable")
    parser.add_argument("--turns", type=int, default=7, help="turns per case")
    parser.add_argument("--long", action="store_true", help="all rounds of the convolutional network on the GPU")
    parser.add_argument("--short", action="store_true", help="few cases; fail if one got 1.5 times worse")
    parser.add_argument("--committed", type=Path, default=kept.KEPT, help="the results that `--short` compares with")
    parser.add_argument("--tiny", action="store_true", help="embedded data and small sizes; the times mean nothing")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results of this run to a file")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="measure nothing, and write the results in FILE")
    parser.add_argument("--write", action="store_true", help="write docs/results/speed.* and docs/speed.md")
    parser.add_argument("--data-dir", default=os.environ.get("GOSSAMER_DATA") or None)
    options = parser.parse_args(arguments)
    if options.reproduce and not options.against:
        parser.error("`--reproduce` compares with another commit; name it with `--against`.")
    if options.tiny and options.write:
        parser.error("`--tiny` measures nothing worth keeping; `--write` needs the whole cases.")
    if options.turns < 1:
        parser.error(f"`--turns` must be at least 1, got {options.turns}.")
    return options


@contextlib.contextmanager
def benched(options: argparse.Namespace) -> Iterator[Bench]:
    """A bench, with the other commit checked out if there is one."""
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(checked_out(options.against)) if options.against else None
        yield stack.enter_context(contextlib.closing(Bench(options, before)))


def main() -> int:
    if sys.argv[1:2] == ["_work"]:
        work(int(sys.argv[2]), parsed(sys.argv[3:]))
        return 0
    options = parsed(sys.argv[1:])
    if options.merge:
        write(kept.read(options.merge), kept.KEPT, kept.PAGE)
        return 0
    if kept.load() > kept.BUSY * kept.cores():
        print(f"The machine is busy (load {kept.load()}): these times are not worth keeping.", file=sys.stderr)
    found = Results()
    with benched(options) as bench:
        if options.short:
            return short(bench, options.committed)
        if options.device != "gpu":
            on_cpu(bench, options)
            found = bench.results
    if options.device != "cpu":
        on_gpu(found, options)
    show(found)
    save(found, options)
    if options.write:
        write(found, kept.KEPT, kept.PAGE)
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(main())
