"""Reproduce the paper's figures, rates and claims: `gossamer reproduce`."""

import argparse
import contextlib
import itertools
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape

from gossamer.cli.command import refuse
from gossamer.cli.commands.data import downloads
from gossamer.cli.commands.exactness import exactness_table
from gossamer.cli.commands.theory import RunRow
from gossamer.cli.lines import complain, note, show_json, stop_signals
from gossamer.cli.output import VERDICTS, Bar, bars, console, resume_news, titled, waiting
from gossamer.errors import InputError, StoppedError, check_integer
from gossamer.files import alone_in, write_csv
from gossamer.paper import figures, proofs
from gossamer.paper.claims import PUBLISHED, Judged, counted
from gossamer.paper.figures import FIGURES, Job
from gossamer.paper.omegas import check_records
from gossamer.paper.reproduction import Plan, Reproduced, conclude, run_study
from gossamer.problems.base import as_device
from gossamer.records.record import Record
from gossamer.report import proof_figure, write_page

_BOUNDS = {"4.1": "Theorem 4.1, 4.2", "4.3": "Theorem 4.3, 4.4"}


def reproduce(options: argparse.Namespace) -> int:
    """`gossamer reproduce`."""
    if options.what == "exactness":
        return exactness_table(options)
    if options.what == "theory":
        return _prove(options)
    plan = _plan(options)
    plan.make_place()
    with alone_in(plan.folder):
        plan.check_place()
        _warn(plan)
        _run(plan, options)
        with waiting("Drawing and judging", options.quiet):
            done = conclude(plan, _command(options))
            page = plan.folder / "report.html"
            left_out = write_page(plan.folder, page)
    for sentence in left_out:
        note(f"gossamer: {sentence}")
    if options.json:
        rows = [asdict(one.row()) for one in done.judged]
        result = {"folder": str(plan.folder), "page": str(page), "figures": [str(one) for one in done.pictures]}
        return show_json(result | {"claims": rows})
    _show(done, plan, page)
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    many = check_integer("seeds", options.seeds if options.seeds is not None else 1 if options.quick else 3, 1, 1000)
    if options.rounds is not None:
        check_integer("rounds", options.rounds, 2)
    if options.quick and options.rounds is not None:
        raise InputError("--quick sets the rounds itself; leave --rounds out.")
    if options.what == "rates":
        refuse(options, "The rates take no --{}; leave it out.", "as_published", "rounds", "device", "seeds")
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


def _run(plan: Plan, options: argparse.Namespace) -> None:
    with _running(options) as (bar, should_stop):
        jobs = [job for several in plan.jobs().values() for job in several]
        job_bars = [(job, *bar(job.name, sum(job.labels.values()))) for job in jobs]
        study_bars = [(study, *bar(study.name, 1.0)) for study in plan.studies()]
        for job, show, begin in job_bars:
            _run_job(job, plan.folder, options, show, begin, should_stop)
        for study, show, begin in study_bars:
            run_study(study, plan, show, should_stop, begin)
            show(1.0)


@contextlib.contextmanager
def _running(options: argparse.Namespace) -> Iterator[tuple[Bar, Callable[[], bool]]]:
    """A bar per experiment, and whether to stop; what was stopped can be continued."""
    quiet = options.quiet
    try:
        with resume_news(quiet), stop_signals() as should_stop, bars(quiet) as bar, downloads(quiet):
            yield bar, should_stop
    except StoppedError as error:
        raise StoppedError(f"{error} Repeat the command to continue.") from None


def _run_job(
    job: Job,
    folder: Path,
    options: argparse.Namespace,
    show: Callable[[float], None],
    begin: Callable[[], None],
    should_stop: Callable[[], bool],
) -> list[Record]:
    """Run a job, or read its records; the bar counts the rounds of all its methods."""
    before = dict(zip(job.labels, itertools.accumulate(job.labels.values(), initial=0), strict=False))
    records = figures.run(
        job,
        folder,
        data_dir=options.data_dir,
        device=options.device,
        progress=lambda label, t: show(before[label] + t),
        on_start=begin,
        should_stop=should_stop,
    )
    show(sum(job.labels.values()))
    return records


def _command(options: argparse.Namespace) -> str:
    words = ["gossamer", "reproduce", options.what]
    for name in ("seeds", "rounds", "device"):
        value = getattr(options, name)
        words += [f"--{name}", str(value)] if value is not None else []
    words += [f"--{name.replace('_', '-')}" for name in ("as_published", "quick") if getattr(options, name)]
    return shlex.join(words)


