"""A spec across real processes: what each rank does between its start and the merged record."""

import contextlib
import hashlib
import itertools
import logging
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gossamer._version import __version__
from gossamer.algorithms.base import Algorithm
from gossamer.errors import InputError, RunError, StoppedError
from gossamer.records.checkpoint import Checkpoint, Checkpoints, common, needed, resume_log, under
from gossamer.records.identity import settings
from gossamer.records.record import record_name
from gossamer.records.runs import finished_run
from gossamer.records.typed import Settings
from gossamer.runtime.exchange.rows import network_of
from gossamer.runtime.experiment import Experiment
from gossamer.runtime.gradients.local import LocalSteps
from gossamer.runtime.gradients.oracle import BatchOracle, LocalOracle, of_module
from gossamer.runtime.loop import Hook, Loop, SaveCheckpoints, ShowProgress
from gossamer.runtime.planning.pace import usual_interval
from gossamer.runtime.processes.client import Client
from gossamer.runtime.processes.group import Group
from gossamer.runtime.processes.journal import Journal
from gossamer.runtime.processes.merge import RankResult, merge
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.processes.reporting import counted, tell
from gossamer.runtime.processes.tree import TreeRanks
from gossamer.runtime.start import describe_start, starting_models
from gossamer.runtime.transport.curve import CurveOpener
from gossamer.streams import Streams
from gossamer.trackers.base import Heard, Trackers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """How a rank is to run a spec."""

    folder: Path
    timeout: float = 60.0
    checkpoint_every: int | None = None
    """Rounds between checkpoints; by default a tenth of the rounds."""
    resume: bool = False
    is_reporter: bool = False
    """Whether this process is on the host where records are wanted; if none is, rank 0 writes them."""
    trackers: Sequence[Heard] = ()
    """Hear what this rank counts, and its minibatch loss, at every evaluation."""
    progress: Callable[[str, int, int, float | None], None] | None = None
    """Hears the label, the seed, the rounds done, and the last known loss of a minibatch."""
    should_stop: Callable[[], bool] = lambda: False
    network: CurveOpener | None = None
    """Opens the links of an untrusted network, which then carry everything; without it, gloo does."""


@dataclass(frozen=True)
class Task:
    """One method with one seed."""

    number: int
    label: str
    method: Algorithm
    rounds: int
    eval_every: int
    seed: int
    about: Settings
    settings: Settings
    """What makes it the run that it is, for records and checkpoints."""
    local: LocalSteps | None = None


def work(experiment: Experiment, how: Work) -> None:
    """Run every method with every seed as one client of the network; the reporter writes the merged records.

    Raises `StoppedError`, on every rank, if any rank was asked to stop: the checkpoints of all are then of one round.
    """
    network = how.network
    ranks = Ranks(how.timeout) if network is None else TreeRanks(network, experiment.mixing.graph, how.timeout)
    try:
        _Worker(experiment, how, ranks).run()
    except BaseException as error:
        ranks.give_up(error)
        raise
    ranks.leave()


