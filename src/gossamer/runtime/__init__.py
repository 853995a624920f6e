"""Running methods: the simulator, real processes, and step sizes."""

from gossamer.runtime.gradients.local import LocalSteps
from gossamer.runtime.planning.plan import Plan, plan
from gossamer.runtime.simulator import simulate, sweep
from gossamer.runtime.training.optimizer import DecentralizedOptimizer
from gossamer.runtime.tuning.auto import auto_steps
from gossamer.runtime.tuning.suggest import suggest

__all__ = ["DecentralizedOptimizer", "LocalSteps", "Plan", "auto_steps", "plan", "simulate", "suggest", "sweep"]
