"""Reproduce the paper's figures, rates and claims: `gossamer reproduce`."""

import argparse
import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gossamer.cli.commands.check import prove
from gossamer.cli.commands.data import downloads
from gossamer.cli.commands.exactness import exactness_table
from gossamer.cli.lines import note, results, stop_signals
from gossamer.cli.output import VERDICTS, bars, console, resume_news, waiting
from gossamer.errors import InputError, StoppedError, check_integer
from gossamer.files import alone_in
from gossamer.paper import figures
from gossamer.paper.claims import PUBLISHED, Judged, counted
from gossamer.paper.figures import FIGURES, Job
from gossamer.paper.rates.studies import Study
from gossamer.paper.reproduction import Plan, Reproduced, conclude, run_study
from gossamer.problems.base import as_device
from gossamer.report import write_page


def reproduce(options: argparse.Namespace) -> int:
    """`gossamer reproduce`."""
    if options.what == "exactness":
        return exactness_table(options)
    if options.what == "theory":
        return prove(options)
    plan = _plan(options)
    plan.make_place()
    with alone_in(plan.folder):
        plan.check_place()
        _warn(plan)
        with resume_news(options.quiet), stop_signals() as should_stop:
            try:
                _run(plan, options.quiet, should_stop)
            except StoppedError as error:
                raise StoppedError(f"{error} Repeat the command to continue.") from None
        with waiting("Drawing and judging", options.quiet):
            done = conclude(plan, _command(options))
            page = plan.folder / "report.html"
            left_out = write_page(plan.folder, page)
    for sentence in left_out:
        note(f"gossamer: {sentence}")
    with results():
        if options.json:
            rows = [asdict(one.row()) for one in done.judged]
            result = {"folder": str(plan.folder), "page": str(page), "figures": [str(one) for one in done.pictures]}
            print(json.dumps(result | {"claims": rows}, indent=2, allow_nan=False))
        else:
            _show(done, plan, page)
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    many = check_integer("seeds", options.seeds if options.seeds is not None else 1 if options.quick else 3, 1, 1000)
    if options.rounds is not None:
        check_integer("rounds", options.rounds, 2)
    if options.quick and options.rounds is not None:
        raise InputError("--quick sets the rounds itself; leave --rounds out.")
    if options.what == "rates":
        for name in ("as_published", "rounds", "device", "seeds"):
            if getattr(options, name):
                raise InputError(f"The rates take no --{name.replace('_', '-')}; leave it out.")
    if options.device is not None:
        as_device(options.device)
    what = [*FIGURES, "rates"] if options.what == "all" else [options.what]
    return Plan(
        what,
        Path(options.output or ("rehearsed" if options.quick else "begun" if options.rounds else "reproduced")),
        range(many),
        published=options.as_published,
        quick=options.quick,
        rounds=options.rounds,
        data_dir=options.data_dir,
        device=options.device,
    )


def _warn(plan: Plan) -> None:
    """Figure 5 in full is for a GPU."""
    jobs = plan.jobs().get("fig5", [])
    on_cpu = plan.device is None or plan.device.startswith("cpu")
    if on_cpu and any(job.spec.rounds > 1000 and not figures.is_done(job, plan.folder) for job in jobs):
        note(
            "gossamer: figure 5 in full takes hours on a CPU and minutes on a GPU; try --device cuda, or --rounds 300 "
            "--seeds 1 for its beginning."
        )


def _run(plan: Plan, quiet: bool, should_stop: Callable[[], bool]) -> None:
    jobs, studies = [job for several in plan.jobs().values() for job in several], plan.studies()
    with bars(quiet) as bar, downloads(quiet):
        steps: list[tuple[Job | Study, Callable[[float], None], Callable[[], None]]] = []
        things: list[Job | Study] = [*jobs, *studies]
        for thing in things:
            total = sum(thing.labels.values()) if isinstance(thing, Job) else 1.0
            steps.append((thing, *bar(thing.name, total)))
        for thing, show, begin in steps:
            if isinstance(thing, Job):
                before = dict(zip(thing.labels, _sums(thing), strict=True))

                def progress(label: str, t: int, show: Any = show, before: Any = before) -> None:
                    show(before[label] + t)

                figures.run(
                    thing,
                    plan.folder,
                    data_dir=plan.data_dir,
                    device=plan.device,
                    progress=progress,
                    on_start=begin,
                    should_stop=should_stop,
                )
                show(sum(thing.labels.values()))
            else:
                run_study(thing, plan, show, should_stop, begin)
                show(1.0)


def _sums(job: Job) -> list[int]:
    """Rounds before each method of a job."""
    before, total = [], 0
    for rounds in job.labels.values():
        before.append(total)
        total += rounds
    return before


def _command(options: argparse.Namespace) -> str:
    words = ["gossamer", "reproduce", options.what]
    for name in ("seeds", "rounds", "device"):
        value = getattr(options, name)
        words += [f"--{name}", str(value)] if value is not None else []
    words += [f"--{name.replace('_', '-')}" for name in ("as_published", "quick") if getattr(options, name)]
    return shlex.join(words)


def _show(done: Reproduced, plan: Plan, page: Path) -> None:
    out = console()
    table = Table(header_style="bold", title="What the paper says, and what was measured", title_justify="left")
    for heading in ("claim", "measured", "rule", "verdict"):
        table.add_column(heading, justify="right" if heading == "measured" else "left")
    where = None
    for one in done.judged:
        if one.claim.where != where:
            where = one.claim.where
            table.add_row(f"[bold]{escape(where)}[/]", "", "", "")
        rule = one.rule or one.claim.rule
        table.add_row(escape(one.claim.says), _range(one.values), rule, VERDICTS[one.verdict])
    out.show(table)
    short = " Runs were shortened: nothing is concluded from them." if plan.is_short else ""
    out.print(verdict_counts(done.judged) + short, highlight=False, soft_wrap=True)
    lines = [f"Page:    {page}", f"Figures: {plan.folder / 'figures'}", f"Table:   {plan.folder / 'claims.csv'}"]
    out.print("\n".join(map(escape, lines)), highlight=False, soft_wrap=True)


def verdict_counts(judged: Sequence[Judged]) -> str:
    """How many verdicts of each kind there are, and why there are more of them than claims."""
    held, failed, unclear = counted([one.verdict for one in judged]).values()
    again = sum(one.claim.id.endswith(PUBLISHED) for one in judged)
    text = f" ({len(judged) - again} on the paper's text, {again} again on the published runs)" if again else ""
    return f"{len(judged)} verdicts{text}: {held} hold, {failed} do not hold, {unclear} inconclusive."


def _range(values: list[float]) -> str:
    """The range over the seeds; a figure that was begun and not finished has claims without values."""
    if not values or any(map(math.isnan, values)):
        return "-"
    low, high = (f"{bound:.3g}" for bound in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
