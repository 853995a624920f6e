"""Running methods: the simulator and its records."""

from gossamer.runtime.record import Record, read_record
from gossamer.runtime.simulated import Run, Runs, simulate

__all__ = ["Record", "Run", "Runs", "read_record", "simulate"]
