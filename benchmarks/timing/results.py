"""The results: rows and facts as JSON, a CSV file, a table, and what counts as a regression."""

import csv
import datetime
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.timing.turns import ROOT, Times, quartiles

KEPT = ROOT / "docs" / "results" / "speed.json"
PAGE = ROOT / "docs" / "speed.md"
WORSE = 1.5
"""A ratio that is this many times smaller than the committed one is a regression."""
BUSY = 0.5
"""Load per core, above which other programs disturb the times."""
_PACKAGES = ("gossamer", "torch", "numpy", "numba", "scipy", "triton")


@dataclass(frozen=True)
class Bar:
    """What is asked of a case: a ratio to the baseline, a time, or nothing."""

    ratio: float | None = None
    ms: float | None = None

    def met(self, ratio: float, ms: float) -> bool | None:
        """Whether it is met; None without a bar."""
        if self.ratio is None and self.ms is None:
            return None
        return (self.ratio is None or ratio >= self.ratio) and (self.ms is None or ms <= self.ms)

    def __str__(self) -> str:
        if self.ratio is None and self.ms is None:
            return ""
        return f"at least {self.ratio:.3g}x" if self.ms is None else f"at most {shown(self.ms)}"


@dataclass(frozen=True)
class Row:
    """One case; times are milliseconds per round, and a ratio says how many times as fast as the baseline we are."""

    name: str
    measures: str
    where: str
    """`"cpu"` or `"gpu"`."""
    baseline: str
    baseline_ms: float
    ms: float
    ms_low: float
    ms_high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    bar_ratio: float | None = None
    bar_ms: float | None = None
    met: bool | None = None
    warm_up_s: float = 0.0
    floor_ms: float | None = None
    """Bytes at the speed of a copy plus multiplications at the speed of a matrix product."""
    launches: float | None = None
    """Kernels that the GPU starts per round."""
    note: str = ""
    date: str = ""

    @property
    def bar(self) -> Bar:
        """What is asked."""
        return Bar(self.bar_ratio, self.bar_ms)

    def line(self) -> str:
        """The row in one line, as it is printed while the others are measured."""
        met = {True: "met", False: "not met", None: ""}[self.met]
        bar = f"; bar {self.bar}: {met}" if str(self.bar) else ""
        warm_up = f"; warm-up {self.warm_up_s:.0f} s" if self.warm_up_s >= 1 else ""
        text = f"{self.name}: {shown(self.ms)}, {self.ratio:.2f} times as fast as {self.baseline}{bar}{warm_up}"
        return f"{text}; {self.note}" if self.note else text


@dataclass(frozen=True)
class Point:
    """A time on a curve of growth."""

    where: str
    axis: str
    """`"clients"`, `"coordinates"` or `"edges"`."""
    clients: int
    coordinates: int
    edges: int
    ms: float

    @property
    def at(self) -> int:
        """The place on its axis."""
        place: int = getattr(self, self.axis)
        return place


@dataclass
class Results:
    """All rows, the curves, and facts about the machines they were measured on, by `where`."""

    machines: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    growth: list[Point] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Cases that ended with an error; not kept in files."""


def row(name: str, measures: str, where: str, baseline: str, times: Times, bar: Bar, **more: Any) -> Row:
    """The row of a case, from its turns."""
    low, middle, high = (1e3 * one for one in quartiles(times.ours))
    ratio_low, ratio, ratio_high = quartiles(times.ratios)
    return Row(
        name,
        measures,
        where,
        baseline,
        baseline_ms=_rounded(1e3 * quartiles(times.baseline)[1]),
        ms=_rounded(middle),
        ms_low=_rounded(low),
        ms_high=_rounded(high),
        ratio=_rounded(ratio),
        ratio_low=_rounded(ratio_low),
        ratio_high=_rounded(ratio_high),
        bar_ratio=bar.ratio,
        bar_ms=bar.ms,
        met=bar.met(ratio, middle),
        warm_up_s=round(times.warm_up, 3),
        date=datetime.date.today().isoformat(),
        **more,
    )


def unjudged(one: Row, note: str) -> Row:
    """The row without a verdict."""
    return replace(one, met=None, note=note)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def facts(**more: Any) -> dict[str, Any]:
    """Versions and processor."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions | {"python": platform.python_version()},
        "processor": processor(),
        "cores": cores(),
        "load": load(),
    } | more


