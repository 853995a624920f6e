"""Where a run can be followed while it goes: TensorBoard, Weights & Biases, MLflow, and trackers of your own.

`simulate`, `sweep`, `Experiment.run` and `DecentralizedOptimizer` take `trackers=[...]`. Each is told what was measured
and counted, as an `Event`. A function of one argument is a tracker, too.
"""

from gossamer.trackers.base import Event, Tracker
from gossamer.trackers.mlflow import MLflow
from gossamer.trackers.tensorboard import TensorBoard
from gossamer.trackers.weights_and_biases import WeightsAndBiases

__all__ = ["Event", "MLflow", "TensorBoard", "Tracker", "WeightsAndBiases"]
