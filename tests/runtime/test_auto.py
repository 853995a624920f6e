"""Steps without tuning: they converge, and the formula is not far from the best.

What trials add to the formula is in test_auto500.py.
"""

import multiprocessing
import os
import statistics
import zlib
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import steps
import torch
from steps import METHODS, Cell, Result, every_cell, measure, mixing_of, problem_of, row_of

import gossamer as gs
from gossamer import algorithms as al
from gossamer import registry
from gossamer.runtime.tuning.auto import mixed_share
from gossamer.theory import practical_steps
from gossamer.topology.graphs import build_graph

TWELVE = [
    Cell("BEER", "a9a", 10, "erdos_renyi", "gsgd:5"),
    Cell("BEER", "condition 1", 40, "ring", "top_k:1%"),
    Cell("BEER", "condition 10", 40, "ring", "top_k:5%"),
    Cell("BEER", "condition 1000", 40, "erdos_renyi", "top_k:1%"),
    Cell("C-GT", "a9a", 10, "ring", "gsgd:5"),
    Cell("C-GT", "condition 100", 10, "grid", "top_k:10%"),
    Cell("C-GT", "condition 1000", 40, "ring", "gsgd:2"),
    Cell("CHOCO-SGD", "condition 10", 10, "ring", "gsgd:5"),
    Cell("CHOCO-SGD", "condition 1000", 40, "grid", "top_k:10%"),
    Cell("MoTEF", "a9a", 40, "erdos_renyi", "gsgd:5"),
    Cell("MoTEF", "condition 10", 10, "grid", "top_k:1%"),
    Cell("MoTEF", "condition 100", 40, "erdos_renyi", "gsgd:2"),
]
TABLE = Path(__file__).parents[2] / "docs" / "results" / "auto.csv"


def check(results: list[Result]) -> str:
    ratios = [result.ratio for result in results if result.ratio == result.ratio]
    assert not any(result.diverged for result in results)
    assert statistics.median(ratios) <= 3
    assert max(ratios) <= 10
    return f"{len(results)} cells, of {len(ratios)} median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}"


@pytest.mark.long
def test_twelve_cells_are_near_the_best_of_a_tuning(data_dir: Path) -> None:
    print(check([measure(cell, data_dir) for cell in TWELVE]))  # shown by pytest -rP


@pytest.mark.long
@pytest.mark.timeout(0)
def test_the_whole_matrix(data_dir: Path) -> None:
    """Writes docs/results/auto.csv, or goes on where it stopped; with a GPU, a9a and MNIST run there.

    AUTO_CELLS=a9a,mnist picks some problems.
    """
    wanted = os.environ.get("AUTO_CELLS", "a9a,condition,mnist").split(",")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mnist = [
        Cell(method, "mnist", 10, "ring", compressor)
        for method in ("BEER", "CHOCO-SGD", "MoTEF", "C-GT")
        for compressor in ("gsgd:5",)
    ]
    cells = [cell for cell in every_cell() + mnist if cell.problem.split()[0] in wanted]
    cells.sort(key=lambda cell: (cell.method == "CHOCO-SGD", -cell.clients, cell.graph != "ring"))  # the longest first
    on_device = [cell for cell in cells if cell.problem in ("a9a", "mnist")]
    jobs: list[tuple[Cell, str, Path | None]] = [(cell, device, data_dir) for cell in on_device]
    jobs += [(cell, "cpu", None) for cell in cells if cell not in on_device]
    out = Path(os.environ.get("AUTO_TABLE", TABLE))
    out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = pd.read_csv(out).to_dict("records") if out.exists() else []  # type: ignore[assignment]
    there = {tuple(row[name] for name in Cell.__dataclass_fields__) for row in rows}
    jobs = [job for job in jobs if astuple(job[0]) not in there]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for row in pool.imap_unordered(row_of, jobs):
            rows.append(row)
            order = ["method", "problem", "clients", "graph", "compressor"]
            pd.DataFrame(rows).sort_values(order).to_csv(out, index=False, float_format="%.4g")
    matrix = [row for row in rows if row["problem"] != "mnist"]
    fields = Result.__dataclass_fields__
    print(check([Result(**{name: row[name] for name in fields}) for row in matrix]))


