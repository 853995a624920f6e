"""One rank of `gossamer launch`: a process started by a launcher or by torchrun."""

import argparse
import contextlib
import logging
import math
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from gossamer.cli.commands.run import make_room, show_results
from gossamer.cli.launching.events import GRAPH, KEYS, LAUNCHED, Event, Kind, Launcher
from gossamer.cli.launching.keys import key_path, peers_path
from gossamer.cli.lines import complain, stop_signals
from gossamer.cli.output import console, launch_progress
from gossamer.errors import NO_ROOM, GossamerError, InputError, RunError, StoppedError
from gossamer.files import alone_in
from gossamer.fingerprint import digest
from gossamer.paper import spec_path
from gossamer.records.checkpoint import resume_log
from gossamer.records.record import Record, read_record, record_name
from gossamer.report import links_table, write_links
from gossamer.runtime.experiment import Experiment, prepare
from gossamer.runtime.processes.worker import Work, work
from gossamer.runtime.transport.curve import CurveOpener, opened
from gossamer.spec import load_spec
from gossamer.topology.base import edges_of
from gossamer.trackers.tensorboard import TensorBoard

logger = logging.getLogger("gossamer")


def prepared(options: argparse.Namespace, device: str | None) -> Experiment:
    """Build and check the experiment that the spec describes."""
    spec = load_spec(spec_path(options.spec))
    if spec.measures:
        raise InputError("`measures` need all clients in one process; use `gossamer run`, or leave them out.")
    experiment = prepare(spec, data_dir=options.data_dir, device=device)
    experiment.check_one_graph("gossamer launch")
    experiment.check_both_directions()
    return experiment


def graph_digest(experiment: Experiment) -> str:
    """By which ranks tell whether their graph is that of the launcher."""
    return digest(edges_of(experiment.mixing.graph))


def finished_records(folder: Path, experiment: Experiment) -> list[Record] | None:
    """The records of all runs, or None while one is missing or unfinished."""
    paths = [folder / record_name(label, seed) for label in experiment.methods for seed in experiment.spec.seeds]
    if not all(path.exists() for path in paths):
        return None
    records = [read_record(path) for path in paths]
    return records if all(record.end is not None for record in records) else None


def show_launched(records: Sequence[Record], experiment: Experiment, folder: Path, options: argparse.Namespace) -> int:
    """Show what `gossamer run` shows, and the traffic on each link."""
    write_links(records, folder / "links.csv")
    code = show_results(records, experiment, folder, options)
    out, table = console(), links_table(records)
    if table is not None and not options.json:
        out.show(table)
        out.plain(f"Links:   {folder / 'links.csv'}")
    return code


