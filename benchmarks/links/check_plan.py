"""Hold `gossamer.plan` against the matrix of measurements.

    python benchmarks/links/check_plan.py                 docs/results/links.json
    python benchmarks/links/check_plan.py --brief         only the shares

Seconds per round must be within 30 % in nine of ten rows, and the recommended way must take at most 1.5 times the best
measured time to the target in eight of ten cells. A cell is one task, split, graph, number of hosts, bandwidth and
delay; the plan chooses among the contenders of its own that were measured there. Exit code 1 if either fails.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.links.contenders import CONTENDERS
from benchmarks.links.fit import differing, is_known, way_of
from benchmarks.links.progress import mixing_of
from benchmarks.links.tasks import problem
from gossamer.compression.base import Codec
from gossamer.runtime.planning.progress import rounds_ratio
from gossamer.runtime.planning.seconds import Cost, Network, cost
from gossamer.runtime.planning.ways import METHODS, Way, ways

MEASURED = ROOT / "docs" / "results" / "links.json"
NEAR, SECONDS_SHARE = 1.3, 0.9
GOOD, BEST_SHARE = 1.5, 0.8
OFFERED = set(ways((1, 5, 10, 20, 50), METHODS))  # what a plan may recommend


class Row(TypedDict):
    """One measurement; other keys are not used."""

    task: str
    split: str
    hosts: int
    graph: str
    contender: str
    mbit: float | None
    delay_ms: float
    seconds: float
    gradient: float
    time: float | None
    codec: NotRequired[Codec]


class Checked(NamedTuple):
    """A measurement beside its prediction."""

    row: Row
    way: Way
    cost: Cost
    ratio: float
    """Predicted rounds, in parts of those of all-reduce."""

    @property
    def off(self) -> float:
        """Predicted by measured seconds per round."""
        return self.cost.seconds / self.row["seconds"]

    @property
    def is_near(self) -> bool:
        """Within 30 % of what was measured, up or down."""
        return abs(self.cost.seconds - self.row["seconds"]) <= (NEAR - 1) * self.row["seconds"]


class Choice(NamedTuple):
    """What the plan recommends in a cell, and the best that was measured."""

    cell: str
    recommended: str
    best: str
    ratio: float


@cache
def shapes(task: str) -> tuple[tuple[int, ...], ...]:
    split = "iid" if task == "language" else "dirichlet"
    return tuple(tuple(shape) for shape in problem(task, split, 4).named_shapes.values())


def checked(row: Row, processors: int) -> Checked | None:
    """The prediction for a measurement; None if this version does not know its operator."""
    contender = CONTENDERS.get(row["contender"])
    if contender is None or not is_known(contender):
        return None
    way = replace(way_of(contender), codec=row.get("codec", "auto"))
    mixing = mixing_of(row["graph"], row["hosts"])
    bandwidth = math.inf if row["mbit"] is None else 1e6 * row["mbit"]
    network = Network(row["hosts"], int(mixing.degrees.max()), mixing.rho, bandwidth, row["delay_ms"] / 1e3)
    predicted = cost(way, shapes(row["task"]), network, row["gradient"], processors / row["hosts"])
    d = sum(math.prod(shape) for shape in shapes(row["task"]))
    return Checked(row, way, predicted, rounds_ratio(way, d, mixing.rho, differing(row["split"])))


def choices(all_checked: Sequence[Checked]) -> list[Choice]:
    """Of every cell in which something reached the target."""
    cells: dict[str, list[Checked]] = {}
    for one in all_checked:
        row = one.row
        link = "unlimited" if row["mbit"] is None else f"{row['mbit']:g} Mbit/s"
        name = f"{row['task']}, {row['split']}, {row['hosts']} hosts, {row['graph']}, {link}, {row['delay_ms']:g} ms"
        cells.setdefault(name, []).append(one)
    found = []
    for name, members in cells.items():
        best = min(members, key=_time)
        offered = [one for one in members if one.way in OFFERED]
        if math.isfinite(_time(best)) and offered:
            taken = min(offered, key=lambda one: one.cost.seconds * one.ratio)
            found.append(Choice(name, taken.row["contender"], best.row["contender"], _time(taken) / _time(best)))
    return found


def _time(one: Checked) -> float:
    time = one.row["time"]
    return math.inf if time is None else time


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--processors", type=int, default=os.cpu_count(), help="that all hosts shared")
    parser.add_argument("--brief", action="store_true", help="print the shares alone")
    given = parser.parse_args(arguments)
    if not given.measured.exists():
        print(f"There is no {given.measured}; run the matrix first.")
        return 2
    rows: list[Row] = json.loads(given.measured.read_text())
    found = [one for row in rows if (one := checked(row, given.processors)) is not None]
    chosen = choices(found)
    if not given.brief:
        for one in found:
            row, parts = one.row, one.cost
            where = f"{row['task']}/{row['split']}/{row['hosts']}/{row['graph']} {row['mbit']} {row['delay_ms']:g}"
            detail = f"compute {parts.compute:.3f} software {parts.software:.3f} link {parts.link:.3f}"
            print(
                f"{where:38} {row['contender']:42} {row['seconds']:8.3f} {parts.seconds:8.3f} x{one.off:5.2f}  {detail}"
            )
        for choice in chosen:
            print(f"{choice.cell:52} {choice.recommended:40} best {choice.best:40} x{choice.ratio:.2f}")
    near = sum(one.is_near for one in found) / max(1, len(found))
    good = sum(choice.ratio <= GOOD for choice in chosen) / max(1, len(chosen))
    print(f"Seconds per round within 30 %: {near:.0%} of {len(found)} rows (at least {SECONDS_SHARE:.0%}).")
    print(f"Recommended within {GOOD} times the best: {good:.0%} of {len(chosen)} cells (at least {BEST_SHARE:.0%}).")
    return 0 if near >= SECONDS_SHARE and good >= BEST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
