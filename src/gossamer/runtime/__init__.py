"""Running methods: the simulator, real processes, and step sizes."""

from gossamer.runtime.processes.optimizer import DecentralizedOptimizer
from gossamer.runtime.simulator import simulate, sweep
from gossamer.runtime.tuning.auto import auto_steps

__all__ = ["DecentralizedOptimizer", "auto_steps", "simulate", "sweep"]
