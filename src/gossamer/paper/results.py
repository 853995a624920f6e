"""What claims are judged by: the runs of each experiment, asked for numbers seed by seed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from gossamer.paper.rates.studies import Fit
from gossamer.records.record import Record
from gossamer.report.gather import number

Numbers = list[float]
"""One a seed."""


class MissingRunsError(LookupError):
    """A question about an experiment or a method that was not run."""


@dataclass(frozen=True)
class Results:
    """The records of every experiment that was run, and the fitted rates."""

    records: Mapping[str, Sequence[Record]]
    """By the name of the job."""
    fits: Sequence[Fit] = field(default_factory=list)

    def of(self, job: str, label: str) -> list[Record]:
        """The runs of one method, by seed."""
        found = [record for record in self.records.get(job, ()) if record.label == label and record.rows]
        if not found:
            raise MissingRunsError(f"{job}: {label}")
        return sorted(found, key=lambda record: record.seed)

    def final(self, job: str, label: str, column: str) -> Numbers:
        """The mean over the last tenth of the evaluations; of a run that diverged, the worst there is."""
        return [_final(record, column) for record in self.of(job, label)]

    def until(self, job: str, label: str, column: str, levels: Sequence[float], x: str) -> Numbers:
        """`x` (rounds or bits) where the column first is as good as each seed's level; infinite if it never is."""
        runs = self.of(job, label)
        return [_until(record, column, level, x) for record, level in zip(runs, levels, strict=True)]

    def at(self, job: str, label: str, column: str, x: str, places: Sequence[float]) -> Numbers:
        """The column in the last evaluation where `x` is at most each seed's place."""
        found = []
        for record, place in zip(self.of(job, label), places, strict=True):
            rows = [row for row in record.rows if row[x] <= place and row.get(column) is not None]
            found.append(float(rows[-1][column]) if rows else math.nan)
        return found

    def curves(self, job: str, label: str, column: str) -> list[list[tuple[float, float]]]:
        """(round, value) of each seed, NaN where there is no finite value; of a run that diverged, nothing."""
        return [
            []
            if record.diverged
            else [(row["round"], math.nan if row.get(column) is None else float(row[column])) for row in record.rows]
            for record in self.of(job, label)
        ]

    def rho(self, job: str) -> float:
        """The spectral gap of the experiment's network."""
        for record in self.records.get(job, ()):
            rho = number(record.header["mixing"].get("rho"))
            if rho is not None and rho > 0:
                return rho
        raise MissingRunsError(f"{job}: rho")

    def shares(self, job: str, labels: Sequence[str]) -> list[tuple[list[float], float]]:
        """For each client, how many rows it has of these labels, and of all."""
        for record in self.records.get(job, ()):
            told = record.header.get("shares")
            known, counts = (told.get("labels"), told.get("counts")) if isinstance(told, dict) else (None, None)
            if not isinstance(known, list) or not isinstance(counts, list):
                continue
            places = [known.index(label) for label in labels if label in known]
            whole = all(isinstance(row, list) and len(row) == len(known) and all(map(_counts, row)) for row in counts)
            if whole and counts and len(places) == len(labels) and all(sum(row) > 0 for row in counts):
                return [([row[place] for place in places], sum(row)) for row in counts]
        raise MissingRunsError(f"{job}: shares")


def _counts(value: object) -> bool:
    return (count := number(value)) is not None and count >= 0


def higher_is_better(column: str) -> bool:
    """Accuracies; all else is to be small."""
    return column.endswith("accuracy")


def _final(record: Record, column: str) -> float:
    if record.diverged:
        return 0.0 if higher_is_better(column) else math.inf
    values = [row.get(column) for row in record.rows[-max(1, len(record.rows) // 10) :]]
    return fmean(value if value is not None else math.inf for value in values)


def _until(record: Record, column: str, level: float, x: str) -> float:
    sign = -1 if higher_is_better(column) else 1
    for row in record.rows:
        value = row.get(column)
        if value is not None and sign * value <= sign * level:
            return float(row[x])
    return math.inf


def each(function: Callable[..., float], *columns: Sequence[float]) -> Numbers:
    """A function of one number each, seed by seed; experiments that were run with other seeds cannot be compared."""
    if len(set(map(len, columns))) > 1:
        raise MissingRunsError("different seeds")
    return [function(*values) for values in zip(*columns, strict=True)]


def ratio(above: Sequence[float], below: Sequence[float]) -> Numbers:
    """Above over below; infinite over infinite, or nothing over nothing, cannot be told."""
    return each(
        lambda a, b: math.nan if a == b and (a == 0 or math.isinf(a)) else a / b if b else math.inf, above, below
    )


def less(one: Sequence[float], other: Sequence[float]) -> Numbers:
    """One less the other."""
    return each(lambda a, b: a - b, one, other)


def largest(*columns: Sequence[float]) -> Numbers:
    """The largest of each seed; NaN where one is."""
    return each(lambda *values: math.nan if any(map(math.isnan, values)) else max(values), *columns)


def smallest(*columns: Sequence[float]) -> Numbers:
    """The smallest of each seed; NaN where one is."""
    return each(lambda *values: math.nan if any(map(math.isnan, values)) else min(values), *columns)


def times(factor: float, values: Sequence[float]) -> Numbers:
    """Each value times the factor."""
    return [factor * value for value in values]
