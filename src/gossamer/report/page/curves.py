"""Records to curves for a page: mean and range over the seeds, thinned out to what a screen can show."""

import math
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gossamer.records.record import Record
from gossamer.records.schema import Row

Array = np.ndarray[Any, np.dtype[np.float64]]

ACROSS = {
    "round": "rounds",
    "bits": "bits sent on one link",
    "bits_nominal": "nominal bits on one link",
    "seconds": "seconds",
}
"""What a curve may be drawn against."""

MEASURED = {
    "grad_norm": "gradient norm",
    "loss": "loss",
    "accuracy": "test accuracy",
    "mean_accuracy": "mean client's accuracy",
    "worst_accuracy": "worst client's accuracy",
    "test_loss": "test loss",
    "mean_loss": "mean client's loss",
    "worst_loss": "worst client's loss",
    "consensus": "consensus error",
    "compression_error": "compression error",
    "waiting": "seconds waited",
    "hidden": "seconds hidden",
}
"""What a curve may show, and what it is called."""

_MOST_POINTS, _FEWEST_POINTS, _BUDGET = 400, 60, 100_000


def points_for(columns: int) -> int:
    """How many points a curve may have on a page with this many columns of numbers, to stay below a megabyte."""
    return int(np.clip(_BUDGET // max(1, columns), _FEWEST_POINTS, _MOST_POINTS))


def curve(records: Sequence[Record], points: int) -> dict[str, Any]:
    """The runs of one method as columns: `x` by name, and `y` by name with `mean`, and `low` and `high` if they differ.

    It is made of the runs that did not diverge, else of the first one. Rows are matched by their round: where seeds
    were measured in different rounds, those that all have are shown.
    """
    lines = [record for record in records if record.rows]
    lines = [record for record in lines if record.diverged is None] or lines[:1]
    tables = [{row.round: row for row in record.rows} for record in lines]
    rounds = sorted(set(tables[0]).intersection(*tables[1:]))
    if len(rounds) < 2:  # nothing in common: the longest stands for all
        tables = [max(tables, key=len)]
        rounds = sorted(tables[0])
    across = {name: _columns(tables, rounds, name) for name in ACROSS}
    extra = dict.fromkeys(name for record in lines for name in record.rows[-1].extra)
    measured = {name: _columns(tables, rounds, name) for name in (*MEASURED, *extra)}
    measured = {name: values for name, values in measured.items() if np.isfinite(values).any()}
    kept = thin({name: values.mean(axis=0) for name, values in measured.items()}, len(rounds), points)
    y = {}
    for name, every in measured.items():
        values = every[:, kept]
        y[name] = {"mean": _plain(values.mean(axis=0), 5)}
        if len(values) > 1 and np.ptp(values, axis=0).any():
            y[name] |= {"low": _plain(values.min(axis=0), 4), "high": _plain(values.max(axis=0), 4)}
    x = {name: _plain(v.mean(axis=0)[kept], 7) for name, v in across.items() if np.isfinite(v).all()}
    return {"x": x, "y": y, "runs": len(tables)}


def thin(columns: Mapping[str, Array], length: int, points: int) -> list[int]:
    """The places of at most `points` rows that keep the shape of every column, with the first and the last.

    Rows fall into buckets, half of them as long as each other and half growing by a factor, for logarithmic axes; of
    each bucket stays the row that turns the curves most (largest triangles, all columns together).
    """
    if length <= points:
        return list(range(length))
    half = (points - 2) // 2
    even = np.linspace(1, length - 1, half + 1)
    growing = np.geomspace(1, length - 1, half + 1)
    edges = np.unique(np.concatenate([even, growing]).round().astype(int))
    heights = np.array([_height(column) for column in columns.values()]).reshape(len(columns), length)
    place = np.arange(length) / length
    kept = [0]
    for number, (begin, end) in enumerate(pairwise(edges)):
        last = edges[number + 2] if number + 2 < len(edges) else length
        after_x, after_y = place[end:last].mean(), heights[:, end:last].mean(axis=1)
        before = kept[-1]
        area = np.abs(
            (place[before] - after_x) * (heights[:, begin:end] - heights[:, [before]])
            - (place[before] - place[begin:end]) * (after_y[:, None] - heights[:, [before]])
        )
        kept.append(int(begin + np.argmax(area.sum(axis=0))))
    return [*kept, length - 1]


def _height(column: Array) -> Array:
    """Where a column lies on its axis, from 0 to 1: logarithmic where it can be; gaps count as the lowest value."""
    known = column[np.isfinite(column)]
    if len(known) == 0:
        return np.zeros(len(column))
    values = np.nan_to_num(column, nan=known.min())
    if known.min() > 0:
        values = np.log(values)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros(len(column))


def _columns(tables: Sequence[Mapping[int, Row]], rounds: Sequence[int], name: str) -> Array:
    """(runs, rows), with NaN for what is not there."""
    return np.array([[table[at].value(name) for at in rounds] for table in tables], float)  # None becomes NaN


def _plain(values: Array, digits: int) -> list[float | None]:
    """Numbers that print short: few digits, no `.0`, null for what is missing."""
    return [plain(value, digits) for value in values]


def plain(value: float | None, digits: int = 5) -> float | int | None:
    """One number, with few digits."""
    if value is None or abs(value) > sys.float_info.max or math.isnan(value):  # integers may be larger than any float
        return None
    rounded = float(f"{float(value):.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
