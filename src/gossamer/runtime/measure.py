"""What is measured of the clients' models: the same for every runtime."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, State
from gossamer.errors import InputError
from gossamer.problems.base import Problem
from gossamer.records.schema import COLUMNS, Row
from gossamer.records.typed import Settings
from gossamer.runtime.threads import is_small_evaluation, threads
from gossamer.topology import Mixing

_WORST = {"loss": torch.amax, "accuracy": torch.amin}
"""Of what is measured for every client; of a user's metric it is not known which is worse."""
_MOST_SCORED = 10_000  # clients; the own models of more are measured only in closed form
_CLIENTS_TOGETHER = 1024  # models of clients measured at once, where each is a row of a closed form


class Measuring(Protocol):
    """A measure of one run."""

    def facts(self) -> Settings:
        """What the header of the record keeps of it."""
        ...

    def of_states(self, now: State, ahead: State) -> list[dict[str, float]]:
        """Columns for each seed, from the state after t rounds and the one that round t + 1 leaves."""
        ...

    def of_row(self, row: Row) -> dict[str, float]:
        """Columns that follow from the rest of a row."""
        ...


class Measure(Protocol):
    """Extra columns of a record, measured beside the usual ones at every evaluation.

    Spec files name it (`measures = ["omegas"]`); other packages declare theirs in the entry point group
    `gossamer.measures`.
    """

    @property
    def name(self) -> str:
        """As spec files and records name it."""
        ...

    @property
    def columns(self) -> Mapping[str, str]:
        """What it adds to a row, each column with a description."""
        ...

    def check(self, method: Algorithm) -> None:
        """Raise an InputError for a method that it cannot measure."""
        ...

    def start(self, method: Algorithm, problem: Problem, mixing: Mixing, batch_size: int | None) -> Measuring:
        """Begin to measure a run."""
        ...


def measure(problem: Problem, models: Tensor) -> dict[str, list[float]]:
    """By column, one number for each of the (k, clients, d or more) snapshots."""
    with threads(1 if is_small_evaluation(problem) else None):
        return _measure(problem, models)


def _measure(problem: Problem, models: Tensor) -> dict[str, list[float]]:
    average = models.mean(dim=1, dtype=torch.float64)
    measured = problem.evaluate(average)
    apart = (models - average[:, None])[:, :, : problem.d]
    measured["consensus"] = apart.square().sum(dim=2).mean(dim=1)
    for name, values in problem.score(average).items():
        if name in COLUMNS and name not in _WORST:
            raise InputError(f"A metric cannot be called {name!r}, since records have such a column; rename it.")
        measured[f"test_{name}" if name == "loss" else name] = values
    for name, values in _score(problem, models.flatten(0, 1)).items():
        own = values.view(models.shape[:2])
        measured[f"mean_{name}"] = own.mean(dim=1)
        if name in _WORST:
            measured[f"worst_{name}"] = _WORST[name](own, dim=1)
    return {name: values.tolist() for name, values in measured.items()}


def _score(problem: Problem, models: Tensor) -> dict[str, Tensor]:
    """The clients' own models on the test rows, or f at them where there are none."""
    if not problem.scores_clients or (problem.clients > _MOST_SCORED and problem.rows is not None):
        return {}
    scored = problem.score(models)
    if not scored and problem.measures_clients:
        parts = torch.split(models, _CLIENTS_TOGETHER)
        scored = {"loss": torch.cat([problem.evaluate(part)["loss"] for part in parts])}
    return scored
