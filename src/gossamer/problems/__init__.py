"""Problems: what gives each client its gradients."""

from gossamer.problems.base import Problem
from gossamer.problems.logistic import logistic_regression
from gossamer.problems.quadratic import quadratic

__all__ = ["Problem", "logistic_regression", "quadratic"]
