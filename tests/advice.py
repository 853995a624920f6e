"""How near to the best the settings of `suggest` are: small networks on real data, and a grid of gamma and lr."""

from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import networkx as nx
import pandas as pd
import torch
from torch import nn

import gossamer as gs
from gossamer.algorithms import CentralizedSGD
from gossamer.topology.graphs import build_graph

ROUNDS, BATCH = 200, 16
METHODS: dict[str, type[gs.Algorithm]] = {"BEER": gs.BEER, "CHOCO-SGD": gs.CHOCOSGD}
GRAPHS = {"ring": "ring:8", "grid": "grid:2,4", "random": {"name": "erdos_renyi", "clients": 8, "p": 0.4, "seed": 1}}
COMPRESSORS = {
    "default": None,
    "gsgd:5": "gsgd:5",
    "top_k:5%": "top_k:0.05",
    "rand_k:10%": "rand_k:0.1",
    "sign": "sign",
}
SPLITS = ("sorted", "iid")
GAMMAS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
LRS = (0.25, 0.5, 1.0, 2.0)  # times the best lr of one machine
LOCAL = {"SGD": (0.1, 0.2, 0.4, 0.8, 1.6), "AdamW": (1e-3, 3e-3, 1e-2, 3e-2)}
ONE_MACHINE = tuple(0.05 * 2**k for k in range(8))


@dataclass(frozen=True)
class Cell:
    method: str
    graph: str
    compressor: str
    split: str


@dataclass(frozen=True)
class Outcome:
    """Training losses after the same number of rounds; infinite if a run diverged."""

    gamma: float
    lr_scale: float
    loss: float
    best_gamma: float
    """The best on the grid at the suggested lr."""
    loss_at_best_gamma: float
    pair_gamma: float
    """gamma and the scale of lr that are the best on the whole grid."""
    pair_lr_scale: float
    loss_at_best_pair: float


def cells() -> list[Cell]:
    return [Cell(*one) for one in product(METHODS, GRAPHS, COMPRESSORS, SPLITS)]


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def problem_of(split: str) -> gs.Problem:
    return gs.module_problem(module(), "digits", clients=8, partition=split)


@cache
def mixing_of(graph: str) -> gs.MixingMatrix:
    return gs.mixing_matrix(build_graph(GRAPHS[graph]))


def loss_of(method: gs.Algorithm, split: str, mixing: gs.MixingMatrix) -> float:
    """The training loss of the average model at the end."""
    run = gs.simulate(method, problem_of(split), mixing, rounds=ROUNDS, batch_size=BATCH, eval_every=ROUNDS, seed=0)
    return float("inf") if run.record.diverged else float(run.final.loss)


@cache
def lr_of_one_machine() -> float:
    """The best of a grid, for SGD with a batch of the same size on all data: what a user would know."""
    alone = gs.module_problem(module(), "digits", clients=1, partition="iid")
    mixing = gs.mixing_matrix(nx.empty_graph(1))
    losses: dict[float, float] = {}
    for lr in ONE_MACHINE:
        run = gs.simulate(CentralizedSGD(lr=lr), alone, mixing, rounds=ROUNDS, batch_size=BATCH, eval_every=ROUNDS)
        losses[lr] = float("inf") if run.record.diverged else float(run.final.loss)
    return min(losses, key=losses.__getitem__)


def measure(cell: Cell) -> Outcome:
    kind, mixing, lr = METHODS[cell.method], mixing_of(cell.graph), lr_of_one_machine()
    advice = gs.suggest(module(), kind, mixing, COMPRESSORS[cell.compressor], lr=lr)
    assert advice.gamma is not None

    def loss(gamma: float, scale: float) -> float:
        return loss_of(replace(advice.method, lr=lr * scale, gamma=gamma), cell.split, mixing)  # type: ignore[type-var]

    found = {(gamma, scale): loss(gamma, scale) for gamma in GAMMAS for scale in LRS}
    along = {gamma: loss(gamma, advice.lr_scale) for gamma in GAMMAS}
    best, pair = min(along, key=along.__getitem__), min(found, key=found.__getitem__)
    own = loss_of(advice.method, cell.split, mixing)
    return Outcome(advice.gamma, advice.lr_scale, own, best, along[best], *pair, found[pair])


def write(table: Path) -> None:
    """Measure all cells, or those that are missing in the table."""
    rows: list[dict[Any, Any]] = pd.read_csv(table).to_dict("records") if table.exists() else []
    done = {tuple(row[one.name] for one in fields(Cell)) for row in rows}
    for cell in cells():
        if astuple(cell) not in done:
            outcome = {name: float(f"{value:.4g}") for name, value in asdict(measure(cell)).items()}
            rows.append(asdict(cell) | outcome)
            pd.DataFrame(rows).to_csv(table, index=False)


def write_local(table: Path) -> None:
    """The training loss after 400 local steps, ten per round, at several scales of the best lr of one machine."""
    rows, steps, rounds, mixing = [], 10, 40, mixing_of("ring")
    alone = gs.module_problem(module(), "digits", clients=1, partition="iid")
    for optimizer, lrs in LOCAL.items():

        def loss(method: gs.Algorithm, problem: gs.Problem, mixing: gs.MixingMatrix, lr: float, name: str) -> float:
            local = gs.LocalSteps(name, steps=steps, lr=lr)
            how: Any = {"rounds": rounds, "batch_size": BATCH, "eval_every": rounds, "local": local}
            run = gs.simulate(method, problem, mixing, **how)
            return float("inf") if run.record.diverged else float(run.final.loss)

        one = gs.mixing_matrix(nx.empty_graph(1))
        losses = {lr: loss(CentralizedSGD(lr=1.0), alone, one, lr, optimizer) for lr in lrs}
        best = min(losses, key=losses.__getitem__)
        for split, method, compressor in product(SPLITS, METHODS, ("default", "top_k:5%")):
            found = gs.suggest(module(), METHODS[method], mixing, COMPRESSORS[compressor], local=steps)
            row: dict[str, Any] = {"optimizer": optimizer, "split": split, "method": method, "compressor": compressor}
            for scale in (0.25, 0.5, 1.0, 2.0):
                row[f"x{scale:g}"] = float(
                    f"{loss(found.method, problem_of(split), mixing, best * scale, optimizer):.4g}"
                )
            rows.append(row)
    pd.DataFrame(rows).to_csv(table, index=False)
