"""The reproduction of the paper: figures and rates are run, or read if they were run before, then drawn and judged."""

import contextlib
import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from gossamer._version import __version__
from gossamer.errors import DataError, InputError
from gossamer.files import write_csv, write_text
from gossamer.paper import figures
from gossamer.paper.claims import Judged, judge_all
from gossamer.paper.figures import FIGURES, Job
from gossamer.paper.rates.fit import Fit
from gossamer.paper.rates.studies import Study, studies
from gossamer.paper.results import Results
from gossamer.records.record import Record
from gossamer.records.typed import read_as, read_json
from gossamer.report import panels_figure, summarize
from gossamer.report.page.page import check_place

BOTH_WAYS = ("fig1", "fig4")
"""Figures in which it matters how the published runs departed from the text: `all` runs them both ways."""


@dataclass(frozen=True)
class Plan:
    """What to reproduce, and how.

    Args:
        what: Figures and `"rates"`.
        folder: Where everything goes; what it holds already is not run again.
        seeds: Of every experiment.
        published: As the published experiments were run, in place of what the text says.
        quick: A rehearsal: seconds per figure, on embedded data.
        rounds: The most rounds of a run.
        device: Where to compute.
    """

    what: Sequence[str]
    folder: Path
    seeds: Sequence[int] = (0, 1, 2)
    published: bool = False
    quick: bool = False
    rounds: int | None = None
    device: str | None = None

    @property
    def is_short(self) -> bool:
        """Whether nothing can be concluded."""
        return self.quick or self.rounds is not None

    def make_place(self) -> None:
        """Make the folder, if it is not there."""
        for folder in (self.folder, self.folder / "figures", self.folder / "rates"):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"The folder '{folder}' cannot be made: {error.strerror or error}.") from None

    def check_place(self) -> None:
        """Refuse a folder in which the results cannot go, before anything runs; make it if it is not there."""
        self.make_place()
        check_place(self.folder / "report.html", remedy="give another folder with -o, or remove it")
        claims = self.folder / "claims.json"
        fresh = json.dumps({"shortened": self.is_short, "claims": []})  # a run that is stopped keeps its folder
        if not claims.exists():
            write_text(claims, fresh)
            return
        try:
            content = read_json(claims)
            short, is_begun = content["shortened"], bool(content["claims"]) or any(self.folder.glob("figure*/*.jsonl"))
        except (DataError, TypeError, KeyError):
            raise InputError(
                f"'{claims}' was not written by Gossamer, or is damaged; give another folder with -o, or remove it."
            ) from None
        if short != self.is_short and not is_begun:
            write_text(claims, fresh)
        elif short != self.is_short:
            kinds = ("shortened runs", "runs in full")
            here, there = kinds if self.is_short else kinds[::-1]
            raise InputError(f"'{self.folder}' holds {there}; give {here} another folder with -o.")

    def jobs(self) -> dict[str, list[Job]]:
        """The experiments of each figure."""
        planned = {figure: self._jobs(figure, self.published) for figure in self.what if figure in FIGURES}
        if set(FIGURES) <= set(self.what):
            for figure in BOTH_WAYS:
                planned[figure] += self._jobs(figure, not self.published)
        return planned

    @property
    def rate_seeds(self) -> list[int]:
        """Six: intervals over three are wider than the differences between theories."""
        return list(range(2 if self.quick else 6))

    def studies(self) -> list[Study]:
        """The studies of rates, if they are wanted."""
        return studies(self.quick) if "rates" in self.what else []

    def everything(self) -> dict[str, list[Job]]:
        """Every experiment there is, by its picture: what an earlier call left is judged and drawn with the rest."""
        pictures: dict[str, list[Job]] = {}
        for figure in FIGURES:
            for published in (False, True):
                for job in self._jobs(figure, published):
                    kind = "-published" if published else "-tuned" if job.name.endswith("-tuned") else ""
                    pictures.setdefault(f"figure{figure[3:]}{kind}", []).append(job)
        return pictures

    def _jobs(self, figure: str, published: bool) -> list[Job]:
        made = figures.jobs(figure, self.seeds, published=published)
        if self.quick:
            made = [figures.rehearsal(job) for job in made]
        return made if self.rounds is None else [figures.shortened(job, self.rounds) for job in made]


@dataclass
class Reproduced:
    """What there is in the end."""

    judged: list[Judged]
    fits: list[Fit]
    pictures: list[Path] = field(default_factory=list)


