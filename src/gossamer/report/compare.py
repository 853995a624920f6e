"""Runs side by side: what each method needs until a measurement first reaches a target, and where it ends."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from gossamer.errors import InputError, check_choice
from gossamer.records.record import Record, by_label, mean_of
from gossamer.records.schema import is_higher_better
from gossamer.records.typed import is_number
from gossamer.report.gather import Group, gather
from gossamer.report.page.curves import MEASURED
from gossamer.report.table import human

METRICS = tuple(name for name in MEASURED if name not in ("waiting", "hidden"))
_COSTS = {"rounds": "round", "bits": "bits", "seconds": "seconds"}
_FORMATS: dict[str, Callable[[float], str]] = {
    "rounds": lambda value: f"{value:,.0f}",
    "bits": human,
    "seconds": lambda value: f"{value:,.3g} s" if value < 1000 else f"{value:,.0f} s",
    "final": lambda value: f"{value:.3g}",
}


@dataclass(frozen=True)
class Cell:
    """A number of a method: mean and range over its seeds."""

    mean: float
    low: float
    high: float
    ratio: float | None = None
    """The mean in multiples of the best method's."""


@dataclass(frozen=True)
class MethodCosts:
    """What one method needs to reach the target, and where it ends; None where a seed has no number."""

    method: str
    folder: str
    seeds: list[int]
    diverged: dict[str, str]
    """By seed, why."""
    reached: int
    """Seeds that reach the target."""
    costs: Mapping[str, Cell | None]
    """`rounds`, `bits` and `seconds` until the target, and `final`: the metric in the end."""

    def as_dict(self) -> dict[str, object]:
        """All of it for a program."""
        values = asdict(self)
        costs = values.pop("costs")
        return {**values, **costs}


@dataclass
class Comparison:
    """What `compare_runs` found."""

    metric: str
    target: float | None
    """None if no method got anywhere."""
    chosen: bool
    """Whether the target was chosen here: the best value that every method reaches."""
    methods: list[MethodCosts]
    notes: list[str] = field(default_factory=list)
    """Sentences on what could not be read, or should not be compared."""

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return is_higher_better(self.metric)

    def as_dict(self) -> dict[str, object]:
        """All of it for a program."""
        return {
            "metric": self.metric,
            "better": "higher" if self.higher else "lower",
            "target": self.target,
            "target_chosen": self.chosen,
            "methods": [method.as_dict() for method in self.methods],
            "notes": self.notes,
        }


def compare_runs(
    runs: Iterable[str | os.PathLike[str]], metric: str = "grad_norm", target: float | None = None
) -> Comparison:
    """Compare the methods of several folders or records.

    Args:
        runs: Records, or folders of them.
        metric: What has to reach the target: higher is better for accuracies, lower for all others.
        target: The value to reach; without one, the best value that every method reaches that did not diverge.
    """
    groups, notes = _groups(runs)
    records = [record for group in groups for record in group.records]
    check_choice("metric", metric, [*METRICS, *dict.fromkeys(name for r in records for name in r.rows[-1].extra)])
    if not any(_values(record, metric) for record in records):
        there = [name for name in METRICS if any(_values(record, name) for record in records)]
        raise InputError(f"No record has a `{metric}`; there is {', '.join(there) or 'nothing to compare'}.")
    cut = [f"'{path}'" for group in groups for r, path in zip(group.records, group.files, strict=True) if r.end is None]
    if cut:
        more, they = f" and {len(cut) - 3} more" if len(cut) > 3 else "", "they" if len(cut) > 1 else "it"
        notes.append(f"{', '.join(cut[:3])}{more} did not finish: what {they} had reached is shown.")
    notes += _doubts(records)
    comparison = Comparison(metric, target, target is None, [], notes)
    if target is None:
        comparison.target = _common(records, metric, comparison.higher)
    comparison.methods = _methods(groups, metric, comparison.target)
    for name in (*_COSTS, "final"):
        _compare(comparison, name)
    return comparison


def _compare(comparison: Comparison, name: str) -> None:
    """Fill in the ratios of one column."""
    means = [cell.mean for method in comparison.methods if (cell := method.costs[name]) is not None]
    best = (max if comparison.higher and name == "final" else min)(means, default=None)
    for place, method in enumerate(comparison.methods):
        cell = method.costs[name]
        if cell is not None and best is not None and best > 0 and is_number(cell.mean / best):
            costs = {**method.costs, name: replace(cell, ratio=cell.mean / best)}
            comparison.methods[place] = replace(method, costs=costs)


def comparison_table(comparison: Comparison) -> Table:
    """One line per method, with its range below."""
    table = Table(header_style="bold")
    table.add_column("method", min_width=8)
    headings = {"rounds": "rounds", "bits": "sent per link", "seconds": "seconds"}
    final = f"final {MEASURED.get(comparison.metric, comparison.metric)}"
    for name in _FORMATS:
        table.add_column(headings.get(name, final), justify="right", no_wrap=True)
    several = len(comparison.methods) > 1
    for method in comparison.methods:
        cells = [_shown(method.costs[name], form, several) for name, form in _FORMATS.items()]
        table.add_row(escape(method.method) + _mark(method), *cells)
    return table


