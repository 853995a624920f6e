"""The benchmarks measure what they say: their NumPy baseline is BEER, and a much worse ratio fails."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gossamer as gs
from benchmarks.speed import parsed
from benchmarks.timing import cases, gpu, results, works
from benchmarks.timing.figure import draw
from benchmarks.timing.numpy_beer import (
    Beer,
    ColumnBeer,
    Evaluation,
    HiddenLayer,
    HiddenLayerByClient,
    Logistic,
    packed,
    unpacked,
)
from benchmarks.timing.results import Bar, Point, Results, Row
from benchmarks.timing.turns import Times

ROOT = Path(__file__).parents[1]
TINY = works.Setting(tiny=True)
NAME = "figure 1, per round"


def speed(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "benchmarks" / "speed.py", "--tiny", "--turns", "1", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)


def made(name: str = NAME, where: str = "cpu", ratio: float = 2.0, **more: Any) -> Row:
    times = Times([1e-3], [1e-3 * ratio])
    return results.row(name, "rounds", where, "NumPy", times, Bar(ratio=1.5), **more)


def test_the_iterates_of_the_baseline_are_those_of_beer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With full gradients and without compression nothing is random."""
    signed = works.signed_rows(TINY)
    problem = gs.logistic_regression("breast_cancer", clients=10, dtype="float64")
    mixing = gs.mixing_matrix(gs.ring(10), "fdla")
    start = np.tile(np.linspace(-0.1, 0.1, problem.d), (10, 1))
    monkeypatch.setattr(Beer, "compressed", lambda self, x: x)
    beer = Beer(Logistic(signed, None), start, mixing.sparse.toarray() - np.eye(10), 0.05, 0.5, 5)
    for _ in range(30):
        beer.step()
    method = gs.BEER(lr=0.05, gamma=0.5, compressor=gs.identity())
    run = gs.simulate(method, problem, mixing, rounds=30, x0=torch.from_numpy(start))
    np.testing.assert_allclose(beer.x, run.x.numpy(), rtol=1e-9, atol=1e-12)
    loss, norm = Evaluation(signed, signed[0], np.ones(len(signed[0]), bool)).loss_and_gradient_norm(
        beer.x.mean(axis=0)
    )
    assert (loss, norm) == pytest.approx((run.final.loss, run.final.grad_norm), rel=1e-9)


def test_the_gradients_of_the_baseline_are_those_of_the_hidden_layer() -> None:
    data = gs.problems.load("digits")
    problem = gs.problems.one_hidden_layer(data, clients=4, hidden=5, dtype="float64")
    shares = np.stack(gs.problems.split(data.labels, 4, "sorted"))
    images, labels = works.dense(data.features)[shares] / data.peak, data.labels[shares].astype(np.int64)
    layer = HiddenLayer(images, labels, 5, 10, batch=7, seed=3)
    x = np.random.default_rng(0).normal(0, 0.3, (4, problem.d))
    batch = np.random.default_rng(3).integers(0, layer.rows, (4, 7))
    expected = problem.gradient(torch.from_numpy(x), torch.from_numpy(batch)).numpy()
    np.testing.assert_allclose(layer(x), expected, atol=1e-12)
    by_client = HiddenLayerByClient(images, labels, 5, 10, batch=7, seed=3)
    np.testing.assert_allclose(by_client(x.T).T, expected, atol=1e-12)


def test_both_baselines_are_the_same_method(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Beer, ColumnBeer):
        monkeypatch.setattr(kind, "compressed", lambda self, x: x)
    target = np.random.default_rng(0).standard_normal((4, 6))
    pull = gs.mixing_matrix(gs.ring(4), "metropolis").sparse.toarray() - np.eye(4)
    by_row = Beer(lambda x: x - target, target * 0, pull, 0.05, 0.5, 5)
    by_column = ColumnBeer(lambda x: x - target.T, target * 0, pull, 0.05, 0.5, 5)
    for _ in range(20):
        by_row.step()
        by_column.step()
    np.testing.assert_allclose(by_column.x.T, by_row.x, atol=1e-14)


