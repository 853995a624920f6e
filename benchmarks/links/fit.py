"""Fit the model of progress per round to the searches, and write it into the package.

    python benchmarks/links/fit.py            fit, print the errors, write src/gossamer/runtime/planning/progress.json
    python benchmarks/links/fit.py --dry      the same without writing

Rounds are relative to those of DDP in float32 on the same task, split and number of hosts. A contender that never came
to its target needs more rounds than were tried, and the more the farther it was: errors fall about as one over the root
of the rounds. Only a prediction below that counts as an error.
"""

import argparse
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
from scipy.optimize import least_squares

from benchmarks.links.contenders import CONTENDERS, Contender
from benchmarks.links.progress import mixing_of
from benchmarks.links.search import Row, read
from benchmarks.links.tasks import problem
from gossamer.files import write_text
from gossamer.registry import compressors
from gossamer.runtime.planning.progress import Differing, Model, family, terms
from gossamer.runtime.planning.ways import Way

SEARCHED = ROOT / "docs" / "results" / "links_search.jsonl"
WRITTEN = ROOT / "src" / "gossamer" / "runtime" / "planning" / "progress.json"
BASE = "DDP float32"
_PRIOR = {
    "slow mixing": 0.25
}  # an assumption: it stays where no search varies rho; the other coefficients are drawn towards 0
_PULL = 0.1  # how strongly, in the same units as errors of log rounds
_AT_START = {"hidden": 0.9, "cnn": 0.9, "million": 0.9}  # the error of a model that knows nothing of ten digits

Problem = tuple[str, str, int]


@dataclass(frozen=True)
class Seen:
    """A search, as the fit sees it."""

    where: Problem
    way: Way
    terms: dict[str, float]
    log: float
    """Of rounds relative to the baseline; where the target was never reached, of the fewest that are needed."""
    is_bound: bool


def way_of(contender: Contender) -> Way:
    """The same, as `gossamer.plan` has it."""
    return Way(**{one.name: getattr(contender, one.name) for one in fields(Way)})


def is_known(contender: Contender) -> bool:
    """Whether this version has the operator."""
    return contender.compressor.partition(":")[0] in compressors.names()


def differing(split: str) -> Differing:
    return "much" if split == "digit" else "little"


@cache
def dimension(task: str) -> int:
    return problem(task, "iid" if task == "language" else "dirichlet", 4).d


@cache
def rho(graph: str, hosts: int) -> float:
    return mixing_of(graph, hosts).rho


