"""Records of a simulation: what is measured, when, and where it is written; and resuming where one stopped."""

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gossamer.errors import NO_ROOM, ConvergenceWarning, DataError, InputError, NonFiniteError, RunError, check_path
from gossamer.records.checkpoint import Checkpoint, Checkpoints, resume_log
from gossamer.records.identity import header, settings
from gossamer.records.record import LARGE_GROWTH, Record, RecordWriter, read_record, record_name
from gossamer.records.runs import Run, Runs, finished_run, write_models
from gossamer.records.schema import End, Row, plain
from gossamer.records.typed import Settings, read_as
from gossamer.runtime.loop import Hook, Loop, SaveCheckpoints, ShowProgress, StopWhenAsked
from gossamer.runtime.measure import Measure, measure
from gossamer.runtime.planning.pace import affordable_interval, recorded_interval

if TYPE_CHECKING:
    from gossamer.runtime.simulation import Simulation

logger = logging.getLogger(__name__)

Progress = Callable[[str, int], None]

_EVALUATED_TOGETHER = 64  # as many as problems measure in one go
_SNAPSHOT_BYTES = 256 << 20  # models kept waiting for an evaluation, at the most
_FLUSH_SECONDS = 2.0  # a record on disk is never further behind than this, or one round
_KEPT = 2  # checkpoints: the last one, and the one before in case it is damaged


@dataclass(frozen=True)
class Saving:
    """Where a run is written, when it saves itself, and whether it resumes."""

    folder: Path | None = None
    every: int | None = None
    resume: bool = False
    should_stop: Callable[[], bool] | None = None
    hooks: Sequence[Hook] = ()


