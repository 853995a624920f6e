"""The paper again: its figures and rates run, or read where they were run before, then drawn and judged."""

import csv
import hashlib
import io
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gossamer._version import __version__
from gossamer.errors import InputError
from gossamer.paper import figures
from gossamer.paper.claims import Judged, judge_all
from gossamer.paper.figures import FIGURES, Job
from gossamer.paper.rates.studies import Fit, Study, studies
from gossamer.paper.results import Results
from gossamer.records.record import Record
from gossamer.report import panels_figure, summarize
from gossamer.report.gather import number
from gossamer.report.page.page import check_place

BOTH_WAYS = ("fig1", "fig4")
"""Figures in which it matters how the published runs departed from the text: `all` runs them both ways."""


@dataclass(frozen=True)
class Plan:
    """What is to be reproduced, and how.

    Args:
        what: Figures and `"rates"`.
        folder: Where everything goes; what it holds already is not run again.
        seeds: Of every experiment.
        published: As the published experiments were run, in place of what the text says.
        quick: A rehearsal: seconds a figure, on embedded data.
        rounds: At most so many in every run.
        data_dir: Where data files lie.
        device: Where to compute.
    """

    what: Sequence[str]
    folder: Path
    seeds: Sequence[int] = (0, 1, 2)
    published: bool = False
    quick: bool = False
    rounds: int | None = None
    data_dir: str | None = None
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
        told = self.folder / "claims.json"
        fresh = json.dumps({"shortened": self.is_short, "claims": []})  # a run that is stopped keeps its folder
        if not told.exists():
            _write(told, fresh)
            return
        try:
            if not told.is_file():  # a pipe would be waited for
                raise ValueError
            content = json.loads(told.read_text(encoding="utf-8"))
            short, is_begun = content["shortened"], bool(content["claims"]) or any(self.folder.glob("figure*/*.jsonl"))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            raise InputError(
                f"'{told}' is not of Gossamer, or damaged; give another folder with -o, or remove it."
            ) from None
        if short != self.is_short and not is_begun:
            _write(told, fresh)
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
        """Six: intervals over three are wider than what they are to tell apart."""
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
        _write(path, json.dumps([asdict(fit) for fit in fits], indent=1))
    return fits


def conclude(plan: Plan, command: str) -> Reproduced:
    """Draw every figure and judge every claim by the runs that are over, and write it down.

    Writes figures/*.png and *.pdf, runs.csv, claims.json, claims.csv, and rates.json and rates.csv if there are rates.
    """
    records: dict[str, list[Record]] = {}
    pictured: dict[str, tuple[str, list[Record]]] = {}
    for name, several in plan.everything().items():
        seeds = [figures.seeds_done(job, plan.folder) for job in several]
        there = [
            Job(job.name, replace(job.spec, seeds=those)) for job, those in zip(several, seeds, strict=True) if those
        ]
        records |= {job.name: figures.run(job, plan.folder) for job in there}
        if there:
            kind = (", as published" if name.endswith("-published") else "") + (" (rehearsal)" if plan.quick else "")
            title = there[0].spec.name if len(several) == 1 else FIGURES[f"fig{name[6]}"] + kind
            pictured[name] = (title, [record for job in there for record in records[job.name]])
    is_short = plan.is_short
    fits = [fit for study in studies(plan.quick) for fit in _read_fits(_kept(study, plan)) or []]
    judged = judge_all(Results(records, fits), too_short=is_short)
    place = plan.folder / "figures"
    place.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, (title, runs) in pictured.items():
        for ending in (".png", ".pdf"):
            pictures.append(place / f"{name}{ending}")
            panels_figure(runs, pictures[-1], title)
    about = {
        "title": "The BEER paper, reproduced" + (" (a rehearsal)" if plan.quick else ""),
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": _versions(),
        "shortened": is_short,
    }
    rows = [one.row() for one in judged]
    _write(plan.folder / "claims.json", json.dumps(about | {"claims": rows}, indent=1, allow_nan=False))
    write_csv(plan.folder / "claims.csv", [row | {"values": _listed(row["values"])} for row in rows])
    write_csv(plan.folder / "runs.csv", [_run_row(job, record) for job, kept in records.items() for record in kept])
    if fits:
        told = [asdict(fit) | {"agrees": fit.agrees, "is_reached": fit.is_reached} for fit in fits]
        _write(plan.folder / "rates.json", json.dumps(about | {"fits": told}, indent=1, allow_nan=False))
        write_csv(plan.folder / "rates.csv", [{k: v for k, v in row.items() if k != "points"} for row in told])
    elif not any((plan.folder / "rates").glob("*.json")):
        _forget_rates(plan.folder)
    return Reproduced(judged, fits, pictures)