def rounds_of(row: Row) -> float | None:
    """The median over seeds; None if one of two never came to the target."""
    rounds = sorted(math.inf if one["rounds"] is None else one["rounds"] for one in row["final"])
    middle = rounds[len(rounds) // 2] if rounds else math.inf
    return None if math.isinf(middle) else middle


def seen(rows: Sequence[Row]) -> list[Seen]:
    base = {_where(row): rounds_of(row) for row in rows if row["contender"] == BASE}
    found = []
    for row in rows:
        contender, where = CONTENDERS.get(row["contender"]), _where(row)
        if contender is None or not is_known(contender) or base.get(where) is None or row["contender"] == BASE:
            continue
        if contender.method == "DSGD":  # which no plan recommends, and whose drift has other laws
            continue
        rounds, way = rounds_of(row), way_of(contender)
        known = terms(way, dimension(row["task"]), rho(row["graph"], row["hosts"]), differing(row["split"]))
        log = math.log((_least(row) if rounds is None else rounds) / base[where])  # type: ignore[operator]
        found.append(Seen(where, way, known, log, rounds is None))
    return found


def _least(row: Row) -> float:
    """The fewest rounds to a target that was never reached."""
    best = max(one["best"] for one in row["trials"])
    farther = max(1.0, (1 - best) / (1 - row["target"]))
    return float(CONTENDERS[row["contender"]].rounds * farther**2)


def fit(data: Sequence[Seen]) -> dict[str, float]:
    """The coefficients, none below 0."""
    names = list(dict.fromkeys(name for one in data for name in one.terms))
    matrix = np.array([[one.terms.get(name, 0.0) for name in names] for one in data])
    logs, bounds = np.array([one.log for one in data]), np.array([one.is_bound for one in data])
    prior = np.array([_PRIOR.get(name, 0.0) for name in names])

    def residuals(x: Any) -> Any:
        errors = matrix @ x - logs
        return np.concatenate([np.where(bounds, np.minimum(errors, 0.0), errors), _PULL * (x - prior)])

    start = np.full(len(names), 0.3)
    solved = least_squares(residuals, start, bounds=(0.0, np.inf), loss="soft_l1", f_scale=0.5)
    return {name: round(float(x), 4) for name, x in zip(names, solved.x, strict=True)}


def errors(data: Sequence[Seen], coefficients: dict[str, float]) -> list[float]:
    """Predicted less measured logarithms; 0 where a bound is kept."""
    found = [sum(coefficients.get(name, 0.0) * x for name, x in one.terms.items()) - one.log for one in data]
    return [min(error, 0.0) if one.is_bound else error for error, one in zip(found, data, strict=True)]


def left_out(data: Sequence[Seen]) -> dict[Problem, list[float]]:
    """The errors on each problem of a fit to all others."""
    places = dict.fromkeys(one.where for one in data)
    return {
        place: errors([one for one in data if one.where == place], fit([one for one in data if one.where != place]))
        for place in places
    }


def winners(rows: Sequence[Row]) -> dict[str, dict[str, float | str]]:
    """The steps that won most often, by family; of equally frequent ones the first."""
    votes: dict[str, Counter[str]] = {}
    for row in rows:
        contender = CONTENDERS.get(row["contender"])
        if contender is None or not is_known(contender) or row["setting"] is None:
            continue
        given, way = row["setting"], way_of(contender)
        outer, momentum = given.get("outer", (1.0, 0.0))
        kept = {"inner": given.get("inner", ""), "lr": given["lr"], "outer_lr": outer, "outer_momentum": momentum}
        kept |= {"gamma": given["gamma"]} if "gamma" in given else {}
        for name in (family(way, differing(row["split"])), family(way, None)):
            votes.setdefault(name, Counter())[json.dumps(kept)] += 1
    return {name: json.loads(one.most_common(1)[0][0]) for name, one in sorted(votes.items())}


def fold(rows: Sequence[Row]) -> float:
    """Steps of all-reduce per e-fold of the error: the geometric mean over image tasks."""
    found = []
    for row in rows:
        rounds = rounds_of(row)
        if row["contender"] == BASE and rounds is not None and row["task"] in _AT_START:
            found.append(rounds / math.log(_AT_START[row["task"]] / (1 - row["target"])))
    return round(statistics.geometric_mean(found), 1)


def _where(row: Row) -> Problem:
    return row["task"], row["split"], row["hosts"]


def _factor(logs: Sequence[float]) -> float:
    """The usual factor: e to the root of the mean square."""
    return math.exp(math.sqrt(statistics.fmean(one * one for one in logs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=Path, default=SEARCHED)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    given = parser.parse_args()
    rows = read(given.searches)
    data = seen(rows)
    coefficients, held_out = fit(data), left_out(data)
    for one, error in zip(data, errors(data, coefficients), strict=True):
        sign = ">" if one.is_bound else " "
        where, ratios = "/".join(map(str, one.where)), (math.exp(one.log), math.exp(one.log + error))
        print(f"{where:22} {one.way.name:48} {sign}{ratios[0]:6.2f} {ratios[1]:6.2f}")
    for name, x in coefficients.items():
        print(f"{name:34} {x:.3f}")
    print(f"usual factor of the fit: {_factor(errors(data, coefficients)):.2f}")
    for place, logs in held_out.items():
        print(
            f"usual factor where {'/'.join(map(str, place))} is left out: {_factor(logs):.2f} ({len(logs)} contenders)"
        )
    usual = _factor([one for logs in held_out.values() for one in logs])
    print(f"usual factor on a problem that is left out: {usual:.2f} ({len(data)} contenders, {len(held_out)} problems)")
    tasks = ", ".join(sorted({row["task"] for row in rows}))
    source = f"{len(data)} searches on {len(held_out)} problems (tasks: {tasks}) by benchmarks/links/fit.py"
    model = Model(source, coefficients, round(usual, 2), fold(rows), winners(rows))
    if not given.dry:
        write_text(WRITTEN, json.dumps(asdict(model), indent=1) + "\n")


if __name__ == "__main__":
    main()
