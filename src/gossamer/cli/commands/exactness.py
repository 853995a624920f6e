"""Which methods find the exact minimiser: `gossamer reproduce exactness`."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gossamer.cli.lines import complain, note, results
from gossamer.cli.output import VERDICTS, console
from gossamer.errors import InputError, check_integer
from gossamer.files import write_csv
from gossamer.paper import exactness
from gossamer.paper.exactness import Entry, Exactness

_ROUNDS = 6000  # after which verdicts are given


def exactness_table(options: argparse.Namespace) -> int:
    """Which methods find the exact minimiser, where the others stop, how their floors fall, and what clipping does.

    Exit code 1 says that something does not hold.
    """
    for name in ("as_published", "quick", "seeds", "device", "data_dir"):
        if getattr(options, name):
            raise InputError(f"exactness takes no --{name.replace('_', '-')}; leave it out.")
    rounds = check_integer("rounds", _ROUNDS if options.rounds is None else options.rounds, 1000)
    if options.output is not None:
        out = Path(options.output)
        if not out.parent.is_dir():
            raise InputError(f"The folder of '{out}' does not exist; make it first.")
        if out.exists() and not out.is_file():
            raise InputError(f"'{out}' is no file; give the name of a table, such as exactness.csv.")
    outcomes = _run(rounds, options.quiet)
    is_short = rounds < _ROUNDS  # then nothing is concluded
    rows = [_row(outcome) | ({"holds": None} if is_short else {}) for outcome in outcomes]
    if options.output is not None:
        write_csv(Path(options.output), rows)
    with results():
        if options.json:
            print(json.dumps(rows, indent=2))
        else:
            _show(outcomes, is_short)
    failed = [outcome.entry.label for outcome in outcomes if not outcome.holds and not is_short]
    return complain(f"What theory says does not hold for {'; '.join(failed)}.", 1) if failed else 0


def _run(rounds: int, quiet: bool) -> list[Exactness]:
    entries = exactness.entries()
    if quiet or not sys.stderr.isatty():
        if not quiet:
            note(f"exactness: {len(entries)} runs, up to {rounds:,} rounds each")
        return [exactness.run(entry, rounds) for entry in entries]
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=rounds * len(entries))
        outcomes = []
        for number, entry in enumerate(entries):
            bars.update(task, description=entry.label, completed=number * rounds)
            outcomes.append(
                exactness.run(entry, rounds, lambda t, n=number: bars.update(task, completed=n * rounds + t))  # type: ignore[misc]
            )
        return outcomes


def _row(outcome: Exactness) -> dict[str, object]:
    largest, *rest = outcome.errors.values()
    norms = (outcome.grad_norm, outcome.expected_grad_norm)
    measured, predicted = (None if norm is None else float(f"{norm:.4g}") for norm in norms)
    return {
        "method": outcome.entry.label,
        "expected": _expected(outcome.entry),
        "lr": outcome.entry.method.lr_at(0),
        "rounds": outcome.rounds,
        "error": float(f"{largest:.4g}"),
        "error_at_half_the_lr": float(f"{rest[0]:.4g}") if rest else None,
        "error_at_a_quarter": float(f"{rest[1]:.4g}") if rest else None,
        "power": None if outcome.power is None else round(outcome.power, 3),
        "grad_norm": measured,
        "grad_norm_expected": predicted,
        "holds": outcome.holds,
    }


def _expected(entry: Entry) -> str:
    if entry.apart is not None:
        return "the clipped fixed point, sum clip(grad f_i) = 0, which is not stationary"
    return "exact" if entry.power is None else f"a floor that falls as lr^{entry.power:g}"


def _show(outcomes: list[Exactness], is_short: bool) -> None:
    out = console()
    table = Table(header_style="bold", title="Exact methods: distance to the minimiser", title_justify="left")
    for heading in ("method", "rounds", "error", ""):
        table.add_column(heading, justify="right" if heading in ("rounds", "error") else "left")
    for outcome in outcomes:
        if outcome.entry.power is None and outcome.entry.apart is None:
            table.add_row(
                outcome.entry.label,
                f"{outcome.rounds:,}",
                f"{max(outcome.errors.values()):.1e}",
                _verdict(outcome, is_short),
            )
    out.show(table)
    table = Table(header_style="bold", title="The others: where they stop", title_justify="left")
    for heading in ("method", "at lr", "at lr/2", "at lr/4", "falls as", "theory", "since", ""):
        table.add_column(heading, justify="left" if heading in ("method", "since", "") else "right")
    for outcome in outcomes:
        if outcome.entry.power is not None:
            errors = (f"{error:.3f}" for error in outcome.errors.values())
            powers = (f"lr^{outcome.power:.2f}", f"lr^{outcome.entry.power:g}")
            table.add_row(outcome.entry.label, *errors, *powers, outcome.entry.why, _verdict(outcome, is_short))
    out.show(table)
    table = Table(header_style="bold", title="PORTER with clipping: not a stationary point", title_justify="left")
    for heading in ("method", "rounds", "distance to the clipped fixed point", "||grad f||", "theory", ""):
        table.add_column(heading, justify="left" if heading in ("method", "") else "right")
    for outcome in outcomes:
        if outcome.grad_norm is not None:
            table.add_row(
                outcome.entry.label,
                f"{outcome.rounds:,}",
                f"{max(outcome.errors.values()):.1e}",
                f"{outcome.grad_norm:.4g}",
                f"{outcome.expected_grad_norm:.4g}",
                _verdict(outcome, is_short),
            )
    if table.row_count:
        out.show(table)
    out.print(
        "Least squares, 8 clients that differ on a ring, 10 coordinates, 6 rows each, float64; root mean square "
        "distances of the clients' models. Full gradients, where it does not say single rows. PORTER with clipping: "
        "three clients, f_i = (x - a_i)^2 / 2, a = (0, 0, D); it stops where the clipped gradients sum to zero, so it "
        "needs bounded dissimilarity.",
        soft_wrap=True,
    )


def _verdict(outcome: Exactness, is_short: bool) -> str:
    return VERDICTS["inconclusive" if is_short else "holds" if outcome.holds else "does not hold"]
