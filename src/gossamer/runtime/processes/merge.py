"""One record from the journals of all ranks: measured by one of them, after the last round."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.problems.base import Problem
from gossamer.records.checkpoint import Checkpoints
from gossamer.records.identity import header
from gossamer.records.record import Record, RecordWriter, record_name
from gossamer.records.runs import Run, write_models
from gossamer.records.schema import ClientCount, End, LinkCount, Row
from gossamer.records.typed import Settings, read_as
from gossamer.runtime.exchange.rows import network_of
from gossamer.runtime.measure import measure
from gossamer.runtime.processes.group import Group
from gossamer.runtime.processes.journal import Counters, Journal
from gossamer.runtime.transport.base import Failure
from gossamer.topology import Mixing

_TOGETHER = 64  # snapshots measured at once
_BYTES = 256 << 20  # of models waiting to be measured, at the most


@dataclass(frozen=True)
class RankResult:
    """What one rank has of a run that is over."""

    label: str
    method: Algorithm
    seed: int
    about: Settings
    rounds: int
    journal: Journal
    checkpoints: Checkpoints
    failure: Failure | None
    """How it diverged, if it did."""
    links: list[dict[str, float]]

    def shared(self) -> tuple[list[int], list[dict[str, float]], tuple[float, int, str] | None]:
        """What every rank tells the others: the rounds in its journal, its links, and how it failed."""
        failure = None if self.failure is None else (self.failure.since, self.failure.round, self.failure.sentence)
        return self.journal.rounds(), self.links, failure


def merge(
    problem: Problem | None, mixing: Mixing, ranks: Group, reporter: int, folder: Path, results: list[RankResult]
) -> None:
    """Bring the journals of every run to the reporter, which alone has the whole problem, measures and writes."""
    everyone: Any = zip(*ranks.share([result.shared() for result in results]), strict=True)
    for result, of_ranks in zip(results, everyone, strict=True):
        journaled, links, failures = zip(*of_ranks, strict=True)
        rounds = sorted(set.intersection(*map(set, journaled)))  # where a run diverged, some ranks were ahead of others
        measured = None if problem is None else _Measured(problem, network_of(result.method, mixing))
        for number in rounds:
            sent = ranks.collect(result.journal.row(number), reporter)
            if sent is not None and measured is not None:
                measured.add(*result.journal.read(sent))
        if measured is not None:
            _write(folder, result, measured, links, failures)
    ranks.wait_for(reporter)


def _write(folder: Path, result: RankResult, measured: "_Measured", of_ranks: Any, failures: Any) -> None:
    problem, mixing = measured.problem, measured.mixing
    first = header(result.method, problem, mixing, result.about, result.seed, processes=mixing.clients)
    record = Record(first, measured.rows())
    record.finish(result.rounds, result.method.remedy())
    first_failure = min((failure for failure in failures if failure is not None), default=None)
    if first_failure is not None:
        record.end = End("diverged", *first_failure[1:])
    links = [read_as(LinkCount, {"client": rank, **link}) for rank, own in enumerate(of_ranks) for link in own]
    assert record.end is not None
    assert measured.last is not None
    record.end = replace(record.end, links=tuple(links), clients=tuple(measured.clients))
    write_models(folder, Run(result.label, result.method, result.seed, record, problem.d, measured.last))
    RecordWriter(folder / record_name(result.label, result.seed), record).close(record.end)


def _finite(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


class _Measured:
    """Rows of a record, measured many at a time."""

    def __init__(self, problem: Problem, mixing: Mixing) -> None:
        self.problem, self.mixing = problem, mixing
        self.last: Tensor | None = None
        self.clients: list[ClientCount] = []
        """What each had counted in the end."""
        self._counted: list[dict[str, float]] = []
        self._waiting: list[Tensor] = []
        self._rows: list[Row] = []

    def add(self, counters: Counters, models: Tensor) -> None:
        """One evaluation: every rank's counters, (ranks,) each, and model."""
        clients = self.mixing.clients
        row = {
            "round": int(counters["round"][0]),
            "packets": int(counters["packets"][0]),
            "bits": 8 * int(counters["bytes"].sum()) / clients,
            "bits_total": 8 * int(counters["bytes_total"].sum()),
            "bits_nominal": int(counters["bits_nominal"].sum()) / clients,
            "seconds": float(counters["seconds"].max()),
            "waiting": float(counters["waiting"].mean()),
            "hidden": float(counters["hidden"].mean()),
        }
        names = ("seconds", "waiting", "hidden", "compression_error")
        self.clients = [
            ClientCount(rank, *(_finite(counters[name][rank]) for name in names)) for rank in range(clients)
        ]
        error = float(np.mean(counters["compression_error"]))
        self._counted.append(row | ({} if np.isnan(error) else {"compression_error": error}))
        self.last = models
        self._waiting.append(models.to(self.problem.device))
        size = models.numel() * models.element_size()
        if len(self._waiting) >= max(1, min(_TOGETHER, _BYTES // size)):
            self._measure()

    def rows(self) -> list[Row]:
        """All of them."""
        self._measure()
        return self._rows

    def _measure(self) -> None:
        if self._waiting:
            columns = measure(self.problem, torch.stack(self._waiting))
            for at, row in enumerate(self._counted):
                self._rows.append(Row.of(row | {name: values[at] for name, values in columns.items()}))
            self._counted, self._waiting = [], []