def _forget_rates(folder: Path) -> None:
    """Remove the table of rates whose fits are gone: the page would go on showing them."""
    if not (folder / "rates.json").is_file():  # a pipe would be waited for
        return
    try:
        is_ours = isinstance(json.loads((folder / "rates.json").read_text(encoding="utf-8"))["fits"], list)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return
    for name in ("rates.json", "rates.csv") if is_ours else ():
        (folder / name).unlink(missing_ok=True)


def _run_row(job: str, record: Record) -> dict[str, Any]:
    """How one run ended; what is noisy is averaged over the last tenth of its evaluations."""
    last, *_ = summarize([record])
    row: dict[str, Any] = {"experiment": job, "method": record.label, "seed": record.seed}
    row |= {name: record.header.get("mixing", {}).get(name) for name in ("clients", "rho")}
    row |= {"lr": record.header["method"].get("lr"), "gamma": record.header["method"].get("gamma")}
    for name in ("round", "bits", "bits_nominal", "grad_norm", "loss", "accuracy", "worst_accuracy", "consensus"):
        row[name] = last[name]
    row |= {"seconds": last["seconds"], "device": record.header.get("device")}
    row["diverged_in_round"] = record.end.get("round") if record.end and record.diverged else None
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}


def _listed(values: Sequence[float | None]) -> str:
    return " ".join("inf" if value is None else f"{value:.6g}" for value in values)


def _kept(study: Study, plan: Plan) -> Path:
    said = json.dumps([study.settings, plan.rate_seeds], sort_keys=True)
    return plan.folder / "rates" / f"{study.name}-{hashlib.sha256(said.encode()).hexdigest()[:10]}.json"


def _read_fits(path: Path) -> list[Fit] | None:
    """The fits in a file; None if there are none that can be used."""
    if not path.is_file():  # a pipe would be waited for
        return None
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        fits = [Fit(**row | {"points": [(float(x), float(y)) for x, y in row["points"]]}) for row in rows]
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    numbers = [value for fit in fits for value in (fit.slope, fit.low, fit.high, fit.theory)]
    numbers += [value for fit in fits for point in fit.points for value in point]
    words = [word for fit in fits for word in (fit.study, fit.what, fit.method, fit.x, fit.y, fit.note)]
    flags = [flag for fit in fits for flag in (fit.is_bound, fit.is_exponential)]
    whole = all(number(value) is not None for value in numbers) and all(isinstance(word, str) for word in words)
    if not fits or not whole or not all(isinstance(flag, bool) for flag in flags):
        return None
    return fits if len({(fit.what, fit.method) for fit in fits}) == len(fits) else None


def _versions() -> dict[str, str]:
    import matplotlib
    import numpy as np
    import torch

    python = platform.python_version()
    return {
        "gossamer": __version__,
        "python": python,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "matplotlib": matplotlib.__version__,
    }


def _write(path: Path, text: str) -> None:
    """The whole text, or what was there before."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text + "\n", encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A table of rows with the same columns."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["id"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _write(path, text.getvalue().rstrip("\n"))