def record_folder(folder: str | Path, labels: Iterable[str], seeds: Sequence[int], *, fresh: bool) -> Path:
    """The folder, made if need be; refused if records would overwrite one another or, when `fresh`, others."""
    check_path("record_dir", folder)
    path = Path(folder)
    names = [record_name(label, seed) for label in labels for seed in seeds]
    if len(set(names)) < len(names):
        raise InputError(f"The labels {', '.join(map(repr, labels))} are too alike for file names; change one.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kind = RunError if error.errno in NO_ROOM else InputError
        raise kind(f"The folder '{path}' cannot be made: {error.strerror or error}; choose another one.") from None
    for name in names if fresh else ():
        if (path / name).exists():
            raise InputError(f"The record '{path / name}' exists already; take another folder, or remove it.")
    return path


def record_seeds(
    start: Callable[[Sequence[int]], "Simulation"],
    seeds: Sequence[int],
    about: Settings,
    saving: Saving,
    progress: Progress | None = None,
    measures: Sequence[Measure] = (),
    at_once: int | None = None,
) -> Runs:
    """The runs of one method, in the order of their seeds, of which `at_once` run side by side (by default all).

    On `resume`, runs that are over are read, seeds that share a checkpoint continue together, and the others start.
    """
    at_once = at_once or len(seeds)
    recorder = _first(start, seeds, about, saving, measures, at_once)
    about, over, together = recorder.about, dict[int, Run](), list[int]()
    if saving.folder is not None and saving.resume:
        over = recorder.finished(seeds)
        together = recorder.seeds_of_checkpoint()
    left = [seed for seed in seeds if seed not in over]
    together = together if set(together) <= set(left) else []
    rest = [seed for seed in left if seed not in together]
    for group in (together, *(rest[i : i + at_once] for i in range(0, len(rest), at_once))):
        if group:
            if group != list(recorder.records):
                del recorder  # before another one takes memory
                recorder = Recorder(start(group), about, saving, measures)
            over |= {run.seed: run for run in recorder.run(progress)}
    return Runs(over[seed] for seed in seeds)


def _first(
    start: Callable[[Sequence[int]], "Simulation"],
    seeds: Sequence[int],
    about: Settings,
    saving: Saving,
    measures: Sequence[Measure],
    at_once: int,
) -> "Recorder":
    """The recorder of the first seeds, with the interval of evaluations decided."""
    sim = start(seeds[:at_once])
    if about["eval_every"] is None:
        about = {**about, "eval_every": _interval(sim, seeds, about, saving)}
    return Recorder(sim, about, saving, measures)


def _interval(sim: "Simulation", seeds: Sequence[int], about: Settings, saving: Saving) -> int:
    """Rounds between evaluations where none are asked for: those of the record that is resumed, or by a trial."""
    label, rounds = str(about["label"]), about["rounds"]
    assert isinstance(rounds, int)
    known = None
    if saving.resume and saving.folder is not None:
        known = recorded_interval(saving.folder, label, seeds)
    return known or affordable_interval(sim, label, rounds, _together(sim.snapshot()))


def _together(models: Tensor) -> int:
    """How many snapshots such as this are kept for one evaluation."""
    return max(1, min(_EVALUATED_TOGETHER, _SNAPSHOT_BYTES // (models.numel() * models.element_size())))


class Recorder(Hook):
    """Keeps the records of a simulation: evaluates many snapshots together, and writes what it measures."""

    def __init__(
        self, simulation: "Simulation", about: Settings, saving: Saving, measures: Sequence[Measure] = ()
    ) -> None:
        sim = self.simulation = simulation
        self.saving, self.folder = saving, saving.folder
        self._is_followed = self.folder is not None or any(hook.looks_at_rows() for hook in saving.hooks)
        sim.replayed.is_allowed = not any(hook.looks_at_rounds() for hook in saving.hooks)
        self.about = about
        if measures:
            about = {**about, "measures": [one.name for one in measures]}
        self._measuring = [one.start(sim.method, sim.problem, sim.mixing, sim.batch_size) for one in measures]
        facts = {one.name: begun.facts() for one, begun in zip(measures, self._measuring, strict=True)}
        columns = {name: text for one in measures for name, text in one.columns.items()}
        self.records = {
            seed: Record(header(sim.method, sim.problem, sim.mixing, about, seed, facts=facts, columns=columns))
            for seed in simulation.seeds
        }
        first = self.records[sim.seeds[0]].header
        assert first.rounds is not None
        assert first.eval_every is not None
        self.label, self.rounds, self.eval_every = first.label, first.rounds, first.eval_every
        self._settings = settings(sim.method, sim.problem, sim.mixing, about, sim.seeds[0])
        self.finals: dict[int, Tensor] = {}
        self.writers: dict[int, RecordWriter] = {}
        self.checkpoints: Checkpoints | None = None
        if self.folder is not None:
            stem = record_name(self.label, 0).rsplit("-seed", 1)[0]
            identity = {"seeds": list(sim.seeds), **self._settings}
            self.checkpoints = Checkpoints(self.folder / "checkpoints", stem, identity, _KEPT)
        self._snapshots: list[tuple[dict[str, float], dict[int, dict[str, float]], Tensor]] = []
        self._flushed = time.monotonic()
        self._growing: set[int] = set()
        self._is_over = False
        self.loop = Loop(sim, self.label, self.rounds, self.eval_every, [], self._diverged)

    def run(self, progress: Progress | None) -> Runs:
        """Run to the end, or until every seed has diverged."""
        with contextlib.ExitStack() as files:  # closed whatever happens, each of them even if another cannot be
            self._open(files)
            try:
                self.loop.hooks = self._hooks(progress)
                with torch.no_grad():
                    self.loop.run()
                    self._finish()
            finally:
                self._flush()  # even after an interrupt, what was measured is on the disk
            runs = self._runs()
            for run in runs if self.folder is not None else ():
                assert self.folder is not None
                write_models(self.folder, run)  # before the record says that the run is over
            self._is_over = True
        if self.checkpoints is not None:
            self.checkpoints.finish()
        return runs

    def _open(self, files: contextlib.ExitStack) -> None:
        """Start the records, or continue those of a run that is resumed."""
        if self.checkpoints is None:
            return
        if not (self.saving.resume and self._resume(self.checkpoints)):
            self.checkpoints.clear()
        for seed, record in self.records.items():
            self.writers[seed] = RecordWriter(self._record_path(seed), record)
            files.callback(self._close, seed)

    def _close(self, seed: int) -> None:
        # A record without an end is one that was cut off.
        self.writers[seed].close(self.records[seed].end if self._is_over else None)

    def _runs(self) -> Runs:
        sim = self.simulation
        return Runs(
            Run(self.label, sim.method, seed, record, sim.problem.d, self.finals[seed])
            for seed, record in self.records.items()
        )

    def _record_path(self, seed: int) -> Path:
        assert self.folder is not None
        return self.folder / record_name(self.label, seed)

    def finished(self, seeds: Sequence[int]) -> dict[int, Run]:
        """Those of the runs with these seeds that are over, by seed; a record of another run is an InputError."""
        assert self.folder is not None
        method = self.simulation.method
        found = {
            seed: finished_run(self.folder, self.label, seed, method, {**self._settings, "seed": seed})
            for seed in seeds
        }
        return {seed: run for seed, run in found.items() if run is not None}

    def seeds_of_checkpoint(self) -> list[int]:
        """The seeds that the latest checkpoint of this method holds, whatever run it is of."""
        assert self.checkpoints is not None
        identity = self.checkpoints.latest_identity()
        seeds = identity.get("seeds")
        return seeds if isinstance(seeds, list) and all(isinstance(seed, int) for seed in seeds) else []

    def _resume(self, checkpoints: Checkpoints) -> bool:
        """Go back to the last checkpoint that can be used, if there is one; if all are damaged, raise."""
        is_readable = False
        for checkpoint in checkpoints.usable():
            is_readable = True
            try:
                rows = {seed: self._rows(seed, checkpoint.facts["rows"][str(seed)]) for seed in self.records}
                ends = {int(seed): read_as(End, end) for seed, end in checkpoint.facts["ends"].items()}
                self.loop.seconds = float(checkpoint.facts["seconds"])
            except (DataError, KeyError, TypeError, ValueError) as error:
                path = checkpoints.path(checkpoint.round)
                resume_log.warning("A checkpoint is skipped: '%s' does not fit the record: %s", path, error)
                continue
            self._restore(checkpoint)
            for seed, record in self.records.items():
                record.rows, record.end = rows[seed], ends.get(seed)
            resume_log.info("%s resumes after round %d.", self.label, checkpoint.round)
            return True
        if checkpoints.rounds() and not is_readable:
            raise DataError(
                f"Every checkpoint of {self.label} in '{checkpoints.folder}' is damaged; remove them to begin again at "
                "round 0. Nothing was changed."
            )
        return False

    def _rows(self, seed: int, many: int) -> list[Row]:
        rows = read_record(self._record_path(seed)).rows
        if len(rows) < many:
            raise DataError(f"{many} rows were written, and {len(rows)} are there.")
        return rows[:many]

    def _restore(self, checkpoint: Checkpoint) -> None:
        sim = self.simulation
        for name, tensor in checkpoint.tensors.items():
            if name.startswith("finals."):
                self.finals[int(name.removeprefix("finals."))] = tensor.to(sim.problem.device)
        sim.restore(checkpoint)

    def _save(self) -> None:
        """Write a checkpoint, with everything measured so far on the disk before it."""
        if self.checkpoints is None:
            return
        self._flush()
        tensors, facts = self.simulation.save()
        tensors |= {f"finals.{seed}": x for seed, x in self.finals.items()}
        facts["rows"] = {seed: len(record.rows) for seed, record in self.records.items()}
        facts["ends"] = {seed: plain(record.end) for seed, record in self.records.items() if record.end}
        self.checkpoints.save(self.simulation.t, tensors, facts | {"seconds": self.loop.seconds})

    def _hooks(self, progress: Progress | None) -> list[Hook]:
        """Evaluate first; save what was measured; and stop with everything saved."""
        saving, hooks = self.saving, list[Hook]([self])
        if progress is not None:
            hooks.append(ShowProgress(lambda t: progress(self.label, t)))
        if self.checkpoints is not None:
            hooks.append(SaveCheckpoints(self._save, saving.every))
        if saving.should_stop is not None:
            hooks.append(StopWhenAsked(saving.should_stop, self._save))
        return hooks + list(saving.hooks)

    def begin(self, loop: Loop) -> None:
        """The first row; from the first moment on, there is something to read."""
        if loop.t == 0:
            self._snapshot()
        if self._is_followed:
            self._flush()

    def after(self, loop: Loop) -> None:
        """A row, if one is due."""
        if loop.is_due(loop.t):
            self._snapshot()
        if self._is_followed and time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flush()

    def _finish(self) -> None:
        sim = self.simulation
        self._flush()  # the last rows say whether a run is diverging
        for seed, x in zip(sim.seeds, sim.snapshot(), strict=True):
            self.finals[seed] = x
            self.records[seed].finish(self.rounds, sim.method.remedy())

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
            self.records[seed].end = End("diverged", sim.t + 1, reason)
        sim.drop([sim.seeds[i] for i in bad])

    def _snapshot_if_new(self, i: int) -> None:
        """The last finite state of the i-th seed, which diverges, is worth a row, unless it has one already."""
        sim = self.simulation
        waiting = [row["round"] for row, seeds, _ in self._snapshots if sim.seeds[i] in seeds]
        written = [row.round for row in self.records[sim.seeds[i]].rows[-1:]]
        if sim.t not in waiting + written:
            self._snapshot(slice(i, i + 1))

    def _snapshot(self, which: slice = slice(None)) -> None:
        """Keep the models of these seeds, by default of all, for the next evaluation."""
        sim, traffic = self.simulation, self.simulation.traffic
        row = {"round": sim.t, "packets": traffic.packets, "seconds": round(self.loop.seconds, 6)}
        sent = {
            seed: {
                "bits": traffic.on_one_link(seed),
                "bits_total": traffic.bits_total[seed],
                "bits_nominal": traffic.nominal_on_one_link(seed),
            }
            for seed in sim.seeds[which]
        }
        if sim.compression_error is not None:
            left_out = sim.compression_error.view(len(sim.seeds), -1).mean(dim=1).tolist()
            for seed, value in zip(sim.seeds[which], left_out[which], strict=True):
                sent[seed]["compression_error"] = value
        for seed, extra in zip(sim.seeds[which], self._measured()[which], strict=True):
            sent[seed] |= extra
        models = sim.snapshot()[which]
        self._snapshots.append((row, sent, models))
        if len(self._snapshots) >= _together(models):
            self._flush()

    def _measured(self) -> list[dict[str, float]]:
        """The columns of the measures, by seed; none where the next round ends the run."""
        sim, begin = self.simulation, time.perf_counter()
        extra: list[dict[str, float]] = [{} for _ in sim.seeds]
        if not self._measuring:
            return extra
        try:
            ahead = sim.peek()
        except NonFiniteError:
            return extra
        self.loop.seconds += time.perf_counter() - begin  # the round itself then takes no time
        for one in self._measuring:
            extra = [before | more for before, more in zip(extra, one.of_states(sim.state, ahead), strict=True)]
        return extra

    def _watch_growth(self, seed: int) -> None:
        """Warn, once per run, when the loss has grown by a large factor; a run may still recover."""
        record = self.records[seed]
        if seed not in self._growing and record.end is None and record.growth() > LARGE_GROWTH:
            self._growing.add(seed)
            warnings.warn(record.warning(self.simulation.method.remedy()), ConvergenceWarning, stacklevel=2)

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        if not self._snapshots:
            return
        models = torch.cat([models for _, _, models in self._snapshots])  # (snapshots and seeds, clients, d)
        columns = measure(self.simulation.problem, models)
        at = 0
        while self._snapshots:  # one by one, so that an interrupt loses none and writes none twice
            row, sent, _ = self._snapshots.pop(0)
            for seed, counted in sent.items():
                whole = Row.of(row | counted | {name: values[at] for name, values in columns.items()})
                at += 1
                for one in self._measuring:
                    whole = replace(whole, extra={**whole.extra, **one.of_row(whole)})
                self.records[seed].rows.append(whole)
                self._watch_growth(seed)
                if seed in self.writers:
                    self.writers[seed].row(whole)
                for hook in self.saving.hooks:
                    hook.recorded(self.label, seed, whole)
