"""The loop over the rounds of a run, and the hooks that evaluate, record, save, stop and show progress around them.

A hook is any object of a class that derives from `Hook` and overrides what it needs; `simulate(..., hooks=[...])` takes
yours.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from gossamer.errors import NonFiniteError, StoppedError
from gossamer.kernels import compile_seconds
from gossamer.records.schema import Row
from gossamer.records.typed import Settings
from gossamer.trackers.base import Event, Trackers

logger = logging.getLogger("gossamer")
_SHOW_SECONDS = 0.1  # between two calls of a progress function
_SAVE_SECONDS = 60.0  # between two checkpoints, unless a number of rounds is given


class Driven(Protocol):
    """What a loop drives: all clients of a simulation, or one client in its process."""

    @property
    def t(self) -> int:
        """Rounds done."""

    @property
    def is_alive(self) -> bool:
        """Whether there is anything left to run."""

    def step(self, *, measure: bool = False) -> None:
        """One round; with `measure`, how much the compressor left out is noted on the way."""


class Hook:
    """What happens around the rounds. Each method does nothing unless it is overridden."""

    def begin(self, loop: "Loop") -> None:
        """Before the first round, or the first after resuming."""

    def before(self, loop: "Loop") -> None:
        """Before each round; once more for a round that is repeated because a seed diverged in it."""

    def after(self, loop: "Loop") -> None:
        """After each round."""

    @classmethod
    def looks_at_rounds(cls) -> bool:
        """Whether it does something in every round, and so must see each of them once."""
        return cls.before is not Hook.before or cls.after is not Hook.after

    @classmethod
    def looks_at_rows(cls) -> bool:
        """Whether it looks at evaluations, which are then not kept waiting for long."""
        return cls.recorded is not Hook.recorded

    def recorded(self, label: str, seed: int, row: Row) -> None:
        """After an evaluation was added to a record. Evaluations are done many at a time, so this may be later."""


class Loop:
    """Rounds of one method, with the hooks in their order."""

    def __init__(
        self,
        driven: Driven,
        label: str,
        rounds: int,
        eval_every: int,
        hooks: Sequence[Hook],
        on_divergence: Callable[[NonFiniteError], None] | None = None,
    ) -> None:
        self.driven, self.label, self.rounds, self.eval_every = driven, label, rounds, eval_every
        self.hooks, self._on_divergence = hooks, on_divergence
        self.seconds = 0.0
        """Spent in rounds so far, without evaluations."""

    @property
    def t(self) -> int:
        """Rounds done."""
        return self.driven.t

    def is_due(self, t: int) -> bool:
        """Whether the models are evaluated after t rounds."""
        return t % self.eval_every == 0 or t == self.rounds

    def run(self) -> None:
        """All rounds that are left."""
        for hook in self.hooks:
            hook.begin(self)
        compiled = compile_seconds()
        while self.t < self.rounds and self.driven.is_alive:
            for hook in self.hooks:
                hook.before(self)
            begin = _now()
            try:
                self.driven.step(measure=self.is_due(self.t + 1))
            except NonFiniteError as error:
                if self._on_divergence is None:
                    raise
                self._on_divergence(error)
                continue
            self.seconds += _now() - begin
            for hook in self.hooks:
                hook.after(self)
        if compile_seconds() > compiled + 0.1:
            took = compile_seconds() - compiled
            logger.info("Compiling kernels took %.1f s, which is not counted; the next run finds them compiled.", took)

    def stopped(self) -> StoppedError:
        """To be raised by a hook that ends the run."""
        return StoppedError(f"{self.label} was stopped after round {self.t} of {self.rounds}.")


def _now() -> float:
    """Seconds, without those spent compiling."""
    return time.perf_counter() - compile_seconds()


class ShowProgress(Hook):
    """Calls a function with the rounds done, about ten times per second."""

    def __init__(self, show: Callable[[int], None]) -> None:
        self._show, self._shown = show, 0.0

    def after(self, loop: Loop) -> None:
        """Call it, if a tenth of a second has passed."""
        now = time.perf_counter()
        if now - self._shown > _SHOW_SECONDS or loop.t == loop.rounds:
            self._show(loop.t)
            self._shown = now


class TellTrackers(Hook):
    """Tells trackers of every evaluation; of a run's settings before its first."""

    def __init__(self, trackers: Trackers, settings: Callable[[str, int], Settings]) -> None:
        self._trackers, self._settings = trackers, settings
        self._begun: set[tuple[str, int]] = set()

    def recorded(self, label: str, seed: int, row: Row) -> None:
        """The columns of the row, and bytes."""
        if (label, seed) not in self._begun:
            self._begun.add((label, seed))
            self._trackers.begin(label, seed, None, self._settings(label, seed))
        values = {name: value for name, value in row.columns().items() if name != "round"}
        if row.bits is not None:
            values["bytes"] = row.bits / 8
        self._trackers.event(Event(label, seed, row.round, values))


class SaveCheckpoints(Hook):
    """Saves every so many rounds, or every minute; and in rounds that `also` names."""

    def __init__(
        self, save: Callable[[], None], every: int | None, also: Callable[[Loop], bool] = lambda loop: False
    ) -> None:
        self._save, self._every, self._also = save, every, also
        self._saved = time.monotonic()

    def after(self, loop: Loop) -> None:
        """Save, if it is due. After the last round the results are written, and no checkpoint is needed."""
        late = self._every is None and time.monotonic() - self._saved > _SAVE_SECONDS
        regular = loop.t < loop.rounds and (late or (self._every is not None and loop.t % self._every == 0))
        if regular or self._also(loop):
            self._save()
            self._saved = time.monotonic()


class StopWhenAsked(Hook):
    """Saves and raises a StoppedError when a function returns True after a round."""

    def __init__(self, should_stop: Callable[[], bool], save: Callable[[], None]) -> None:
        self._should_stop, self._save = should_stop, save

    def after(self, loop: Loop) -> None:
        """Ask, unless this was the last round."""
        if loop.t < loop.rounds and self._should_stop():
            self._save()
            raise loop.stopped()
