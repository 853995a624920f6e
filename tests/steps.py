"""How far the steps of the formula of `gossamer.auto_steps` are from the best of a 20-point tuning, cell by cell.

A cell is a method, a problem, a graph and a compressor. The run with auto's steps and the 20 of the grid go side by
side, on the same minibatches and the same dither, until auto has reached the target and as many rounds again, at least
400 in all (so that a candidate which gets there and then diverges does not count), or to a limit; if some candidate got
there and auto did not, auto goes on alone. The target is a tenth of the gradient norm at x0; for CHOCO-SGD, which stops
at a floor, twice the floor of auto's own run.
"""

import math
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import gossamer as gs
from gossamer import algorithms as al
from gossamer.runtime.tuning.auto import gradients_and_smoothness
from gossamer.runtime.tuning.candidates import Candidates, gradient_norms

# 2/L is where gradient descent itself becomes unstable; from there down by factors of 4, and gamma by factors of 3.
GRID = [(2 / 4**i, 1 / 3**j) for i in range(5) for j in range(4)]
METHODS: dict[str, Any] = {"BEER": gs.BEER, "CHOCO-SGD": gs.CHOCOSGD, "MoTEF": al.MoTEF, "C-GT": al.CGT}
COMPRESSORS = {
    "gsgd:2": gs.gsgd(2),
    "gsgd:5": gs.gsgd(5),
    "top_k:1%": gs.top_k(fraction=0.01),
    "top_k:5%": gs.top_k(fraction=0.05),
    "top_k:10%": gs.top_k(fraction=0.1),
}
PROBLEMS = ["a9a", "condition 1", "condition 10", "condition 100", "condition 1000"]
GRAPHS = ["ring", "grid", "erdos_renyi"]


@dataclass(frozen=True)
class Cell:
    """What is run."""

    method: str
    problem: str
    clients: int
    graph: str
    compressor: str


@dataclass(frozen=True)
class Result:
    """What came out; rounds are infinite where a target was not reached within the limit."""

    lr: float
    gamma: float
    start: float
    floor: float
    rounds: float
    best: float
    best_lr: float
    best_gamma: float
    diverged: bool
    limit: int

    @property
    def ratio(self) -> float:
        """Rounds with auto's steps over rounds with the best of the grid; NaN where neither got there."""
        return math.nan if math.isinf(self.best) and math.isinf(self.rounds) else self.rounds / self.best

    def row(self, cell: Cell) -> dict[str, Any]:
        """As a line of a table."""
        return asdict(cell) | asdict(self) | {"ratio": self.ratio}


def every_cell() -> list[Cell]:
    """600 of them."""
    return [
        Cell(m, p, n, g, c) for m in METHODS for p in PROBLEMS for n in (10, 40) for g in GRAPHS for c in COMPRESSORS
    ]


@cache
def problem_of(name: str, clients: int, data_dir: Path | None, device: str) -> gs.Problem:
    """The problem of a cell; MNIST's network stands beside the matrix."""
    if name == "a9a":
        return gs.logistic_regression("a9a", clients=clients, data_dir=data_dir, device=device)
    if name == "mnist":
        return gs.problems.one_hidden_layer("mnist", clients=clients, data_dir=data_dir, device=device)
    return gs.quadratic(clients=clients, d=100, condition=float(name.split()[1]), device=device)


@cache
def mixing_of(graph: str, clients: int) -> gs.MixingMatrix:
    """Metropolis weights on a ring, on a grid of 2 x 5 or 5 x 8, or on a random graph."""
    made = {
        "ring": lambda: gs.ring(clients),
        "grid": lambda: gs.topology.grid(2, 5) if clients == 10 else gs.topology.grid(5, 8),
        "erdos_renyi": lambda: gs.topology.erdos_renyi(clients, 0.5 if clients == 10 else 0.2, seed=1),
    }
    return gs.mixing_matrix(made[graph](), "metropolis")


