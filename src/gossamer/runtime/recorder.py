"""Keeping records of a simulation: what is measured, when, and where it is written."""

import logging
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import torch
from torch import Tensor

from gossamer._version import __version__
from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Compressor
from gossamer.errors import InputError, NonFiniteError
from gossamer.runtime.record import COLUMNS, Record, RecordWriter, record_name

if TYPE_CHECKING:
    import pandas as pd

    from gossamer.runtime.simulated import Simulation

logger = logging.getLogger(__name__)

Progress = Callable[[str, int], None]

_EVALUATED_TOGETHER = 64  # as many as problems measure in one go
_CLIENTS_TOGETHER = 1024  # models of clients measured at once, where each is a row of a closed form
_SNAPSHOT_BYTES = 256 << 20  # models kept waiting for an evaluation, at the most
_FLUSH_SECONDS = 2.0  # a record on disk is never further behind than this, or one round


@dataclass(frozen=True)
class Run:
    """What `simulate` gives back for one method and one seed."""

    label: str
    method: Algorithm
    seed: int
    record: Record
    d: int
    """Coordinates of a model."""
    snapshot: Tensor
    """The final models with their buffers, if there are any, behind them, (clients, d or more)."""

    @property
    def x(self) -> Tensor:
        """The final models, (clients, d); those before the fatal round if the run diverged."""
        return self.snapshot[:, : self.d]

    @property
    def average(self) -> Tensor:
        """The average of the final models (and of their buffers): what is measured, and what one would deploy."""
        return self.snapshot.mean(dim=0)

    def __repr__(self) -> str:
        last = self.record.rows[-1] if self.record.rows else {}
        about = ", ".join(f"{name}={last[name]:.4g}" for name in ("round", "bits", "loss", "grad_norm") if name in last)
        return f"Run({self.label!r}, seed={self.seed}, {about}{', diverged' if self.diverged else ''})"

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

        columns = ["method", "seed", *COLUMNS]
        frames = [run.frame.assign(method=run.label, seed=run.seed)[columns] for run in self]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Run | Runs":
        return Runs(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)


def fresh_folder(folder: str | Path, labels: Iterable[str], seeds: Sequence[int]) -> Path:
    """The folder, made if need be; refused if records would overwrite others, or one another."""
    path = Path(folder)
    names = [record_name(label, seed) for label in labels for seed in seeds]
    if len(set(names)) < len(names):
        raise InputError(f"The labels {', '.join(map(repr, labels))} are too alike for file names; change one.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The folder '{path}' cannot be made: {error.strerror or error}.") from None
    for name in names:
        if (path / name).exists():
            raise InputError(f"The record '{path / name}' exists already; take another folder, or remove it.")
    return path


