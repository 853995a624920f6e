"""The summary as a table for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

_UNITS = ("bit", "kbit", "Mbit", "Gbit", "Tbit")


def result_table(summary: Sequence[dict[str, Any]], title: str) -> Table:
    """One line a method; the best value of a column is bold."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    table.add_column("method")
    for heading in (
        "rounds",
        "sent per link",
        "loss",
        "gradient norm",
        "accuracy",
        "worst client",
        "consensus",
        "time",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    best = {
        name: pick([row[name] for row in summary if row[name] is not None], default=None)
        for name, pick in (("loss", min), ("grad_norm", min), ("accuracy", max), ("worst_accuracy", max))
    }

    def cell(row: dict[str, Any], name: str, form: str) -> str:
        if row[name] is None:
            return "diverged" if name == "loss" and row["diverged"] else "-"
        text = format(row[name], form)
        return f"[bold green]{text}[/]" if row[name] == best.get(name) and len(summary) > 1 else text

    for row in summary:
        table.add_row(
            row["method"],
            cell(row, "round", ",.0f"),
            human_bits(row["bits"]),
            cell(row, "loss", ".4f"),
            cell(row, "grad_norm", ".2e"),
            cell(row, "accuracy", ".3f"),
            cell(row, "worst_accuracy", ".3f"),
            cell(row, "consensus", ".1e"),
            "-" if row["seconds"] is None else f"{row['seconds']:.1f} s",
        )
    return table


def human_bits(bits: float | None) -> str:
    """Bits with a unit: 1234567 is `1.23 Mbit`."""
    if bits is None:
        return "-"
    for unit in _UNITS:
        if bits < 1000 or unit == _UNITS[-1]:
            break
        bits /= 1000
    return f"{bits:.3g} {unit}"
