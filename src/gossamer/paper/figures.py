"""The paper's figures as jobs: which specs each needs, and their records."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gossamer.errors import DataError, InputError
from gossamer.files import write_text
from gossamer.paper import shipped_spec
from gossamer.paper.published import as_published
from gossamer.records.record import Record, read_record, record_name
from gossamer.runtime.experiment import prepare
from gossamer.runtime.recorder import Progress
from gossamer.spec import Spec, Table, load_spec

FIGURES = {
    "fig1": "Figure 1: logistic regression, BEER against CHOCO-SGD, DSGD and D2",
    "fig2": "Figure 2: a network with one hidden layer, the same four methods",
    "fig3": "Figure 3: BEER on five graphs",
    "fig4": "Figure 4: BEER with three compressors",
    "fig5": "Figure 5: a convolutional network, BEER against CHOCO-SGD",
}
GRAPHS: dict[str, Table] = {
    "ring": {"name": "ring"},
    "star": {"name": "star"},
    "grid": {"name": "grid", "rows": 8, "cols": 5},
    "random, p = 0.2": {"name": "erdos_renyi", "p": 0.2, "seed": 0},
    "random, p = 0.5": {"name": "erdos_renyi", "p": 0.5, "seed": 0},
}
_REHEARSAL = 40  # rounds


@dataclass(frozen=True)
class Job:
    """One experiment: a spec under a name, such as `figure3-star`."""

    name: str
    spec: Spec

    @property
    def key(self) -> str:
        """A fingerprint of all that decides the result but the seeds, which have records of their own."""
        settings = {name: value for name, value in asdict(self.spec).items() if name not in ("text", "seeds", "name")}
        if not settings["measures"]:
            del settings["measures"]  # folders from before there were measures keep their names
        return hashlib.sha256(json.dumps(settings, sort_keys=True, default=repr).encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        """Where its records lie, inside the folder of all: no two experiments ever share one."""
        return f"{self.name}-{self.key}"

    @property
    def labels(self) -> dict[str, int]:
        """The methods' labels, and their rounds."""
        return {table["label"]: table.get("rounds", self.spec.rounds) for table in self.spec.methods}


def jobs(figure: str, seeds: Sequence[int], *, published: bool = False) -> list[Job]:
    """What a figure needs: by default as the paper's text says, else as its published experiments were run."""
    number = figure.removeprefix("fig")
    specs = {f"figure{number}": load_spec(shipped_spec(f"figure{number}"))}
    if figure == "fig3":
        specs = dict(_on_graphs(specs["figure3"]))
    if published:
        specs = {f"{name}-published": as_published(spec) for name, spec in specs.items()}
    elif figure == "fig4":
        # Beside top_10, at the same steps, the operator that was published under its name.
        text = specs["figure4"]
        (operator,) = (table for table in as_published(text).methods if table["label"] == "top_10")
        specs["figure4"] = replace(text, methods=[*text.methods, operator | {"label": "top_10 as published"}])
        specs["figure4-tuned"] = load_spec(shipped_spec("figure4_tuned"))
    return [Job(name, replace(spec, seeds=list(seeds))) for name, spec in specs.items()]