def measure(
    cell: Cell,
    data_dir: Path | None = None,
    device: str = "cpu",
    limit: int | None = None,
    batch_size: int | None = None,
    share: float = 0.1,
) -> Result:
    """Run a cell; by default at most 3,000 rounds, and on a9a 10,000."""
    problem, mixing = problem_of(cell.problem, cell.clients, data_dir, device), mixing_of(cell.graph, cell.clients)
    method = gs.auto_steps(METHODS[cell.method], problem, mixing, COMPRESSORS[cell.compressor], rounds=0)
    L = gradients_and_smoothness(problem)[1]
    is_choco = cell.method == "CHOCO-SGD"
    is_a9a = cell.problem == "a9a"
    limit = limit or ((1_000 if is_a9a else 2_000) if is_choco else 10_000 if is_a9a else 3_000)
    settings = [{"lr": method.lr, "gamma": method.gamma}, *({"lr": c / L, "gamma": gamma} for c, gamma in GRID)]
    sim = Candidates(method, problem, mixing, settings, batch_size=batch_size)
    start = gradient_norms(sim)[0].item()
    at: list[int] = []
    norms: list[list[float]] = []  # by evaluation, then by candidate
    target, window = share * start, limit
    with torch.no_grad():
        while sim.t < window and sim.alive:
            sim.step()
            if sim.t > 20 and sim.t % max(1, sim.t // 25) and sim.t < window:
                continue  # every round at first, then every 4 per cent
            row = [math.inf] * len(settings)
            for who, norm in zip(sim.alive, gradient_norms(sim).tolist(), strict=True):
                row[who] = norm
            at.append(sim.t)
            norms.append(row)
            lost = [place for place, who in enumerate(sim.alive) if not row[who] < 1e6 * start]
            if lost:
                sim.keep([place for place in range(len(sim.alive)) if place not in lost])
            if not is_choco and window == limit and row[0] <= target:
                window = min(limit, max(2 * sim.t, 400))
    tail = [row[0] for t, row in zip(at, norms, strict=True) if t >= 0.8 * at[-1]]
    floor = sum(tail) / len(tail)
    target = 2 * floor if is_choco else target
    rounds = [_for_good([row[who] for row in norms], at, target) for who in range(len(settings))]
    winner = min(range(1, len(settings)), key=lambda who: rounds[who])
    diverged = not (norms[-1][0] < 2 * start and 0 in sim.alive)
    if not diverged and math.isinf(rounds[0]) and not math.isinf(rounds[winner]):
        rounds[0] = _alone(sim, target, 5 * limit)  # the best is known; how long does auto take?
    best = settings[winner]
    return Result(
        method.lr, method.gamma, start, floor, rounds[0], rounds[winner], best["lr"], best["gamma"], diverged, limit
    )


def _alone(sim: Candidates, target: float, limit: int) -> float:
    """Go on with auto's candidate alone until it is there."""
    sim.keep([sim.alive.index(0)])
    with torch.no_grad():
        while sim.t < limit and sim.alive:
            sim.step()
            if sim.t % 50 == 0 and sim.alive and gradient_norms(sim)[0].item() <= target:
                return sim.t
    return math.inf


def row_of(job: tuple[Cell, str, Path | None]) -> dict[str, Any]:
    """A cell measured in a process of its own; MNIST's network with minibatches of 100, to half the norm at x0."""
    cell, device, data_dir = job
    torch.set_num_threads(1)
    more: dict[str, Any] = {"limit": 1_000, "batch_size": 100, "share": 0.5} if cell.problem == "mnist" else {}
    return measure(cell, data_dir, device, **more).row(cell)


def _for_good(norms: list[float], at: list[int], target: float) -> float:
    """The round from which the norm stays at or below the target."""
    above = [place for place, norm in enumerate(norms) if not norm <= target]
    first = above[-1] + 1 if above else 0
    return at[first] if first < len(at) else math.inf