def _shown(cell: Cell | None, form: Callable[[float], str], several: bool) -> str:
    """The mean, its ratio to the best of the column, and below them the range over the seeds."""
    if cell is None:
        return "-"
    text, ratio = form(cell.mean), cell.ratio
    if several and ratio is not None:
        times = f"{ratio:.3g}" if ratio < 1000 else f"{ratio:,.0f}" if ratio < 1e6 else f"{ratio:.1e}"
        text = f"[bold]{text}  x1[/]" if ratio == 1 else f"{text}  x{times}"
    low, high = form(cell.low), form(cell.high)
    return text if low == high else f"{text}\n[dim]{low} to {high}[/]"


def _mark(method: MethodCosts) -> str:
    lost, left, reached = len(method.diverged), len(method.seeds), method.reached
    if lost:
        return f" [red]({lost} of {lost + left} diverged)[/]" if left else " [red](diverged)[/]"
    return f" [dim]({reached} of {left} seeds reach it)[/]" if 0 < reached < left else ""


def _groups(runs: Iterable[str | os.PathLike[str]]) -> tuple[list[Group], list[str]]:
    """What can be read of the runs, one group per folder, no record twice; and a sentence for what cannot."""
    groups: dict[Path, Group] = {}
    kept: dict[tuple[Path, str, int], tuple[Record, Path]] = {}
    seen: set[Path] = set()
    notes: list[str] = []
    for run in runs:
        try:
            found = gather(run)
        except InputError as error:
            notes.append(str(error))
            continue
        notes += found.left_out
        for group in found.groups:
            folder = group.folder.resolve()
            groups.setdefault(folder, Group(group.name, group.folder, [], []))
            for record, path in zip(group.records, group.files, strict=True):
                if path.resolve() in seen:
                    continue
                seen.add(path.resolve())
                who, other = (folder, record.label, record.seed), path
                if who not in kept:
                    kept[who] = record, path
                    continue
                if kept[who][0].end is None and record.end is not None:  # the one that finished counts
                    other, kept[who] = kept[who][1], (record, path)
                notes.append(f"The record '{other}' is left out: it has the label and the seed of '{kept[who][1]}'.")
        if not found.groups:
            notes.append(f"There is no record in '{run}'.")
    if not seen:
        raise InputError(f"There is nothing to compare. {notes[0] if notes else 'Give records, or folders of them.'}")
    for (folder, _, _), (record, path) in kept.items():
        groups[folder].records.append(record)
        groups[folder].files.append(path)
    return list(groups.values()), list(dict.fromkeys(notes))


def _methods(groups: Sequence[Group], metric: str, target: float | None) -> list[MethodCosts]:
    """One per folder and label; a label that is in several folders is preceded by the folder's name."""
    labels = [label for group in groups for label in by_label(group.records)]
    methods = []
    for group, folder in zip(groups, _distinct([group.folder for group in groups]), strict=True):
        for label, records in by_label(group.records).items():
            name = label if labels.count(label) == 1 else f"{folder}/{label}"
            methods.append(_method(name, group.folder, records, metric, target))
    return methods


def _distinct(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]).replace("//", "/") for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _values(record: Record, metric: str) -> list[float]:
    return [value for row in record.rows if (value := row.value(metric)) is not None]


def _common(records: Sequence[Record], metric: str, higher: bool) -> float | None:
    """The best value that every run reaches which did not diverge, of the methods that measured it."""
    best, worst = (max, min) if higher else (min, max)
    reached = [best(values) for r in records if r.diverged is None and (values := _values(r, metric))]
    return worst(reached, default=None)


def _method(name: str, folder: Path, records: Sequence[Record], metric: str, target: float | None) -> MethodCosts:
    good = [record for record in records if record.diverged is None]
    arrivals = [None if target is None else record.first(metric, target) for record in good]
    there = [row for row in arrivals if row is not None]
    costs: dict[str, Cell | None] = {}
    for cost, column in _COSTS.items():
        costs[cost] = _cell([row.value(column) for row in there]) if len(there) == len(arrivals) else None
    costs["final"] = _cell([record.last_tenth(metric) for record in good])
    lost = {str(record.seed): record.diverged for record in records if record.diverged}
    return MethodCosts(name, str(folder), [record.seed for record in good], lost, len(there), costs)


def _cell(values: Sequence[float | None]) -> Cell | None:
    mean, known = mean_of(values), [value for value in values if value is not None]
    return None if mean is None else Cell(mean, min(known), max(known))


def _doubts(records: Sequence[Record]) -> list[str]:
    """A sentence if the runs are of different problems."""
    tables = [problem for record in records if (problem := record.header.problem)]
    names = dict.fromkeys(name for table in tables for name in table)
    differ = [f"`{name}`" for name in names if any(table.get(name) != tables[0].get(name) for table in tables)]
    if not differ:
        return []
    return [f"These runs are of different problems: they differ in {', '.join(differ[:5])}; compare with care."]
