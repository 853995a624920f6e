"""One record from the journals of all ranks: measured by one of them, after the last round."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.problems.base import Problem
from gossamer.records.checkpoint import Checkpoints
from gossamer.records.record import Record, RecordWriter, record_name
from gossamer.records.runs import Run, write_models
from gossamer.runtime.exchange.rows import network_of
from gossamer.runtime.measure import header, measure
from gossamer.runtime.processes.journal import Journal
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.transport.base import Failure
from gossamer.topology import Mixing

_TOGETHER = 64  # snapshots measured at once
_OF_A_CLIENT = ("seconds", "waiting", "hidden", "compression_error")
_BYTES = 256 << 20  # of models waiting to be measured, at the most


@dataclass(frozen=True)
class Outcome:
    """What one rank has to tell of a run that is over."""

    label: str
    method: Algorithm
    seed: int
    about: dict[str, Any]
    rounds: int
    journal: Journal
    checkpoints: Checkpoints
    failure: Failure | None
    """How it diverged, if it did."""
    links: list[dict[str, float]]

    def facts(self) -> dict[str, Any]:
        """What every rank tells the others."""
        failure = None if self.failure is None else [self.failure.since, self.failure.round, self.failure.sentence]
        return {"rounds": self.journal.rounds(), "links": self.links, "failure": failure}


def merge(
    problem: Problem | None, mixing: Mixing, ranks: Ranks, reporter: int, folder: Path, outcomes: list[Outcome]
) -> None:
    """Bring the journals of every run to the reporter, which alone has the whole problem, measures and writes."""
    told = ranks.share([outcome.facts() for outcome in outcomes])
    for outcome, said in zip(outcomes, zip(*told, strict=True), strict=True):
        # Where a run diverged, some ranks were ahead of others.
        rounds = sorted(set.intersection(*(set(one["rounds"]) for one in said)))
        measured = None if problem is None else _Measured(problem, network_of(outcome.method, mixing))
        for number in rounds:
            sent = ranks.collect(outcome.journal.row(number), reporter)
            if sent is not None and measured is not None:
                measured.add(*outcome.journal.read(sent))
        if measured is not None:
            failures = sorted(one["failure"] for one in said if one["failure"] is not None)
            end: dict[str, Any] = {}
            if failures:
                end = {"status": "diverged", "round": failures[0][1], "reason": failures[0][2]}
            end["links"] = [{"client": rank, **link} for rank, one in enumerate(said) for link in one["links"]]
            end["clients"] = measured.clients
            _write(folder, outcome, measured, end)
    ranks.wait_for(reporter)


def _write(folder: Path, outcome: Outcome, measured: "_Measured", end: dict[str, Any]) -> None:
    problem, mixing = measured.problem, measured.mixing
    first = header(outcome.method, problem, mixing, outcome.about, outcome.seed) | {"processes": mixing.clients}
    record = Record(first, measured.rows(), end)
    if "status" not in end:
        record.finish(outcome.rounds, outcome.method.remedy())
        record.end = end = (record.end or {}) | end
    assert measured.last is not None
    write_models(folder, Run(outcome.label, outcome.method, outcome.seed, record, problem.d, measured.last))
    RecordWriter(folder / record_name(outcome.label, outcome.seed), record).close(end)


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


class _Measured:
    """Rows of a record, measured many at a time."""

    def __init__(self, problem: Problem, mixing: Mixing) -> None:
        self.problem, self.mixing = problem, mixing
        self.last: Tensor | None = None
        self.clients: list[dict[str, Any]] = []
        """What each had counted in the end."""
        self._counted: list[dict[str, Any]] = []
        self._waiting: list[Tensor] = []
        self._rows: list[dict[str, Any]] = []

    def add(self, counters: dict[str, Any], models: Tensor) -> None:
        """One evaluation: every rank's counters, (ranks,) each, and model."""
        degrees = self.mixing.degrees
        row = {
            "round": int(counters["round"][0]),
            "packets": int(counters["packets"][0]),
            "bits": 8 * int(counters["bytes"].sum()) / len(degrees),
            "bits_total": 8 * int((counters["bytes"] * degrees).sum()),
            "bits_nominal": int(counters["bits_nominal"].sum()) / len(degrees),
            "seconds": float(counters["seconds"].max()),
            "waiting": float(counters["waiting"].mean()),
            "hidden": float(counters["hidden"].mean()),
        }
        self.clients = [
            {"client": rank, **{name: _plain(counters[name][rank]) for name in _OF_A_CLIENT}}
            for rank in range(len(degrees))
        ]
        error = float(np.mean(counters["compression_error"]))
        self._counted.append(row | ({} if np.isnan(error) else {"compression_error": error}))
        self.last = models
        self._waiting.append(models.to(self.problem.device))
        size = models.numel() * models.element_size()
        if len(self._waiting) >= max(1, min(_TOGETHER, _BYTES // size)):
            self._measure()

    def rows(self) -> list[dict[str, Any]]:
        """All of them."""
        self._measure()
        return self._rows

    def _measure(self) -> None:
        if self._waiting:
            columns = measure(self.problem, torch.stack(self._waiting))
            for at, row in enumerate(self._counted):
                self._rows.append(row | {name: values[at] for name, values in columns.items()})
            self._counted, self._waiting = [], []
