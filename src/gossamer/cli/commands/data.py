"""`gossamer data list`, `fetch`, `check` and `describe`: data sets, and their division among clients."""

import argparse
import contextlib
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TaskID, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Column, Table

from gossamer import registry
from gossamer.cli.lines import complain, note, show, show_json
from gossamer.cli.output import LABEL, check_picture, console, first_paragraph, headings, terminal_bars, waiting
from gossamer.errors import InputError, unknown
from gossamer.problems import load, logistic_regression, softmax_regression
from gossamer.problems.data.datasets import find, find_in, fits, folders
from gossamer.problems.data.download import fetch as fetch_file
from gossamer.problems.data.download import showing
from gossamer.problems.data.partition import split
from gossamer.problems.data.sources import FILES
from gossamer.report import shares_figure


@contextlib.contextmanager
def downloads(quiet: bool = False) -> Iterator[None]:
    """Show the progress of downloads inside: a bar on a terminal, one line per file in a pipe."""
    if quiet:
        yield
        return
    tasks: dict[str, TaskID] = {}
    noted: set[str] = set()
    with terminal_bars(
        quiet, LABEL, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    ) as bars:

        def progress(name: str, done: int, total: int | None) -> None:
            if bars is not None:
                if name not in tasks:
                    tasks[name] = bars.add_task(escape(name), total=total)
                bars.update(tasks[name], completed=done, total=total)
            elif name not in noted:
                noted.add(name)
                note(f"Fetching {name}" + (f", {total / 1e6:.1f} MB" if total else ""))

        with showing(progress):
            yield


def list_data(options: argparse.Namespace) -> int:
    """`gossamer data list`."""
    rows = []
    for name in registry.datasets:
        factory: Any = registry.datasets.get(name)
        there = [find(name, file, options.data_dir) for file in FILES.get(name, ())]
        if name in FILES:
            kind = "here" if all(there) else "not downloaded"
        else:  # synthetic data sets take settings
            kind = "synthetic" if inspect.signature(factory).parameters else "embedded"
        folder = str(there[0].parent) if there and there[0] is not None else None
        rows.append({"name": name, "where": kind, "folder": folder, "about": first_paragraph(factory)})
    if options.json:
        return show_json(rows)
    table = Table(Column("name", no_wrap=True), "where", "description")
    for row in rows:
        table.add_row(str(row["name"]), escape(str(row["folder"] or row["where"])), escape(str(row["about"])))
    console().show(table)
    text = "Any LIBSVM file can be given by its path (plain, .xz, .bz2, .gz; test rows in NAME.t beside it)."
    console().print(text, soft_wrap=True)
    return 0


def fetch(options: argparse.Namespace) -> int:
    """`gossamer data fetch`."""
    name = registry.normal(options.name)
    if name not in FILES:
        if name in registry.datasets.names():
            raise InputError(f"The data set {options.name!r} needs no files.")
        raise unknown("data set", options.name, FILES)
    folder = Path(options.data_dir).expanduser() if options.data_dir else folders()[-1]
    with downloads(options.quiet):
        for file in FILES[name]:
            there = find_in(folder, name, file)
            if there is not None and fits(there, file):
                note(f"{there} exists already.")
                continue
            show(fetch_file(file, folder / name))
    return 0


def check(options: argparse.Namespace) -> int:
    """`gossamer data check`."""
    rows = []
    with waiting("Checking"):
        for name, files in FILES.items():
            for file in files:
                path = find(name, file, options.data_dir)
                state = "missing" if path is None else "correct" if fits(path, file) else "damaged"
                where = None if path is None else str(path)
                rows.append({"data": name, "file": file.name, "path": where, "state": state})
    if options.json:
        show_json(rows)
    else:
        table = Table("data set", "file", "state", "path")
        for row in rows:
            table.add_row(row["data"], row["file"], row["state"], escape(row["path"] or "-"))
        console().show(table)
    damaged = [row["path"] for row in rows if row["state"] == "damaged"]
    return complain(f"Damaged: {', '.join(map(str, damaged))}; fetch them again.", 1) if damaged else 0


def describe(options: argparse.Namespace) -> int:
    """`gossamer data describe`."""
    picture = None if options.draw is None else check_picture(options.draw)
    with downloads(), waiting("Reading the data"):
        dataset = load(options.data, options.data_dir)
        classes = dataset.classes("A description")
        division: Any = {"partition": options.partition, "seed": options.seed, "equal": not options.all_rows}
        shares = split(dataset.labels, options.clients, **division)
        regression = logistic_regression if len(classes) == 2 else softmax_regression
        heterogeneity = regression(dataset, clients=options.clients, **division, nonconvex=0.0).heterogeneity()
    places = (np.searchsorted(classes, dataset.labels[share]) for share in shares)
    counts = np.stack([np.bincount(those, minlength=len(classes)) for those in places])
    names = [f"{value:g}" for value in classes]
    result = {
        "data": dataset.name,
        "partition": options.partition,
        "rows": len(dataset.labels),
        "features": math.prod(dataset.features.shape[1:]),
        "test_rows": 0 if dataset.test_labels is None else len(dataset.test_labels),
        "dropped": int(len(dataset.labels) - counts.sum()),
        "labels": names,
        "clients": counts.tolist(),
        "heterogeneity": heterogeneity,
    }
    if picture is not None:
        with waiting("Drawing"):
            title = f"{dataset.name}, {options.partition}, {options.clients} clients: heterogeneity {heterogeneity:.3g}"
            shares_figure(counts, names, picture, title)
    if options.json:
        return show_json(result)
    out = console()
    out.show(_table(counts, names, f"{dataset.name}, {options.partition}", out.width))
    out.print(
        f"{result['rows']:,} rows of {result['features']:,} features, {result['dropped']:,} of them dropped; "
        f"{result['test_rows']:,} test rows.\nHeterogeneity (mean of ||grad f_i - grad f||^2 at 0): "
        f"{heterogeneity:.4g}",
        highlight=False,
    )
    if picture is not None:
        out.plain(f"Picture: {picture}")
    return 0


def _table(counts: Any, names: list[str], title: str, width: int) -> Table:
    """Rows and label shares per client; with many labels, the most frequent ones of each client."""
    wide = len(names) <= 12 and width >= 9 * len(names) + 35
    labels = headings(*(f">{name}" for name in names)) if wide else headings("labels")
    table = Table(*headings(">client", ">rows"), *labels, Column(no_wrap=True), title=escape(title))
    marks = "▁▂▃▄▅▆▇█"
    shown = counts if len(counts) <= 60 else counts[:60]
    for client, row in enumerate(shown):
        share = row / max(1, row.sum())
        cells = [f"{value:.1%}" if value else "-" for value in share]
        if not wide:
            order = np.argsort(-share, kind="stable")[: max(3, (width - 40) // 9)]
            cells = [", ".join(f"{names[i]}: {share[i]:.0%}" for i in order if share[i] > 0)]
        bars = "".join(marks[int(np.ceil(value * 8)) - 1] if value else " " for value in share[:60])
        table.add_row(str(client), f"{int(row.sum()):,}", *cells, bars)
    if len(counts) > len(shown):
        table.caption = f"and {len(counts) - len(shown):,} more clients; --json shows all"
    return table
