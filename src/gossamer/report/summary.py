"""Records to one row a method: the numbers that a table or a program wants."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gossamer.runtime.record import Record


def summarize(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One dictionary a label: means over the seeds; noisy measurements are averaged over the last tenth of the rows.

    Runs that diverged are named with their reason, and left out of the means.
    """
    labels = list(dict.fromkeys(record.label for record in records))
    return [_summary(label, [record for record in records if record.label == label]) for label in labels]


def _summary(label: str, records: Sequence[Record]) -> dict[str, Any]:
    good = [record for record in records if record.diverged is None and record.rows]
    row: dict[str, Any] = {
        "method": label,
        "seeds": [record.seed for record in good],
        "diverged": {str(record.seed): record.diverged for record in records if record.diverged},
    }
    for name in ("round", "packets", "bits", "bits_total", "bits_paper", "seconds"):
        mean = _mean([record.rows[-1].get(name) for record in good])
        row[name] = int(mean) if mean is not None and mean == int(mean) and name != "seconds" else mean
    for name in ("loss", "grad_norm", "accuracy", "worst_accuracy", "consensus"):
        per_seed = [_mean([line.get(name) for line in _last_tenth(record.rows)]) for record in good]
        row[name] = _mean(per_seed)
        row[f"{name}_by_seed"] = dict(zip(map(str, row["seeds"]), per_seed, strict=True))
    return row


def _last_tenth(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    return rows[-max(1, len(rows) // 10) :]


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(finite) if finite and len(finite) == len(values) else None
