"""One rank of `gossamer launch`: what torchrun starts."""

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import torch
from rich.markup import escape

from gossamer.cli.experiments import make_room, show_results
from gossamer.cli.lines import complain, results, stop_signals
from gossamer.cli.output import console, launch_progress
from gossamer.errors import GossamerError, InputError, RunError, StoppedError
from gossamer.paper import spec_path
from gossamer.report import links_table, write_links
from gossamer.runtime.experiment import Experiment, prepare
from gossamer.runtime.record import Record, read_record, record_name
from gossamer.runtime.worker import Work, work
from gossamer.spec import load_spec


def prepared(options: argparse.Namespace, device: str | None) -> Experiment:
    """What the spec names, built and checked."""
    spec = load_spec(spec_path(options.spec))
    if spec.omegas:
        raise InputError("`omegas` are recorded where all clients are in one process: by `gossamer run`; leave it out.")
    return prepare(spec, data_dir=options.data_dir, device=device)


def finished_records(folder: Path, experiment: Experiment) -> list[Record] | None:
    """The records of all runs, if all are over."""
    paths = [folder / record_name(label, seed) for label in experiment.methods for seed in experiment.spec.seeds]
    if not all(path.exists() for path in paths):
        return None
    records = [read_record(path) for path in paths]
    return records if all(record.end is not None for record in records) else None


def show_launched(records: Sequence[Record], experiment: Experiment, folder: Path, options: argparse.Namespace) -> int:
    """What `gossamer run` shows, and the account of the links."""
    write_links(records, folder / "links.csv")
    code = show_results(records, experiment, folder, options)
    out = console()
    table = links_table(records)
    if table is not None and not options.json:
        with results():
            out.show(table)
            out.print(f"Links:   {escape(str(folder / 'links.csv'))}", highlight=False, soft_wrap=True)
    return code


def be_a_rank(options: argparse.Namespace, folder: Path) -> int:
    """One client of the run, in a process that torchrun started."""
    rank = int(os.environ["RANK"])
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(logs / f"rank{rank}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("gossamer")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    error_file = logs / f"rank{rank}.error"
    error_file.unlink(missing_ok=True)
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    logger.info("Rank %d of %s, attempt %d, process %d.", rank, os.environ["WORLD_SIZE"], attempt, os.getpid())
    try:
        return _work(options, folder, rank, attempt)
    except StoppedError as error:
        logger.info(str(error))
        error_file.write_text(json.dumps({"sentence": str(error), "code": 0}))
        _leave(0)
    except (GossamerError, OSError) as error:
        code = 1 if isinstance(error, RunError | OSError) else 2
        where = f" '{error.filename}'" if isinstance(error, OSError) else ""
        said = (
            f"Rank {rank} cannot write or read{where}: {error.strerror}." if isinstance(error, OSError) else str(error)
        )
        logger.error(said)
        error_file.write_text(json.dumps({"sentence": said, "code": code}))
        _leave(complain(said, code))
    except BaseException:
        logger.exception("Rank %d ended by an error of its own.", rank)
        raise


def _leave(code: int) -> NoReturn:
    """End now: what gloo still has under way would make an ordinary end wait for neighbours that are gone."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _work(options: argparse.Namespace, folder: Path, rank: int, attempt: int) -> int:
    device = options.device
    if device == "cuda" and torch.cuda.is_available():
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    experiment = prepared(options, device)
    is_on_its_own = os.environ.get("GOSSAMER_LAUNCHED") != "1" and rank == 0  # nobody else makes room, or shows results
    if is_on_its_own and attempt == 0:
        make_room(folder, experiment, force=options.force, resume=options.resume)
    with stop_signals(loud=False) as should_stop, _telling(folder, rank, experiment, options) as progress:
        how = Work(
            folder=folder,
            timeout=options.timeout,
            checkpoint_every=options.checkpoint_every,
            resume=options.resume or attempt > 0,
            is_reporter=os.environ.get("GOSSAMER_REPORTER") == "1",
            transport=options.transport,
            tensorboard=None if options.tensorboard is None else Path(options.tensorboard),
            progress=progress,
            should_stop=should_stop,
        )
        work(experiment, how)
    records = finished_records(folder, experiment) if is_on_its_own else None
    return 0 if records is None else show_launched(records, experiment, folder, options)


@contextlib.contextmanager
def _telling(
    folder: Path, rank: int, experiment: Experiment, options: argparse.Namespace
) -> Iterator[Callable[[str, int, int], None] | None]:
    """How a rank tells of its progress: rank 0 to the terminal, or one rank of this host to who launched it."""
    is_launched = os.environ.get("GOSSAMER_LAUNCHED") == "1"
    is_here = os.environ.get("GOSSAMER_REPORTER") == "1" and os.environ.get("LOCAL_RANK") == "0"
    is_first = is_here if is_launched else rank == 0
    if not is_first or options.quiet:
        yield None
    elif not is_launched:
        with launch_progress(experiment, options.quiet) as show:
            yield lambda label, seed, done: show({"label": label, "seed": seed, "done": done})
    else:
        path = folder / "logs" / "progress.json"

        def tell(label: str, seed: int, done: int) -> None:
            beside = path.with_suffix(".tmp")
            beside.write_text(json.dumps({"label": label, "seed": seed, "done": done, "pid": os.getpid()}))
            beside.replace(path)

        yield tell
