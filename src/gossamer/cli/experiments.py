"""Running experiments: `gossamer demo`, `gossamer run`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from gossamer.cli.data import downloads
from gossamer.cli.output import complain, console, progress_hooks, results, waiting
from gossamer.errors import InputError, RunError, check_positive
from gossamer.paper import shipped_spec, spec_path
from gossamer.report import convergence_figure, result_table, summarize
from gossamer.runtime.experiment import Experiment, prepare
from gossamer.runtime.recorder import Runs
from gossamer.spec import load_spec


def demo(options: argparse.Namespace) -> int:
    """Compare BEER, CHOCO-SGD, DSGD and D2 on real data that needs no download.

    Ten clients on a ring share a medical data set sorted by label, so that all but one have seen tumours of one kind
    only. Prints a table, and saves the records and a figure.
    """
    experiment = prepare(load_spec(shipped_spec("demo")))
    return _execute(experiment, Path(options.output or "gossamer-demo"), options, force=options.output is None)


def run(options: argparse.Namespace) -> int:
    """Run the experiment that a spec file describes.

    Prints a table of results, and saves one record a method and seed (JSON lines), a figure, and the spec itself. Exit
    code 1 says that a run diverged; its record is kept up to that round.
    """
    if options.target is not None:
        check_positive("target", options.target)
    path = spec_path(options.spec)
    spec = load_spec(path)
    with downloads(options.quiet), waiting("Reading the data, working out the weights", options.quiet):
        experiment = prepare(spec, data_dir=options.data_dir, device=options.device)
    return _execute(experiment, Path(options.output or Path("runs") / path.stem), options, force=options.force)


def _execute(experiment: Experiment, folder: Path, options: argparse.Namespace, *, force: bool) -> int:
    figure, copy = folder / "convergence.png", folder / "spec.toml"
    _clear(folder, [*experiment.record_names, figure.name], copy, experiment.spec.text, force)
    try:
        with progress_hooks(experiment, options.quiet) as hooks:
            runs = experiment.run(folder, **hooks)
        convergence_figure([run.record for run in runs], figure, experiment.spec.name)
    except (MemoryError, RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        if isinstance(error, RuntimeError) and "memory" not in reason:
            raise
        raise RunError(f"The run could not be finished: {reason}; what was measured is in '{folder}'.") from None
    with results():
        _print_results(runs, experiment, folder, figure, as_json=options.json, target=vars(options).get("target"))
    for run in runs:
        if run.diverged:
            complain(run.diverged, 1)
    return 1 if any(run.diverged for run in runs) else 0


def _clear(folder: Path, names: Sequence[str], copy: Path, text: str, force: bool) -> None:
    """Make room for what a run will write, and refuse to overwrite anything unless told to."""
    there = [folder / name for name in names if (folder / name).exists()]
    if not force and there:
        raise InputError(f"'{there[0]}' exists already; give another folder with -o, or replace it with --force.")
    if not force and copy.exists() and copy.read_text(encoding="utf-8", errors="replace") != text:
        raise InputError(f"'{copy}' is another spec; give another folder with -o, or replace it with --force.")
    folder.mkdir(parents=True, exist_ok=True)
    for path in there:
        path.unlink()
    copy.write_text(text, encoding="utf-8")


def _print_results(
    runs: Runs, experiment: Experiment, folder: Path, figure: Path, *, as_json: bool, target: float | None
) -> None:
    summary = summarize([run.record for run in runs], target)
    if as_json:
        result = {"name": experiment.spec.name, "folder": str(folder), "figure": str(figure), "methods": summary}
        print(json.dumps(result, indent=2, allow_nan=False))
        return
    out = console()
    out.print(result_table(summary, experiment.spec.name, out))
    seeds = len(experiment.spec.seeds)
    over = f"Means over {seeds} seeds; losses" if seeds > 1 else "Losses"
    note = f"{over}, norms, accuracies and consensus are averaged over the last tenth of the evaluations; best in bold."
    out.print(note, soft_wrap=True)
    out.print(f"Figure:  {escape(str(figure))}\nRecords: {escape(str(folder))}", highlight=False, soft_wrap=True)
