"""Searching for steps by short runs: Optuna proposes, and several candidates are simulated at once."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.schedules import Schedule
from gossamer.errors import InputError, StoppedError, check_integer
from gossamer.problems.base import Problem
from gossamer.runtime.start import X0
from gossamer.runtime.tuning.auto import Steps, settings_for
from gossamer.runtime.tuning.candidates import Candidates, gradient_norms, race
from gossamer.topology import Mixing

_WIDEST = 30.0  # lr and gamma are looked for between auto's steps divided and multiplied by this


@dataclass(frozen=True)
class Trial:
    """One candidate: its steps, and the gradient norm that they reached; infinite if it diverged."""

    steps: Steps
    norm: float


@dataclass(frozen=True)
class Tuned:
    """A search that is over, or was stopped; trials in the order in which they were made."""

    start: float
    """The gradient norm at x0."""
    trials: list[Trial] = field(default_factory=list)
    finalists: list[Trial] = field(default_factory=list)
    """The best of them again, over the whole length."""

    @property
    def automatic(self) -> Trial:
        """What `gossamer.auto_steps` would take: the first trial, over the whole length if that was tried."""
        begin = self.trials[0]
        return next((trial for trial in self.finalists if trial.steps == begin.steps), begin)

    @property
    def best(self) -> Trial:
        """The lowest norm: over the whole length, if that was tried."""
        return min(self.finalists or self.trials, key=lambda trial: trial.norm)


@dataclass(frozen=True)
class Search:
    """How steps are looked for.

    Args:
        trials: How many candidates, auto's own steps included.
        rounds: Of each run.
        at_once: How many are simulated side by side; more are faster, and let the sampler learn less from each.
        seed: Of the sampler and of the runs.
    """

    trials: int = 40
    rounds: int = 200
    at_once: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("trials", 1), ("rounds", 1), ("at_once", 1), ("seed", 0)):
            check_integer(name, getattr(self, name), low)


def tune(
    method: Algorithm,
    problem: Problem,
    mixing: Mixing,
    search: Search,
    *,
    whole: int | None = None,
    batch_size: int | None = None,
    x0: X0 = None,
    progress: Callable[[Tuned], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Tuned:
    """Search for the `lr` and `gamma` that bring the gradient norm lowest in so many rounds.

    A norm is the mean over the last tenth of the rounds; a candidate whose clients part from one another has diverged,
    however well their average does. With `whole`, the best few then run for so many rounds, since growth may be slow.
    Where `lr` is a schedule, the step size that it begins with is looked for. Stopped early, it returns what it has
    found, or raises `StoppedError` if that is nothing.
    """
    optuna = _optuna()
    automatic = settings_for(method, problem, mixing, {}, search.rounds, batch_size, x0)
    begin = {name: float(automatic[name]) for name in ("lr", "gamma") if name in automatic}
    ranges = {
        name: optuna.distributions.FloatDistribution(
            value / _WIDEST, min(value * _WIDEST, 1.0) if name == "gamma" else value * _WIDEST, log=True
        )
        for name, value in begin.items()
    }
    sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=min(10, search.trials), constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(begin)
    check_tunable(method)
    tuned: Tuned | None = None
    while tuned is None or len(tuned.trials) < search.trials:
        many = min(search.at_once, search.trials - (len(tuned.trials) if tuned else 0))
        asked = [study.ask(ranges) for _ in range(many)]
        steps = [cast(Steps, dict(trial.params)) for trial in asked]
        sim = Candidates(method, problem, mixing, steps, search.seed, batch_size, x0)
        tuned = tuned or Tuned(float(gradient_norms(sim)[0]))
        norms = race(sim, search.rounds, should_stop=should_stop)
        if norms is None:
            break
        for trial, one, norm in zip(asked, steps, norms, strict=True):
            # Diverged runs are all equally bad, so that the sampler keeps away from them without drawing the line.
            study.tell(trial, math.log(norm) if 0 < norm < math.inf else 50.0 if norm else -50.0)
            tuned.trials.append(Trial(one, norm))
        if progress is not None:
            progress(tuned)
    if not tuned.trials:
        raise StoppedError("The search was stopped before its first candidates were through.")
    if whole is not None:
        ranked = sorted((trial for trial in tuned.trials if trial.norm < math.inf), key=lambda trial: trial.norm)
        best = ranked[: search.at_once]
        best += [tuned.trials[0]] if tuned.trials[0] not in best else []  # auto's own, to compare with
        if ranked:
            finalists = [trial.steps for trial in best]
            sim = Candidates(method, problem, mixing, finalists, search.seed, batch_size, x0)
            norms = race(sim, whole, should_stop=should_stop) or []
            tuned.finalists.extend(map(Trial, finalists, norms))
    return tuned


def with_steps(method: Algorithm, steps: Mapping[str, float]) -> Algorithm:
    """The method with these steps; a schedule keeps its form."""
    settings: dict[str, Any] = dict(steps)
    if isinstance(method.lr, Schedule):
        settings["lr"] = replace(cast(Any, method.lr), lr=steps["lr"])
    return cast(Algorithm, replace(cast(Any, method), **settings))


def check_tunable(method: Algorithm) -> None:
    """A cosine's lowest step size must not be above the one it begins with, which the search lowers."""
    if getattr(method.lr, "eta_min", 0):
        raise InputError(f"A schedule with `eta_min` cannot be tuned, got {method.lr}; leave `eta_min` out.")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("Tuning needs Optuna; install it with `pip install 'gossamer[tune]'`.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
