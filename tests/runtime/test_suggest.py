"""Settings for an optimiser from shapes: one formula, sizes of real packets, and how near to the best they are."""

import time
import warnings
from dataclasses import astuple
from pathlib import Path
from typing import Any

import advice
import networkx as nx
import pandas as pd
import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer import algorithms as al
from gossamer.algorithms import schedules
from gossamer.compression import packet, sign
from gossamer.errors import ConvergenceWarning
from gossamer.runtime.tuning.caution import usual_alpha, warn_of_gamma
from gossamer.runtime.tuning.suggest import fixed_bytes

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RING = gs.mixing_matrix(gs.ring(8))


def network(width: int = 64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.mark.parametrize("compressor", [gs.blockwise(gs.gsgd(5), 64), gs.top_k(fraction=0.05), gs.identity()])
def test_gamma_is_that_of_auto_steps(compressor: gs.Compressor) -> None:
    problem = gs.module_problem(advice.module(), "digits", clients=8)
    theirs = gs.auto_steps(gs.BEER, problem, RING, compressor, rounds=0)
    ours = gs.suggest(network(), gs.BEER, RING, compressor)
    assert ours.gamma == theirs.gamma
    assert ours.method == gs.BEER(lr=0.1 * ours.lr_scale, gamma=theirs.gamma, compressor=compressor)


@pytest.mark.parametrize("method", [gs.BEER, gs.CHOCOSGD, al.DeepSqueeze, al.MoTEF, al.LEAD, gs.DSGD, gs.D2])
def test_no_warning_follows_and_a_run_converges(method: type[gs.Algorithm]) -> None:
    found = gs.suggest(network(), method, RING, lr=0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warn_of_gamma(found.method, 2410, RING.rho)
    problem = gs.module_problem(advice.module(), "digits", clients=8, partition="iid")
    run = gs.simulate(found.method, problem, RING, rounds=100, batch_size=16, eval_every=50)
    assert run.final.loss < 0.7 * run.frame["loss"].iloc[0]


def test_a_billion_parameters_take_a_moment() -> None:
    large = nn.Sequential(*[nn.Linear(10_000, 10_000, device="meta") for _ in range(10)])
    gs.suggest(network(), gs.BEER, RING)  # compiles what is not yet
    start = time.perf_counter()
    found = gs.suggest(large, gs.BEER, RING, gs.gsgd(5))
    assert time.perf_counter() - start < 5
    assert found.bytes_per_round < 2 * 1_000_100_000
    assert found.compressor == gs.blockwise(gs.gsgd(5), 128)


@pytest.mark.parametrize(
    "compressor",
    [
        gs.blockwise(gs.gsgd(2), 64),
        gs.gsgd(5),
        gs.top_k(fraction=0.01),
        gs.top_k(7),
        gs.rand_k(fraction=0.03),
        sign(),
        gs.identity(),
    ],
)
@pytest.mark.parametrize("d", [1000, 263_000, 640_001])
def test_fixed_sizes_are_those_of_packets(compressor: gs.Compressor, d: int) -> None:
    x = torch.randn(1, d, generator=torch.Generator().manual_seed(0))
    real = packet.sizes([compressor(x, seed=0)] * 2, 0, [0])[0]
    assert fixed_bytes(compressor, d, torch.float32, 2) == pytest.approx(real, abs=0 if d == 1000 else 16)


def test_the_bytes_are_those_of_a_run() -> None:
    problem = gs.module_problem(advice.module(), "digits", clients=8, partition="iid")
    for codec_of in (gs.blockwise(gs.gsgd(2), 64), gs.top_k(fraction=0.05), gs.blockwise(sign(), 64)):
        found = gs.suggest(network(), gs.BEER, RING, codec_of)
        run = gs.simulate(found.method, problem, RING, rounds=20, batch_size=16, codec=found.codec, eval_every=10)
        sent = (run.final.bits - run.record.rows[-2].bits) / 8 / 10
        assert found.bytes_per_round == pytest.approx(sent, rel=0.25 if found.codec == "auto" else 0.001)


def test_one_norm_for_all_becomes_blocks_where_that_pays() -> None:
    found = gs.suggest(network(1000), "beer", RING, "gsgd:2")
    assert found.compressor == gs.blockwise(gs.gsgd(2), 64)
    assert any("one norm for all" in reason for reason in found.reasons)
    few = gs.suggest(nn.Linear(5, 2), gs.BEER, RING, gs.gsgd(5))
    assert few.compressor == gs.gsgd(5)  # short already
    kept = gs.suggest(network(1000), gs.BEER, RING, gs.top_k(10))
    assert kept.compressor == gs.top_k(10)  # blocks would send much more


@pytest.mark.parametrize(
    ("compressor", "sentence"), [("sign", "try gamma up to 0.57"), ("rand_k:0.01", "mixes slowly")]
)
def test_a_small_gamma_comes_with_advice(compressor: str, sentence: str) -> None:
    assert any(sentence in reason for reason in gs.suggest(network(), gs.BEER, RING, compressor).reasons)


def test_an_instance_keeps_its_other_settings() -> None:
    mine = gs.BEER(lr=0.4, gamma=1.0, compressor=gs.top_k(fraction=0.1), tracker="reevaluated")
    found = gs.suggest(network().parameters(), mine, RING)
    assert isinstance(found.method, gs.BEER)
    assert (found.method.tracker, found.method.compressor) == ("reevaluated", gs.top_k(fraction=0.1))
    assert found.method.lr == 0.4 * found.lr_scale
    assert found.gamma is not None
    assert found.gamma < 1


def test_local_steps_scale_the_lr_of_their_optimiser() -> None:
    found = gs.suggest(network(), gs.CHOCOSGD, RING, local=20)
    assert (found.method.lr, found.lr_scale) == (1.0, 0.5)
    assert any("20 local steps" in reason for reason in found.reasons)


def test_it_prints_as_a_table() -> None:
    found = gs.suggest([{"params": network().parameters(), "lr": 0.1}], gs.BEER, RING)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["method", "gamma", "lr", "compressor", "codec", "bytes"]
    assert f"{found.bytes_per_round:,} per round and neighbour" in lines[5]
    assert len(lines) == 6 + len(found.reasons)
    assert "2,410 parameters in 4 tensors" in lines[6]
    assert "-" in str(gs.suggest(network(), gs.DSGD, RING)).splitlines()[1]


def frozen() -> nn.Module:
    return network().requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": nn.ReLU()}, "`model` has no parameters."),
        ({"model": frozen()}, "All 4 parameters are frozen; set requires_grad=True"),
        ({"model": "resnet"}, "`model` must be a module or its parameters, got str."),
        ({"model": [1.0]}, "`model` must be a module or its parameters, got one of float."),
        ({"model": network().half()}, "must all be float32, or all float64, got float16"),
        ({"model": nn.LazyLinear(3)}, "lazy parameters; call it once"),
        ({"method": 3}, "`method` must be a method such as gossamer.BEER, its name or an instance, got 3."),
        ({"method": "bear"}, "Unknown method 'bear'"),
        ({"method": al.GTSAGA}, "GT-SAGA needs the gradient of each data row, which an optimiser never sees"),
        (
            {"method": gs.BEER(lr=schedules.cosine(0.1, 10), gamma=0.1, compressor=gs.gsgd(5))},
            "`lr` of an optimiser's method must be a number",
        ),
        ({"method": gs.DSGD, "compressor": gs.gsgd(5)}, "DSGD has no setting 'compressor'"),
        ({"method": al.LEAD, "compressor": gs.gsgd(5)}, "LEAD needs an unbiased compressor"),
        ({"compressor": gs.rand_k(3, unbiased=True)}, "no contraction for 2410 coordinates"),
        ({"compressor": 5}, "`compressor` must be a compressor such as gossamer.gsgd(5), got 5."),
        ({"mixing": gs.ring(8)}, "`mixing` must be made by gossamer.mixing_matrix(graph), got Graph."),
        ({"local": 0}, "`local` must be an integer of 1 or more, got 0."),
        ({"lr": -1}, "`lr` must be a number above 0, got -1."),
    ],
)
def test_mistakes_are_one_sentence(change: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"model": network(), "method": gs.BEER, "mixing": RING} | change
    with pytest.raises(gs.InputError) as caught:
        gs.suggest(**given)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_client_and_blocks_within_tensors_work() -> None:
    alone = gs.mixing_matrix(nx.empty_graph(1))
    assert gs.suggest(network(), gs.BEER, alone).lr_scale > 0
    sizes = [p.numel() for p in network(20_000).parameters()]
    found = gs.suggest(network(20_000), gs.BEER, RING, gs.blockwise(gs.gsgd(2), 64, sizes))
    assert found.compressor == gs.blockwise(gs.gsgd(2), 64, sizes)
    assert usual_alpha(found.compressor, sum(sizes)) == pytest.approx(found.gamma, rel=0.1)


