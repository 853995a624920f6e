"""The runs of a spec over several processes: one label at a time in each, with one thread.

A process builds the problem anew from the spec, and runs exactly what would run in one process. Records and checkpoints
are those of `Experiment.run`, and so are the results, which are read from the folder in the end.
"""

import logging
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from gossamer.algorithms.base import Algorithm
from gossamer.errors import ConvergenceWarning, GossamerError, InputError, RunError, StoppedError, TrackerWarning
from gossamer.files import alone_in, work_for_holder
from gossamer.records.runs import Runs
from gossamer.resources import share_memory
from gossamer.runtime.experiment import Experiment, build_problem
from gossamer.runtime.gradients.local import LocalSteps
from gossamer.runtime.recorder import Progress
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.threads import is_small
from gossamer.spec import Spec
from gossamer.topology import Mixing

_WORTH_SECONDS = 60.0  # of rounds, from which starting processes pays
_POLL_SECONDS = 0.1
_WATCH_SECONDS = 1.0


def cores() -> int:
    """The processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # another operating system
        return os.cpu_count() or 1


def usual_jobs(experiment: Experiment) -> int:
    """All cores, where every run is of small rounds, which use one thread each, and the whole takes long enough."""
    problem, spec, methods = experiment.problem, experiment.spec, experiment.methods
    rows = len(spec.seeds) * problem.clients
    if len(methods) == 1 or problem.device.type != "cpu" or not is_small(problem, rows, spec.batch_size):
        return 1
    jobs, seconds = min(cores(), len(methods)), 0.0
    for label, (method, rounds) in methods.items() if jobs > 1 else ():
        mixing = experiment.networks.get(label, experiment.mixing)
        how: Any = {"surrogates": spec.surrogates, "local": experiment.local.get(label)}
        sim = Simulation(method, problem, mixing, spec.seeds, spec.batch_size, spec.x0, **how)
        seconds += rounds * (sim.rehearse() or 0.0)
        if seconds > _WORTH_SECONDS:
            return jobs
    return 1


@dataclass(frozen=True)
class _Task:
    """What a process is told once."""

    spec: Spec
    networks: Mapping[str, Mixing]
    methods: Mapping[str, tuple[Algorithm, int]]
    local: Mapping[str, LocalSteps]
    data_dir: str | None
    device: str | None
    folder: Path
    how: Mapping[str, Any]
    jobs: int


def run_over_cores(
    experiment: Experiment,
    jobs: int,
    *,
    record_dir: Path,
    progress: Progress | None = None,
    on_method: Callable[[str, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    **how: Any,
) -> Runs:
    """As `Experiment.run`, with `jobs` processes. Each method with all its seeds is the work of one of them.

    The random numbers and the arithmetic are the same, so that the records are, too, but for their times. When asked to
    stop, or when one process fails, all finish their round and write a checkpoint.
    """
    if "hooks" in how:
        raise InputError("Hooks need all runs in one process; leave out `jobs`.")
    _check_portable(how.get("trackers", ()))
    networks = {label: experiment.networks.get(label, experiment.mixing) for label in experiment.methods}
    task = _Task(
        experiment.spec,
        networks,
        experiment.methods,
        experiment.local,
        experiment.data_dir,
        experiment.device,
        record_dir,
        {"resume": False, **how},
        jobs,
    )
    record_dir.mkdir(parents=True, exist_ok=True)
    with alone_in(record_dir, reenter=True):
        _Team(task, progress, on_method, should_stop).run()
        return experiment.run(record_dir=record_dir, **{**how, "resume": True})


def _check_portable(trackers: Sequence[object]) -> None:
    """Refuse trackers that other processes cannot have."""
    for one in trackers:
        try:
            pickle.dumps(one)
        except Exception:  # as each class likes
            raise InputError(
                f"The tracker {one!r} cannot be pickled, so that other processes cannot have it; leave out `jobs`."
            ) from None


class _Team:
    """The processes, seen from the one that started them."""

    def __init__(
        self,
        task: _Task,
        progress: Progress | None,
        on_method: Callable[[str, int], None] | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.task, self.progress, self.on_method, self.should_stop = task, progress, on_method, should_stop
        context = get_context("spawn")  # a fork would copy locks and threads in an unknown state
        self.events, self.stop = context.SimpleQueue(), context.Event()
        self.pool = ProcessPoolExecutor(
            min(task.jobs, len(task.methods)), context, _begin, (task, self.events, self.stop, os.getpid())
        )

    def run(self) -> None:
        """Until all are done; then raise the first failure, or a StoppedError."""
        failures: list[BaseException] = []
        try:
            pending: set[Future[None]] = {self.pool.submit(_work, label) for label in self.task.methods}
            while pending:
                done, pending = wait(pending, _POLL_SECONDS)
                self._hear()
                failures += [error for one in done if (error := one.exception()) is not None]
                if failures or (self.should_stop is not None and self.should_stop()):
                    self.stop.set()
                    for one in pending:
                        one.cancel()
                    pending = {one for one in pending if not one.cancelled()}
        finally:
            self.stop.set()
            self.pool.shutdown(cancel_futures=True)
            self._hear()
        self._raise(failures)

    def _raise(self, failures: list[BaseException]) -> None:
        for error in sorted(failures, key=lambda error: isinstance(error, StoppedError)):
            if isinstance(error, BrokenProcessPool):
                raise RunError("A process of the run was killed, perhaps for its memory; take fewer --jobs.") from None
            raise error
        if self.should_stop is not None and self.should_stop():
            raise StoppedError("The runs were stopped before all had started.")

    def _hear(self) -> None:
        """Pass on what the processes have to say."""
        while not self.events.empty():
            kind, *what = self.events.get()
            if kind == "progress" and self.progress is not None:
                self.progress(*what)
            elif kind == "method" and self.on_method is not None:
                self.on_method(*what)
            elif kind == "log":
                name, level, message = what
                logging.getLogger(name).log(level, "%s", message)
            elif kind == "warning":
                warnings.warn(what[0], what[1], stacklevel=2)


class _Process:
    """One of the processes, seen from itself."""

    def __init__(self, task: _Task, events: Any, stop: Any, parent: int) -> None:
        self.task, self.events, self.stop, self.parent = task, events, stop, parent
        self.is_busy = False
        self.problem = build_problem(task.spec, task.data_dir, task.device)

    def should_stop(self) -> bool:
        """Whether the others stop, or the process that started this one has gone."""
        return self.stop.is_set() or os.getppid() != self.parent

    def watch(self) -> None:
        """End with the process that started this one; a run under way first writes its checkpoint."""
        while os.getppid() == self.parent or self.is_busy:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    def work(self, label: str) -> None:
        task, (method, rounds) = self.task, self.task.methods[label]
        if self.should_stop():
            return
        self.is_busy = True
        try:
            self.events.put(("method", label, rounds))
            one = Experiment(task.spec, self.problem, task.networks[label], {label: (method, rounds)})
            one = replace(one, data_dir=task.data_dir, device=task.device, local=dict(task.local))
            one.run(
                record_dir=task.folder,
                should_stop=self.should_stop,
                progress=lambda name, t: self.events.put(("progress", name, t)),
                **task.how,
            )
        finally:
            self.is_busy = False


class _Forward(logging.Handler):
    """Sends log messages to the process that shows them."""

    def __init__(self, events: Any) -> None:
        super().__init__(logging.INFO)
        self.events = events

    def emit(self, record: logging.LogRecord) -> None:
        self.events.put(("log", record.name, record.levelno, record.getMessage()))


_process: _Process | None = None


def _begin(task: _Task, events: Any, stop: Any, parent: int) -> None:
    """The first thing that a process does."""
    global _process  # noqa: PLW0603 (what a pool's process knows lives here)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    torch.set_num_threads(1)
    share_memory(min(task.jobs, len(task.methods)))
    log = logging.getLogger("gossamer")
    log.addHandler(_Forward(events))
    log.setLevel(logging.INFO)
    log.propagate = False
    warnings.showwarning = lambda message, kind, *_, **__: events.put(("warning", str(message), _own(kind)))
    work_for_holder(task.folder)
    _process = _Process(task, events, stop, parent)
    threading.Thread(target=_process.watch, daemon=True).start()


def _own(kind: type[Warning]) -> type[Warning]:
    """As what a warning of a process is shown."""
    return TrackerWarning if issubclass(kind, TrackerWarning) else ConvergenceWarning


def _work(label: str) -> None:
    assert _process is not None
    try:
        _process.work(label)
    except GossamerError:
        raise
    except (MemoryError, OSError, RuntimeError) as error:  # others may not survive the way back
        raise RunError(f"{label} could not be finished: {error}.") from None
