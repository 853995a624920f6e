"""`gossamer demo` and `gossamer run`: simulate an experiment."""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gossamer.cli.commands.data import downloads
from gossamer.cli.lines import complain, note, show_json, stop_signals
from gossamer.cli.output import console, progress_hooks, resume_news, waiting
from gossamer.errors import InputError, RunError, StoppedError, check_integer, check_positive
from gossamer.files import alone_in
from gossamer.paper import shipped_spec, spec_path
from gossamer.records.record import Record
from gossamer.report import convergence_figure, result_table, summarize
from gossamer.runtime.experiment import Experiment, prepare
from gossamer.runtime.planning.jobs import run_over_cores, usual_jobs
from gossamer.spec import load_spec
from gossamer.trackers.tensorboard import TensorBoard

_FIGURE = "convergence.png"


def demo(options: argparse.Namespace) -> int:
    """`gossamer demo`."""
    experiment = prepare(load_spec(shipped_spec("demo")))
    folder = Path(options.output or "gossamer-demo")
    make_room(folder, experiment, force=options.output is None)
    return _simulate(experiment, folder, options)


def run(options: argparse.Namespace) -> int:
    """`gossamer run`."""
    if options.target is not None:
        check_positive("target", options.target)
    path = spec_path(options.spec)
    spec = load_spec(path)
    with downloads(options.quiet), waiting("Reading the data, computing the weights", options.quiet):
        experiment = prepare(spec, data_dir=options.data_dir, device=options.device)
    folder = Path(options.output or Path("runs") / path.stem)
    if options.checkpoint_every is not None:
        check_integer("checkpoint-every", options.checkpoint_every, 1)
    if options.jobs is not None:
        check_integer("jobs", options.jobs, 1)
    trackers = [] if options.tensorboard is None else [TensorBoard(options.tensorboard)]
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        make_room(folder, experiment, force=options.force, resume=options.resume)
        how = {"checkpoint_every": options.checkpoint_every, "resume": options.resume, "trackers": trackers}
        return _simulate(experiment, folder, options, **how)


def _simulate(experiment: Experiment, folder: Path, options: argparse.Namespace, **how: Any) -> int:
    try:
        with (
            resume_news(options.quiet),
            progress_hooks(experiment, options.quiet) as hooks,
            stop_signals() as should_stop,
        ):
            jobs = vars(options).get("jobs") or usual_jobs(experiment)
            run_it = experiment.run if jobs == 1 else partial(run_over_cores, experiment, jobs)
            runs = run_it(record_dir=folder, should_stop=should_stop, **how, **hooks)
        return show_results([run.record for run in runs], experiment, folder, options)
    except StoppedError as error:
        raise StoppedError(f"{error} Resume it with `gossamer run ... -o {folder} --resume`.") from None
    except (MemoryError, RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        if isinstance(error, RuntimeError) and "memory" not in reason:
            raise
        raise RunError(f"The run could not be finished: {reason}; measurements up to here are in '{folder}'.") from None


def show_results(records: Sequence[Record], experiment: Experiment, folder: Path, options: argparse.Namespace) -> int:
    """Draw the figure, print the table, and name the runs that diverged; the exit code is then 1."""
    figure = folder / _FIGURE
    convergence_figure(records, figure, experiment.spec.name)
    summary = summarize(records, vars(options).get("target"))
    if options.json:
        methods = [row.as_dict() for row in summary]
        show_json({"name": experiment.spec.name, "folder": str(folder), "figure": str(figure), "methods": methods})
    else:
        out, seeds = console(), len(experiment.spec.seeds)
        out.show(result_table(summary, experiment.spec.name))
        over = f"Means over {seeds} seeds; losses" if seeds > 1 else "Losses"
        out.print(
            f"{over}, norms, accuracies and consensus are averaged over the last tenth of the evaluations; "
            "best in bold.",
            soft_wrap=True,
        )
        out.plain(f"Figure:  {figure}\nRecords: {folder}")
    lost = [complain(record.diverged, 1) for record in records if record.diverged]
    return int(any(lost))


def make_room(folder: Path, experiment: Experiment, *, force: bool, resume: bool = False) -> None:
    """Prepare the output folder of a run; existing results are refused, unless `force` or `resume` is set."""
    copy, text = folder / "spec.toml", experiment.spec.text
    there = [folder / name for name in [*experiment.file_names, _FIGURE] if (folder / name).exists()]
    if not force and not resume and there:
        raise InputError(
            f"'{there[0]}' exists already; give another folder with -o, replace it with --force, or --resume it."
        )
    is_other = not force and copy.exists() and copy.read_text(encoding="utf-8", errors="replace") != text
    if resume and is_other:
        return  # comments may differ; the run itself refuses other settings, and names them
    if is_other:
        raise InputError(f"'{copy}' is a different spec; give another folder with -o, or replace it with --force.")
    folder.mkdir(parents=True, exist_ok=True)
    for path in there if not resume else ():
        path.unlink()
    others = sorted(path for path in folder.glob("*.jsonl") if path.name not in experiment.file_names)
    if force and others:  # `force` removes only files that this run writes
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        note(f"gossamer: '{others[0]}'{more} remain from an earlier run; remove them if reports should not show them.")
    try:
        copy.write_text(text, encoding="utf-8")
    except OSError as error:  # the system's error for a full disk does not name the file
        raise OSError(error.errno, error.strerror, str(copy)) from None
