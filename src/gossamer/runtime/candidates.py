"""Several settings of one method side by side, as rows of the same tensors: how steps are searched quickly."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.schedules import Schedule
from gossamer.compression.base import Message
from gossamer.errors import NonFiniteError, settle
from gossamer.problems.base import Problem
from gossamer.runtime.simulated import Simulation, Traffic
from gossamer.runtime.start import X0
from gossamer.topology import MixingMatrix


class Candidates(Simulation):
    """A simulation in which each block of rows, a seed's elsewhere, has its own `lr` and `gamma`.

    All draw the same minibatches and the same dither, so that they differ by their settings alone. What they would send
    is not counted.
    """

    def __init__(
        self,
        method: Algorithm,
        problem: Problem,
        mixing: MixingMatrix,
        settings: Sequence[Mapping[str, float]],
        seed: int = 0,
        batch_size: int | None = None,
        x0: X0 = None,
    ) -> None:
        super().__init__(method, problem, mixing, [seed] * len(settings), batch_size, x0)
        self.settings = list(settings)
        self.alive = list(range(len(settings)))
        """Which of the candidates the rows belong to, in their order."""
        self._base = method
        self.traffic = _Uncounted(mixing, (), "fixed")
        self._vary()

    def step(self, *, measure: bool = False) -> None:
        """One round; candidates that diverge are left behind."""
        while self.alive:
            try:
                return super().step(measure=measure)
            except NonFiniteError as error:
                lost = {row // self.problem.clients for row in error.rows}
                self.keep([place for place in range(len(self.alive)) if place not in lost])
        return None

    def keep(self, places: Sequence[int]) -> None:
        """Go on with the candidates at these places alone."""
        super().keep(places)
        self.alive = [self.alive[place] for place in places]
        self._vary()

    def _vary(self) -> None:
        """The method with its settings one a row, where its equations take a number."""
        self.method = copy.copy(self._base)
        for name in self.settings[0] if self.settings else ():
            values = [self.settings[number][name] for number in self.alive]
            if name == "lr" and isinstance(self._base.lr, Schedule):
                schedules = [replace(self._base.lr, lr=value) for value in values]  # type: ignore[type-var]
                settle(self.method, lr=_Beside(schedules, self.problem))
            else:
                column = _one_a_row(values, self.problem)
                settle(self.method, **{name: column if name == "lr" else column.double()})


def _one_a_row(values: Sequence[float], problem: Problem) -> Tensor:
    """(rows, 1), in the models' type, which a step must not change."""
    column = torch.tensor(values, dtype=torch.float64).repeat_interleave(problem.clients)[:, None]
    return column.to(problem.device, problem.dtype)


class _Beside(Schedule):
    """Schedules that differ in their first step size."""

    def __init__(self, schedules: Sequence[Schedule], problem: Problem) -> None:
        self.schedules, self.problem = schedules, problem

    def __call__(self, t: int) -> Any:
        return _one_a_row([schedule(t) for schedule in self.schedules], self.problem)


class _Uncounted(Traffic):
    """In the place of a count of traffic."""

    def count(self, messages: tuple[Message, ...], t: int, seeds: Sequence[int]) -> None:
        """Not at all."""


def gradient_norms(sim: Simulation) -> Tensor:
    """(candidates or seeds,): ||grad f|| at each average model."""
    return sim.problem.evaluate(sim.snapshot().mean(dim=1, dtype=torch.float64))["grad_norm"]