def test_the_baseline_in_columns_compresses_by_gsgd() -> None:
    x = np.random.default_rng(0).standard_normal((2, 40))
    beer = ColumnBeer(lambda x: x, x, np.zeros((2, 2)), 0.1, 0.5, 5)
    mean = np.mean([beer.compressed(x.T) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(mean * beer.tau, x.T, atol=0.05)


def test_the_baseline_compresses_by_gsgd() -> None:
    x = np.random.default_rng(0).standard_normal((2, 40))
    beer = Beer(lambda x: x, x, np.zeros((2, 2)), 0.1, 0.5, 5)
    mean = np.mean([beer.compressed(x) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(mean * beer.tau, x, atol=0.05)
    assert beer.tau == gs.gsgd(5).tau(40)
    levels = beer.compressed(x) / (np.linalg.norm(x, axis=1, keepdims=True) / (16 * beer.tau))
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-9)
    assert np.abs(levels).max() <= 16


def test_the_baseline_packs_and_unpacks() -> None:
    values = np.random.default_rng(0).integers(0, 33, 101).astype(np.uint8)
    assert len(packed(values, 6)) == 76
    assert np.array_equal(unpacked(packed(values, 6), 101, 6), values)


@pytest.mark.slow
def test_a_run_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    done = speed("--device", "cpu", "--case", NAME, "--case", "packet of 124", "--case", "growth", "--json", path)
    assert done.returncode == 0, done.stderr
    for heading in results.HEADINGS:
        assert heading in done.stdout
    found = results.read(path)
    assert [one.name for one in found.rows[:2]] == [NAME, "entropy-coded packet of 124"]
    machine = found.machines["cpu"]
    assert {"gossamer", "torch", "numpy", "python"} <= set(machine["versions"])
    assert machine["processor"]
    assert machine["cores"] >= 1
    first = found.rows[0]
    assert first.baseline == "NumPy"
    assert first.ratio == pytest.approx(first.baseline_ms / first.ms, rel=1e-2)
    assert first.met == (first.ratio >= 2.5)
    assert first.date
    growth_is_whole(found, tmp_path / "speed.png")


def growth_is_whole(found: Results, figure: Path) -> None:
    rows = [one for one in found.rows if one.name.startswith("growth")]
    assert len(rows) == 5
    assert all(one.bar == cases.LINEAR for one in rows)
    assert {(one.axis, one.at) for one in found.growth if one.axis != "edges"} == {
        *(("clients", clients) for clients in (10, 20, 40)),
        *(("coordinates", 75 * hidden + 10) for hidden in (2, 4, 8)),
    }
    assert {one.edges for one in found.growth if one.axis == "edges"} == {30, 60, 120, 150}
    draw([*found.growth, Point("gpu", "clients", 10, 50_890, 10, 0.1)], figure)
    assert figure.stat().st_size > 10_000


@pytest.mark.slow
def test_a_much_worse_ratio_fails(tmp_path: Path) -> None:
    doctored = Results({"cpu": results.facts()}, [made(ratio=1e6), made("figure 1, measured every round", ratio=1e-6)])
    (tmp_path / "speed.json").write_text(results.as_json(doctored))
    done = speed("--short", "--committed", tmp_path / "speed.json")
    assert done.returncode == 1, done.stderr
    assert f"Measuring 1 of {len(cases.SHORT)} again." in done.stdout
    assert f"{NAME} is 0." in done.stderr
    assert "the committed results say 1000000.00 times, which is more than 1.5 times as much." in done.stderr
    assert len([line for line in done.stderr.splitlines() if "is busy" not in line]) == 1


def test_a_short_run_without_committed_results_fails(tmp_path: Path) -> None:
    done = speed("--short", "--committed", tmp_path / "none.json")
    assert done.returncode == 1
    assert "has none of the cases of `--short`; `make bench` writes it." in done.stderr


def test_what_counts_as_worse() -> None:
    committed = Results(rows=[made(ratio=3.0)])
    assert not results.regressions([made(ratio=2.01), made("another", ratio=0.1)], committed)
    assert list(results.regressions([made(ratio=1.99)], committed)) == [NAME]


def test_results_of_two_machines_are_merged() -> None:
    facts = {"processor": "one", "cores": 2, "load": 0.1, "speeds": {"1": {"copy_gb_s": 5.0}}}
    old = Results({"cpu": facts}, [made(ratio=1.0), made("other")])
    gpu_rows = Results({"gpu": {"gpu": "fast", "cores": 9, "load": 0.2}}, [made("on the GPU", "gpu")])
    both = results.merged(old, gpu_rows)
    assert [one.name for one in both.rows] == [NAME, "other", "on the GPU"]
    now = facts | {"load": 3.0, "speeds": {"2": {"copy_gb_s": 9.0}}}
    again = results.merged(both, Results({"cpu": now}, [made(ratio=9.0)]))
    assert again.machines["cpu"]["speeds"] == {"1": {"copy_gb_s": 5.0}, "2": {"copy_gb_s": 9.0}}
    assert "one, 2 cores (busy with other programs: load 3.0)" in results.markdown(again)
    assert "busy" not in results.markdown(old)
    assert [(one.name, one.ratio) for one in again.rows] == [(NAME, 9.0), ("other", 2.0), ("on the GPU", 2.0)]
    elsewhere = results.merged(both, Results({"cpu": {"processor": "two", "cores": 2}}, [made()]))
    assert [one.name for one in elsewhere.rows] == [NAME, "on the GPU"], "rows of another machine are not mixed"


def test_bars() -> None:
    assert [Bar(ratio=2).met(ratio, 1) for ratio in (1.9, 2.0)] == [False, True]
    assert [Bar(ms=4).met(0.1, ms) for ms in (4.1, 4.0)] == [False, True]
    assert Bar().met(1, 1) is None
    assert (str(Bar(ratio=2.5)), str(Bar(ms=300)), str(Bar())) == ("at least 2.5x", "at most 300 ms", "")


@pytest.mark.slow
def test_the_cases_of_the_gpu_run_on_a_cpu(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("the cases run on the GPU here")
    done = speed("--device", "gpu", "--case", "2^28", "--case", "top_k", "--json", tmp_path / "gpu.json")
    assert done.returncode == 0, done.stdout
    found = results.read(tmp_path / "gpu.json")
    assert [one.name for one in found.rows] == ["GPU, 1,000 clients, top_k 1 %", "GPU, gsgd_5 of 2^28"]
    assert found.machines["gpu"]["speeds"]["copy_gb_s"] > 0


def test_a_failure_on_the_gpu_does_not_stop_the_other_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setting: works.Setting, d: int) -> works.Work:
        raise RuntimeError("out of memory")

    told: list[str] = []
    monkeypatch.setattr(gpu, "follow", broken)
    found = Results()
    gpu.measure(found, TINY, 1, ["2^28", "10 clients"], False, told.append)
    assert found.failed == ["GPU, gsgd_5 of 2^28"]
    assert [one.name for one in found.rows] == ["GPU, 10 clients, per round"]
    assert "out of memory" in told[-1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--reproduce"], "name it with `--against`"),
        (["--tiny", "--write"], "`--tiny` measures nothing worth keeping"),
        (["--turns", "0"], "`--turns` must be at least 1, got 0."),
    ],
)
def test_mistakes_are_sentences(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parsed(options)
    assert sentence in capsys.readouterr().err


def test_the_page_and_the_table_are_those_of_the_results() -> None:
    kept = results.read(results.KEPT)
    page = results.PAGE.read_text()
    assert results.with_tables(page, kept) == page
    assert f"move {cases.beer_bytes(1):.0f} bytes per coordinate" in " ".join(page.split())
    with results.KEPT.with_suffix(".csv").open() as file:
        assert [line["name"] for line in csv.DictReader(file)] == [one.name for one in kept.rows]
    known: dict[str, cases.Case | gpu.Case] = {**cases.cases(works.Setting()), **gpu.cases(works.Setting())}
    for one in kept.rows:
        if one.name in known:
            assert one.bar == known[one.name].bar
            assert one.measures == known[one.name].measures
        judged = one.bar.met(one.ratio, one.ms)
        assert one.met == judged or one.note.startswith("not judged")
    assert {name for name in cases.SHORT if name not in {one.name for one in kept.rows}} == set()
    assert json.loads(results.KEPT.read_text())["machines"]["cpu"]["versions"]["gossamer"]
