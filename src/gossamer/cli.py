"""The command line: parse, call, print.

Results go to standard output, everything else to standard error. Exit codes: 0; 1 if a run diverged; 2 for bad input,
with one sentence; 130 after Ctrl-C.
"""

import argparse
import contextlib
import dataclasses
import inspect
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gossamer import registry
from gossamer._version import __version__
from gossamer.errors import GossamerError, InputError
from gossamer.paper import shipped_spec, spec_path
from gossamer.report import convergence_figure, result_table, summarize
from gossamer.runtime.experiment import Experiment, prepare
from gossamer.runtime.recorder import Runs
from gossamer.spec import load_spec


class _Parser(argparse.ArgumentParser):
    """argparse, with mistakes in the same one-line form as all the others."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[:1].upper()}{message[1:].rstrip('.')}; see `{self.prog} --help`.")


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point of the `gossamer` command."""
    logging.getLogger("gossamer").addHandler(logging.NullHandler())  # what a run logs, the command says in its own way
    try:
        options = _parser().parse_args(arguments)
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except GossamerError as error:
        print(f"gossamer: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader of a pipe has left, as in `gossamer methods | head -1`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        where = f" '{error.filename}'" if error.filename else ""
        print(f"gossamer: Cannot write or read{where}: {error.strerror or error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gossamer: Interrupted; what was measured so far is in the records.", file=sys.stderr)
        return 130


def _parser() -> _Parser:
    parser = _Parser(
        prog="gossamer",
        description="Decentralized training in a few bits: simulate BEER and the methods around it.",
        epilog="Examples:\n"
        "  gossamer demo                                     BEER against three others, on embedded data\n"
        "  gossamer run figure1 --data-dir data/             figure 1 of the BEER paper, on your copy of a9a\n"
        "  gossamer run my.toml --json | jq '.methods[].grad_norm'\n"
        "  gossamer methods                                  what can be run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gossamer {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)

    def add(name: str, function: Any, examples: str) -> argparse.ArgumentParser:
        about = inspect.getdoc(function) or ""
        command = commands.add_parser(
            name,
            help=about.split("\n")[0].rstrip("."),
            description=about,
            epilog=f"Examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(command=function)
        return command

    def add_output(command: argparse.ArgumentParser, default: str) -> None:
        command.add_argument(
            "-o", "--output", metavar="DIR", help=f"folder for records and figure (default: {default})"
        )
        command.add_argument("--json", action="store_true", help="print the results as one JSON object")
        command.add_argument("-q", "--quiet", action="store_true", help="no progress")

    demo = add("demo", _demo, "  gossamer demo\n  gossamer demo -o talk/ --json")
    add_output(demo, "gossamer-demo")

    run = add(
        "run",
        _run,
        "  gossamer run my.toml\n"
        "  gossamer run figure1 --data-dir data/ -o fig1/\n"
        "  gossamer run my.toml --device cuda --json > result.json",
    )
    run.add_argument("spec", metavar="SPEC", help="a TOML file, or the name of a shipped spec such as figure1")
    add_output(run, "runs/ and the spec's file name")
    run.add_argument("--data-dir", metavar="DIR", help="where data files lie (default: $GOSSAMER_DATA, then the cache)")
    run.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: the spec's, else cpu)")
    run.add_argument("--force", action="store_true", help="replace the records of an earlier run in the output folder")

    methods = add("methods", _methods, "  gossamer methods\n  gossamer methods --json | jq -r '.[].name'")
    methods.add_argument("--json", action="store_true", help="print them as JSON")
    return parser


def _demo(options: argparse.Namespace) -> int:
    """Compare BEER, CHOCO-SGD, DSGD and D2 on real data that needs no download.

    Ten clients on a ring share a medical data set sorted by label, so that no two of them see the same mix. Prints a
    table, and saves the records and a figure.
    """
    path = shipped_spec("demo")
    return _execute(prepare(load_spec(path)), path, Path(options.output or "gossamer-demo"), options, force=True)


def _run(options: argparse.Namespace) -> int:
    """Run the experiment that a spec file describes.

    Prints a table of results, and saves one record a method and seed (JSON lines), a figure, and the spec itself. Exit
    code 1 says that a run diverged; its record is kept up to that round.
    """
    path = spec_path(options.spec)
    experiment = prepare(load_spec(path), data_dir=options.data_dir, device=options.device)
    return _execute(experiment, path, Path(options.output or Path("runs") / path.stem), options, force=options.force)


def _execute(experiment: Experiment, spec: Path, folder: Path, options: argparse.Namespace, *, force: bool) -> int:
    records = sorted(folder.glob("*.jsonl"))
    if records and not force:
        raise InputError(
            f"The folder '{folder}' already holds records; give another with -o, or replace them with --force."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        record.unlink()
    if spec.resolve() != (folder / "spec.toml").resolve():
        shutil.copyfile(spec, folder / "spec.toml")
    with _progress(experiment, options.quiet) as hooks:
        runs = experiment.run(folder, **hooks)
    figure = folder / "convergence.png"
    convergence_figure([run.record for run in runs], figure, experiment.spec.name)
    _print_results(runs, experiment, folder, figure, as_json=options.json)
    return 1 if any(run.diverged for run in runs) else 0


def _print_results(runs: Runs, experiment: Experiment, folder: Path, figure: Path, *, as_json: bool) -> None:
    summary = summarize([run.record for run in runs])
    if as_json:
        result = {"name": experiment.spec.name, "folder": str(folder), "figure": str(figure), "methods": summary}
        print(json.dumps(result, indent=2, allow_nan=False))
    else:
        console = _console(sys.stdout)
        console.print(result_table(summary, experiment.spec.name))
        seeds = len(experiment.spec.seeds)
        if seeds > 1:
            console.print(f"Means over {seeds} seeds; losses, norms and accuracies over the last tenth of the rounds.")
        console.print(f"Figure:  {figure}\nRecords: {folder}", highlight=False, soft_wrap=True)
    for run in runs:
        if run.diverged:
            print(f"gossamer: {run.diverged}", file=sys.stderr)


def _methods(options: argparse.Namespace) -> int:
    """List the methods, with the names and settings that a spec file takes."""
    rows = []
    for name in registry.methods:
        method = registry.methods.get(name)
        settings = {
            field.name: None if field.default is dataclasses.MISSING else field.default
            for field in dataclasses.fields(method)  # type: ignore[arg-type]
        }
        about: Any = method
        rows.append(
            {"name": name, "title": about.title, "paper": about.paper, "messages": about.messages, "settings": settings}
        )
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    table = Table(header_style="bold")
    for heading in ("name", "method", "messages a round", "settings", "paper"):
        table.add_column(
            heading, no_wrap=heading == "name", justify="right" if heading[0] == "m" and " " in heading else "left"
        )
    for row in rows:
        takes = ", ".join(key if value is None else f"{key}={value}" for key, value in row["settings"].items())
        table.add_row(row["name"], row["title"], str(row["messages"]), takes, row["paper"])
    _console(sys.stdout).print(table)
    return 0


@contextlib.contextmanager
def _progress(experiment: Experiment, quiet: bool) -> Iterator[dict[str, Any]]:
    """Hooks that draw bars on a terminal, write a line a method into a pipe, and nothing when quiet."""
    if quiet:
        yield {}
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            tasks = {label: bars.add_task(label, total=rounds) for label, (_, rounds) in experiment.methods.items()}
            yield {"progress": lambda label, done: bars.update(tasks[label], completed=done)}
    else:
        seeds = len(experiment.spec.seeds)
        yield {
            "on_method": lambda label, rounds: print(
                f"{label}: {rounds:,} rounds, {seeds} seed{'s' if seeds > 1 else ''}", file=sys.stderr, flush=True
            )
        }


def _console(stream: Any) -> Console:
    """Tables keep their width in a pipe, where no terminal gives one."""
    return Console(file=stream, width=None if stream.isatty() else 140)


if __name__ == "__main__":
    sys.exit(main())
