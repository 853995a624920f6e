"""The record of a run: what was measured, as a pandas frame and as lines of JSON that survive a kill.

A file holds one JSON object a line: a header (`"gossamer"`: the version), one row for each evaluation, and an `"end"`
line. Lines are flushed as they are written, so a run that is killed leaves a file that reads up to its last whole line.
"""

import contextlib
import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gossamer.errors import DataError, check_path, writing

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "round": "rounds done",
    "packets": "packets sent on one link so far",
    "bits": "bits sent on one link so far: 8 x the packets' bytes, averaged over clients",
    "bits_total": "bits sent so far over all directed edges",
    "bits_nominal": "bits on one link as the paper counts them: b a coordinate and message",
    "loss": "f at the average model",
    "grad_norm": "norm of the gradient of f at the average model",
    "accuracy": "test accuracy of the average model",
    "mean_accuracy": "test accuracy of a client's own model, mean over clients",
    "worst_accuracy": "test accuracy of the worst client's own model",
    "test_loss": "loss of the average model on the test rows",
    "mean_loss": "loss of a client's own model on the test rows (f, where there are none), mean over clients",
    "worst_loss": "loss of the worst client's own model on the test rows (f, where there are none)",
    "compression_error": "share of its messages that the compressor left out, ||C(z) - z||^2 / ||z||^2, in the last "
    "round; mean over messages and clients",
    "consensus": "mean over clients of ||x_i - average||^2",
    "omega_1": "||H - X||^2, what the surrogates of the models are off by (BEER, on request)",
    "omega_2": "||G - V||^2, the same for the trackers",
    "omega_3": "||X - average||^2, how far the models are apart",
    "omega_4": "||V - average||^2, the same for the trackers",
    "omega_5": "||average of V||^2",
    "phi": "the Lyapunov function of BEER's proof, where the steps are certified",
    "seconds": "wall time of the rounds so far, evaluation left out; of the slowest client, where each is a process",
    "waiting": "seconds that a client stood still for packets of its neighbours so far, mean over clients",
    "hidden": "seconds that packets were under way while a client computed, mean over links",
}
"""What a row holds."""
LARGE_GROWTH = 1e3
"""From how many times the loss at the start on a run is diverging."""
OMEGAS = ("omega_1", "omega_2", "omega_3", "omega_4", "omega_5")
ON_REQUEST = (*OMEGAS, "phi")
"""What only a run with `omegas` holds: a frame has no columns for it elsewhere."""


@dataclass
class Record:
    """One run of one method with one seed: settings, rows, and how it ended (None if it was killed)."""

    header: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def label(self) -> str:
        """The name of the method in tables and figures."""
        return str(self.header.get("label", "?"))

    @property
    def seed(self) -> int:
        """The seed of the run."""
        seed = self.header.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @property
    def diverged(self) -> str | None:
        """A sentence if the run diverged, or was diverging when its rounds were over."""
        return self.end.get("reason") if self.end and self.end.get("status") in ("diverged", "diverging") else None

    def growth(self) -> float:
        """The loss of the last row, in multiples of that of the first; 0 without two losses to compare."""
        if not self.rows:
            return 0.0
        first, last = self.rows[0].get("loss"), self.rows[-1].get("loss")
        return last / first if isinstance(first, float) and isinstance(last, float) and first > 0 else 0.0

    def finish(self, rounds: int, remedy: str) -> None:
        """The run has done all its rounds: finished, or diverging if its loss has grown by a large factor."""
        self.end = {"status": "finished", "round": rounds}
        if self.growth() > LARGE_GROWTH:
            self.end = {"status": "diverging", "round": rounds, "reason": self.warning(remedy)}

    def warning(self, remedy: str) -> str:
        """What to say of a run whose loss grows."""
        last = self.rows[-1]
        return (
            f"{self.label} with seed {self.seed} is diverging: its loss after round {last['round']} is "
            f"{last['loss']:.3g}, {self.growth():.1g} times that at the start; {remedy}."
        )

    @property
    def frame(self) -> "pd.DataFrame":
        """The rows as a pandas frame, one column a measurement."""
        import pandas as pd

        there = {name for row in self.rows for name in row}
        return pd.DataFrame(self.rows, columns=[name for name in COLUMNS if name not in ON_REQUEST or name in there])


class RecordWriter:
    """Appends a record to a file as it grows, one flushed line at a time."""

    def __init__(self, path: Path, record: Record) -> None:
        # What the record holds already replaces the file as a whole: a kill leaves the old one or the new one.
        self._path, beside = path, path.with_name(f".{path.name}.tmp")
        with writing(path):
            self._file: IO[str] = beside.open("w", encoding="utf-8", newline="\n")
            try:
                self._write(record.header)
                for row in record.rows:
                    self._write(row)
                beside.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):  # the lines that did not fit are still in its buffer
                    self._file.close()
                beside.unlink(missing_ok=True)
                raise

    def row(self, row: dict[str, Any]) -> None:
        """Write one evaluation."""
        with writing(self._path):
            self._write(row)

    def close(self, end: dict[str, Any] | None) -> None:
        """Write how the run ended, and make sure that it is on the disk."""
        with writing(self._path):
            try:
                if end is not None:
                    self._write({"end": end})
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        # JSON knows neither NaN nor Inf: a measurement that is not finite is written as null.
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        self._file.write(json.dumps(plain, allow_nan=False) + "\n")
        self._file.flush()


def read_record(path: str | os.PathLike[str]) -> Record:
    """The record in a file; a last line that was cut off by a kill is left out."""
    check_path("path", path)
    path = Path(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"The record '{path}' cannot be read: {error.strerror or error}.") from None
    parsed: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            raise DataError(f"The record '{path}' is damaged in line {number}.") from None
        if not isinstance(value, dict):
            raise DataError(f"The record '{path}' is damaged in line {number}.")
        parsed.append(value)
    if not parsed or "gossamer" not in parsed[0]:
        raise DataError(f"'{path}' is not a record of Gossamer: its first line is no header.")
    record = Record(parsed[0])
    for value in parsed[1:]:
        if isinstance(value.get("end"), dict):
            record.end = value["end"]
        else:
            record.rows.append(value)
    return record


def record_name(label: str, seed: int) -> str:
    """The file name of a run: letters, digits and dashes, whatever the label holds."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-.") or "run"
    return f"{plain[:100]}-seed{seed}.jsonl"