def test_the_committed_table_holds_what_is_claimed() -> None:
    table = pd.read_csv(TABLE)
    matrix = table[table.problem != "mnist"]
    assert len(matrix) == len(every_cell())
    assert not matrix.diverged.any()
    for _, of_method in matrix.groupby("method"):
        assert of_method.ratio.median() <= 3
        assert of_method.ratio.max() <= 10
    quadratics: Any = matrix[matrix.problem != "a9a"]
    for row in quadratics.itertuples():  # the rule has not changed since; its measured alpha depends on the draws by 2%
        problem, mixing = problem_of(row.problem, row.clients, None, "cpu"), mixing_of(row.graph, row.clients)
        method = gs.auto_steps(METHODS[row.method], problem, mixing, steps.COMPRESSORS[row.compressor], rounds=0)
        assert method.lr == pytest.approx(row.lr, rel=0.02)
        assert method.gamma == pytest.approx(row.gamma, rel=0.02)


COMPRESSORS = [
    gs.gsgd(2),
    gs.top_k(fraction=0.05),
    gs.rand_k(fraction=0.1),
    gs.compression.sign(),
    gs.qsgd(2),
    gs.rand_k(fraction=0.2, unbiased=True),
]
GRAPHS = ["ring", "star", "barbell", "complete", "erdos_renyi:0.5"]