def be_a_rank(options: argparse.Namespace, folder: Path) -> int:
    """Run one client, in a process that a launcher or torchrun started."""
    rank = int(os.environ["RANK"])
    launcher = Launcher(rank) if os.environ.get(LAUNCHED) == "1" else None
    attempt = int(os.environ.get("GOSSAMER_ATTEMPT") or os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0")
    try:
        _log(folder / "logs", rank, launcher)
        logger.info("Rank %d of %s, attempt %d, process %d.", rank, os.environ["WORLD_SIZE"], attempt, os.getpid())
        return _work(options, folder, rank, attempt, launcher)
    except GossamerError as error:
        code = 0 if isinstance(error, StoppedError) else 1 if isinstance(error, RunError) else 2
        logger.log(logging.ERROR if code else logging.INFO, str(error))
        _leave(launcher, Event(Kind.END, rank, str(error), code))
    except OSError as error:
        sentence = _file_error(rank, folder, error)
        logger.error(sentence)
        _leave(launcher, Event(Kind.END, rank, sentence, code=1))
    except Exception as error:
        logger.exception("Rank %d failed.", rank)
        reason = str(error).strip().split("\n")[0]
        _leave(launcher, Event(Kind.END, rank, f"Rank {rank} failed with {type(error).__name__}: {reason}", code=1))


def _log(logs: Path, rank: int, launcher: Launcher | None) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(logs / f"rank{rank}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    if launcher is not None:
        resume_log.addHandler(_ToLauncher(launcher))
    logger.setLevel(logging.INFO)


class _ToLauncher(logging.Handler):
    """Sends log messages to the launcher."""

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self.launcher = launcher

    def emit(self, record: logging.LogRecord) -> None:
        kind = Kind.WARNING if record.levelno >= logging.WARNING else Kind.NOTE
        self.launcher.send(Event(kind, self.launcher.rank, record.getMessage()))


def _file_error(rank: int, folder: Path, error: OSError) -> str:
    if error.errno in NO_ROOM:
        where = f"'{error.filename or folder.absolute()}' on {socket.gethostname()}"
        return f"Rank {rank} cannot write {where}: no space left on the disk; free some."
    where = f" '{error.filename}'" if error.filename else ""
    return f"Rank {rank} cannot write or read{where}: {error.strerror or error}."


def _leave(launcher: Launcher | None, end: Event) -> NoReturn:
    """Exit at once: an ordinary exit would wait for gloo operations with neighbours that are gone."""
    if launcher is not None:
        launcher.send(end)
    elif end.code:
        complain(end.sentence, end.code)
    with contextlib.suppress(OSError, ValueError):  # the disk may be full
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(end.code)


def _work(options: argparse.Namespace, folder: Path, rank: int, attempt: int, launcher: Launcher | None) -> int:
    device = options.device
    if device == "cuda" and torch.cuda.is_available():
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    experiment = prepared(options, device)
    network = None if launcher is None else _network(experiment, rank, options.timeout)
    is_on_its_own = launcher is None and rank == 0  # no launcher prepares the folder or shows results
    with contextlib.ExitStack() as stack:
        if is_on_its_own:
            stack.enter_context(alone_in(folder))
            if attempt == 0:
                make_room(folder, experiment, force=options.force, resume=options.resume)
        is_signalled = stack.enter_context(stop_signals(loud=False))
        how = Work(
            folder=folder,
            timeout=options.timeout,
            checkpoint_every=options.checkpoint_every,
            resume=options.resume or attempt > 0,
            is_reporter=os.environ.get("GOSSAMER_REPORTER") == "1",
            trackers=[] if options.tensorboard is None else [TensorBoard(options.tensorboard)],
            progress=stack.enter_context(_telling(rank, experiment, options, launcher)),
            should_stop=lambda: is_signalled() or (launcher is not None and launcher.wants_stop),
            network=network,
        )
        work(experiment, how)
        records = finished_records(folder, experiment) if is_on_its_own else None
        return 0 if records is None else show_launched(records, experiment, folder, options)


def _network(experiment: Experiment, rank: int, timeout: float) -> CurveOpener | None:
    """The links of a launch on several hosts; None on one host."""
    folder = os.environ.get(KEYS)
    if not folder:
        return None
    if os.environ.get(GRAPH) != graph_digest(experiment):  # ranks with other neighbours would not find each other
        raise InputError(
            f"The spec of rank {rank} has another graph than that of the launcher; copy the same files to every host."
        )
    return opened(peers_path(folder), key_path(folder, rank), timeout=timeout, start_timeout=timeout)


@contextlib.contextmanager
def _telling(
    rank: int, experiment: Experiment, options: argparse.Namespace, launcher: Launcher | None
) -> Iterator[Callable[[str, int, int, float | None], None] | None]:
    """How a rank shows its progress and its loss: rank 0 on the terminal, or each through its launcher.

    One rank of the first host tells the launcher how far the run is, and the others their loss when it is new.
    """
    if options.quiet or (launcher is None and rank > 0):
        yield None
        return
    if launcher is None:
        with launch_progress(experiment, options.quiet) as show:
            yield show
        return
    is_first = os.environ.get("GOSSAMER_REPORTER") == "1" and os.environ.get("LOCAL_RANK") == "0"
    kind, told = Kind.PROGRESS if is_first else Kind.LOSS, list[float | None]([None])

    def tell(label: str, seed: int, done: int, loss: float | None) -> None:
        if is_first or loss != told[0]:
            told[0] = loss
            known = math.inf if loss is None else loss
            launcher.send(Event(kind, rank, label=label, seed=seed, done=done, loss=known))

    yield tell
