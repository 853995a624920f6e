"""Which methods find the exact minimiser: `gossamer reproduce exactness`."""

import argparse
from pathlib import Path

from rich.progress import BarColumn, TimeRemainingColumn

from gossamer.cli.command import refuse
from gossamer.cli.lines import complain, note, show_json
from gossamer.cli.output import LABEL, VERDICTS, console, terminal_bars, titled
from gossamer.errors import InputError, check_integer
from gossamer.files import write_csv
from gossamer.paper import exactness
from gossamer.paper.exactness import Entry, Exactness

_ROUNDS = 6000  # after which verdicts are given


def exactness_table(options: argparse.Namespace) -> int:
    """Which methods find the exact minimiser, where the others stop, how their floors fall, and what clipping does.

    Exit code 1 says that something does not hold.
    """
    refuse(options, "exactness takes no --{}; leave it out.", "as_published", "quick", "seeds", "device", "data_dir")
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
    if options.json:
        show_json(rows, allow_nan=True)
    else:
        _show(outcomes, is_short)
    failed = [outcome.entry.label for outcome in outcomes if not outcome.holds and not is_short]
    return complain(f"What theory says does not hold for {'; '.join(failed)}.", 1) if failed else 0


def _run(rounds: int, quiet: bool) -> list[Exactness]:
    entries = exactness.entries()
    with terminal_bars(quiet, LABEL, BarColumn(), TimeRemainingColumn()) as bars:
        if bars is None:
            if not quiet:
                note(f"exactness: {len(entries)} runs, up to {rounds:,} rounds each")
            return [exactness.run(entry, rounds) for entry in entries]
        task = bars.add_task("", total=rounds * len(entries))

        def run(number: int, entry: Entry) -> Exactness:
            bars.update(task, description=entry.label, completed=number * rounds)
            return exactness.run(entry, rounds, lambda t: bars.update(task, completed=number * rounds + t))

        return [run(number, entry) for number, entry in enumerate(entries)]


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
    exact = titled("Exact methods: distance to the minimiser", "method", ">rounds", ">error", "")
    steps = (">at lr", ">at lr/2", ">at lr/4", ">falls as", ">theory")
    floors = titled("The others: where they stop", "method", *steps, "since", "")
    reached = (">rounds", ">distance to the clipped fixed point", ">||grad f||", ">theory")
    clipped = titled("PORTER with clipping: not a stationary point", "method", *reached, "")
    for outcome in outcomes:
        entry = outcome.entry
        verdict = VERDICTS["inconclusive" if is_short else "holds" if outcome.holds else "does not hold"]
        error = (f"{outcome.rounds:,}", f"{max(outcome.errors.values()):.1e}")
        if entry.power is not None:
            errors = (f"{floor:.3f}" for floor in outcome.errors.values())
            floors.add_row(entry.label, *errors, f"lr^{outcome.power:.2f}", f"lr^{entry.power:g}", entry.why, verdict)
        elif entry.apart is None:
            exact.add_row(entry.label, *error, verdict)
        else:
            norms = (f"{outcome.grad_norm:.4g}", f"{outcome.expected_grad_norm:.4g}")
            clipped.add_row(entry.label, *error, *norms, verdict)
    for table in (exact, floors, clipped):
        if table.row_count:
            out.show(table)
    out.print(
        "Least squares, 8 clients that differ on a ring, 10 coordinates, 6 rows each, float64; root mean square "
        "distances of the clients' models. Full gradients, where it does not say single rows. PORTER with clipping: "
        "three clients, f_i = (x - a_i)^2 / 2, a = (0, 0, D); it stops where the clipped gradients sum to zero, so it "
        "needs bounded dissimilarity.",
        soft_wrap=True,
    )
