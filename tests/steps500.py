"""The gradient norm that the steps of `gossamer.auto_steps` reach in 500 rounds, against the best of a 48-point grid.

A cell is a method, a problem, a graph with its weights, and a compressor. The run with auto's steps and those of the
grid go side by side, with full gradients in float64 and the same dither. Every method has the same budget: 12 values of
lr and 4 of gamma, or 48 values of lr over the same range. A norm is the mean over the last 20 rounds, at the average
model. Candidates whose clients drift apart do not count.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gossamer as gs
from gossamer.registry import methods
from gossamer.runtime.tuning.auto import gradients_and_smoothness
from gossamer.runtime.tuning.candidates import Candidates, disagreements, gradient_norms

ROUNDS = 500
LAST = 20  # rounds over which a norm is averaged
ALONE = 3 * ROUNDS  # auto goes on to here if it has not reached the target
CLIENTS = 10
GAMMAS = [1 / 3**j for j in range(4)]
FACTORS = [16 / 2**i for i in range(12)]  # of 1/L
MANY_FACTORS = [16 / 2 ** (11 * i / 47) for i in range(48)]  # for methods without gamma: the same range and budget
COMPRESSORS: dict[str, Any] = {
    "none": None,
    "gsgd:5": gs.gsgd(5),
    "top_k:10%": gs.top_k(fraction=0.1),
    "qsgd:16": gs.qsgd(16),
}
PROBLEMS = [
    "breast_cancer",
    "condition 10",
    "condition 1000",
    "sine_pl",
    "mushrooms-like",
    "w8a-like",
    "digits",
    "a9a",
]
NETWORKS = [("ring", "fdla"), ("ring", "metropolis"), ("star", "fdla")]


@dataclass(frozen=True)
class Cell:
    """What is run."""

    method: str
    problem: str
    graph: str
    weights: str
    compressor: str


@dataclass(frozen=True)
class Result:
    """What came out.

    `rounds` and `best_rounds` are the rounds to the target, which is 3 times the tuned norm, or 1/1000 of the norm at
    x0 where that is more; infinite where it was not reached.
    """

    lr: float
    gamma: float
    start: float
    norm: float
    best: float
    best_lr: float
    best_gamma: float
    rounds: float
    best_rounds: float
    diverged: bool

    @property
    def is_solved(self) -> bool:
        """Whether both norms are at most 1e-8, or 1e-8 of the norm at x0."""
        return max(self.norm, self.best) <= 1e-8 * max(1.0, self.start)

    @property
    def is_tiny(self) -> bool:
        """Whether both norms are at most 1/10,000 of the norm at x0."""
        return max(self.norm, self.best) <= 1e-4 * self.start

    @property
    def ratio(self) -> float:
        """Auto's norm over the best of the grid; 1 where both have solved the problem."""
        return 1.0 if self.is_solved else self.norm / self.best

    @property
    def rounds_ratio(self) -> float:
        """Rounds to the target, with auto's steps over those with the tuned steps."""
        return self.rounds / self.best_rounds

    def row(self, cell: Cell) -> dict[str, Any]:
        """As a line of a table."""
        derived = {"ratio": self.ratio, "rounds_ratio": self.rounds_ratio, "reason": self.reason}
        return asdict(cell) | asdict(self) | derived

    @property
    def reason(self) -> str:
        """Why the ratio is above 3, or 1 by definition; or what is wrong although it is not."""
        if self.diverged:
            return "the clients drift apart after the trials"
        if self.is_solved:
            return "both solved"
        if self.ratio <= 3:
            return ""
        if self.is_tiny:
            return "both below 1/10,000 of the norm at x0"
        return f"still falls: {self.rounds:.0f} rounds to the target, tuned {self.best_rounds:.0f}"


UNTUNED = {"all_reduce_adamw", "compressed_kgt", "diloco", "kgt"}
"""Not in the table: a step of AdamW is not measured in 1/L, and the others are meant for local steps."""


