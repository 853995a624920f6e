"""How often a run is evaluated unless `eval_every` says so: about a hundred times, or less often where that dominates.

The interval is decided once, before the first round, from a trial of a few rounds and evaluations. It is a multiple of
the usual one and stands in the record's header, where a run that is resumed finds it.
"""

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gossamer.errors import DataError
from gossamer.kernels import compile_seconds
from gossamer.records.record import read_record, record_name
from gossamer.runtime.measure import measure

if TYPE_CHECKING:
    from gossamer.runtime.simulation import Simulation

plan_log = logging.getLogger("gossamer.plan")
"""What was decided before a run (INFO); the command line shows these messages."""

_EVALUATIONS = 100  # by default
_FREE_SECONDS = 1.0  # evaluations that take no longer in all are never made less often
_BESIDE = 8  # snapshots that a trial evaluates together, to tell what one more costs


def usual_interval(rounds: int) -> int:
    """Rounds between evaluations, where evaluating costs little."""
    return max(1, rounds // _EVALUATIONS)


def recorded_interval(folder: Path, label: str, seeds: Sequence[int]) -> int | None:
    """The interval that an earlier run of one of these seeds noted in its record."""
    for seed in seeds:
        try:
            found = read_record(folder / record_name(label, seed)).header.eval_every
        except DataError:
            continue
        if found is not None and found >= 1:
            return found
    return None


def affordable_interval(sim: "Simulation", label: str, rounds: int, together: int) -> int:
    """A multiple of the usual interval, such that evaluations take no longer than the rounds between them.

    `together` is how many snapshots are evaluated at once. The simulation is left as it was.
    """
    usual = usual_interval(rounds)
    many = rounds // usual + 1
    evaluation = _seconds_per_evaluation(sim, many, together)
    if many * evaluation <= _FREE_SECONDS:
        return usual
    round = sim.rehearse()
    if round is None:
        return usual
    interval = min(stretched(usual, round, evaluation), rounds)
    if interval > usual:
        plan_log.info(
            "%s: an evaluation takes %s and a round %s, so the models are evaluated every %s rounds instead of every "
            "%s; ask for more with eval_every.",
            label,
            _words(evaluation),
            _words(round),
            f"{interval:,}",
            f"{usual:,}",
        )
    return interval


def stretched(usual: int, round: float, evaluation: float) -> int:
    """The smallest multiple of `usual` whose rounds take at least as long as an evaluation."""
    return usual * max(1, math.ceil(evaluation / (usual * max(round, 1e-9))))


def _seconds_per_evaluation(sim: "Simulation", many: int, together: int) -> float:
    """What one of `many` evaluations costs, where so many are made together."""
    snapshot = sim.snapshot()

    def seconds(copies: int) -> float:
        begin = time.perf_counter() - compile_seconds()
        measure(sim.problem, snapshot.repeat(copies, 1, 1))
        return time.perf_counter() - compile_seconds() - begin

    with torch.no_grad():
        alone = seconds(1)
        if many * alone <= _FREE_SECONDS:
            return alone
        alone = min(alone, seconds(1))  # the first may have had to warm up
        beside = min(together, _BESIDE)
        if many * alone <= _FREE_SECONDS or alone > _FREE_SECONDS or beside == 1:
            return alone
        each = max(0.0, (seconds(beside) - alone) / (beside - 1))
    return each + max(0.0, alone - each) / together


def _words(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
