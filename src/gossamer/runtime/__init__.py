"""Running methods: the simulator, real processes, and their records."""

from gossamer.records.record import Record, read_record
from gossamer.records.runs import Run, Runs
from gossamer.runtime.processes.optimizer import DecentralizedOptimizer
from gossamer.runtime.simulator import simulate
from gossamer.runtime.tuning.auto import auto

__all__ = ["DecentralizedOptimizer", "Record", "Run", "Runs", "auto", "read_record", "simulate"]
