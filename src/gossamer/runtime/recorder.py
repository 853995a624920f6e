"""Keeping records of a simulation: what is measured, when, and where it is written."""

import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer._version import __version__
from gossamer.algorithms.base import Algorithm
from gossamer.errors import NonFiniteError
from gossamer.runtime.record import Record, RecordWriter, record_name

if TYPE_CHECKING:
    import pandas as pd

    from gossamer.runtime.simulated import Simulation

logger = logging.getLogger(__name__)

Progress = Callable[[str, int], None]

_EVALUATED_TOGETHER = 50  # products of 50 models with the data cost a tenth of 50 products with one
_SNAPSHOT_BYTES = 256 << 20  # models kept waiting for an evaluation, at the most
_FLUSH_SECONDS = 2.0  # a record on disk is never further behind than this, or one round


@dataclass(frozen=True)
class Run:
    """What `simulate` gives back for one method and one seed."""

    label: str
    method: Algorithm
    seed: int
    record: Record
    x: Tensor
    """The final models, (clients, d); those before the fatal round if the run diverged."""

    @property
    def frame(self) -> "pd.DataFrame":
        """The measurements, a row for each evaluation."""
        return self.record.frame

    @property
    def final(self) -> "pd.Series[Any]":
        """The last row of the frame."""
        return self.frame.iloc[-1]

    @property
    def diverged(self) -> str | None:
        """A sentence with the round and the likely remedy, if the models did not stay finite."""
        return self.record.diverged


class Runs(list[Run]):
    """Several runs; a list that can be seen as one frame."""

    @property
    def frame(self) -> "pd.DataFrame":
        """All rows, with the columns `method` and `seed` in front."""
        import pandas as pd

        frames = [run.frame.assign(method=run.label, seed=run.seed) for run in self]
        both = pd.concat(frames, ignore_index=True)
        return both[["method", "seed", *both.columns.drop(["method", "seed"])]]