class _Worker:
    def __init__(self, experiment: Experiment, how: Work, ranks: Group) -> None:
        self.how, self.ranks = how, ranks
        self.spec, self.mixing = experiment.spec, experiment.mixing
        if self.spec.surrogates != "float64":
            raise InputError(
                f"Processes keep surrogates in float64, got surrogates = {self.spec.surrogates!r}; leave the key out, "
                "or simulate the spec with `gossamer run`."
            )
        clients = experiment.problem.clients
        if ranks.size != clients:
            raise InputError(
                f"The spec has {clients} clients, one per process, but {ranks.size} processes were started; "
                f"start {clients}."
            )
        self.tasks = [
            self._task(number, experiment, label, seed)
            for number, (label, seed) in enumerate(itertools.product(experiment.methods, self.spec.seeds))
        ]
        ranks.agree(
            {"Gossamer's version": __version__, "torch's version": torch.__version__, "the spec": self._digest()}
        )
        said = ranks.share([how.is_reporter, how.resume, int.from_bytes(os.urandom(4), "little")])
        self.reporter = next((rank for rank, one in enumerate(said) if one[0]), 0)
        self.resume = any(one[1] for one in said)  # a rank that was restarted, say
        self.nonce = said[0][2]
        self.whole = experiment.problem if ranks.rank == self.reporter else None
        self.problem = experiment.problem.only(ranks.rank)
        self.width = self.problem.with_buffers(self.problem.x0()[None], self.problem.new_buffers(1)).shape[1]

    def _task(self, number: int, experiment: Experiment, label: str, seed: int) -> Task:
        method, rounds = experiment.methods[label]
        every = self.spec.eval_every or usual_interval(rounds)
        about = {
            "label": label,
            "rounds": rounds,
            "batch_size": self.spec.batch_size,
            "eval_every": every,
            "codec": self.spec.codec or "auto",
            "x0": describe_start(self.spec.x0, experiment.problem),
            "surrogates": self.spec.surrogates,
        }
        local = experiment.local.get(label)
        about |= {} if local is None else {"local": repr(local)}
        said = settings(method, experiment.problem, network_of(method, self.mixing), about, seed)
        return Task(number, label, method, rounds, every, seed, about, said, local)

    def _digest(self) -> str:
        """Everything that the ranks must have in common, in short."""
        said = [str(task.settings) for task in self.tasks] + [str(self.how.checkpoint_every)]
        return hashlib.sha256("\n".join(said).encode() + self.mixing.matrix.tobytes()).hexdigest()[:16]

    def run(self) -> None:
        over = self._finished()
        outcomes = [_Runner(self, task).run() for task in self.tasks if task.number not in over]
        merge(self.whole, self.mixing, self.ranks, self.reporter, self.how.folder, outcomes)
        for outcome in outcomes:  # what is needed to merge again stays until all is written
            outcome.journal.remove()
            outcome.checkpoints.finish()

    def _finished(self) -> set[int]:
        """The tasks whose records are whole, as the reporter sees it."""

        def over() -> list[int]:
            if not self.resume or self.ranks.rank != self.reporter:
                return []
            found = {
                task.number: finished_run(self.how.folder, task.label, task.seed, task.method, task.settings)
                for task in self.tasks
            }
            return [number for number, run in found.items() if run is not None]

        return set(self.ranks.share_or_refuse(over)[self.reporter])


