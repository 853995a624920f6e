"""Records to one row per method: the numbers that a table or a program wants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.records.record import Record, by_label, mean_of

_BEST: dict[str, Callable[..., Any]] = {"grad_norm": min, "loss": min, "accuracy": max, "worst_accuracy": max}


@dataclass(frozen=True)
class Summary:
    """The runs of one method: means over the seeds."""

    method: str
    seeds: list[int]
    diverged: dict[str, str]
    """By seed, why; these are not in the means."""
    numbers: Mapping[str, float | None]
    """By column; None where a seed has none."""
    by_seed: Mapping[str, Mapping[str, float | None]]

    def as_dict(self) -> dict[str, object]:
        """All of it for a program."""
        several = {f"{name}_by_seed": values for name, values in self.by_seed.items()}
        return {"method": self.method, "seeds": self.seeds, "diverged": self.diverged, **self.numbers, **several}


def summarize(records: Sequence[Record], target: float | None = None) -> list[Summary]:
    """One summary per label; noisy measurements are averaged over the last tenth of the rows.

    Runs that diverged are named with their reason, and left out of the means. With a `target`, also the rounds and the
    bits on one link until the gradient norm is first at or below it (None if a seed never got there).
    """
    return [_summary(label, runs, target) for label, runs in by_label(records).items()]


def best_of(summaries: Sequence[Summary]) -> dict[str, float | None]:
    """The best value of each column that has one."""
    best = {}
    for name, pick in _BEST.items():
        known = [value for one in summaries if (value := one.numbers[name]) is not None]
        best[name] = pick(known, default=None)
    return best


def _summary(label: str, records: Sequence[Record], target: float | None) -> Summary:
    good = [record for record in records if record.diverged is None and record.rows]
    numbers: dict[str, float | None] = {}
    by_seed: dict[str, dict[str, float | None]] = {}
    for name in ("round", "packets", "bits", "bits_total", "bits_nominal", "seconds"):
        mean = mean_of([record.rows[-1].value(name) for record in good])
        numbers[name] = int(mean) if mean is not None and mean == int(mean) and name != "seconds" else mean
    for name in ("loss", "grad_norm", "accuracy", "worst_accuracy", "consensus"):
        by_seed[name] = {str(record.seed): record.last_tenth(name) for record in good}
        numbers[name] = mean_of(list(by_seed[name].values()))
    if target is not None:
        numbers["alpha"] = records[0].header.alpha
        reached = [record.first("grad_norm", target) for record in good]
        for name, wanted in (("rounds_to_target", "round"), ("bits_to_target", "bits")):
            numbers[name] = mean_of([None if row is None else row.value(wanted) for row in reached])
    lost = {str(record.seed): record.diverged for record in records if record.diverged}
    return Summary(label, [record.seed for record in good], lost, numbers, by_seed)
