"""The record of a run: what was measured, as a pandas frame and as lines of JSON that survive a kill.

A file holds one JSON object per line: a header (`"gossamer"`: the version), one row for each evaluation, and an `"end"`
line. Lines are flushed as they are written, so a run that is killed leaves a file that reads up to its last whole line.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import IO, TYPE_CHECKING

from gossamer.errors import DataError, check_path
from gossamer.files import replacing, writing
from gossamer.records.schema import COLUMNS, End, Header, Row, is_higher_better, plain, read_row
from gossamer.records.typed import check_file, read_as

if TYPE_CHECKING:
    import pandas as pd

LARGE_GROWTH = 1e3
"""A run is diverging if its loss is this many times that at the start."""


@dataclass
class Record:
    """One run of one method with one seed: settings, rows, and how it ended (None if it was killed)."""

    header: Header
    rows: list[Row] = field(default_factory=list)
    end: End | None = None

    @property
    def label(self) -> str:
        """The name of the method in tables and figures."""
        return self.header.label

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.header.seed

    @property
    def diverged(self) -> str | None:
        """A sentence if the run diverged, or was diverging when its rounds were over."""
        return self.end.reason if self.end is not None and self.end.status != "finished" else None

    def last_tenth(self, column: str) -> float | None:
        """The mean of a column over the last tenth of the rows, as all tables show it; None if a value is missing."""
        return mean_of([row.value(column) for row in self.rows[-max(1, len(self.rows) // 10) :]])

    def first(self, column: str, target: float) -> Row | None:
        """The first row in which a column is as good as `target`: at least as high for accuracies, else as low."""
        sign = -1 if is_higher_better(column) else 1
        reached = (row for row in self.rows if (v := row.value(column)) is not None and sign * v <= sign * target)
        return next(reached, None)

    def growth(self) -> float:
        """The loss of the last row, in multiples of that of the first; 0 without two losses to compare."""
        first, last = (self.rows[at].loss if self.rows else None for at in (0, -1))
        return last / first if first is not None and last is not None and first > 0 else 0.0

    def finish(self, rounds: int, remedy: str) -> None:
        """The run has done all its rounds: finished, or diverging if its loss has grown by a large factor."""
        self.end = End("finished", rounds)
        if self.growth() > LARGE_GROWTH:
            self.end = End("diverging", rounds, self.warning(remedy))

    def warning(self, remedy: str) -> str:
        """The sentence on a run whose loss grows."""
        last = self.rows[-1]
        return (
            f"{self.label} with seed {self.seed} is diverging: its loss after round {last.round} is "
            f"{last.loss:.3g}, {self.growth():.1g} times that at the start; {remedy}."
        )

    @property
    def frame(self) -> "pd.DataFrame":
        """The rows as a pandas frame, one column per measurement."""
        import pandas as pd

        extra = dict.fromkeys(name for row in self.rows for name in row.extra)
        return pd.DataFrame([row.columns() for row in self.rows], columns=[*COLUMNS, *extra])


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is missing, or there is none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs of each method, in the order in which they come."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.label, []).append(record)
    return found


class RecordWriter:
    """Appends a record to a file as it grows, one flushed line at a time."""

    def __init__(self, path: Path, record: Record) -> None:
        # What the record holds already replaces the file as a whole: a kill leaves the old one or the new one.
        self._path = path
        with writing(path), replacing(path) as beside:
            self._file: IO[str] = beside.open("w", encoding="utf-8", newline="\n")
            try:
                self._write(plain(record.header))
                for row in record.rows:
                    self._write(row.columns())
            except BaseException:
                with contextlib.suppress(OSError):  # the lines that did not fit are still in its buffer
                    self._file.close()
                raise

    def row(self, row: Row) -> None:
        """Write one evaluation."""
        with writing(self._path):
            self._write(row.columns())

    def close(self, end: End | None) -> None:
        """Write how the run ended, and make sure that it is on the disk."""
        with writing(self._path):
            try:
                if end is not None:
                    self._write({"end": plain(end)})
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def _write(self, line: Mapping[str, object]) -> None:
        # JSON knows neither NaN nor Inf: a measurement that is not finite is written as null.
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        self._file.write(json.dumps(finite, allow_nan=False) + "\n")
        self._file.flush()


def read_record(path: str | os.PathLike[str]) -> Record:
    """The record in a file, with every type checked; a `DataError` names what is damaged.

    A last line that was cut off by a kill is left out. So are keys of a header and columns without numbers that this
    version does not know.
    """
    check_path("path", path)
    path = Path(path)
    lines = _lines(path)
    if not lines or "gossamer" not in lines[0]:
        raise DataError(f"'{path}' is not a record of Gossamer: its first line is no header.")
    record = None
    for number, line in enumerate(lines, 1):
        try:
            if record is None:
                record = Record(read_as(Header, line))
            elif "end" in line:
                record.end = read_as(End, line["end"])
            else:
                record.rows.append(read_row(line))
        except DataError as error:
            raise DataError(f"The record '{path}' is damaged in line {number}: {error}") from None
    assert record is not None
    if any(after.round <= before.round for before, after in pairwise(record.rows)):
        raise DataError(f"The record '{path}' is damaged: its rounds do not rise from row to row.")
    return record


def _lines(path: Path) -> list[dict[str, object]]:
    check_file(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"The record '{path}' cannot be read: {error.strerror or error}.") from None
    parsed: list[dict[str, object]] = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            value = None
        if not isinstance(value, dict):
            raise DataError(f"The record '{path}' is damaged in line {number}.")
        parsed.append(value)
    return parsed


def record_name(label: str, seed: int) -> str:
    """The file name of a run: letters, digits and dashes, whatever the label holds."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-.") or "run"
    return f"{plain[:100]}-seed{seed}.jsonl"
