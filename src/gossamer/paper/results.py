"""The runs of each experiment, and the numbers of each seed by which claims are judged."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gossamer.paper.rates.fit import Fit
from gossamer.records.record import Record
from gossamer.records.schema import is_higher_better

Numbers = list[float]
"""One per seed."""


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
        worst = 0.0 if is_higher_better(column) else math.inf
        ends = [(record.diverged, record.last_tenth(column)) for record in self.of(job, label)]
        return [worst if diverged else math.inf if end is None else end for diverged, end in ends]

    def until(self, job: str, label: str, column: str, levels: Sequence[float], x: str) -> Numbers:
        """`x` (rounds or bits) where the column first is as good as each seed's level; infinite if it never is."""
        rows = [record.first(column, level) for record, level in zip(self.of(job, label), levels, strict=True)]
        places = [None if row is None else row.value(x) for row in rows]
        return [math.inf if place is None else float(place) for place in places]

    def at(self, job: str, label: str, column: str, x: str, places: Sequence[float]) -> Numbers:
        """The column in the last evaluation where `x` is at most each seed's place."""
        found = []
        for record, place in zip(self.of(job, label), places, strict=True):
            values = [(row.value(x), row.value(column)) for row in record.rows]
            before = [value for at, value in values if at is not None and at <= place and value is not None]
            found.append(before[-1] if before else math.nan)
        return found

    def curves(self, job: str, label: str, column: str) -> list[list[tuple[float, float]]]:
        """(round, value) of each seed, NaN where there is no finite value; of a run that diverged, nothing."""
        curves = []
        for record in self.of(job, label):
            values = [(row.round, row.value(column)) for row in record.rows]
            known = [(float(t), math.nan if value is None else value) for t, value in values]
            curves.append([] if record.diverged else known)
        return curves

    def rho(self, job: str) -> float:
        """The spectral gap of the experiment's network."""
        for record in self.records.get(job, ()):
            if record.header.mixing is not None and record.header.mixing.rho > 0:
                return record.header.mixing.rho
        raise MissingRunsError(f"{job}: rho")

    def shares(self, job: str, labels: Sequence[str]) -> list[tuple[list[float], float]]:
        """For each client, how many rows it has of these labels, and of all."""
        for record in self.records.get(job, ()):
            shares = record.header.shares
            if shares is not None and set(labels) <= set(shares.labels) and all(sum(row) > 0 for row in shares.counts):
                places = [shares.labels.index(label) for label in labels]
                return [([row[place] for place in places], sum(row)) for row in shares.counts]
        raise MissingRunsError(f"{job}: shares")


def each(function: Callable[..., float], *columns: Sequence[float]) -> Numbers:
    """A function of one number each, seed by seed; experiments that were run with other seeds cannot be compared."""
    if len(set(map(len, columns))) > 1:
        raise MissingRunsError("different seeds")
    return [function(*values) for values in zip(*columns, strict=True)]


def ratio(above: Sequence[float], below: Sequence[float]) -> Numbers:
    """Above over below; NaN for infinite over infinite, and for zero over zero."""
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
