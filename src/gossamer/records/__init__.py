"""What a run leaves behind: records, checkpoints, and what identifies a run."""

from gossamer.records.record import Record, read_record
from gossamer.records.runs import Run, Runs

__all__ = ["Record", "Run", "Runs", "read_record"]