class Recorder:
    """Drives a simulation and keeps its records: evaluates many snapshots together, and writes what it measures."""

    def __init__(self, simulation: "Simulation", about: dict[str, Any], folder: Path | None) -> None:
        self.simulation = simulation
        self.label = str(about["label"])
        self.folder = folder
        self.records = {seed: Record(self._header(seed, about)) for seed in simulation.seeds}
        self.finals: dict[int, Tensor] = {}
        self.writers: dict[int, RecordWriter] = {}
        self._snapshots: list[tuple[dict[str, Any], dict[int, dict[str, float]], Tensor]] = []
        self._flushed = time.monotonic()
        self._seconds = 0.0  # spent in rounds, evaluation left out

    def run(self, rounds: int, eval_every: int, progress: Progress | None) -> Runs:
        """Run to the end, or until every seed has diverged."""
        sim = self.simulation
        if self.folder is not None:
            for seed, record in self.records.items():
                self.writers[seed] = RecordWriter(self.folder / record_name(self.label, seed), record)
        try:
            with torch.no_grad():
                self._loop(rounds, eval_every, progress)
        finally:
            # An interrupt, too, leaves what was measured on the disk; a record without an end is one that was cut off.
            self._flush()
            for seed, writer in self.writers.items():
                writer.close(self.records[seed].end)
        d = sim.problem.d
        return Runs(
            Run(self.label, sim.method, seed, record, d, self.finals[seed]) for seed, record in self.records.items()
        )

    def _loop(self, rounds: int, eval_every: int, progress: Progress | None) -> None:
        sim = self.simulation
        told = 0.0
        self._snapshot()
        if self.folder is not None:
            self._flush()  # from the first moment on, there is something to read
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
            if self.folder is not None and time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._flush()
            if progress is not None and (now - told > 0.1 or sim.t == rounds):
                progress(self.label, sim.t)
                told = now
        for seed, x in zip(sim.seeds, sim.snapshot(), strict=True):
            self.finals[seed] = x
            self.records[seed].end = {"status": "finished", "round": rounds}

    def _diverged(self, error: NonFiniteError) -> None:
        sim = self.simulation
        clients = sim.problem.clients
        bad = sorted({row // clients for row in error.rows})
        for i in bad:
            seed = sim.seeds[i]
            self._snapshot_if_new(i)
            client = next(row % clients for row in error.rows if row // clients == i)
            reason = (
                f"{self.label} with seed {seed} diverged in round {sim.t + 1}: the model of client {client} is no "
                f"longer finite; {sim.method.remedy()}."
            )
            logger.warning(reason)
            self.finals[seed] = sim.snapshot()[i]
            self.records[seed].end = {"status": "diverged", "round": sim.t + 1, "reason": reason}
        sim.drop([sim.seeds[i] for i in bad])

    def _snapshot_if_new(self, i: int) -> None:
        """The last finite state of the i-th seed, which diverges, is worth a row, unless it has one already."""
        sim = self.simulation
        waiting = [row["round"] for row, seeds, _ in self._snapshots if sim.seeds[i] in seeds]
        written = [row["round"] for row in self.records[sim.seeds[i]].rows[-1:]]
        if sim.t not in waiting + written:
            self._snapshot(slice(i, i + 1))

    def _snapshot(self, which: slice = slice(None)) -> None:
        """Keep the models of these seeds, by default of all, for the next evaluation."""
        sim, traffic = self.simulation, self.simulation.traffic
        row = {
            "round": sim.t,
            "packets": traffic.packets,
            "bits_paper": traffic.bits_paper,
            "seconds": round(self._seconds, 6),
        }
        sent = {seed: {"bits": traffic.bits[seed], "bits_total": traffic.bits_total[seed]} for seed in sim.seeds[which]}
        models = sim.snapshot()[which]
        self._snapshots.append((row, sent, models))
        size = models.numel() * models.element_size()
        together = max(1, min(_EVALUATED_TOGETHER, _SNAPSHOT_BYTES // size))
        if len(self._snapshots) >= together:
            self._flush()

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        if not self._snapshots:
            return
        problem = self.simulation.problem
        models = torch.cat([models for _, _, models in self._snapshots])  # (snapshots and seeds, clients, d)
        average = models.mean(dim=1, dtype=torch.float64)
        measured = problem.evaluate(average)
        apart = (models - average[:, None])[:, :, : problem.d]
        measured["consensus"] = apart.square().sum(dim=2).mean(dim=1)
        for name, values in problem.score(average).items():
            measured[f"test_{name}" if name == "loss" else name] = values
        for name, values in self._score(models.flatten(0, 1)).items():
            own = values.view(models.shape[:2])
            measured[f"mean_{name}"] = own.mean(dim=1)
            measured[f"worst_{name}"] = own.amax(dim=1) if name == "loss" else own.amin(dim=1)
        columns = {name: values.tolist() for name, values in measured.items()}
        at = 0
        while self._snapshots:  # one by one, so that an interrupt loses none and writes none twice
            row, sent, _ = self._snapshots.pop(0)
            for seed, bits in sent.items():
                whole = row | bits | {name: values[at] for name, values in columns.items()}
                at += 1
                self.records[seed].rows.append(whole)
                if seed in self.writers:
                    self.writers[seed].row(whole)

    def _score(self, models: Tensor) -> dict[str, Tensor]:
        """The clients' own models on the test rows, or f at them where there are none."""
        problem = self.simulation.problem
        scored = problem.score(models)
        if not scored and problem.measures_clients:
            parts = torch.split(models, _CLIENTS_TOGETHER)
            scored = {"loss": torch.cat([problem.evaluate(part)["loss"] for part in parts])}
        return scored

    def _header(self, seed: int, about: dict[str, Any]) -> dict[str, Any]:
        sim = self.simulation
        return {
            "gossamer": __version__,
            **about,
            "seed": seed,
            "method": describe_method(sim.method),
            "alpha": alpha_of(sim.method, sim.problem.d),
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


def alpha_of(method: Algorithm, d: int) -> float:
    """The contraction constant of a method's messages: 1 where nothing is compressed."""
    compressor = getattr(method, "compressor", None)
    return compressor.alpha(d) if isinstance(compressor, Compressor) else 1.0


def describe_method(method: Algorithm) -> dict[str, Any]:
    """The settings of a method, as plain data."""
    settings = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    plain = int | float | str | None
    return {"name": method.title} | {k: v if isinstance(v, plain) else str(v) for k, v in settings.items()}
