"""What went over each link of a run across processes: a table for the terminal, and a CSV file."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from gossamer.files import write_csv
from gossamer.records.record import Record
from gossamer.records.schema import LinkCount
from gossamer.report.table import human

_HEADINGS = ("run", "packets", "sent per link", "waited", "hidden", "left out", "most waited for")


def links_table(records: Sequence[Record]) -> Table | None:
    """One line per run: what a link carried, and what its clients waited for; None if no run was across processes."""
    rows = [_row(record, record.end.links) for record in records if record.end is not None and record.end.links]
    if not rows:
        return None
    table = Table(title="Links", title_justify="left", title_style="bold", header_style="bold")
    for number, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _row(record: Record, links: Sequence[LinkCount]) -> list[str]:
    clients = len({link.client for link in links})
    worst = max(links, key=lambda link: link.waiting)
    error = record.rows[-1].value("compression_error") if record.rows else None
    return [
        escape(f"{record.label}, seed {record.seed}"),
        f"{max(link.packets_sent for link in links):,}",
        human(sum(link.bytes_sent for link in links) / len(links), "B"),
        f"{sum(link.waiting for link in links) / clients:.2f} s",
        f"{sum(link.hidden for link in links) / len(links):.2f} s",
        "-" if error is None else f"{error:.1%}",
        f"{worst.neighbor} by {worst.client}, {worst.waiting:.2f} s",
    ]


def write_links(records: Sequence[Record], path: Path) -> None:
    """Write every link of every run as CSV, a line each."""
    rows = []
    for record in records:
        if record.end is not None:
            left_out = {client.client: client.compression_error for client in record.end.clients}
            for link in record.end.links:
                who = {"method": record.label, "seed": record.seed}
                rows.append(who | asdict(link) | {"compression_error": left_out.get(link.client)})
    names = [field.name for field in fields(LinkCount)]
    write_csv(path, rows, ["method", "seed", *names, "compression_error"])