def problems() -> dict[str, gs.Problem]:
    module = torch.nn.Sequential(torch.nn.Linear(30, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    return {
        "quadratic": gs.quadratic(clients=8, d=30, condition=100),
        "logistic": gs.logistic_regression("breast_cancer", clients=8),
        "squares": gs.problems.least_squares("breast_cancer", clients=8),
        "softmax": gs.problems.softmax_regression("gaussian_mixture:rows=400,features=8,classes=4", clients=8),
        "sine": gs.problems.sine_pl(clients=8),
        "module": gs.module_problem(module, "breast_cancer", clients=8),
    }


def admits(cls: Any, compressor: gs.Compressor, d: int) -> bool:
    omega = compressor.omega(d)
    contracts, unbiased = omega is None or omega < 1, omega is not None
    return {"contractive": contracts, "unbiased": unbiased, "any": True}[cls.info.compressors.value]


@pytest.mark.parametrize("name", registry.methods.names())
def test_auto_is_stable_with_weights_that_swing(name: str) -> None:
    """FDLA weights have eigenvalues close to -1."""
    cls: Any = registry.methods.get(name)
    compressor = gs.qsgd(16) if "compressor" in cls.__dataclass_fields__ else None
    problem = gs.quadratic(clients=10, dtype="float64")
    for mixing in (gs.mixing_matrix(gs.ring(10), "fdla"), gs.mixing_matrix(gs.topology.star(10), "fdla")):
        assert mixing.lambda_min < -0.6
        run = gs.simulate(gs.auto_steps(cls, problem, mixing, compressor), problem, mixing, rounds=600, eval_every=20)
        assert run.diverged is None
        assert run.frame.grad_norm.iloc[-1] < 0.5 * run.frame.grad_norm.iloc[0]
        assert run.frame.consensus.iloc[-1] < 10 * run.frame.consensus.iloc[1:15].max()


@pytest.mark.parametrize(
    "one_in", [pytest.param(12, marks=pytest.mark.slow, id="some"), pytest.param(1, marks=pytest.mark.long, id="all")]
)
@pytest.mark.parametrize("name", registry.methods.names())
def test_auto_converges_on_every_problem_and_graph(name: str, one_in: int) -> None:
    """On one in so many of the cells, chosen by their names."""
    cls: Any = registry.methods.get(name)
    for compressor in COMPRESSORS if "compressor" in cls.__dataclass_fields__ else [None]:
        for kind, problem in problems().items():
            for number, graph in enumerate(GRAPHS):
                turn = zlib.crc32(f"{name} {compressor} {kind} {graph}".encode())
                if turn // 24 % one_in or (compressor and turn % (6 if number else 1 if name == "beer" else 2)):
                    continue  # half of the compressors on the ring (BEER: all), a sixth of them on each other graph
                mixing = gs.mixing_matrix(build_graph(graph, 8), "metropolis")
                if compressor is not None and not admits(cls, compressor, problem.d):
                    with pytest.raises(gs.InputError, match=r"unbiased|contraction"):
                        gs.auto_steps(cls, problem, mixing, compressor)
                    continue
                clip: dict[str, Any] = {"clip": 100.0} if name == "porter" else {}
                tried = 300 if compressor is None or turn % 4 == 0 else 0  # with trials, or by the formula alone
                method = gs.auto_steps(cls, problem, mixing, compressor, rounds=tried, **clip)
                run = gs.simulate(method, problem, mixing, rounds=300, eval_every=10)
                norm = run.frame.grad_norm
                assert run.diverged is None, f"{method} on {kind}, {graph}: {run.diverged}"
                assert norm.iloc[-5:].mean() < 0.7 * norm.iloc[0], f"{method} on {kind}, {graph}: {norm.tolist()}"


def test_the_rule() -> None:
    assert practical_steps(1.0, 1.0, 1.0, 2.0) == (0.6, 0.25)
    gamma, lr = practical_steps(0.1, 0.5, 0.2, 10.0)
    assert gamma == pytest.approx(0.75 * 0.1**0.6)
    assert lr == pytest.approx(3 * gamma * 0.2 / 10)
    assert practical_steps(0.1, 0.05, 0.2, 10.0)[0] == 0.05
    assert practical_steps(0.1, 0.5, 0.2, 10.0, averages=True)[0] == pytest.approx(0.0075)
    assert practical_steps(0.1, 0.5, 0.2, 10.0, gamma=0.3) == pytest.approx((0.3, 0.018))


def test_the_share_that_one_mixing_removes() -> None:
    mixing = gs.mixing_matrix(gs.ring(8), "metropolis")
    i = torch.arange(8, dtype=torch.float64)
    slowest = torch.cos(2 * torch.pi * i / 8)[:, None]
    assert mixed_share(slowest + 5, mixing) == pytest.approx(mixing.rho)
    fastest = torch.cos(torch.pi * i)[:, None]
    assert mixed_share(fastest, mixing) == pytest.approx(4 / 3)
    assert mixed_share(torch.ones(8, 3, dtype=torch.float64), mixing) == 1.0


def test_what_is_given_stays_and_mistakes_are_sentences() -> None:
    problem, mixing = gs.quadratic(clients=8), gs.mixing_matrix(gs.ring(8))
    method = gs.auto_steps(gs.BEER, problem, mixing, gs.gsgd(5), gamma=0.25, start="minibatch")
    assert method.gamma == 0.25
    assert method.start == "minibatch"
    without, momentum = (
        gs.auto_steps(cls, problem, mixing, gs.gsgd(5), rounds=0).lr_at(0) for cls in (gs.CHOCOSGD, al.SQuARMSGD)
    )
    assert momentum == pytest.approx(0.1 * without)
    flat = gs.problems.least_squares((torch.zeros(16, 2), torch.ones(16)), clients=8, intercept=False)
    with pytest.raises(gs.InputError, match="No steps can be chosen"):
        gs.auto_steps(gs.BEER, flat, mixing, gs.gsgd(5))
    assert gs.auto_steps(gs.BEER, flat, mixing, gs.gsgd(5), lr=0.1).lr == 0.1
    with pytest.raises(gs.InputError, match="needs a compressor"):
        gs.auto_steps(gs.BEER, problem, mixing)
    with pytest.raises(gs.InputError, match="no setting 'beta'; it has lr, gamma"):
        gs.auto_steps(gs.BEER, problem, mixing, gs.gsgd(5), beta=1)
    with pytest.raises(gs.InputError, match="must be a class such as"):
        gs.auto_steps(method, problem, mixing, gs.gsgd(5))  # type: ignore[arg-type, type-var, unused-ignore]
    with pytest.raises(gs.InputError, match="needs an unbiased compressor"):
        gs.auto_steps(al.LEAD, problem, mixing, gs.top_k(2))
    with pytest.raises(gs.InputError, match="8 clients, but the mixing matrix 6"):
        gs.auto_steps(gs.DSGD, problem, gs.mixing_matrix(gs.ring(6)))
