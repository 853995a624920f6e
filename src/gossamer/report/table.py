"""The summary as a table for the terminal."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from gossamer.report.summary import Summary, best_of

_PREFIXES = ("", "k", "M", "G", "T")

_COLUMNS: dict[str, tuple[str, str]] = {
    "alpha": ("alpha", ".3g"),
    "rounds_to_target": ("rounds to target", ",.0f"),
    "bits_to_target": ("sent to target", "bits"),
    "round": ("rounds", ",.0f"),
    "bits": ("sent per link", "bits"),
    "grad_norm": ("gradient norm", ".2e"),
    "loss": ("loss", ".4g"),
    "accuracy": ("accuracy", ".3f"),
    "worst_accuracy": ("worst client", ".3f"),
    "consensus": ("consensus", ".1e"),
    "seconds": ("seconds", ".1f"),
}
"""Heading and format of each column, the most important first."""


def result_table(summary: Sequence[Summary], title: str) -> Table:
    """One line per method; the best of each column is bold."""
    names = [name for name in _COLUMNS if not summary or name in summary[0].numbers]
    table = Table(title=escape(title), title_justify="left", title_style="bold", header_style="bold")
    table.add_column("method", min_width=8)
    for name in names:
        table.add_column(_COLUMNS[name][0], justify="right", no_wrap=True)
    best = best_of(summary)
    for row in summary:
        cells = []
        for name in names:
            form, value = _COLUMNS[name][1], row.numbers[name]
            if value is None:
                cells.append("diverged" if name == "grad_norm" and row.diverged else "-")
                continue
            text = human(value) if form == "bits" else format(value, form)
            cells.append(f"[bold]{text}[/]" if len(summary) > 1 and value == best.get(name) else text)
        table.add_row(escape(row.method) + _lost(row), *cells)
    return table


def _lost(row: Summary) -> str:
    """A mark for a method of which some seeds diverged, and are not in its means."""
    lost, left = len(row.diverged), len(row.seeds)
    return f" [red]({lost} of {lost + left} diverged)[/]" if lost and left else ""


def human(amount: float, unit: str = "bit") -> str:
    """An amount with its unit: 1234567 is `1.23 Mbit`."""
    for prefix in _PREFIXES:
        if amount < 1000 or prefix == _PREFIXES[-1]:
            break
        amount /= 1000
    return f"{amount:.3g} {prefix}{unit}"
