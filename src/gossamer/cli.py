"""The command line: parse, call, print.

Results go to standard output, everything else to standard error. Exit codes: 0; 1 if a run diverged; 2 for bad input,
with one sentence; 130 after Ctrl-C.
"""

import argparse
import contextlib
import dataclasses
import inspect
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gossamer import registry
from gossamer._version import __version__
from gossamer.compression.measure import measure
from gossamer.errors import GossamerError, InputError, RunError, check_integer
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
    _mend_streams()
    try:
        options = _parser().parse_args(arguments)
        code: int = options.command(options)
        return code
    except RunError as error:
        return _complain(error, 1)
    except GossamerError as error:
        return _complain(error, 2)
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        return _complain(f"Cannot write or read{where}: {error.strerror or error}.", 2)
    except KeyboardInterrupt:
        return _complain("Interrupted; what was measured is in the records, if any run had begun.", 130)


def _mend_streams() -> None:
    """Streams may be closed (`>&-`), or know fewer letters than a table has."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="replace")


def _complain(sentence: object, code: int) -> int:
    _note(f"gossamer: {sentence}")
    return code


def _note(text: str) -> None:
    """A line on standard error; whoever closed it does not want it."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _results() -> Iterator[None]:
    """Printing to standard output, whose reader may leave, as in `gossamer methods | head -1`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> _Parser:
    parser = _Parser(
        prog="gossamer",
        description="Decentralized training in a few bits: simulate BEER and the methods around it.",
        epilog="Examples:\n"
        "  gossamer demo                                     BEER against three others, on embedded data\n"
        "  gossamer run figure1 --data-dir data/             figure 1 of the BEER paper, on your copy of a9a\n"
        "  gossamer run my.toml --json | jq '.methods[].grad_norm'\n"
        "  gossamer methods                                  what can be run\n"
        "  gossamer compressors                              what messages can be made of\n"
        "  gossamer compress x.npy --compressor gsgd:5       error and bits on a vector of your own",
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
    run.add_argument("--target", type=float, metavar="NORM", help="also show what was sent until this gradient norm")
    run.add_argument("--force", action="store_true", help="replace the records of an earlier run in the output folder")

    compressors = add(
        "compressors",
        _compressors,
        "  gossamer compressors\n"
        "  gossamer compressors --dimension 1000000\n"
        "  gossamer compressors --json | jq -r '.[].name'",
    )
    compressors.add_argument("--dimension", type=int, default=124, metavar="D", help="coordinates (default: 124)")
    compressors.add_argument("--json", action="store_true", help="print them as JSON")

    compress = add(
        "compress",
        _compress,
        "  gossamer compress gradient.npy --compressor gsgd:5\n"
        "  gossamer compress gradient.npy --compressor blockwise:gsgd:5,256 --json\n"
        "  seq 1 1000 | gossamer compress - --compressor top_k:0.01",
    )
    compress.add_argument("file", metavar="FILE", help="a vector: .npy, or text with one number a line; - for a pipe")
    compress.add_argument("--compressor", required=True, metavar="C", help="such as gsgd:5, top_k:10, scaled:qsgd:16")
    compress.add_argument("--dtype", default="float32", choices=["float32", "float64"], help="default: float32")
    compress.add_argument("--seed", type=int, default=0, help="of random compressors (default: 0)")
    compress.add_argument("--json", action="store_true", help="print the measurements as JSON")

    methods = add("methods", _methods, "  gossamer methods\n  gossamer methods --json | jq -r '.[].name'")
    methods.add_argument("--json", action="store_true", help="print them as JSON")
    return parser


def _demo(options: argparse.Namespace) -> int:
    """Compare BEER, CHOCO-SGD, DSGD and D2 on real data that needs no download.

    Ten clients on a ring share a medical data set sorted by label, so that all but one have seen tumours of one kind
    only. Prints a table, and saves the records and a figure.
    """
    experiment = prepare(load_spec(shipped_spec("demo")))
    return _execute(experiment, Path(options.output or "gossamer-demo"), options, force=options.output is None)


def _run(options: argparse.Namespace) -> int:
    """Run the experiment that a spec file describes.

    Prints a table of results, and saves one record a method and seed (JSON lines), a figure, and the spec itself. Exit
    code 1 says that a run diverged; its record is kept up to that round.
    """
    path = spec_path(options.spec)
    experiment = prepare(load_spec(path), data_dir=options.data_dir, device=options.device)
    return _execute(experiment, Path(options.output or Path("runs") / path.stem), options, force=options.force)


def _execute(experiment: Experiment, folder: Path, options: argparse.Namespace, *, force: bool) -> int:
    figure, copy = folder / "convergence.png", folder / "spec.toml"
    _clear(folder, [*experiment.record_names, figure.name], copy, experiment.spec.text, force)
    try:
        with _progress(experiment, options.quiet) as hooks:
            runs = experiment.run(folder, **hooks)
        convergence_figure([run.record for run in runs], figure, experiment.spec.name)
    except (MemoryError, RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        if isinstance(error, RuntimeError) and "memory" not in reason:
            raise
        raise RunError(f"The run could not be finished: {reason}; what was measured is in '{folder}'.") from None
    with _results():
        _print_results(runs, experiment, folder, figure, as_json=options.json, target=vars(options).get("target"))
    for run in runs:
        if run.diverged:
            _complain(run.diverged, 1)
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
    console = _console()
    console.print(result_table(summary, experiment.spec.name, console))
    seeds = len(experiment.spec.seeds)
    over = f"Means over {seeds} seeds; losses" if seeds > 1 else "Losses"
    note = f"{over}, norms, accuracies and consensus are averaged over the last tenth of the evaluations; best in bold."
    console.print(note, soft_wrap=True)
    console.print(f"Figure:  {escape(str(figure))}\nRecords: {escape(str(folder))}", highlight=False, soft_wrap=True)


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
        with _results():
            print(json.dumps(rows, indent=2, default=str))
        return 0
    table = Table(header_style="bold")
    for heading in ("name", "method", "messages a round", "settings", "paper"):
        table.add_column(
            heading, no_wrap=heading == "name", justify="right" if heading[0] == "m" and " " in heading else "left"
        )
    for row in rows:
        takes = ", ".join(key if value is None else f"{key}={value}" for key, value in row["settings"].items())
        table.add_row(row["name"], row["title"], str(row["messages"]), takes, row["paper"])
    with _results():
        _console().print(table)
    return 0


def _compressors(options: argparse.Namespace) -> int:
    """List the compressors with their constants.

    alpha: E||C(x) - x||^2 <= (1 - alpha) ||x||^2. omega, of unbiased ones: E||C(x) - x||^2 <= omega ||x||^2. Bits are
    those of a fixed-width packet with one float32 message, header and all. A spec file and `gossamer compress` take the
    names as shown.
    """
    d = check_integer("dimension", options.dimension, 1, 10**8)
    rows = []
    for name in registry.compressors:
        factory: Any = registry.compressors.get(name)
        compressor = factory(**factory.examples[0])
        omega = compressor.omega(d)
        contracts = omega is None or omega < 1
        rows.append(
            {
                "name": name,
                "example": str(compressor),
                "alpha": compressor.alpha(d) if contracts else None,
                "omega": omega,
                "deterministic": compressor.is_deterministic,
                "bits_per_coordinate": measure(compressor, torch.ones(1, d))["bits_per_coordinate"]["fixed"],
                "about": (inspect.getdoc(factory) or "").split("\n")[0],
            }
        )
    with _results():
        if options.json:
            print(json.dumps(rows, indent=2))
            return 0
        table = Table(header_style="bold", title=f"At {d:,} coordinates", title_justify="left")
        for heading in ("name", "for example", "alpha", "omega", "bits a coordinate", "what it does"):
            table.add_column(heading, no_wrap=heading in ("name", "alpha", "omega"))
        for row in rows:
            alpha, omega = (f"{row[key]:.3g}" if row[key] is not None else "-" for key in ("alpha", "omega"))
            bits = f"{row['bits_per_coordinate']:.3g}"
            table.add_row(row["name"], escape(row["example"]), alpha, omega, bits, escape(row["about"]))
        _console().print(table)
    return 0


def _compress(options: argparse.Namespace) -> int:
    """Measure one compressor on a vector of your own.

    Shows the relative error beside the bound that alpha (or omega) promises, the bits of a packet under each codec, and
    the entropy of the symbols. Errors of random compressors are means over 20 seeds.
    """
    compressor = registry.compressors.build(options.compressor)
    x = torch.from_numpy(_vector(options.file)).to(getattr(torch, options.dtype))[None]
    result = measure(compressor, x, check_integer("seed", options.seed, 0))
    with _results():
        if options.json:
            print(json.dumps(result, indent=2))
            return 0
        bound = 1 - result["alpha"] if result["alpha"] is not None else result["omega"]
        table = Table(show_header=False, title=escape(f"{result['compressor']} on {result['d']:,} coordinates"))
        table.add_row("relative squared error", f"{result['error']:.4g}  (promised: at most {bound:.4g})")
        table.add_row("alpha", "-" if result["alpha"] is None else f"{result['alpha']:.4g}")
        table.add_row("omega", "-" if result["omega"] is None else f"{result['omega']:.4g}")
        for codec, bits in result["bits"].items():
            table.add_row(f"{codec} packet", f"{bits:,} bits, {bits / result['d']:.4g} a coordinate")
        table.add_row("as the paper counts", f"{result['bits_paper']:,} bits")
        if result["symbol_entropy"] is not None:
            table.add_row("entropy of the symbols", f"{result['symbol_entropy']:.4g} bits a coordinate")
        _console().print(table)
    return 0


def _vector(name: str) -> "np.ndarray[Any, Any]":
    """The numbers in a file, as one vector."""
    try:
        if name.endswith(".npy"):
            x = np.load(name, allow_pickle=False)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an empty file is spoken of below
                x = np.loadtxt(sys.stdin if name == "-" else name, ndmin=1)
    except OSError as error:
        raise InputError(f"The vector '{name}' cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise InputError(f"The vector '{name}' is not one: {str(error).split(chr(10))[0].rstrip('.')}.") from None
    if x.size == 0 or x.dtype.kind not in "fiu":
        raise InputError(f"The vector '{name}' must hold real numbers, got {x.size} of {x.dtype}.")
    return np.asarray(x, np.float64).reshape(-1)


@contextlib.contextmanager
def _progress(experiment: Experiment, quiet: bool) -> Iterator[dict[str, Any]]:
    """Hooks that draw bars on a terminal, write a line a method into a pipe, and nothing when quiet."""
    if quiet:
        yield {}
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            tasks = {
                label: bars.add_task(escape(label), total=rounds) for label, (_, rounds) in experiment.methods.items()
            }
            yield {"progress": lambda label, done: bars.update(tasks[label], completed=done)}
    else:
        seeds = len(experiment.spec.seeds)
        many = f"{seeds} seed{'s' if seeds > 1 else ''}"
        yield {
            "on_method": lambda label, rounds: _note(f"{label}: {rounds:,} round{'s' if rounds > 1 else ''}, {many}")
        }


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # ours to handle: rich would end the program, with exit code 1


def _console() -> Console:
    """Tables keep their width in a pipe, where no terminal gives one."""
    return _Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140)


if __name__ == "__main__":
    sys.exit(main())
