"""Commands on existing records: one page of them all, and a table that compares them."""

import argparse
import math
from pathlib import Path

from gossamer.cli.lines import note, show, show_json
from gossamer.cli.output import console, waiting
from gossamer.errors import InputError
from gossamer.report.compare import compare_runs, comparison_table
from gossamer.report.gather import gather
from gossamer.report.page.curves import MEASURED
from gossamer.report.page.page import check_place, save_page


def report(options: argparse.Namespace) -> int:
    """`gossamer report`."""
    source = Path(options.source)
    out = Path(options.output or (source / "report.html" if source.is_dir() else source.with_suffix(".html")))
    if source.exists():  # else reading it says so
        check_place(out, force=options.force)
    with waiting(f"Reading {source}"):
        found = gather(source)
        save_page(found, out)
    for sentence in found.left_out:
        note(f"gossamer: {sentence}")
    if options.json:
        names = [group.name for group in found.groups]
        return show_json({"page": str(out), "experiments": names, "left_out": found.left_out})
    show(out)
    return 0


def compare(options: argparse.Namespace) -> int:
    """`gossamer compare`."""
    if options.target is not None and not math.isfinite(options.target):
        raise InputError(f"`--target` must be a finite number, got {options.target}.")
    with waiting("Reading records"):
        found = compare_runs(options.runs, options.metric, options.target)
    lost = [sentence for method in found.methods for sentence in method.diverged.values()]
    for sentence in [*found.notes, *lost]:
        note(f"gossamer: {sentence}")
    if options.json:
        return show_json(found.as_dict())
    what, way = MEASURED.get(found.metric, found.metric), "at or above" if found.higher else "at or below"
    out = console()
    if found.target is None:
        out.plain("Every run diverged: there is no target that one of them reaches.")
    else:
        why = " (the best that every method reaches)" if found.chosen else ""
        out.plain(f"Until the {what} is first {way} {found.target:.4g}{why}:")
    out.show(comparison_table(found))
    return 0
