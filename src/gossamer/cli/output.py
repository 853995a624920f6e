"""Tables and progress bars: results on standard output, everything else on standard error."""

import contextlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypedDict

from rich import progress as rp
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from gossamer.cli.lines import ignore_closed_pipe, note, visible
from gossamer.errors import InputError
from gossamer.records.checkpoint import resume_log
from gossamer.runtime.experiment import Experiment
from gossamer.runtime.planning.pace import plan_log

LABEL = rp.TextColumn("{task.description}")
_LONG_WORD = 12  # characters; longer words may be broken on a narrow terminal
_PICTURES = (".png", ".pdf", ".svg")
Bar = Callable[[str, float], tuple[Callable[[float], None], Callable[[], None]]]
"""Adds a bar with a name and a total; returns `show`, which moves it, and `begin`, which starts its clock."""
_BESIDE = rp.TextColumn("{task.fields[beside]}")


class Counter(Protocol):
    """Moves the bar of a name, and shows a loss beside it."""

    def __call__(self, name: str, done: int, loss: float | None = None) -> None:
        """So many are done."""


VERDICTS = {
    "holds": "[green]holds[/]",
    "does not hold": "[red]does not hold[/]",
    "inconclusive": "[yellow]inconclusive[/]",
}
"""Verdicts with their colours in tables."""


class Output(Console):
    """Standard output with rich's tables, none of whose cells is ever cut."""

    def on_broken_pipe(self) -> None:
        """Go on; rich would end the program, with exit code 1."""
        ignore_closed_pipe()

    def render_str(self, text: str, **settings: Any) -> Text:
        """Replace control characters in text from a record or a file."""
        return super().render_str(visible(text), **settings)

    def plain(self, text: str) -> None:
        """Print text as it is, without markup, colours or added line breaks."""
        self.print(text, markup=False, highlight=False, soft_wrap=True)

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
            row = Table(Column(style="bold", overflow="fold"), Column(overflow="fold"), show_header=False)
            row.title, row.title_justify = None if number else table.title, "left"
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


def headings(*names: str) -> list[Column]:
    """The columns of a table; those whose name begins with > are aligned to the right."""
    return [Column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left") for name in names]


def titled(title: str, *names: str) -> Table:
    """A table with these `headings`, and its title on the left."""
    return Table(*headings(*names), title=title, title_justify="left")


@contextlib.contextmanager
def terminal_bars(quiet: bool, *columns: rp.ProgressColumn) -> Iterator[rp.Progress | None]:
    """Progress bars on a terminal; None when quiet or in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with rp.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield bars


@contextlib.contextmanager
def waiting(what: str, quiet: bool = False) -> Iterator[None]:
    """Show a spinner on a terminal during a long step."""
    with terminal_bars(quiet, rp.SpinnerColumn(), LABEL, rp.TimeElapsedColumn()) as progress:
        if progress is not None:
            progress.add_task(escape(what), total=None)
        yield


@contextlib.contextmanager
def bars(quiet: bool) -> Iterator[Bar]:
    """A bar per experiment on a terminal, a line per experiment in a pipe."""
    with terminal_bars(quiet, LABEL, rp.BarColumn(), rp.TimeElapsedColumn(), rp.TimeRemainingColumn()) as shown:

        def add(name: str, total: float) -> tuple[Callable[[float], None], Callable[[], None]]:
            if shown is None:
                return (lambda done: None, lambda: None if quiet else note(name))
            task = shown.add_task(escape(name), total=total, start=False)
            return (lambda done: shown.update(task, completed=done), lambda: shown.start_task(task))

        yield add


@contextlib.contextmanager
def counters(quiet: bool, totals: Mapping[str, int]) -> Iterator[Counter | None]:
    """A bar per name on a terminal, moved by the function given; None when quiet or in a pipe."""
    columns = (LABEL, rp.BarColumn(), rp.MofNCompleteColumn(), _BESIDE, rp.TimeRemainingColumn())
    with terminal_bars(quiet, *columns) as shown:
        if shown is None:
            yield None
            return
        tasks = {name: shown.add_task(escape(name), total=total, beside="") for name, total in totals.items()}

        def update(name: str, done: int, loss: float | None = None) -> None:
            shown.update(tasks[name], completed=done, beside="" if loss is None else f"loss {loss:.4g}")

        yield update


class _Notes(logging.Handler):
    """Writes log messages to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextlib.contextmanager
def resume_news(quiet: bool) -> Iterator[None]:
    """Show which checkpoints are skipped and, unless quiet, where a run resumes and what was decided before it."""
    handler = _Notes(logging.WARNING if quiet else logging.INFO)
    levels = {log: log.level for log in (resume_log, plan_log)}
    for log in levels:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for log, level in levels.items():
            log.removeHandler(handler)
            log.setLevel(level)


class Hooks(TypedDict, total=False):
    """Callbacks of `Experiment.run`."""

    progress: Callable[[str, int], None]
    on_method: Callable[[str, int], None]


@contextlib.contextmanager
def progress_hooks(experiment: Experiment, quiet: bool) -> Iterator[Hooks]:
    """Hooks that draw bars on a terminal, write a line per method into a pipe, and nothing when quiet."""
    seeds = len(experiment.spec.seeds)
    many = f"{seeds} seed{'s' if seeds > 1 else ''}"
    with counters(quiet, {label: rounds for label, (_, rounds) in experiment.methods.items()}) as update:
        if update is not None:
            yield Hooks(progress=update)
        elif quiet:
            yield Hooks()
        else:
            yield Hooks(on_method=lambda name, n: note(f"{name}: {n:,} round{'s' if n > 1 else ''}, {many}"))


@contextlib.contextmanager
def launch_progress(
    experiment: Experiment, quiet: bool, seconds: float = 10.0
) -> Iterator[Callable[[str, int, int, float | None], None]]:
    """As `progress_hooks`, for runs in other processes, one seed after another, with the loss.

    In a pipe there is a line per run, and another one every so many `seconds`.
    """
    seeds, noted = experiment.spec.seeds, dict[str, float]()

    def name(label: str, seed: int) -> str:
        return f"{label}, seed {seed}" if len(seeds) > 1 else label

    runs = {name(label, seed): n for label, (_, n) in experiment.methods.items() for seed in seeds}
    with counters(quiet, runs) as update:

        def show(label: str, seed: int, done: int, loss: float | None) -> None:
            now = name(label, seed)
            if update is not None:
                for run, rounds in runs.items():  # runs before the current one are finished
                    if run == now:
                        update(run, done, loss)
                        break
                    update(run, rounds)
            elif not quiet and now in runs and now not in noted:
                noted[now] = time.monotonic()
                note(f"{now}: {runs[now]:,} rounds, {experiment.problem.clients} processes")
            elif not quiet and now in runs and loss is not None and time.monotonic() - noted[now] > seconds:
                noted[now] = time.monotonic()
                note(f"{now}: round {done:,} of {runs[now]:,}, loss {loss:.4g}")

        yield show