def run_study(
    study: Study,
    plan: Plan,
    progress: Callable[[float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    on_start: Callable[[], None] | None = None,
) -> list[Fit]:
    """The fits of a study: kept under a fingerprint of its settings and seeds, and read if they are there."""
    path = _kept(study, plan)
    if (fits := _read_fits(path)) is None:
        if on_start is not None:
            on_start()
        fits = study.run(plan.rate_seeds, progress, should_stop)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps([asdict(fit) for fit in fits], indent=1) + "\n")
    return fits


def conclude(plan: Plan, command: str) -> Reproduced:
    """Draw every figure and judge every claim by the runs that are over, and write it down.

    Writes figures/*.png and *.pdf, runs.csv, claims.json, claims.csv, and rates.json and rates.csv if there are rates.
    """
    records: dict[str, list[Record]] = {}
    pictured: dict[str, tuple[str, list[Record]]] = {}
    for name, several in plan.everything().items():
        done = [(job, figures.seeds_done(job, plan.folder)) for job in several]
        there = [Job(job.name, replace(job.spec, seeds=seeds)) for job, seeds in done if seeds]
        records |= {job.name: figures.run(job, plan.folder) for job in there}
        if there:
            kind = (", as published" if name.endswith("-published") else "") + (" (rehearsal)" if plan.quick else "")
            title = there[0].spec.name if len(several) == 1 else FIGURES[f"fig{name[6]}"] + kind
            pictured[name] = (title, [record for job in there for record in records[job.name]])
    is_short = plan.is_short
    fits = [fit for study in studies(plan.quick) for fit in _read_fits(_kept(study, plan)) or []]
    judged = judge_all(Results(records, fits), too_short=is_short)
    (plan.folder / "figures").mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, (title, runs) in pictured.items():
        both = [plan.folder / "figures" / f"{name}{ending}" for ending in (".png", ".pdf")]
        panels_figure(runs, *both, title=title)
        pictures += both
    about = {
        "title": "The BEER paper, reproduced" + (" (a rehearsal)" if plan.quick else ""),
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": _versions(),
        "shortened": is_short,
    }
    rows = [asdict(one.row()) for one in judged]
    write_text(plan.folder / "claims.json", json.dumps(about | {"claims": rows}, indent=1, allow_nan=False) + "\n")
    for row in rows:
        row["values"] = " ".join("inf" if value is None else f"{value:.6g}" for value in row["values"])
    write_csv(plan.folder / "claims.csv", rows)
    write_csv(plan.folder / "runs.csv", [_run_row(job, record) for job, kept in records.items() for record in kept])
    if fits:
        fitted = [asdict(fit) | {"agrees": fit.agrees, "is_reached": fit.is_reached} for fit in fits]
        write_text(plan.folder / "rates.json", json.dumps(about | {"fits": fitted}, indent=1, allow_nan=False) + "\n")
        write_csv(plan.folder / "rates.csv", [{k: v for k, v in row.items() if k != "points"} for row in fitted])
    elif not any((plan.folder / "rates").glob("*.json")):  # a table without its fits would stay on the page
        with contextlib.suppress(DataError, TypeError, KeyError):
            if isinstance(read_json(plan.folder / "rates.json")["fits"], list):
                for name in ("rates.json", "rates.csv"):
                    (plan.folder / name).unlink(missing_ok=True)
    return Reproduced(judged, fits, pictures)


def _run_row(job: str, record: Record) -> dict[str, object]:
    """How one run ended; what is noisy is averaged over the last tenth of its evaluations."""
    last, *_ = summarize([record])
    header, mixing = record.header, record.header.mixing
    row: dict[str, object] = {"experiment": job, "method": record.label, "seed": record.seed}
    row |= {"clients": mixing and mixing.clients, "rho": mixing and mixing.rho}
    row |= {"lr": header.method.get("lr"), "gamma": header.method.get("gamma")}
    for name in ("round", "bits", "bits_nominal", "grad_norm", "loss", "accuracy", "worst_accuracy", "consensus"):
        row[name] = last.numbers[name]
    row |= {"seconds": last.numbers["seconds"], "device": header.device}
    row["diverged_in_round"] = record.end.round if record.end is not None and record.diverged else None
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}


def _kept(study: Study, plan: Plan) -> Path:
    settings = json.dumps([study.settings, plan.rate_seeds], sort_keys=True)
    return plan.folder / "rates" / f"{study.name}-{hashlib.sha256(settings.encode()).hexdigest()[:10]}.json"


def _read_fits(path: Path) -> list[Fit] | None:
    """The fits in a file; None if there are none that can be used."""
    try:
        fits = [read_as(Fit, row) for row in read_json(path)]
    except (DataError, TypeError):
        return None
    return fits if fits and len({(fit.what, fit.method) for fit in fits}) == len(fits) else None


def _versions() -> dict[str, str]:
    import matplotlib
    import numpy
    import torch

    libraries = {one.__name__: one.__version__ for one in (torch, numpy, matplotlib)}
    return {"gossamer": __version__, "python": platform.python_version()} | libraries
