"""Time to a target accuracy on slow links.

    python -m benchmarks.links --search     rounds to the target, simulated (hours on two cores; a GPU helps: --devices)
    python -m benchmarks.links --measure    seconds per round between hosts on shaped links (an hour; needs root)
    python -m benchmarks.links --confirm    whole runs to the target
    python -m benchmarks.links --draw       table and figure from the results
    python -m benchmarks.links              all of these

What was done before is not repeated: remove its line from `docs/results/links*.json*` to do it again.
"""

import argparse
import json
import signal
import statistics
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.links.cells import BEER, CELLS, CHOCO, CONFIRMED, DDP, MOTEF, OFTEN, POWER, REDUCE
from benchmarks.links.contenders import CONTENDERS, settings
from benchmarks.links.hosts import Refused, probe
from benchmarks.links.matrix import Cell, confirmed, fleet, measured
from benchmarks.links.search import FINAL, Problem, Row, read, run, searches

RESULTS = ROOT / "docs" / "results"
FEW = [DDP, POWER, REDUCE, OFTEN, CHOCO, BEER, MOTEF]
SEARCHES = [
    *searches(Problem(split="digit"), CONTENDERS),
    *searches(Problem("cnn", "dirichlet"), FEW),
    *searches(Problem("cnn", "digit"), FEW),
    *searches(Problem("language", "iid"), FEW[:5]),
    *searches(Problem(split="dirichlet"), CONTENDERS),
    *searches(Problem(hosts=8), (DDP, POWER, REDUCE, CHOCO)),
    *searches(Problem(graph="random"), (OFTEN, CHOCO, MOTEF)),
    *searches(Problem("hidden", "dirichlet"), FEW),
    *searches(Problem("hidden", "digit"), FEW),
]
_SECONDS, _LEAST, _MOST = 6.0, 5, 30  # of a cell: seconds, and rounds that are timed
_LATER, _MORE = 1.25, 5  # a whole run takes so many times the rounds that were simulated, and some more


class Results:
    """Rows in a JSON file, which is written after every row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = json.loads(path.read_text()) if path.exists() else []

    def has(self, key: Row) -> bool:
        """Whether there is a row with these entries."""
        return any(key.items() <= row.items() for row in self.rows)

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)
        lines = ",\n".join(json.dumps(one) for one in self.rows)
        self.path.write_text(f"[\n{lines}\n]\n")


def chosen(rows: list[Row], cell: Cell) -> tuple[Row, list[int | None]]:
    """The setting that the search chose, and the rounds to the target; some setting, where none reached it."""
    key = {name: value for name, value in cell.key.items() if name not in ("mbit", "delay_ms", "codec")}
    found = next((row for row in rows if key.items() <= row.items() and row["setting"] is not None), None)
    if found is None:
        return settings(CONTENDERS[cell.contender])[0], []
    return found["setting"], [one["rounds"] for one in found["final"]]


def measure(results: Path, only: str) -> None:
    """Seconds per round of every cell that is not there yet."""
    found, done = read(results / "links_search.jsonl"), Results(results / "links.json")
    left = [cell for cell in CELLS if not done.has(cell.key) and only in str(cell)]
    print(f"{len(left)} of {len(CELLS)} cells to do.", flush=True)
    for (hosts, delay_ms), group in groupby(left, key=lambda cell: (cell.problem.hosts, cell.delay_ms)):
        with fleet(hosts, delay_ms) as runner:
            for cell in group:
                setting, rounds = chosen(found, cell)
                began = time.monotonic()
                told = {"seconds": _SECONDS, "least": _LEAST, "most": _MOST, "snapshots": None}
                row = measured(cell, runner.run(cell, setting, seed=FINAL[0], **told))
                known = sorted(one for one in rounds if one is not None)
                middle = statistics.median(known) if len(known) == len(FINAL) else None
                row |= {"rounds": middle, "time": None if middle is None else round(row["seconds"] * middle, 2)}
                done.add(row)
                print(f"{_line(row)} ({time.monotonic() - began:.0f} s)", flush=True)


def confirm(results: Path, only: str) -> None:
    """Whole runs, one seed each."""
    found, done = read(results / "links_search.jsonl"), Results(results / "links_confirmed.json")
    left = [cell for cell in CONFIRMED if not done.has(cell.key) and only in str(cell)]
    print(f"{len(left)} of {len(CONFIRMED)} whole runs to do.", flush=True)
    for (hosts, delay_ms), group in groupby(left, key=lambda cell: (cell.problem.hosts, cell.delay_ms)):
        with fleet(hosts, delay_ms) as runner:
            for cell in group:
                setting, rounds = chosen(found, cell)
                expected = rounds[0]
                if expected is None:
                    raise RuntimeError(f"{cell} does not reach its target.")
                row = confirmed(runner, cell, setting, FINAL[0], round(_LATER * expected) + _MORE)
                row["simulated"] = expected
                done.add(row)
                print(row, flush=True)


def _line(row: Row) -> str:
    rate = "unlimited" if row["mbit"] is None else f"{row['mbit']:g} Mbit/s"
    where = (
        f"{row['task']} {row['split']} {row['graph']} {row['hosts']}, {rate}, {row['delay_ms']:g} ms, {row['codec']}"
    )
    return f"{where}: {row['contender']}: {row['seconds']:.4f} s, {row['wire'] / 1e3:.0f} kB, time {row['time']}"


def main() -> None:
    """What is asked for, or everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("search", "measure", "confirm", "draw")
    for part in parts:
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--devices", default="cpu,cpu", help="one process each for --search")
    parser.add_argument("--seconds", type=float, default=1e9, help="the most for --search")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="cells whose description has this")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    is_asked: Any = {part: getattr(given, part) for part in parts}
    if not any(is_asked.values()):
        is_asked = dict.fromkeys(parts, True)
    try:
        if is_asked["measure"] or is_asked["confirm"]:
            probe()
    except Refused as reason:
        sys.exit(f"Hosts cannot be made on this machine: {reason}.")
    if is_asked["search"]:
        run(SEARCHES, given.results / "links_search.jsonl", given.devices.split(","), given.seconds)
    if is_asked["measure"]:
        measure(given.results, given.only)
    if is_asked["confirm"]:
        confirm(given.results, given.only)
    if is_asked["draw"]:
        from benchmarks.links.table import draw

        draw(given.results)


if __name__ == "__main__":
    main()