def processor() -> str:
    """The name of the processor."""
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """How many processes want a processor, over the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def read(path: Path) -> Results:
    """The results in a file; none if it does not exist."""
    if not path.exists():
        return Results()
    found = json.loads(path.read_text())
    rows, growth = [Row(**one) for one in found["rows"]], [Point(**one) for one in found["growth"]]
    return Results(found["machines"], rows, growth)


def as_json(results: Results) -> str:
    """The content of a results file."""
    kept = asdict(results)
    del kept["failed"]
    return json.dumps(kept, indent=1) + "\n"


def merged(old: Results, new: Results) -> Results:
    """The old results with the new ones in their places; those of another machine or of other versions are dropped."""
    kept = {where: told for where, told in old.machines.items() if _same(told, new.machines.get(where))}
    names, curves = {one.name for one in new.rows}, {(one.where, one.axis) for one in new.growth}
    rows = [one for one in old.rows if one.where in kept and one.name not in names]
    stay = {where: told for where, told in kept.items() if any(one.where == where for one in rows)}
    machines = kept | {where: _together(stay.get(where, {}), told) for where, told in new.machines.items()}
    growth = [one for one in old.growth if one.where in kept and (one.where, one.axis) not in curves]
    order = list(dict.fromkeys(one.name for one in [*old.rows, *new.rows]))
    ordered = sorted([*rows, *new.rows], key=lambda one: (one.where, order.index(one.name)))
    return Results(machines, ordered, [*growth, *new.growth], new.failed)


def _together(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The facts of two runs on one machine; the load is the larger one."""
    speeds = old.get("speeds", {}) | new.get("speeds", {})
    return new | {"speeds": speeds, "load": max(old.get("load", 0.0), new.get("load", 0.0))}


def _same(old: dict[str, Any], new: dict[str, Any] | None) -> bool:
    names = ("versions", "processor", "cores", "gpu")
    return new is None or all(old.get(name) == new.get(name) for name in names)


def regressions(now: Iterable[Row], committed: Results) -> dict[str, str]:
    """A sentence for each row that is much slower, against its baseline, than the committed one."""
    before = {one.name: one for one in committed.rows}
    found = {}
    for one in now:
        kept = before.get(one.name)
        if kept is not None and one.ratio * WORSE < kept.ratio:
            found[one.name] = (
                f"{one.name} is {one.ratio:.2f} times as fast as {one.baseline}; the committed results say "
                f"{kept.ratio:.2f} times, which is more than {WORSE} times as much."
            )
    return found


def shown(ms: float) -> str:
    """A time in a fitting unit, with three digits."""
    for unit, size in (("s", 1e3), ("ms", 1.0)):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms * 1e3:.3g} µs" if ms < 0.1 else f"{ms:.3g} ms"


HEADINGS = ("work", "baseline", "its time", "our time", "ratio (quartiles)", "bar", "met")


def cells(one: Row) -> tuple[str, ...]:
    """A row as it is shown."""
    met = {True: "yes", False: "no", None: ""}[one.met]
    ratio = f"{one.ratio:.2f} ({one.ratio_low:.2f} to {one.ratio_high:.2f})"
    return one.name, one.baseline, shown(one.baseline_ms), shown(one.ms), ratio, str(one.bar), met


def markdown(results: Results) -> str:
    """The table of the documentation."""
    lines = []
    for where, title in (("cpu", "CPU"), ("gpu", "GPU")):
        rows = [one for one in results.rows if one.where == where]
        if not rows:
            continue
        machine = results.machines[where]
        name = machine.get("gpu") or f"{machine['processor']}, {machine['cores']} cores"
        if machine["load"] > BUSY * machine["cores"]:
            name += f" (busy with other programs: load {machine['load']:.1f})"
        lines += [f"| **{title}**: {name} | | | | | | |", *(f"| {' | '.join(cells(one))} |" for one in rows)]
    judged = [one for one in results.rows if one.met is not None]
    count = f"{sum(bool(one.met) for one in judged)} of {len(judged)} bars are met."
    return "\n".join([f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|", *lines, "", count]) + "\n"


def meanings(results: Results) -> str:
    """The second table: what each row measures."""
    lines = ["| work | what is measured |", "|---|---|"]
    lines += [f"| {one.name} | {one.measures}{f' ({one.note})' if one.note else ''} |" for one in results.rows]
    return "\n".join(lines) + "\n"


def floors(results: Results) -> str:
    """The third table of the documentation: how near the floor each case is."""
    lines = ["| work | our time | floor | times the floor | kernels per round |", "|---|---|---|---|---|"]
    for one in results.rows:
        if one.floor_ms is not None:
            launches = "" if one.launches is None else f"{one.launches:.0f}"
            away = f"{one.ms / one.floor_ms:.2g}"
            lines.append(f"| {one.name} | {shown(one.ms)} | {shown(one.floor_ms)} | {away} | {launches} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str, results: Results) -> str:
    """The page of the documentation, with its tables made anew."""
    tables = {"speed": markdown(results), "cases": meanings(results), "floors": floors(results)}
    for name, table in tables.items():
        found = re.search(rf"<!-- {name}: .*? -->\n(.*?)<!-- end of {name} -->", page, flags=re.DOTALL)
        if found is None:
            raise SystemExit(f"'{PAGE}' has no place from '<!-- {name}: ... -->' to '<!-- end of {name} -->'; add it.")
        page = page[: found.start(1)] + table + page[found.end(1) :]
    return page


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """One line per row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(one) for one in rows)