def _show(done: Reproduced, plan: Plan, page: Path) -> None:
    out = console()
    table = titled("What the paper says, and what was measured", "claim", ">measured", "rule", "verdict")
    where = None
    for one in done.judged:
        if one.claim.where != where:
            where = one.claim.where
            table.add_row(f"[bold]{escape(where)}[/]", "", "", "")
        rule = one.rule or one.claim.rule
        table.add_row(escape(one.claim.says), _range(one.values), rule, VERDICTS[one.verdict])
    out.show(table)
    short = " Runs were shortened: nothing is concluded from them." if plan.is_short else ""
    out.plain(verdict_counts(done.judged) + short)
    out.plain(f"Page:    {page}\nFigures: {plan.folder / 'figures'}\nTable:   {plan.folder / 'claims.csv'}")


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


def _prove(options: argparse.Namespace) -> int:
    """`gossamer reproduce theory`: BEER with certified steps on several problems, each inequality at every round."""
    refuse(options, "theory takes no --{}; leave it out.", "as_published", "rounds")
    seeds = proofs.SEEDS if options.seeds is None else check_integer("seeds", options.seeds, 5, 1000)
    folder = Path(options.output or ("rehearsed-proofs" if options.quick else "proofs"))
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The folder '{folder}' cannot be made: {error.strerror or error}.") from None
    jobs = proofs.rehearsals(seeds) if options.quick else proofs.jobs(seeds)
    rows = []
    with alone_in(folder), _running(options) as (bar, should_stop):
        steps = [(job, *bar(job.spec.name, job.spec.rounds)) for job in jobs]
        for job, show, begin in steps:
            records = _run_job(job, folder, options, show, begin, should_stop)
            checked = check_records(records)
            picture = folder / "figures" / f"{job.name}.png"
            proof_figure(checked, picture, job.spec.name)
            rows.append(RunRow(job.spec.name, records, checked, picture))
        write_csv(folder / "theory.csv", [row for one in rows for row in _flat(one)])
    if options.json:
        show_json([row.as_dict() for row in rows])
    else:
        _show_proofs(rows, folder, options.quick)
    failed = [row.experiment for row in rows if row.checked.verdict == "does not hold"]
    return complain(f"The proof is broken in {'; '.join(failed)}.", 1) if failed else 0


def _show_proofs(rows: list[RunRow], folder: Path, quick: bool) -> None:
    out = console()
    title = "BEER with certified steps against its proof" + (": a rehearsal, few rounds and seeds" if quick else "")
    numbers = (">lr", ">gamma", ">rounds", ">seeds", ">hold", *(f">{name}" for name in _BOUNDS))
    table = titled(title, "experiment", *numbers, "verdict")
    for row in rows:
        findings = row.checked.findings
        tightest = {finding.name: finding.tightest for finding in findings}
        held = sum(finding.verdict == "holds" for finding in findings)
        steps = (f"{row.proof.lr:.3g}", f"{row.proof.gamma:.3g}", f"{row.rounds:,}", str(len(row.records)))
        tight = ("-" if one is None else f"{one:.2g}" for one in map(tightest.get, _BOUNDS.values()))
        verdict = VERDICTS[row.checked.verdict]
        table.add_row(escape(row.experiment), *steps, f"{held} of {len(findings)}", *tight, verdict)
    out.show(table)
    out.print(
        "hold: of the lemma's four recursions, the descent of f, that of Phi, Theorem 4.1 (4.2), and where Phi is "
        "(4.3, 4.4), each at every round. The last numbers: a run in multiples of the theorem's bound, at most 1.",
        soft_wrap=True,
    )
    out.plain(f"Figures: {folder / 'figures'}\nTable:   {folder / 'theory.csv'}")


def _flat(row: RunRow) -> Iterator[dict[str, object]]:
    """A line for each finding."""
    for finding in row.checked.findings:
        yield {
            "experiment": row.experiment,
            "seeds": len(row.records),
            "lr": f"{row.proof.lr:.6g}",
            "gamma": f"{row.proof.gamma:.6g}",
            "inequality": finding.name,
            "rounds": finding.many,
            "tightest": "" if finding.tightest is None else f"{finding.tightest:.4g}",
            "above": finding.above,
            "verdict": finding.verdict,
        }
