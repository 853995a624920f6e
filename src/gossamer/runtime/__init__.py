"""Running methods: the simulator, real processes, and their records."""

from gossamer.runtime.auto import auto
from gossamer.runtime.optimizer import DecentralizedOptimizer
from gossamer.runtime.proof import check_records
from gossamer.runtime.record import Record, read_record
from gossamer.runtime.runs import Run, Runs
from gossamer.runtime.simulated import simulate

__all__ = ["DecentralizedOptimizer", "Record", "Run", "Runs", "auto", "check_records", "read_record", "simulate"]
