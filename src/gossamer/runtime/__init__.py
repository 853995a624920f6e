"""Running methods: the simulator and its records."""

from gossamer.runtime.record import Record, read_record
from gossamer.runtime.runs import Run, Runs
from gossamer.runtime.simulated import simulate

__all__ = ["Record", "Run", "Runs", "read_record", "simulate"]