class _Runner(Hook):
    """One task on one rank."""

    def __init__(self, worker: _Worker, task: Task) -> None:
        self.worker, self.task, self.how, self.ranks = worker, task, worker.how, worker.ranks
        problem, rank, spec = worker.problem, worker.ranks.rank, worker.spec
        stem = f"{Path(record_name(task.label, task.seed)).stem}-client{rank}"
        folder = self.how.folder / "checkpoints"
        self.every = self.how.checkpoint_every or max(1, task.rounds // 10)
        keep = needed(worker.mixing.diameter * task.method.rounds_between_exchanges, self.every)
        identity = {"client": rank, **task.settings}
        self.checkpoints = Checkpoints(folder, stem, identity, keep)
        self.journal = Journal(folder / f"{stem}.journal", worker.width, problem.dtype)
        x = starting_models(spec.x0, problem, Streams([task.seed], [rank], problem.device))
        run = zlib.crc32(f"{worker.nonce}:{task.label}:{task.seed}".encode())
        self.client = Client(
            task.method,
            worker.mixing,
            rank,
            x,
            ranks=self.ranks,
            seed=task.seed,
            codec=spec.codec or "auto",
            run=run,
            channel=task.number,
            transport=self.how.network or "gloo",
        )
        self.buffers = problem.new_buffers(1)
        self.loop = Loop(self, task.label, task.rounds, task.eval_every, self._hooks())
        self.trackers = Trackers(self.how.trackers)
        self.oracle: BatchOracle | None = None
        """Of the last round."""
        self.batch_loss: float | None = None
        """The last one that is known."""

    def run(self) -> RankResult:
        client = self.client
        try:
            with torch.no_grad(), contextlib.closing(self.trackers):
                self.trackers.begin(self.task.label, self.task.seed, client.rank, self.task.settings)
                self._begin()
                self.loop.run()
                client.session.settle()
        except StoppedError:
            raise
        except RunError:
            if client.transport.failure is None or not client.transport.failure.diverged:
                client.abort()
                raise
        except BaseException as error:
            client.give_up(error)
            raise
        client.close()
        return RankResult(
            self.task.label,
            self.task.method,
            self.task.seed,
            self.task.about,
            self.task.rounds,
            self.journal,
            self.checkpoints,
            client.transport.failure,
            client.accounts(),
        )

    def _begin(self) -> None:
        """Go back to the last checkpoint that all ranks have, or begin at the beginning."""
        found: dict[int, Checkpoint] = {}

        def usable() -> list[int]:
            if self.worker.resume:
                found.update({checkpoint.round: checkpoint for checkpoint in self.checkpoints.usable()})
            journaled = set(self.journal.rounds())
            return sorted(round for round in found if self._expected(round) <= journaled)

        start = common(self.ranks.share_or_refuse(usable))
        if start is None:
            self.checkpoints.clear()
            self.journal.remove()
            self._note()
            return
        self.client.restore(found[start])
        self.buffers = under("buffers.", found[start].tensors, self.worker.problem.device) or self.buffers
        self.loop.seconds = float(found[start].facts["seconds"])
        self.journal.keep(start)
        resume_log.info("%s with seed %d resumes after round %d.", self.task.label, self.task.seed, start)

    def _expected(self, rounds: int) -> set[int]:
        """After which rounds there must be a row in the journal."""
        return {*range(0, rounds + 1, self.task.eval_every), *([rounds] if rounds == self.task.rounds else [])}

    @property
    def t(self) -> int:
        """Rounds done."""
        return self.client.t

    @property
    def is_alive(self) -> bool:
        """A client that diverges ends its run by an error."""
        return True

    def step(self, *, measure: bool = False) -> None:
        """One round of this client."""
        client, problem = self.client, self.worker.problem
        given = problem, client.streams, client.t, self.worker.spec.batch_size, self.buffers
        local = self.task.local
        oracle = BatchOracle(*given) if local is None else LocalOracle(local, *given)
        oracle.asked = [] if measure and (self.trackers or self.how.progress) else None
        client.step(oracle, self.task.method.lr_at(client.t), measure=measure)
        self.buffers, self.oracle = oracle.buffers, oracle

    def _hooks(self) -> list[Hook]:
        how, task, client = self.how, self.task, self.client
        hooks: list[Hook] = [self]
        hooks.append(SaveCheckpoints(self._save, self.every, lambda loop: loop.t in (loop.rounds, client.stop)))
        if how.progress is not None:
            show = how.progress
            hooks.append(ShowProgress(lambda t: show(task.label, task.seed, t, self.batch_loss)))
        return [*hooks, _StopTogether(client)]

    def before(self, loop: Loop) -> None:
        """Pass a request to stop on to all clients."""
        if self.how.should_stop():
            self.client.ask_to_stop()

    def after(self, loop: Loop) -> None:
        """Note what the record and those who follow the run need, if an evaluation is due."""
        if loop.is_due(loop.t):
            self.batch_loss = None if self.oracle is None else self.oracle.loss()
            self._note()
        self.oracle = None

    def _save(self) -> None:
        tensors, facts = self.client.save()
        tensors |= {f"buffers.{name}": buffer for name, buffer in self.buffers.items()}
        self.checkpoints.save(self.client.t, tensors, facts | {"seconds": self.loop.seconds})

    def _note(self) -> None:
        client, task, seconds = self.client, self.task, self.loop.seconds
        model = self.worker.problem.with_buffers(client.state.x, of_module(self.buffers))[0]
        self.journal.note(counted(client) | {"seconds": seconds}, model)
        tell(self.trackers, client, task.label, task.seed, seconds, {"batch_loss": self.batch_loss})


class _StopTogether(Hook):
    """Ends the run in the round that all clients have agreed on."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def after(self, loop: Loop) -> None:
        """If this is that round."""
        if loop.t == self._client.stop and loop.t < loop.rounds:
            self._client.close()
            raise loop.stopped()
