"""What went over each link of a run across processes: a table for the terminal, and all of it in a file."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gossamer.records.record import Record
from gossamer.report.table import human

_HEADINGS = ("run", "packets", "sent per link", "waited", "hidden", "left out", "most waited for")
_FIELDS = ("packets_sent", "bytes_sent", "packets_received", "bytes_received", "waiting", "hidden")


def links_of(record: Record) -> list[dict[str, Any]]:
    """The account of each client's links, where the clients were processes."""
    links = record.end.get("links") if record.end else None
    return [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []


def links_table(records: Sequence[Record]) -> Table | None:
    """One line a run: what a link carried, and what its clients waited for; None if no run was across processes."""
    told = [(record, links_of(record)) for record in records]
    rows = [_row(record, links) for record, links in told if links]
    if not rows:
        return None
    table = Table(title="Links", title_justify="left", title_style="bold", header_style="bold")
    for number, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _row(record: Record, links: Sequence[dict[str, Any]]) -> list[str]:
    clients = len({link["client"] for link in links})
    worst = max(links, key=lambda link: float(link["waiting"]))
    error = record.rows[-1].get("compression_error") if record.rows else None
    return [
        escape(f"{record.label}, seed {record.seed}"),
        f"{max(link['packets_sent'] for link in links):,}",
        human(sum(link["bytes_sent"] for link in links) / len(links), "B"),
        f"{sum(link['waiting'] for link in links) / clients:.2f} s",
        f"{sum(link['hidden'] for link in links) / len(links):.2f} s",
        "-" if error is None else f"{error:.1%}",
        f"{worst['neighbor']} by {worst['client']}, {worst['waiting']:.2f} s",
    ]


def write_links(records: Sequence[Record], path: Path) -> None:
    """Every link of every run, a line each, as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", "client", "neighbor", *_FIELDS, "compression_error"])
        for record in records:
            clients = record.end.get("clients", []) if record.end else []
            left_out = {one.get("client"): one.get("compression_error") for one in clients}
            for link in links_of(record):
                numbers = [link.get(name) for name in ("client", "neighbor", *_FIELDS)]
                writer.writerow([record.label, record.seed, *numbers, left_out.get(link["client"])])
