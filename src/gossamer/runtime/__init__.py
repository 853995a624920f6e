"""Running methods: the simulator, real processes, and step sizes."""

from gossamer.runtime.gradients.local import LocalSteps
from gossamer.runtime.simulator import simulate, sweep
from gossamer.runtime.training.optimizer import DecentralizedOptimizer
from gossamer.runtime.tuning.auto import auto_steps
from gossamer.runtime.tuning.suggest import suggest

__all__ = ["DecentralizedOptimizer", "LocalSteps", "auto_steps", "simulate", "suggest", "sweep"]
