"""Check runs against the proof: `gossamer theory --check` and `gossamer reproduce theory`."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from gossamer.cli.commands.data import downloads
from gossamer.cli.lines import complain, note, results, stop_signals
from gossamer.cli.output import VERDICTS, bars, check_picture, console, resume_news, waiting
from gossamer.errors import GossamerError, InputError, StoppedError, check_integer
from gossamer.files import alone_in, write_csv
from gossamer.paper import figures, proofs
from gossamer.paper.omegas import check_records, proof_of
from gossamer.records.record import Record, record_name
from gossamer.report import proof_figure
from gossamer.report.gather import Group, gather
from gossamer.theory import Checked, Finding
from gossamer.theory.verdict import Verdict

_BOUNDS = {"4.1": "Theorem 4.1, 4.2", "4.3": "Theorem 4.3, 4.4"}


@dataclass(frozen=True)
class RunRow:
    """A run with its findings, for JSON and tables."""

    experiment: str
    label: str
    seeds: list[int]
    verdict: Verdict
    rounds: int
    lr: float | None
    gamma: float
    certified: bool
    figure: str
    findings: list[Finding]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        names = ("name", "says", "verdict", "why", "above", "tightest")
        findings = [{name: getattr(one, name) for name in names} | {"rounds": one.many} for one in self.findings]
        return vars(self) | {"findings": findings}


def check(options: argparse.Namespace) -> int:
    """`gossamer theory --check RUN`: exit code 1 if an inequality of the proof does not hold."""
    for name in ("graph", "clients", "weights", "compressor", "problem", "epsilon", "data_dir"):
        if getattr(options, name) is not None:
            raise InputError(f"--check takes everything from the record; leave --{name.replace('_', '-')} out.")
    source = Path(options.check)
    if options.output is not None:
        check_picture(options.output)
    with waiting(f"Reading {source}", options.json):
        found = gather(source)
    for sentence in found.left_out:
        note(f"gossamer: {sentence}")
    runs = list(_runs(found.groups))
    if options.output is not None and len(runs) > 1:
        raise InputError(
            f"'{source}' holds {len(runs)} runs, and -o names one picture; give one record, or leave it out."
        )
    rows, refused = [], []
    for group, records in runs:
        try:
            with waiting(f"Checking {records[0].label}", options.json):
                checked = check_records(records)
                picture = Path(options.output) if options.output else _picture(group, records[0])
                proof_figure(checked, picture, f"{group.name}: {records[0].label}")
        except GossamerError as error:
            refused.append(str(error))
            continue
        rows.append(_row(group, records, checked, picture))
        if not options.json:
            with results():
                _show(group, records, checked, picture)
    for sentence in refused:
        note(f"gossamer: {sentence}")
    if not rows:
        return complain(f"Nothing in '{source}' could be checked against the proof.", 2)
    if options.json:
        with results():
            print(json.dumps([row.as_dict() for row in rows], indent=2, allow_nan=False))
    return int(any(row.verdict == "does not hold" for row in rows))


def prove(options: argparse.Namespace) -> int:
    """`gossamer reproduce theory`: BEER with certified steps on several problems, each inequality at every round."""
    for name in ("as_published", "rounds"):
        if getattr(options, name):
            raise InputError(f"theory takes no --{name.replace('_', '-')}; leave it out.")
    seeds = proofs.SEEDS if options.seeds is None else check_integer("seeds", options.seeds, 5, 1000)
    folder = Path(options.output or ("rehearsed-proofs" if options.quick else "proofs"))
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"The folder '{folder}' cannot be made: {error.strerror or error}.") from None
    jobs = proofs.rehearsals(seeds) if options.quick else proofs.jobs(seeds)
    rows = []
    with (
        alone_in(folder),
        resume_news(options.quiet),
        stop_signals() as should_stop,
        bars(options.quiet) as bar,
        downloads(options.quiet),
    ):
        steps = [(job, *bar(job.spec.name, job.spec.rounds)) for job in jobs]
        for job, show, begin in steps:
            try:
                records = figures.run(
                    job,
                    folder,
                    data_dir=options.data_dir,
                    device=options.device,
                    progress=lambda _label, t, show=show: show(t),  # type: ignore[misc]
                    on_start=begin,
                    should_stop=should_stop,
                )
            except StoppedError as error:
                raise StoppedError(f"{error} Repeat the command to continue.") from None
            show(job.spec.rounds)
            checked = check_records(records)
            picture = folder / "figures" / f"{job.name}.png"
            proof_figure(checked, picture, job.spec.name)
            rows.append(_row(Group(job.spec.name, folder, records, []), records, checked, picture))
        write_csv(folder / "theory.csv", [row for one in rows for row in _flat(one)])
    with results():
        if options.json:
            print(json.dumps([row.as_dict() for row in rows], indent=2, allow_nan=False))
        else:
            _show_all(rows, folder, options.quick)
    failed = [row.experiment for row in rows if row.verdict == "does not hold"]
    return complain(f"The proof is broken in {'; '.join(failed)}.", 1) if failed else 0


def _show_all(rows: list[RunRow], folder: Path, quick: bool) -> None:
    out = console()
    title = "BEER with certified steps against its proof" + (": a rehearsal, few rounds and seeds" if quick else "")
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("experiment", "lr", "gamma", "rounds", "seeds", "hold", *_BOUNDS, "verdict"):
        table.add_column(heading, justify="left" if heading in ("experiment", "verdict") else "right")
    for row in rows:
        tightest = {finding.name: finding.tightest for finding in row.findings}
        held = sum(finding.verdict == "holds" for finding in row.findings)
        tight = [tightest.get(name) for name in _BOUNDS.values()]
        table.add_row(
            escape(row.experiment),
            f"{row.lr:.3g}",
            f"{row.gamma:.3g}",
            f"{row.rounds:,}",
            str(len(row.seeds)),
            f"{held} of {len(row.findings)}",
            *("-" if one is None else f"{one:.2g}" for one in tight),
            VERDICTS[row.verdict],
        )
    out.show(table)
    out.print(
        "hold: of the lemma's four recursions, the descent of f, that of Phi, Theorem 4.1 (4.2), and where Phi is "
        "(4.3, 4.4), each at every round. The last numbers: a run in multiples of the theorem's bound, at most 1.",
        soft_wrap=True,
    )
    lines = [f"Figures: {folder / 'figures'}", f"Table:   {folder / 'theory.csv'}"]
    out.print("\n".join(map(escape, lines)), highlight=False, soft_wrap=True)


def _runs(groups: list[Group]) -> Iterator[tuple[Group, list[Record]]]:
    """The records of each method of each experiment."""
    for group in groups:
        for label in dict.fromkeys(record.label for record in group.records):
            yield group, [record for record in group.records if record.label == label]


def _picture(group: Group, record: Record) -> Path:
    return group.folder / f"{Path(record_name(record.label, 0)).stem.rsplit('-seed', 1)[0]}-proof.png"


def _row(group: Group, records: list[Record], checked: Checked, picture: Path) -> RunRow:
    proof = proof_of(records[0])
    return RunRow(
        group.name,
        records[0].label,
        [record.seed for record in records],
        checked.verdict,
        max(record.rows[-1].round for record in records),
        proof.lr,
        proof.gamma,
        checked.certificate is not None,
        str(picture),
        checked.findings,
    )


def _flat(row: RunRow) -> Iterator[dict[str, object]]:
    """A line for each finding."""
    for finding in row.findings:
        yield {
            "experiment": row.experiment,
            "seeds": len(row.seeds),
            "lr": f"{row.lr:.6g}",
            "gamma": f"{row.gamma:.6g}",
            "inequality": finding.name,
            "rounds": finding.many,
            "tightest": "" if finding.tightest is None else f"{finding.tightest:.4g}",
            "above": finding.above,
            "verdict": finding.verdict,
        }


def _show(group: Group, records: list[Record], checked: Checked, picture: Path) -> None:
    out, certificate = console(), checked.certificate
    title = f"{group.name}: {records[0].label}, {len(records)} {'seed' if len(records) == 1 else 'seeds'}"
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for heading in ("", "at every round", "rounds", "tightest", "verdict"):
        table.add_column(heading, justify="right" if heading in ("rounds", "tightest") else "left")
    for finding in checked.findings:
        many = f"{finding.many:,}" if finding.many else ""
        tightest = "" if finding.tightest is None else f"{finding.tightest:.3g}"
        above = f" (mean above in {finding.above:,})" if finding.above and finding.verdict == "holds" else ""
        table.add_row(finding.name, escape(finding.says), many, tightest, VERDICTS[finding.verdict] + above)
    out.show(table)
    reasons: dict[str, list[str]] = {}
    for finding in checked.findings:
        if finding.why:
            reasons.setdefault(finding.why, []).append(finding.name)
    for why, names in reasons.items():
        out.print(escape(f"{'; '.join(names)}: {why}"), highlight=False, soft_wrap=True)
    if certificate is not None:
        kind = "4.1" if certificate.mu is None else "4.1 and 4.3"
        out.print(
            f"The steps are certified for Theorem {kind}: lr {certificate.lr:.4g}, gamma {certificate.gamma:.4g}, with "
            f"n s = {', '.join(f'{weight:.3g}' for weight in certificate.weights)}.",
            highlight=False,
            soft_wrap=True,
        )
    out.print(f"Verdict: {VERDICTS[checked.verdict]}. Figure: {escape(str(picture))}", highlight=False, soft_wrap=True)