def _on_graphs(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Figure 3's spec on each of its graphs."""
    for label, graph in GRAPHS.items():
        name = "figure3-" + "".join(c for c in label.replace("random, ", "random") if c.isalnum())
        title = spec.name.replace("a ring of 40", f"{label}, 40 clients")
        table = spec.methods[0] | {"label": label}
        weights = {"weights": spec.graph["weights"]}
        yield name, replace(spec, name=title, graph=graph | weights, methods=[table])


def shortened(job: Job, rounds: int) -> Job:
    """The job with at most this many rounds."""
    tables = [
        table | ({"rounds": min(table["rounds"], rounds)} if "rounds" in table else {}) for table in job.spec.methods
    ]
    most = min(job.spec.rounds, rounds)
    every = None if job.spec.eval_every is None else min(job.spec.eval_every, max(1, most // 5))
    return Job(job.name, replace(job.spec, rounds=most, methods=tables, eval_every=every))


def rehearsal(job: Job) -> Job:
    """The job in seconds: few rounds, on data that comes with scikit-learn in place of a9a and MNIST."""
    problem = dict(job.spec.problem)
    problem["data"] = {"a9a": "breast_cancer", "mnist": "digits"}[problem["data"]]
    spec = replace(job.spec, name=f"{job.spec.name} (rehearsal on {problem['data']})", problem=problem, batch_size=8)
    return shortened(Job(job.name, spec), _REHEARSAL)


def run(
    job: Job,
    folder: Path,
    *,
    data_dir: str | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    on_start: Callable[[], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[Record]:
    """The records of a job: those that its folder holds already; the others are run, or resumed.

    `on_start` is called before data is read, if there is anything to run.
    """
    place = folder / job.folder
    missing = {
        label: left
        for label, rounds in job.labels.items()
        if (left := [seed for seed in job.spec.seeds if not _is_over(place, label, seed, rounds)])
    }
    if missing:
        if on_start is not None:
            on_start()
        place.mkdir(parents=True, exist_ok=True)
        copy = place / "spec.toml"
        if copy.exists() and not copy.is_file():  # a pipe would be waited for
            raise InputError(f"'{copy}' is no file; remove it.")
        write_text(copy, _text(job.spec))
        experiment = prepare(job.spec, data_dir=data_dir, device=device)
        for label, seeds in missing.items():
            for seed in seeds:
                _clear(place, label, seed)
            methods = {label: experiment.methods[label]}
            part = replace(experiment, spec=replace(job.spec, seeds=seeds), methods=methods)
            part.run(record_dir=place, progress=progress, resume=True, should_stop=should_stop)
    return [read_record(place / record_name(label, seed)) for label in job.labels for seed in job.spec.seeds]


def _clear(place: Path, label: str, seed: int) -> None:
    """Remove a record that is not one of this run under way: damaged, of something else, or over too early."""
    path = place / record_name(label, seed)
    try:
        record = read_record(path)
        is_ours = (record.label, record.seed) == (label, seed)
        is_under_way = is_ours and bool(record.header.identity and record.rows) and record.end is None
    except DataError:
        is_under_way = False
    if not is_under_way and not path.is_dir():
        path.unlink(missing_ok=True)


def seeds_done(job: Job, folder: Path) -> list[int]:
    """The seeds, the job's own or others, with which every method is through."""
    place = folder / job.folder
    found = [re.search(r"-seed(\d+)\.jsonl$", path.name) for path in place.glob("*.jsonl")]
    seeds = sorted({int(match[1]) for match in found if match})
    return [seed for seed in seeds if all(_is_over(place, label, seed, n) for label, n in job.labels.items())]


def is_done(job: Job, folder: Path) -> bool:
    """Whether every run of the job is over."""
    return set(job.spec.seeds) <= set(seeds_done(job, folder))


def _is_over(place: Path, label: str, seed: int, rounds: int) -> bool:
    """Whether a run came to its end; a file that is missing, cut off or damaged is not of such a run."""
    try:
        record = read_record(place / record_name(label, seed))
    except DataError:
        return False
    if record.end is None or not record.rows or (record.label, record.seed) != (label, seed):
        return False
    is_whole = bool(record.header.method and record.header.problem and record.header.mixing)
    is_counted = all(row.value(name) is not None for row in record.rows for name in ("bits", "bits_nominal"))
    return is_whole and is_counted and (record.diverged is not None or record.rows[-1].round == rounds)


def _text(spec: Spec) -> str:
    """A spec as TOML, to read or repeat it; values that TOML cannot express are comments."""

    def line(name: str, value: Any) -> str:
        plain = isinstance(value, str | int | float | list)
        return f"{name} = {json.dumps(value)}" if plain else f"# {name} = {value}"

    top = {name: getattr(spec, name) for name in ("name", "rounds", "seeds", "batch_size", "eval_every", "x0", "codec")}
    top |= {"measures": spec.measures} if spec.measures else {}
    lines = [line(name, value) for name, value in top.items() if value is not None]
    for heading, table in (("[problem]", spec.problem), ("[graph]", spec.graph)):
        lines += ["", heading, *(line(name, value) for name, value in table.items())]
    for table in spec.methods:
        lines += ["", "[[methods]]", *(line(name, value) for name, value in table.items())]
    return "\n".join(lines) + "\n"