def every_cell() -> list[Cell]:
    """All of them; centralized SGD has one network, and GT-SAGA's tables of gradients are too large for some grids."""
    return [
        Cell(name, problem, graph, weights, compressor)
        for name, compressor in _variants()
        for problem in PROBLEMS
        for graph, weights in NETWORKS
        if (name, graph, weights) not in {("centralized_sgd", *network) for network in NETWORKS[1:]}
        if name != "gt_saga" or problem not in ("a9a", "digits", "w8a-like")
    ]


def _variants() -> Iterator[tuple[str, str]]:
    """Every registered method but these, with the compressors that it admits."""
    for name in sorted(set(methods.names()) - UNTUNED):
        cls: Any = methods.get(name)
        if "compressor" not in cls.__dataclass_fields__:
            yield name, "none"
        else:
            yield from (
                (name, one)
                for one in (["qsgd:16"] if cls.info.compressors.value == "unbiased" else ["gsgd:5", "top_k:10%"])
            )


def settings_of(name: str) -> dict[str, Any]:
    """PORTER's gradients are clipped so little that it can converge; the other methods keep their defaults."""
    return {"clip": 100.0} if name == "porter" else {}


@cache
def problem_of(name: str, data_dir: Path | None = None, device: str = "cpu") -> gs.Problem:
    """The problem of a cell; rows are sorted by label."""
    common: dict[str, Any] = {"clients": CLIENTS, "dtype": "float64", "device": device}
    if name in ("breast_cancer", "a9a"):
        return gs.logistic_regression(name, data_dir=data_dir, nonconvex=0.05, **common)
    if name == "digits":
        return gs.problems.softmax_regression("digits", **common)
    if name == "sine_pl":
        return gs.problems.sine_pl(**common)
    if name.startswith("condition"):
        return gs.quadratic(d=100, condition=float(name.split()[1]), **common)
    data = {"mushrooms-like": mushrooms_like, "w8a-like": w8a_like}[name]()
    return gs.logistic_regression(data, nonconvex=0.05, **common)


def mushrooms_like() -> tuple[np.ndarray, np.ndarray]:
    """Synthetic: 1,000 rows of 16 categories with 7 values each, one-hot (d = 112); 30% are of the second class."""
    random = np.random.default_rng(1)
    labels = (random.random(1000) < 0.3).astype(np.int64)
    features = np.zeros((1000, 16, 7))
    for category in range(16):
        first, other = random.dirichlet(np.full(7, 0.5), size=2)
        for label, chances in ((0, first), (1, (first + other) / 2)):
            rows = np.flatnonzero(labels == label)
            features[rows, category, random.choice(7, len(rows), p=chances)] = 1
    return features.reshape(1000, 112), labels


def w8a_like() -> tuple[np.ndarray, np.ndarray]:
    """Synthetic: 1,000 rows of 300 binary features, about 12 of them 1; 3% are of the second class."""
    random = np.random.default_rng(1)
    labels = (random.random(1000) < 0.03).astype(np.int64)
    chances = np.arange(1, 301) ** -0.7
    chances *= 12 / chances.sum()
    of_second = np.minimum(0.9, 2 * chances * np.exp(random.standard_normal(300)))
    features = random.random((1000, 300)) < np.where(labels[:, None] == 1, of_second, np.minimum(0.9, chances))
    return features.astype(np.float64), labels


@cache
def mixing_of(graph: str, weights: str) -> gs.MixingMatrix:
    """The network of a cell."""
    return gs.mixing_matrix(gs.ring(CLIENTS) if graph == "ring" else gs.topology.star(CLIENTS), weights)


def auto_of(cell: Cell, data_dir: Path | None = None, device: str = "cpu") -> Any:
    """The method with auto's steps."""
    problem, mixing = problem_of(cell.problem, data_dir, device), mixing_of(cell.graph, cell.weights)
    cls: Any = methods.get(cell.method)
    return gs.auto_steps(cls, problem, mixing, COMPRESSORS[cell.compressor], **settings_of(cell.method))


