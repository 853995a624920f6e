"""Memory planned ahead: what a simulation will need, what is free, and which setting would fit."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, Needs
from gossamer.algorithms.surrogate import Surrogate
from gossamer.errors import InputError
from gossamer.problems.base import Problem
from gossamer.resources import free_memory, in_words
from gossamer.runtime.gradients.local import LocalSteps
from gossamer.runtime.planning.pace import plan_log
from gossamer.runtime.session import Surrogates
from gossamer.topology import Mixing, MixingMatrix

# Measured with BEER, LEAD, D2 and DSGD (tests/runtime/test_memory_plan.py holds estimates against measured peaks).
_PASSING = 80  # bytes per coordinate of all rows that come and go in a round: gradient, differences, messages, sums
_EVALUATING = 28  # bytes per coordinate of a snapshot that is measured: kept, copied, and its distance to the average
_LOCAL = 4  # numbers per coordinate that come and go in local steps: models, their copy, gradients and their mean
_PER_EDGE = 600  # bytes of a graph and its W
_PER_ROW = 1024  # bytes beside the coordinates: keys, lengths of packets
_TOGETHER, _SNAPSHOT_BYTES = 64, 256 << 20  # snapshots that wait for one evaluation, as the recorder keeps them
_SHARE = 0.9  # of the free memory that a run may take


@dataclass(frozen=True)
class Demand:
    """What a simulation is made of, as far as its memory depends on it."""

    method: Algorithm
    problem: Problem
    mixing: Mixing
    batch_size: int | None = None
    surrogates: Surrogates = "float64"
    evaluations: int = _TOGETHER
    local: LocalSteps | None = None

    def bytes(self, seeds: int = 1) -> int | None:
        """An estimate of the peak beside the data, for so many seeds at once; None if the method's state is unknown."""
        problem, rows = self.problem, seeds * self.problem.clients
        coordinates = rows * problem.d
        state = self._state(rows)
        if state is None:
            return None
        drawn = 0
        features = None if problem.rows is None else getattr(problem.rows, "features", None)
        if self.batch_size is not None and isinstance(features, Tensor) and features.layout == torch.strided:
            drawn = rows * self.batch_size * features.shape[1:].numel() * features.element_size()
        snapshot = coordinates * problem.dtype.itemsize
        waiting = max(1, min(self.evaluations, _TOGETHER, _SNAPSHOT_BYTES // max(1, snapshot)))
        # Kernels keep their memory to use it again, so that what rounds and evaluations need adds up.
        passing = _PASSING + waiting * _EVALUATING
        if self.local is not None:
            drawn *= self.local.steps
            passing += problem.dtype.itemsize * (_LOCAL + 2 * self.local.kept_per_coordinate)
        return 2 * state + passing * coordinates + drawn + _PER_ROW * rows

    def _state(self, rows: int) -> int | None:
        """The bytes of the state, in proportion to that of one short row."""
        problem = self.problem
        row = torch.zeros(1, min(problem.d, 64), dtype=problem.dtype)
        try:
            state = self.method.init(row)
        except (RuntimeError, NotImplementedError):  # a method that looks at its numbers
            return None
        slots = 1 if isinstance(self.mixing, MixingMatrix) else max(degree for _, degree in self.mixing.graph.degree)
        total = 0
        for field in fields(state):
            value = getattr(state, field.name)
            if isinstance(value, Surrogate):
                total += slots * (self._size(value.own) + self._size(value.mixed))
            elif isinstance(value, Tensor):
                total += self._size(value)
        total = total * rows * problem.d // row.numel()
        if self.method.needs is Needs.ROW_GRADIENTS:
            counts = problem.row_counts
            most = problem.rows_per_client if counts is None else int(counts.max())
            total += rows * most * problem.d * problem.dtype.itemsize
        return total

    def _size(self, x: Tensor) -> int:
        narrow = self.surrogates == "float32" and x.dtype == torch.float64
        return x.numel() * (4 if narrow else x.element_size())


def seeds_at_once(demand: Demand, label: str, seeds: int) -> int:
    """How many of the seeds run side by side: all, or as many as fit; an InputError if not even one does."""
    _check_complete(demand, label)
    free = free_memory(demand.problem.device)
    needed = demand.bytes(seeds)
    if free is None or needed is None or needed <= _SHARE * free:
        return seeds
    fit = next((n for n in range(seeds - 1, 0, -1) if (demand.bytes(n) or 0) <= _SHARE * free), 0)
    if fit:
        plan_log.info(
            "%s: %d seeds at once would need about %s of memory, and %s are free; they run %d at a time.",
            label,
            seeds,
            in_words(needed),
            in_words(free),
            fit,
        )
        return fit
    raise InputError(
        f"{label} with {demand.problem.clients:,} clients of {demand.problem.d:,} parameters needs about "
        f"{in_words(demand.bytes(1) or 0)} of memory, and {in_words(free)} are free; {_remedy(demand, free)}."
    )


def _check_complete(demand: Demand, label: str) -> None:
    """Refuse a centralized method with more clients than a complete graph can have in memory."""
    clients, free = demand.problem.clients, free_memory(torch.device("cpu"))
    needed = clients * (clients - 1) // 2 * _PER_EDGE
    if demand.method.info.is_centralized and free is not None and needed > _SHARE * free:
        raise InputError(
            f"{label} runs on the complete graph, which with {clients:,} clients needs about {in_words(needed)} of "
            f"memory, and {in_words(free)} are free; about {int((2 * _SHARE * free / _PER_EDGE) ** 0.5):,} clients "
            "would fit."
        )


def _remedy(demand: Demand, free: int) -> str:
    """The setting that would fit."""
    problem, suffix = demand.problem, ""
    if demand.surrogates == "float64" and problem.dtype == torch.float32:
        demand, suffix = replace(demand, surrogates="float32"), ", with surrogates = 'float32'"
    needed = demand.bytes(1) or 0
    if needed <= _SHARE * free:
        return f"surrogates = 'float32' would fit, with about {in_words(needed)}"
    clients = int(problem.clients * _SHARE * free / max(1, needed))
    if clients < 2:
        return "take a model with fewer parameters"
    return f"about {clients:,} clients would fit{suffix}"
