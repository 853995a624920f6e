"""Tables and progress bars: results on standard output, everything else on standard error."""

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

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

from gossamer.cli.lines import note, visible
from gossamer.errors import InputError
from gossamer.runtime.experiment import Experiment

NEWS = ("passed over", "goes on after")
"""What log messages say that a person should hear of; the first of them even when quiet."""
_PICTURES = (".png", ".pdf", ".svg")

VERDICTS = {
    "holds": "[green]holds[/]",
    "does not hold": "[red]does not hold[/]",
    "cannot be told": "[yellow]cannot be told[/]",
}
"""As a table shows them."""


class Output(Console):
    """Standard output, with tables that lose nothing."""

    def on_broken_pipe(self) -> None:
        """Raise it, since it is ours to handle: rich would end the program, with exit code 1."""
        raise BrokenPipeError

    def show(self, table: Table) -> None:
        """A table whole; columns that find no room on a terminal follow below, as pandas does, the first one repeated.

        (rich would cut words, and leave columns out.) A pipe is as wide as the table needs.
        """
        sizes = [self._sizes(column) for column in table.columns]
        half = max(8, self.width // 2)
        if self.is_terminal:  # a name that is too long for its column is broken, and no number
            sizes[0] = (min(sizes[0][0], half), sizes[0][1])
        else:
            self.width = max(self.width, _framed(low for low, _ in sizes))
        parts = [list(range(len(sizes)))]
        if _framed(low for low, _ in sizes) > self.width:
            parts = [[0]]
            for i in range(1, len(sizes)):
                wide = _framed([min(sizes[0][1], half), *(sizes[j][1] for j in (*parts[-1][1:], i))])
                if wide > self.width and len(parts[-1]) > 1:
                    parts.append([0])
                parts[-1].append(i)
        for number, part in enumerate(parts):
            self.print(_part(table, part, self._widths([sizes[i] for i in part]), is_first=number == 0))
        if table.caption:
            self.print(_visible(table.caption))

    def _sizes(self, column: Column) -> tuple[int, int]:
        """The least width of a column that cuts no word, and the one that breaks no line."""
        wide = self.options.update(width=10_000)
        cells = [self.measure(_visible(cell), options=wide) for cell in (column.header, *column.cells)]
        most = max(cell.maximum for cell in cells)
        least = most if column.no_wrap else max(cell.minimum for cell in cells)
        return max(least, column.min_width or 0), max(most, column.min_width or 0)

    def _widths(self, sizes: Sequence[tuple[int, int]]) -> list[int]:
        """Of columns side by side: as wide as they like, with one limit for all that makes them fit."""
        widths = [least for least, _ in sizes]
        for limit in range(self.width, 0, -1):
            widths = [max(least, min(most, limit)) for least, most in sizes]
            if _framed(widths) <= self.width:
                break
        return widths


def _framed(widths: Iterable[int]) -> int:
    """Of columns with their frames."""
    return sum(width + 3 for width in widths) + 1


def _part(table: Table, which: Sequence[int], widths: Sequence[int], *, is_first: bool) -> Table:
    """Some columns of a table; its title stands over the first of them."""
    part = Table(
        title=_visible(table.title) if is_first else None,
        title_justify=table.title_justify,
        title_style=table.title_style,
        header_style=table.header_style,
        show_header=table.show_header,
    )
    columns = [table.columns[i] for i in which]
    for column, width in zip(columns, widths, strict=True):
        part.add_column(_visible(column.header), justify=column.justify, width=width, overflow="fold")
    for cells in zip(*(column.cells for column in columns), strict=True):
        part.add_row(*map(_visible, cells))
    return part


def _visible(cell: Any) -> Any:
    return visible(cell) if isinstance(cell, str) else cell


def console() -> Output:
    """Standard output for text and tables; in a pipe, where no terminal gives a width, text has 140 columns."""
    out = Output(file=sys.stdout, width=None if sys.stdout.isatty() else 140)
    out.width = out.width or 80  # some terminals say 0
    return out


def first_paragraph(thing: object) -> str:
    """What a factory says of itself."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def check_picture(name: str) -> Path:
    """Where a picture goes: a name whose ending says which kind."""
    path = Path(name)
    if path.suffix.lower() not in _PICTURES:
        raise InputError(f"The picture '{path}' must end in {', '.join(_PICTURES)}.")
    if not path.parent.is_dir():
        raise InputError(f"The folder of the picture '{path}' does not exist; make it first.")
    return path


@contextlib.contextmanager
def waiting(what: str, quiet: bool = False) -> Iterator[None]:
    """A sign of life on a terminal while something takes its time."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(escape(what), total=None)
        yield


@contextlib.contextmanager
def bars(quiet: bool) -> Iterator[Callable[[str, float], tuple[Callable[[float], None], Callable[[], None]]]]:
    """A bar for each experiment on a terminal, a line for each in a pipe; each gives `show` and `begin`."""
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
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextlib.contextmanager
def resume_news(quiet: bool) -> Iterator[None]:
    """Say which checkpoints could not be used and, unless quiet, where a run goes on."""
    handler, loggers = _Notes(), [logging.getLogger(f"gossamer.runtime.{name}") for name in ("checkpoint", "recorder")]
    marks = NEWS[:1] if quiet else NEWS
    handler.addFilter(lambda record: any(mark in record.getMessage() for mark in marks))
    before = [one.level for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        one.setLevel(logging.INFO)
    try:
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.removeHandler(handler)
            one.setLevel(level)


@contextlib.contextmanager
def progress_hooks(experiment: Experiment, quiet: bool) -> Iterator[dict[str, Any]]:
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
        yield {"on_method": lambda label, rounds: note(f"{label}: {rounds:,} round{'s' if rounds > 1 else ''}, {many}")}


@contextlib.contextmanager
def launch_progress(experiment: Experiment, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """As `progress_hooks`, for runs that go on in other processes and one seed after another."""
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
                for run, task in tasks.items():  # those before the one that goes on are over
                    if run == (label, seed):
                        bars.update(task, completed=done)
                        break
                    bars.update(task, completed=runs[run])

            yield show
    else:
        told: set[tuple[str, int]] = set()

        def tell(label: str, seed: int, done: int) -> None:
            run = (label, seed)
            if run in runs and run not in told:
                told.add(run)
                note(f"{names[run]}: {runs[run]:,} rounds, {experiment.problem.clients} processes")

        yield tell
