"""Several settings of one method side by side, as rows of the same tensors: how steps are searched quickly."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.schedules import Schedule
from gossamer.errors import NonFiniteError, settle
from gossamer.problems.base import Problem
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.start import X0
from gossamer.topology import Mixing

# A square distance that grows with the square of time, as it does before mixing takes hold, is four times as large
# after twice the rounds; more than six times is growth without end.
_PARTING = 6.0
_EVALUATIONS = 20  # over the last tenth of a race


class Candidates(Simulation):
    """A simulation in which each block of rows, a seed's elsewhere, has its own `lr` and `gamma`.

    All draw the same minibatches and the same dither, so that they differ by their settings alone. What they would send
    is not counted.
    """

    def __init__(
        self,
        method: Algorithm,
        problem: Problem,
        mixing: Mixing,
        settings: Sequence[Mapping[str, float]],
        seed: int | Sequence[int] = 0,
        batch_size: int | None = None,
        x0: X0 = None,
    ) -> None:
        seeds = [seed] * len(settings) if isinstance(seed, int) else seed
        super().__init__(method, problem, mixing, seeds, batch_size, x0, counts=False)
        self.settings = list(settings)
        self.alive = list(range(len(settings)))
        """Which of the candidates the rows belong to, in their order."""
        self._base = method
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
        """The method with its settings one per row, where its equations take a number."""
        method = copy.copy(self._base)
        for name in self.settings[0] if self.settings else ():
            values = [self.settings[number][name] for number in self.alive]
            if name == "lr" and isinstance(self._base.lr, Schedule):
                schedules = [replace(self._base.lr, lr=value) for value in values]  # type: ignore[type-var]
                settle(method, lr=_Beside(schedules, self.problem))
            else:
                column = _one_a_row(values, self.problem)
                settle(method, **{name: column if name == "lr" else column.double()})
        self.session.method = method


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


def gradient_norms(sim: Simulation) -> Tensor:
    """(candidates or seeds,): ||grad f|| at each average model."""
    return sim.problem.evaluate(sim.snapshot().mean(dim=1, dtype=torch.float64))["grad_norm"]


def race(
    sim: Candidates,
    rounds: int,
    *,
    cuts: Mapping[int, int] | None = None,
    solved: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[float] | None:
    """Run all candidates; the mean gradient norm of each over the last tenth of the rounds.

    A candidate that diverges has the norm infinity. So has one whose clients part from one another, however well their
    average does. `cuts` maps a round to the number of candidates that go on after it; those left out have the norm
    infinity, too. Norms below `solved` count as equal there. None if `should_stop` returned True.
    """
    cuts = cuts or {}
    first = rounds - max(1, rounds // 10) + 1
    every = max(1, (rounds - first + 1) // _EVALUATIONS)
    sums, counted = [0.0] * len(sim.settings), 0
    earlier: dict[int, float] = {}
    halfway: dict[int, float] = {}
    with torch.no_grad():
        while sim.t < rounds and sim.alive:
            sim.step()
            if should_stop():
                return None
            if sim.t in cuts and cuts[sim.t] < len(sim.alive):
                sim.keep(_fittest(sim, cuts[sim.t], earlier, rounds, solved))
            if any(sim.t == cut // 2 for cut in cuts):
                earlier = dict(zip(sim.alive, gradient_norms(sim).tolist(), strict=True))
            if sim.t == rounds // 2:
                halfway = dict(zip(sim.alive, disagreements(sim), strict=True))
            if sim.alive and sim.t >= first and (rounds - sim.t) % every == 0:
                counted += 1
                for who, norm in zip(sim.alive, gradient_norms(sim).tolist(), strict=True):
                    sums[who] += norm
    found = [math.inf] * len(sim.settings)
    for who, apart in zip(sim.alive, disagreements(sim), strict=True):
        mean = sums[who] / max(1, counted)
        parts = apart > _PARTING * halfway.get(who, math.inf) > 0
        found[who] = mean if math.isfinite(mean) and not parts else math.inf
    return found


def _fittest(sim: Candidates, many: int, earlier: Mapping[int, float], rounds: int, solved: float) -> list[int]:
    """The places of the candidates that go on.

    Half of them have the lowest norms. The others have the lowest norms at the end, if they go on to fall as they did
    since half this round; a new lr goes before another gamma of the same lr, since small steps show late what they can.
    """
    now = dict(zip(sim.alive, gradient_norms(sim).tolist(), strict=True))
    power = (rounds - sim.t) / (sim.t - sim.t // 2)
    falls = {who: min(1.0, norm / earlier[who]) if earlier.get(who) else 1.0 for who, norm in now.items()}
    at_end = {who: norm * falls[who] ** power for who, norm in now.items()}
    order, later = (sorted(norms, key=lambda who: max(solved, norms[who])) for norms in (now, at_end))
    kept = order[: many // 2]
    lrs = {sim.settings[who]["lr"] for who in kept}
    new = {sim.settings[who]["lr"]: who for who in reversed(later) if sim.settings[who]["lr"] not in lrs}
    later.sort(key=lambda who: who not in new.values())
    kept += [who for who in later if who not in kept][: many - len(kept)]
    return [place for place, who in enumerate(sim.alive) if who in kept]


def disagreements(sim: Candidates) -> list[float]:
    """Mean square distance of the clients from their average; the average may do well while it grows for ever."""
    models = sim.models().double()
    apart: list[float] = (models - models.mean(dim=1, keepdim=True)).square().sum(dim=2).mean(dim=1).tolist()
    return apart