@pytest.mark.slow
def test_two_cells_are_near_the_best_gamma() -> None:
    for cell in (advice.Cell("BEER", "ring", "default", "sorted"), advice.Cell("CHOCO-SGD", "grid", "gsgd:5", "iid")):
        found = advice.measure(cell)
        assert found.loss <= 2 * found.loss_at_best_gamma


@pytest.mark.long
@pytest.mark.timeout(0)
def test_write_the_tables() -> None:
    """Writes docs/results/suggest.csv, or goes on where it stopped (20 minutes), and suggest_local.csv (two)."""
    advice.write_local(RESULTS / "suggest_local.csv")
    advice.write(RESULTS / "suggest.csv")


def test_the_committed_tables_are_whole_and_say_what_the_documentation_says() -> None:
    table = pd.read_csv(RESULTS / "suggest.csv")
    assert [tuple(row) for row in table[["method", "graph", "compressor", "split"]].to_numpy()] == [
        astuple(cell) for cell in advice.cells()
    ]
    ratio = table.loss / table.loss_at_best_gamma
    assert (table.loss < 2).all()  # at the start it is above 2.3
    assert ratio[table.compressor != "sign"].max() < 2
    assert ratio.max() < 3
    for row in table.to_dict("records"):
        kind, mixing = advice.METHODS[row["method"]], advice.mixing_of(row["graph"])
        now = gs.suggest(advice.module(), kind, mixing, advice.COMPRESSORS[row["compressor"]])
        assert now.gamma == pytest.approx(row["gamma"], rel=1e-3), "measure again: the rule has changed"
        assert now.lr_scale == pytest.approx(row["lr_scale"], rel=1e-3), "measure again: the rule has changed"
    local = pd.read_csv(RESULTS / "suggest_local.csv")
    hard = local[(local.optimizer == "SGD") & (local.split == "sorted")]
    assert (hard["x0.5"] <= hard[["x0.25", "x1", "x2"]].min(axis=1)).all()
