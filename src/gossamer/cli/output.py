"""Tables and progress bars: results on standard output, everything else on standard error."""

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from gossamer.cli.lines import note, visible
from gossamer.errors import InputError
from gossamer.records.checkpoint import resume_log
from gossamer.runtime.experiment import Experiment

_LONG_WORD = 12  # characters; longer words may be broken on a narrow terminal
_PICTURES = (".png", ".pdf", ".svg")

VERDICTS = {
    "holds": "[green]holds[/]",
    "does not hold": "[red]does not hold[/]",
    "inconclusive": "[yellow]inconclusive[/]",
}
"""Verdicts with their colours in tables."""


class Output(Console):
    """Standard output with rich's tables, none of whose cells is ever cut."""

    def on_broken_pipe(self) -> None:
        """Raise the error, since `results` handles it: rich would end the program, with exit code 1."""
        raise BrokenPipeError

    def render_str(self, text: str, **settings: Any) -> Text:
        """Replace control characters in text from a record or a file."""
        return super().render_str(visible(text), **settings)

    def show(self, table: Table) -> None:
        """Print a table, at full width in a pipe; on a terminal that is too narrow, print each row as a small table."""
        needed = self._needed(table.columns)
        if not self.is_terminal:
            self.width = max(self.width, needed)
        for column in table.columns:
            column.overflow = "fold"
        if needed <= self.width:
            self.print(table)
            return
        for number, cells in enumerate(zip(*(column.cells for column in table.columns), strict=True)):
            row = Table(title=None if number else table.title, title_justify="left", show_header=False)
            row.add_column(style="bold", overflow="fold")
            row.add_column(overflow="fold")
            for column, cell in zip(table.columns, cells, strict=True):
                row.add_row(column.header, cell)
            self.print(row)
        if table.caption:
            self.print(table.caption)

    def _needed(self, columns: Iterable[Column]) -> int:
        """The width at which no number and no short word is broken, frames included."""
        wide, needed = self.options.update(width=10_000), 1
        for column in columns:
            cells = [self.measure(cell, options=wide) for cell in (column.header, *column.cells)]
            longest = max(cell.maximum if column.no_wrap else cell.minimum for cell in cells)
            may_break = self.is_terminal and not column.no_wrap and column.justify == "left"
            needed += 3 + (min(longest, _LONG_WORD) if may_break else longest)
        return needed


def console() -> Output:
    """Standard output for text and tables; text in a pipe has 140 columns."""
    out = Output(file=sys.stdout, width=None if sys.stdout.isatty() else 140)
    out.width = out.width or 80  # some terminals report 0
    return out


def first_paragraph(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def check_picture(name: str) -> Path:
    """The path of a picture, whose suffix and folder are checked."""
    path = Path(name)
    if path.suffix.lower() not in _PICTURES:
        raise InputError(f"The picture '{path}' must end in {', '.join(_PICTURES)}.")
    if not path.parent.is_dir():
        raise InputError(f"The folder of the picture '{path}' does not exist; create it first.")
    return path


@contextlib.contextmanager
def waiting(what: str, quiet: bool = False) -> Iterator[None]:
    """Show a spinner on a terminal during a long step."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(escape(what), total=None)
        yield


@contextlib.contextmanager
def bars(quiet: bool) -> Iterator[Callable[[str, float], tuple[Callable[[float], None], Callable[[], None]]]]:
    """A bar per experiment on a terminal, a line per experiment in a pipe; each gives `show` and `begin`."""
    if quiet:
        yield lambda name, total: (lambda done: None, lambda: None)
    elif not sys.stderr.isatty():
        yield lambda name, total: (lambda done: None, lambda: note(name))
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as shown:

            def add(name: str, total: float) -> tuple[Callable[[float], None], Callable[[], None]]:
                task = shown.add_task(escape(name), total=total, start=False)
                return (lambda done: shown.update(task, completed=done), lambda: shown.start_task(task))

            yield add


class _Notes(logging.Handler):
    """Writes log messages to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextlib.contextmanager
def resume_news(quiet: bool) -> Iterator[None]:
    """Show which checkpoints are skipped and, unless quiet, where a run resumes."""
    handler, level = _Notes(logging.WARNING if quiet else logging.INFO), resume_log.level
    resume_log.addHandler(handler)
    resume_log.setLevel(logging.INFO)
    try:
        yield
    finally:
        resume_log.removeHandler(handler)
        resume_log.setLevel(level)


class Hooks(TypedDict, total=False):
    """Callbacks of `Experiment.run`."""

    progress: Callable[[str, int], None]
    on_method: Callable[[str, int], None]


@contextlib.contextmanager
def progress_hooks(experiment: Experiment, quiet: bool) -> Iterator[Hooks]:
    """Hooks that draw bars on a terminal, write a line per method into a pipe, and nothing when quiet."""
    if quiet:
        yield Hooks()
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            tasks = {
                label: bars.add_task(escape(label), total=rounds) for label, (_, rounds) in experiment.methods.items()
            }
            yield Hooks(progress=lambda label, done: bars.update(tasks[label], completed=done))
    else:
        seeds = len(experiment.spec.seeds)
        many = f"{seeds} seed{'s' if seeds > 1 else ''}"
        yield Hooks(on_method=lambda name, rounds: note(f"{name}: {rounds:,} round{'s' if rounds > 1 else ''}, {many}"))


@contextlib.contextmanager
def launch_progress(experiment: Experiment, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """As `progress_hooks`, for runs in other processes, one seed after another."""
    runs = {(label, seed): n for label, (_, n) in experiment.methods.items() for seed in experiment.spec.seeds}
    names = {
        (label, seed): f"{label}, seed {seed}" if len(experiment.spec.seeds) > 1 else label for label, seed in runs
    }
    if quiet:
        yield lambda label, seed, done: None
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            tasks = {run: bars.add_task(escape(names[run]), total=rounds) for run, rounds in runs.items()}

            def show(label: str, seed: int, done: int) -> None:
                for run, task in tasks.items():  # runs before the current one are finished
                    if run == (label, seed):
                        bars.update(task, completed=done)
                        break
                    bars.update(task, completed=runs[run])

            yield show
    else:
        noted: set[tuple[str, int]] = set()

        def note_once(label: str, seed: int, done: int) -> None:
            run = (label, seed)
            if run in runs and run not in noted:
                noted.add(run)
                note(f"{names[run]}: {runs[run]:,} rounds, {experiment.problem.clients} processes")

        yield note_once
