"""Records to one row a method: the numbers that a table or a program wants."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gossamer.records.record import Record


def summarize(records: Sequence[Record], target: float | None = None) -> list[dict[str, Any]]:
    """One dictionary a label: means over the seeds; noisy measurements are averaged over the last tenth of the rows.

    Runs that diverged are named with their reason, and left out of the means. With a `target`, also the rounds and the
    bits on one link until the gradient norm is first at or below it (None if a seed never got there).
    """
    labels = list(dict.fromkeys(record.label for record in records))
    return [_summary(label, [record for record in records if record.label == label], target) for label in labels]


def _summary(label: str, records: Sequence[Record], target: float | None) -> dict[str, Any]:
    good = [record for record in records if record.diverged is None and record.rows]
    row: dict[str, Any] = {
        "method": label,
        "seeds": [record.seed for record in good],
        "diverged": {str(record.seed): record.diverged for record in records if record.diverged},
    }
    for name in ("round", "packets", "bits", "bits_total", "bits_nominal", "seconds"):
        mean = _mean([record.rows[-1].get(name) for record in good])
        row[name] = int(mean) if mean is not None and mean == int(mean) and name != "seconds" else mean
    for name in ("loss", "grad_norm", "accuracy", "worst_accuracy", "consensus"):
        per_seed = [_mean([line.get(name) for line in _last_tenth(record.rows)]) for record in good]
        row[name] = _mean(per_seed)
        row[f"{name}_by_seed"] = dict(zip(map(str, row["seeds"]), per_seed, strict=True))
    if target is not None:
        row["alpha"] = records[0].header.get("alpha")
        reached = [next((line for line in record.rows if _below(line, target)), None) for record in good]
        for name, wanted in (("rounds_to_target", "round"), ("bits_to_target", "bits")):
            row[name] = _mean([None if line is None else line.get(wanted) for line in reached])
    return row


def _below(line: dict[str, Any], target: float) -> bool:
    norm = line.get("grad_norm")
    return norm is not None and norm <= target


def _last_tenth(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    return rows[-max(1, len(rows) // 10) :]


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(finite) if finite and len(finite) == len(values) else None