def measure(cell: Cell, data_dir: Path | None = None, device: str = "cpu") -> Result:
    """Run a cell."""
    method = auto_of(cell, data_dir, device)
    problem, mixing = problem_of(cell.problem, data_dir, device), mixing_of(cell.graph, cell.weights)
    L = gradients_and_smoothness(problem)[1]
    if hasattr(method, "gamma"):
        settings = [{"lr": method.lr, "gamma": method.gamma}]
        settings += [{"lr": factor / L, "gamma": gamma} for factor in FACTORS for gamma in GAMMAS]
    else:
        settings = [{"lr": method.lr}, *({"lr": factor / L} for factor in MANY_FACTORS)]
    sim = Candidates(method, problem, mixing, settings)
    start = gradient_norms(sim)[0].item()
    at: list[int] = []
    norms: list[list[float]] = []  # by evaluation, then by candidate
    halfway: dict[int, float] = {}
    with torch.no_grad():
        while sim.t < ROUNDS and sim.alive:
            sim.step()
            if sim.t == ROUNDS // 2:
                halfway = dict(zip(sim.alive, disagreements(sim), strict=True))
            if sim.t > 20 and sim.t % max(1, sim.t // 25) and sim.t <= ROUNDS - LAST:
                continue  # every round at first and at last, between them every 4 per cent
            row = [math.inf] * len(settings)
            for who, norm in zip(sim.alive, gradient_norms(sim).tolist(), strict=True):
                row[who] = norm
            at.append(sim.t)
            norms.append(row)
            lost = [place for place, who in enumerate(sim.alive) if not row[who] < 1e6 * start]
            if lost:
                sim.keep([place for place in range(len(sim.alive)) if place not in lost])
    ends = [row for t, row in zip(at, norms, strict=True) if t > ROUNDS - LAST]
    final = [sum(row[who] for row in ends) / LAST for who in range(len(settings))]
    parting = {
        who for who, now in zip(sim.alive, disagreements(sim), strict=True) if now > 6 * halfway.get(who, math.inf) > 0
    }
    diverged = 0 not in sim.alive or 0 in parting or final[0] > 2 * start
    winner = min((who for who in range(1, len(settings)) if who not in parting), key=lambda who: final[who])
    target = max(3 * final[winner], 1e-3 * start)
    rounds = [_for_good([row[who] for row in norms], at, target) for who in range(len(settings))]
    if math.isinf(rounds[0]) and not diverged:
        rounds[0] = _alone(sim, target)
    best = settings[winner]
    return Result(
        method.lr,
        getattr(method, "gamma", math.nan),
        start,
        final[0],
        final[winner],
        best["lr"],
        best.get("gamma", math.nan),
        rounds[0],
        rounds[winner],
        diverged,
    )


def _for_good(norms: list[float], at: list[int], target: float) -> float:
    """The round from which the norm stays at or below the target."""
    above = [place for place, norm in enumerate(norms) if not norm <= target]
    first = above[-1] + 1 if above else 0
    return at[first] if first < len(at) else math.inf


def _alone(sim: Candidates, target: float) -> float:
    """Go on with auto's candidate alone until it is there."""
    sim.keep([sim.alive.index(0)])
    with torch.no_grad():
        while sim.t < ALONE and sim.alive:
            sim.step()
            if sim.t % 10 == 0 and sim.alive and gradient_norms(sim)[0].item() <= target:
                return sim.t
    return math.inf


def row_of(job: tuple[Cell, Path | None, str]) -> dict[str, Any]:
    """A cell measured in a process of its own."""
    cell, data_dir, device = job
    torch.set_num_threads(1)
    return measure(cell, data_dir, device).row(cell)
