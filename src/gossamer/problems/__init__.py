"""Problems: the objectives of the clients, their gradients and their data."""

from gossamer.problems.base import Problem
from gossamer.problems.data.datasets import Dataset, load
from gossamer.problems.data.partition import split
from gossamer.problems.modules.architectures import cnn, one_hidden_layer, resnet
from gossamer.problems.modules.language_model import language_model
from gossamer.problems.modules.module import ModuleProblem
from gossamer.problems.modules.own import module_problem
from gossamer.problems.quadratic import quadratic
from gossamer.problems.regression import least_squares, logistic_regression, softmax_regression
from gossamer.problems.sine import sine_pl

__all__ = [
    "Dataset",
    "ModuleProblem",
    "Problem",
    "cnn",
    "language_model",
    "least_squares",
    "load",
    "logistic_regression",
    "module_problem",
    "one_hidden_layer",
    "quadratic",
    "resnet",
    "sine_pl",
    "softmax_regression",
    "split",
]