class Recorder:
    """Drives a simulation and keeps its records: evaluates many snapshots together, and writes what it measures."""

    def __init__(self, simulation: "Simulation", about: dict[str, Any], folder: Path | None) -> None:
        self.simulation = simulation
        self.label = str(about["label"])
        self.folder = folder
        self.records = {seed: Record(self._header(seed, about)) for seed in simulation.seeds}
        self.finals: dict[int, Tensor] = {}
        self.writers: dict[int, RecordWriter] = {}
        self._snapshots: list[tuple[dict[str, Any], tuple[int, ...], Tensor]] = []
        self._flushed = time.monotonic()
        self._seconds = 0.0  # spent in rounds, evaluation left out

    def run(self, rounds: int, eval_every: int, progress: Progress | None) -> Runs:
        """Run to the end, or until every seed has diverged."""
        sim = self.simulation
        if self.folder is not None:
            for seed, record in self.records.items():
                self.writers[seed] = RecordWriter(self.folder / record_name(self.label, seed), record)
        try:
            self._loop(rounds, eval_every, progress)
        finally:
            # An interrupt, too, leaves what was measured on the disk; a record without an end is one that was cut off.
            self._flush()
            for seed, writer in self.writers.items():
                writer.close(self.records[seed].end)
        return Runs(Run(self.label, sim.method, seed, self.records[seed], self.finals[seed]) for seed in self.records)

    def _loop(self, rounds: int, eval_every: int, progress: Progress | None) -> None:
        sim = self.simulation
        told = 0.0
        self._snapshot()
        while sim.t < rounds and sim.seeds:
            begin = time.perf_counter()
            try:
                sim.step()
            except NonFiniteError as error:
                self._diverged(error)
                continue
            now = time.perf_counter()
            self._seconds += now - begin
            if sim.t % eval_every == 0 or sim.t == rounds:
                self._snapshot()
            if progress is not None and (now - told > 0.1 or sim.t == rounds):
                progress(self.label, sim.t)
                told = now
        for seed, x in zip(sim.seeds, sim.models(), strict=True):
            self.finals[seed] = x
            self.records[seed].end = {"status": "finished", "round": rounds}
        if progress is not None:
            progress(self.label, rounds)

    def _diverged(self, error: NonFiniteError) -> None:
        sim = self.simulation
        clients = sim.problem.clients
        bad = sorted({row // clients for row in error.rows})
        self._snapshot_if_new()
        for i in bad:
            seed = sim.seeds[i]
            client = next(row % clients for row in error.rows if row // clients == i)
            reason = (
                f"{self.label} with seed {seed} diverged in round {sim.t + 1}: the model of client {client} is no "
                f"longer finite; {sim.method.remedy()}."
            )
            logger.warning(reason)
            self.finals[seed] = sim.models()[i]
            self.records[seed].end = {"status": "diverged", "round": sim.t + 1, "reason": reason}
        sim.drop([sim.seeds[i] for i in bad])

    def _snapshot_if_new(self) -> None:
        """The last finite state of a run that diverges is worth a row, unless it has one already."""
        last = self._snapshots[-1][0]["round"] if self._snapshots else None
        rows = [record.rows[-1]["round"] for record in self.records.values() if record.rows]
        if self.simulation.t != last and self.simulation.t not in rows:
            self._snapshot()

    def _snapshot(self) -> None:
        sim, traffic = self.simulation, self.simulation.traffic
        row = {
            "round": sim.t,
            "packets": traffic.packets,
            "bits": traffic.bits,
            "bits_total": traffic.bits_total,
            "bits_paper": traffic.bits_paper,
            "seconds": round(self._seconds, 6),
        }
        models = sim.models()
        self._snapshots.append((row, sim.seeds, models))
        size = models.numel() * models.element_size()
        together = max(1, min(_EVALUATED_TOGETHER, _SNAPSHOT_BYTES // size))
        late = self.folder is not None and time.monotonic() - self._flushed > _FLUSH_SECONDS
        if len(self._snapshots) >= together or late:
            self._flush()

    def _flush(self) -> None:
        snapshots, self._snapshots = self._snapshots, []
        self._flushed = time.monotonic()
        if not snapshots:
            return
        problem = self.simulation.problem
        models = torch.cat([models for _, _, models in snapshots])  # (snapshots and seeds, clients, d)
        average = models.mean(dim=1, dtype=torch.float64)
        measured = problem.evaluate(average)
        measured["consensus"] = (models - average[:, None]).square().sum(dim=2).mean(dim=1)
        accuracy = problem.accuracy(average)
        if accuracy is not None:
            measured["accuracy"] = accuracy
            own = problem.accuracy(models.flatten(0, 1))
            assert own is not None
            measured["worst_accuracy"] = own.view(models.shape[:2]).amin(dim=1)
        columns = {name: values.tolist() for name, values in measured.items()}
        at = 0
        for row, seeds, _ in snapshots:
            for seed in seeds:
                whole = row | {name: values[at] for name, values in columns.items()}
                at += 1
                self.records[seed].rows.append(whole)
                if seed in self.writers:
                    self.writers[seed].row(whole)

    def _header(self, seed: int, about: dict[str, Any]) -> dict[str, Any]:
        sim = self.simulation
        return {
            "gossamer": __version__,
            **about,
            "seed": seed,
            "method": describe_method(sim.method),
            "problem": sim.problem.describe(),
            "mixing": {
                "clients": sim.mixing.clients,
                "edges": sim.mixing.graph.number_of_edges(),
                "rho": sim.mixing.rho,
                "C": sim.mixing.C,
            },
            "device": str(sim.problem.device),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }


def describe_method(method: Algorithm) -> dict[str, Any]:
    """The settings of a method, as plain data."""
    settings = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    plain = int | float | str | None
    return {"name": method.title} | {k: v if isinstance(v, plain) else str(v) for k, v in settings.items()}
