"""What a run returns: its record and its models."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.errors import DataError
from gossamer.records import checkpoint
from gossamer.records.identity import check_same_run
from gossamer.records.record import Record, read_record, record_name
from gossamer.records.schema import COLUMNS
from gossamer.records.typed import Settings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """What `simulate` gives back for one method and one seed."""

    label: str
    method: Algorithm
    seed: int
    record: Record
    d: int
    """Coordinates of a model."""
    snapshot: Tensor
    """The models after the last round with their buffers, if any, behind them, (clients, d or more)."""

    @property
    def x(self) -> Tensor:
        """The clients' models after the last round, (clients, d); if the run diverged, after the last finite one."""
        return self.snapshot[:, : self.d]

    @property
    def average(self) -> Tensor:
        """The average of these models (and of their buffers): what is measured, and what one would deploy."""
        return self.snapshot.mean(dim=0)

    def __repr__(self) -> str:
        last = self.record.rows[-1].columns() if self.record.rows else {}
        about = ", ".join(f"{name}={last[name]:.4g}" for name in ("round", "bits", "loss", "grad_norm") if name in last)
        return f"Run({self.label!r}, seed={self.seed}, {about}{', diverged' if self.diverged else ''})"

    @property
    def frame(self) -> "pd.DataFrame":
        """The measurements, a row for each evaluation."""
        return self.record.frame

    @property
    def final(self) -> "pd.Series[Any]":
        """The last row of the frame: one evaluation, not an average over several."""
        return self.frame.iloc[-1]

    @property
    def diverged(self) -> str | None:
        """A sentence with the round and the likely remedy, if the models did not stay finite, or the loss in the end is
        a large multiple of that at the start.
        """
        return self.record.diverged


class Runs(list[Run]):
    """Several runs; a list that can be seen as one frame."""

    @property
    def frame(self) -> "pd.DataFrame":
        """All rows, with the columns `method` and `seed` in front."""
        import pandas as pd

        frames = [run.frame.assign(method=run.label, seed=run.seed) for run in self]
        extra = dict.fromkeys(name for frame in frames for name in frame if name not in ("method", "seed"))
        columns = ["method", "seed", *dict.fromkeys([*COLUMNS, *extra])]
        return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Run | Runs":
        return Runs(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)


def models_path(folder: Path, label: str, seed: int) -> Path:
    """Where the final models of a run are kept, beside its record."""
    return folder / Path(record_name(label, seed)).with_suffix(".safetensors")


def write_models(folder: Path, run: Run) -> None:
    """Keep the final models of a run, with their buffers behind them."""
    about = {"label": run.label, "seed": run.seed, "d": run.d}
    checkpoint.write(models_path(folder, run.label, run.seed), {"models": run.snapshot}, about)


def finished_run(folder: Path, label: str, seed: int, method: Algorithm, settings: Settings) -> Run | None:
    """The run that a folder holds, if it is over; a record with other settings is an InputError."""
    path = folder / record_name(label, seed)
    try:
        record = read_record(path)
        check_same_run(path, record.header, settings)
        if record.end is None:
            return None
        kept = checkpoint.read(models_path(folder, label, seed))
        return Run(label, method, seed, record, int(kept.facts["d"]), kept.tensors["models"])
    except (DataError, KeyError):
        return None
