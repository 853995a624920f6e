import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import gossamer as gs
from gossamer.compression.base import DeferredCheck, checking_later
from gossamer.errors import NonFiniteError, RunError
from gossamer.kernels import Mixer
from gossamer.records import checkpoint
from gossamer.records.record import Record
from gossamer.records.schema import COLUMNS, End
from gossamer.runtime import session
from gossamer.runtime.simulation import Simulation
from gossamer.topology.graphs import build_graph

PROBLEM = gs.quadratic(clients=6, d=8, noise=0.5)
MIXING = gs.mixing_matrix(gs.ring(6))
BEER = gs.BEER(lr=0.1, gamma=0.4, compressor=gs.gsgd(5))


def test_one_method_one_seed() -> None:
    run = gs.simulate(BEER, PROBLEM, MIXING, rounds=50, batch_size=4, seed=3, eval_every=7)
    assert isinstance(run.frame, pd.DataFrame)
    assert list(run.frame.columns) == list(COLUMNS)
    assert run.frame["round"].tolist() == [0, 7, 14, 21, 28, 35, 42, 49, 50]
    assert run.final["round"] == 50
    assert run.x.shape == (6, 8)
    assert run.seed == 3
    assert run.diverged is None
    assert run.frame.bits.is_monotonic_increasing
    assert run.frame.accuracy.isna().all(), "a quadratic has no test set"
    assert run.frame.test_loss.isna().all()
    losses = PROBLEM.evaluate(run.x)["loss"]
    assert run.final.mean_loss == pytest.approx(float(losses.mean()))
    assert run.final.worst_loss == pytest.approx(float(losses.max()))


def test_metrics_are_what_they_say() -> None:
    problem = gs.logistic_regression("breast_cancer", clients=6, dtype="float64")
    run = gs.simulate(BEER, problem, MIXING, rounds=20, x0="normal")
    average = run.x.mean(dim=0)
    assert problem.test is not None
    features, positive = problem.test.features, problem.test.labels > 0

    def accuracy(x: torch.Tensor) -> float:
        return ((features @ x > 0) == positive).double().mean().item()

    leaf = average.clone().requires_grad_()
    square = leaf * leaf
    flat = problem.signed.reshape(-1, problem.d)
    loss = torch.log1p(torch.exp(-(flat @ leaf))).mean() + 0.05 * (square / (1 + square)).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert run.final.loss == pytest.approx(loss.item(), rel=1e-10)
    assert run.final.grad_norm == pytest.approx(gradient.norm().item(), rel=1e-8)
    assert run.final.accuracy == accuracy(average)
    assert run.final.worst_accuracy == min(accuracy(x) for x in run.x)
    assert run.final.consensus == pytest.approx(((run.x - average) ** 2).sum(dim=1).mean().item(), rel=1e-9)


def test_bits_are_counted_in_packets() -> None:
    star = gs.mixing_matrix(nx.star_graph(5))
    run = gs.simulate(gs.DSGD(lr=0.1), PROBLEM, star, rounds=10, eval_every=1)
    header = 1 + 4 + 1 + 1 + 1 + 1 + 2 + 4  # magic, run, round, client, d, dtype and count; kind and length; CRC
    packet = 8 * (header + 8 * 4)
    assert run.frame.packets.tolist() == list(range(11))
    assert run.frame.bits.tolist() == [packet * t for t in range(11)]
    assert run.frame.bits_total.tolist() == [packet * 10 * t for t in range(11)], "5 edges, both ways"
    assert run.frame.bits_nominal.tolist() == [32 * 8 * t for t in range(11)]


def test_entropy_coded_bits_are_counted_by_encoding() -> None:
    fixed, entropy, auto = (
        gs.sweep([BEER], PROBLEM, MIXING, rounds=20, batch_size=4, seeds=[0, 1], codec=codec, eval_every=1)
        for codec in ("fixed", "entropy", "auto")
    )
    for a, b, c in zip(fixed, entropy, auto, strict=True):
        assert torch.equal(a.x, b.x)
        assert (c.frame.bits <= np.minimum(a.frame.bits, b.frame.bits)).all()
        assert a.final.bits_nominal == b.final.bits_nominal
    assert entropy[0].final.bits != entropy[1].final.bits, "every seed has its own"
    assert entropy[0].final.bits_total == pytest.approx(2 * 6 * entropy[0].final.bits)


def test_several_methods_and_seeds_in_one_call() -> None:
    runs = gs.sweep([BEER, gs.DSGD(lr=0.1)], PROBLEM, MIXING, rounds=40, batch_size=4, seeds=[0, 1, 2])
    assert [(run.label, run.seed) for run in runs] == [(m, s) for m in ("BEER", "DSGD") for s in (0, 1, 2)]
    assert list(runs.frame.columns[:2]) == ["method", "seed"]
    alone = gs.simulate(BEER, PROBLEM, MIXING, rounds=40, batch_size=4, seed=2)
    torch.testing.assert_close(runs[2].x, alone.x)
    labelled = gs.sweep({"slow": gs.DSGD(lr=0.01), "fast": gs.DSGD(lr=0.1)}, PROBLEM, MIXING, rounds=5)
    assert [run.label for run in labelled] == ["slow", "fast"]
    twice = gs.sweep([gs.DSGD(lr=0.01), gs.DSGD(lr=0.1)], PROBLEM, MIXING, rounds=5)
    assert twice[0].label.startswith("DSGD(lr=0.01")


def test_runs_repeat_bit_for_bit() -> None:
    one, two = (gs.simulate(BEER, PROBLEM, MIXING, rounds=60, batch_size=2, seed=5) for _ in range(2))
    assert torch.equal(one.x, two.x)
    pd.testing.assert_frame_equal(one.frame.drop(columns="seconds"), two.frame.drop(columns="seconds"))


def test_evaluating_does_not_disturb_the_run() -> None:
    often = gs.simulate(BEER, PROBLEM, MIXING, rounds=60, batch_size=2, eval_every=1)
    seldom = gs.simulate(BEER, PROBLEM, MIXING, rounds=60, batch_size=2, eval_every=60)
    assert torch.equal(often.x, seldom.x)
    assert len(often.frame) == 61


@pytest.mark.parametrize("x0", [np.arange(8.0), torch.ones(6, 8), "uniform", "normal:0.1", None], ids=str)
def test_starting_points(x0: object) -> None:
    sim = Simulation(BEER, PROBLEM, MIXING, [0, 1], None, x0)  # type: ignore[arg-type]
    assert sim.models().shape == (2, 6, 8)
    if isinstance(x0, str):
        assert len(set(sim.models().flatten().tolist())) == 96, "one point a client and seed"
    elif x0 is not None:
        assert torch.equal(sim.models()[1].double(), torch.as_tensor(x0).expand(6, 8).double())


def test_many_clients_mix_through_a_sparse_matrix() -> None:
    n = 300
    problem, mixing = gs.quadratic(clients=n, d=5, dtype="float64"), gs.mixing_matrix(gs.ring(n), "fdla")
    sim = Simulation(gs.DSGD(lr=0.1), problem, mixing, [0, 1], None, "normal")
    q = torch.randn(2 * n, 5, dtype=torch.float64)
    expected = (torch.from_numpy(mixing.matrix) @ q.view(2, n, 5)).view(2 * n, 5)
    torch.testing.assert_close(sim.exchange.mix(q), expected)


@pytest.mark.parametrize("graph", ["ring:100", "complete:200", "ring:200", "grid:13,11", "erdos_renyi:400,0.03"])
def test_mixing_is_a_matrix_product_seed_by_seed(graph: str) -> None:
    """Two seeds beside each other are the two alone, to the last bit."""
    mixing = gs.mixing_matrix(build_graph(graph))
    mixer = Mixer(mixing.sparse, torch.device("cpu"))
    q = torch.randn(2 * mixing.clients, 7)
    whole = mixer(q)
    expected = np.einsum("ij,sjk->sik", mixing.matrix, q.double().view(2, -1, 7)).reshape(whole.shape)
    torch.testing.assert_close(whole, torch.from_numpy(expected))
    assert whole.dtype == torch.float64
    assert torch.equal(whole, torch.cat([mixer(one) for one in q.view(2, -1, 7)]))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("graph", ["ring:300", "erdos_renyi:400,0.03", "complete:50"])
def test_mixing_on_a_gpu_is_mixing_on_a_cpu(graph: str) -> None:
    mixing = gs.mixing_matrix(build_graph(graph))
    q = torch.randn(2 * mixing.clients, 7)
    there = Mixer(mixing.sparse, torch.device("cuda"))(q.cuda())
    torch.testing.assert_close(there.cpu(), Mixer(mixing.sparse, torch.device("cpu"))(q))


def test_divergence_stops_the_run_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One seed starts where lr is too large for it; the other goes on to the end."""
    problem = gs.quadratic(clients=6, d=8, condition=1.0)
    with caplog.at_level(logging.WARNING, logger="gossamer"):
        run = gs.simulate(gs.DSGD(lr=50.0), problem, MIXING, rounds=5000, eval_every=10, record_dir=tmp_path)
    assert run.diverged is not None
    assert "DSGD with seed 0 diverged in round" in run.diverged
    assert "try `lr` below 50.0" in run.diverged
    assert run.diverged in caplog.text
    end = run.record.end
    assert end is not None
    assert end.status == "diverged"
    assert run.final["round"] == end.round - 1, "the last finite state is in the record"
    assert torch.isfinite(run.x).all()
    kept = gs.read_record(tmp_path / "DSGD-seed0.jsonl")
    assert kept.end == end
    assert kept.diverged == run.diverged


def test_a_seed_that_diverges_does_not_stop_the_others() -> None:
    problem = gs.quadratic(clients=6, d=8, condition=1.0)
    alone = gs.simulate(gs.DSGD(lr=0.1), problem, MIXING, rounds=30, seed=1, x0="normal")

    class Trap(type(problem)):  # type: ignore[misc]
        """Seed 0's gradient becomes infinite once two seeds run and x is seed 0's."""

        def gradient(self, x: torch.Tensor, batch: torch.Tensor | None = None) -> torch.Tensor:
            g = super().gradient(x, batch)
            if len(x) == 12:
                g[2] = torch.inf
            return g  # type: ignore[no-any-return]

    trapped = Trap(problem.curvature, problem.centres)
    runs = gs.sweep([gs.DSGD(lr=0.1)], trapped, MIXING, rounds=30, seeds=[0, 1], x0="normal")
    assert runs[0].diverged is not None
    assert "round 1" in runs[0].diverged
    assert "client 1" in runs[0].diverged or "client 2" in runs[0].diverged or "client 3" in runs[0].diverged
    assert runs[1].diverged is None
    assert torch.equal(runs[1].x, alone.x)
    assert runs[1].final["round"] == 30


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": 0}, "`rounds` must be an integer of 1 or more, got 0"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"eval_every": -1}, "`eval_every`"),
        ({"seed": []}, "`seed` must be one integer"),
        ({"seed": [1, 1]}, "use `sweep` for several seeds"),
        ({"seed": None}, "`seed` must be one integer"),
        ({"seed": 1.5}, "`seed` must be one integer"),
        ({"x0": {}}, "`x0` must be a tensor"),
        ({"x0": "normal:nan"}, "must be finite"),
        ({"x0": "normal:1e60"}, "must be finite"),
        ({"batch_size": 17}, "at most 16, the rows of a client, got 17"),
        ({"problem": "a9a"}, "`problem` must be a Problem"),
        ({"mixing": nx.cycle_graph(6)}, "made by gossamer.mixing_matrix"),
        ({"method": "beer"}, "such as gossamer.DSGD"),
        ({"record_dir": __file__}, "cannot be made"),
        ({"record_dir": 123}, "`record_dir` must be a string or a path, got 123"),
        ({"record_dir": b"a"}, "`record_dir` must be a string or a path, got b'a'"),
        ({"record_dir": "a\0b"}, "`record_dir` must not contain a NUL character"),
        ({"should_stop": 5}, "`should_stop` must be a function or None, got 5"),
        ({"should_stop": True}, "`should_stop` must be a function or None, got True"),
        ({"progress": "x"}, "`progress` must be a function or None, got 'x'"),
        ({"seed": -2}, "got -2"),
        ({"x0": torch.zeros(3)}, r"shape \(8,\) or \(6, 8\), got \(3,\)"),
        ({"x0": torch.full((8,), torch.nan)}, "`x0` must be finite"),
        ({"x0": "ones"}, "'uniform' or 'normal'"),
        ({"codec": "zip"}, "`codec` must be one of 'fixed', 'entropy', 'auto'; got 'zip'"),
        ({"method": gs.DSGD}, "such as gossamer.DSGD"),
        ({"method": []}, "use `sweep` for several"),
        ({"mixing": gs.mixing_matrix(gs.ring(5))}, "6 clients, but the mixing matrix 5"),
    ],
)
def test_bad_arguments(change, said):  # type: ignore[no-untyped-def]
    arguments = {"method": BEER, "problem": PROBLEM, "mixing": MIXING, "rounds": 5} | change
    with pytest.raises(gs.InputError, match=said):
        gs.simulate(**arguments)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gs.BEER(lr=0.1, gamma=1.5, compressor=gs.gsgd(5)), r"`gamma` must be in \(0, 1\], got 1.5"),
        (lambda: gs.BEER(lr=-0.1, gamma=0.5, compressor=gs.gsgd(5)), "`lr` must be a number above 0, got -0.1"),
        (lambda: gs.BEER(lr=0.1, gamma=0.5, compressor="gsgd"), r"such as gossamer.gsgd\(5\), got 'gsgd'"),  # type: ignore[arg-type]
        (lambda: gs.BEER(lr=0.1, gamma=0.5, compressor=gs.gsgd(5), start="half"), "'full', 'minibatch'; got 'half'"),  # type: ignore[arg-type]
        (lambda: gs.DSGD(lr="0.1"), "got '0.1'"),  # type: ignore[arg-type]
        (lambda: gs.DSGD(lr=10**400), "got 1000000"),
        (lambda: gs.D2(lr=0.1, lazy="no"), "true or false, got 'no'"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings(make, said):  # type: ignore[no-untyped-def]
    with pytest.raises(gs.InputError, match=said):
        make()


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@FULL
@pytest.mark.parametrize("name", [".BEER-seed0.jsonl.tmp", ".BEER-seed0.safetensors.tmp"])
def test_a_full_disk_is_a_sentence_with_its_cause_and_the_path(name: str, tmp_path: Path) -> None:
    """The temporary file of the record, or of the final models, lies on a full disk."""
    (tmp_path / name).symlink_to("/dev/full")
    path = tmp_path / name.removesuffix(".tmp").removeprefix(".")
    said = f"The run could not be finished: '{path}' cannot be written: No space left on device; free"
    with pytest.raises(RunError, match=re.escape(said)):
        gs.simulate(BEER, PROBLEM, MIXING, rounds=5, record_dir=tmp_path)
    assert not (tmp_path / name).is_symlink(), "nothing half-written is left"


def test_a_disk_that_fills_up_during_a_run_keeps_what_was_measured(tmp_path: Path) -> None:
    """In a process of its own, which may not write files of more than 20 kB."""
    script = f"""
import resource, signal
import gossamer as gs
from gossamer.errors import RunError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
problem, mixing = gs.quadratic(clients=4, d=5), gs.mixing_matrix(gs.ring(4))
try:
    gs.sweep(gs.DSGD(lr=0.1), problem, mixing, rounds=2000, eval_every=1, seeds=[0, 1], record_dir={str(tmp_path)!r})
except RunError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(f"The run could not be finished: '{tmp_path}/DSGD-seed")
    assert "cannot be written: File too large" in done.stdout
    assert done.stderr == "", "no file is left to the garbage collector"
    assert gs.read_record(tmp_path / "DSGD-seed0.jsonl").rows[10].round == 10


@FULL
def test_a_checkpoint_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / ".x.safetensors.tmp").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"x.safetensors' cannot be written: No space left on device"):
        checkpoint.write(tmp_path / "x.safetensors", {"x": torch.zeros(3)}, {})


def test_numpy_numbers_are_numbers(tmp_path: Path) -> None:
    method = gs.BEER(lr=np.float32(0.1), gamma=np.float64(0.4), compressor=gs.gsgd(np.int64(5)))  # type: ignore[arg-type]
    mixing = gs.mixing_matrix(gs.ring(np.int64(6)))  # type: ignore[arg-type]
    numbers: Any = {"rounds": np.int64(5), "batch_size": np.int32(2), "seed": np.int64(0)}
    run = gs.simulate(method, PROBLEM, mixing, record_dir=tmp_path, **numbers)
    assert isinstance(run, gs.Run)
    several: Any = np.arange(3)
    assert len(gs.sweep([method], PROBLEM, mixing, rounds=5, seeds=several)) == 3
    assert gs.top_k(np.int64(3)).k == 3  # type: ignore[arg-type]


def test_slices_and_names() -> None:
    runs = gs.sweep([BEER], PROBLEM, MIXING, rounds=5, seeds=[0, 1])
    assert set(runs[:1].frame.seed) == {0}
    assert gs.records.Runs().frame.empty
    assert repr(runs[0]).startswith("Run('BEER', seed=0, round=5, bits=")
    assert repr(PROBLEM).startswith("Quadratic(clients=6, d=8")


def test_records_are_never_overwritten(tmp_path: Path) -> None:
    gs.simulate(BEER, PROBLEM, MIXING, rounds=5, record_dir=tmp_path / "new")
    with pytest.raises(gs.InputError, match=r"BEER-seed0.jsonl' exists already"):
        gs.simulate(BEER, PROBLEM, MIXING, rounds=5, record_dir=tmp_path / "new")
    with pytest.raises(gs.InputError, match="too alike"):
        gs.sweep({"a b": BEER, "a-b": BEER}, PROBLEM, MIXING, rounds=5, record_dir=tmp_path)


def test_an_interrupt_during_evaluation_loses_nothing(tmp_path: Path) -> None:
    class Impatient(type(PROBLEM)):  # type: ignore[misc]
        calls = 0
        measures_clients = False  # one evaluation a group

        def evaluate(self, models: torch.Tensor) -> dict[str, torch.Tensor]:
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().evaluate(models)  # type: ignore[no-any-return]

    problem = Impatient(PROBLEM.curvature, PROBLEM.centres)
    with pytest.raises(KeyboardInterrupt):
        gs.simulate(BEER, problem, MIXING, rounds=200, eval_every=1, record_dir=tmp_path)
    record = gs.read_record(tmp_path / "BEER-seed0.jsonl")
    assert record.frame["round"].tolist() == list(range(129)), "round 0, then twice 64, the second after the interrupt"
    assert record.end is None


def test_a_start_with_a_graph_behind_it_is_cut_loose() -> None:
    x0 = torch.ones(8, requires_grad=True)
    assert not gs.simulate(BEER, PROBLEM, MIXING, rounds=5, x0=x0).x.requires_grad


def test_a_client_alone_sends_nothing() -> None:
    alone = gs.mixing_matrix(nx.empty_graph(1))
    run = gs.simulate(gs.DSGD(lr=0.1), gs.quadratic(clients=1), alone, rounds=5)
    assert run.final.bits == run.final.bits_total == 0


def test_progress_is_told(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []
    gs.simulate(BEER, PROBLEM, MIXING, rounds=30, progress=lambda label, done: heard.append((label, done)))
    assert heard[-1] == ("BEER", 30)


def test_a_killed_run_leaves_a_readable_record(tmp_path: Path) -> None:
    script = f"""
import gossamer as gs
problem, mixing = gs.quadratic(clients=6, d=8), gs.mixing_matrix(gs.ring(6))
gs.simulate(gs.DSGD(lr=0.01), problem, mixing, rounds=10**9, eval_every=1, record_dir={str(tmp_path)!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    path = tmp_path / "DSGD-seed0.jsonl"
    deadline = time.monotonic() + 60
    while (not path.exists() or path.stat().st_size < 20_000) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    record = gs.read_record(path)
    assert record.end is None
    assert len(record.rows) > 50
    assert record.frame["round"].tolist() == list(range(len(record.rows)))
    assert record.header.method == {"name": "DSGD", "lr": 0.01, "order": "combine-then-adapt"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"{}\n", "no header"),
        (b'{"gossamer": "0", "label": "A", "seed": 0}\nnonsense\n{"round": 1}\n', "damaged in line 2"),
        (b'{"gossamer": "0", "label": "A", "seed": 0}\n[1]\n', "damaged in line 2"),
        (b'{"gossamer": "0", "seed": 0}\n', "damaged in line 1: it has no `label`"),
        (b"\xff\xfe\n", "no header"),
        (b"[" * 100_000 + b"\n{}\n", "damaged in line 1"),
    ],
)
def test_damaged_records(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(gs.DataError, match=said):
        gs.read_record(path)


def test_records_survive_a_round_trip(tmp_path: Path) -> None:
    runs = gs.sweep({"a/b: c": BEER}, PROBLEM, MIXING, rounds=20, seeds=[0, 4], record_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["a-b-c-seed0.jsonl", "a-b-c-seed4.jsonl"]
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        "a-b-c-seed0.safetensors",
        "a-b-c-seed4.safetensors",
    ]
    read: Record = gs.read_record(tmp_path / "a-b-c-seed4.jsonl")
    assert read.label == "a/b: c"
    assert read.end == End("finished", 20)
    pd.testing.assert_frame_equal(read.frame, runs[1].frame)
    for line in (tmp_path / "a-b-c-seed4.jsonl").read_text().splitlines():
        json.loads(line)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_cuda_equals_cpu() -> None:
    results = []
    for device in ("cpu", "cuda"):
        problem = gs.logistic_regression("breast_cancer", clients=6, dtype="float64", device=device)
        method = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(5))
        runs = gs.sweep([method], problem, MIXING, rounds=100, batch_size=8, seeds=[0, 1], x0="normal")
        results.append(torch.stack([run.x.cpu() for run in runs]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("compressor", [gs.gsgd(5), gs.qsgd(16), gs.rand_k(3, unbiased=True)], ids=str)
def test_magnitudes_checked_after_the_round_find_the_same(
    compressor: gs.Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, which is not to be waited for at every message."""
    problem, mixing = gs.quadratic(clients=6, d=4), gs.mixing_matrix(gs.ring(6))
    method = gs.BEER(lr=50.0, gamma=1.0, compressor=compressor)
    at_once = gs.simulate(method, problem, mixing, rounds=400)
    monkeypatch.setattr(session, "_is_slow_to_ask", lambda _: True)
    later = gs.simulate(method, problem, mixing, rounds=400)
    assert at_once.diverged
    assert later.diverged == at_once.diverged
    assert torch.equal(later.x, at_once.x)


def test_what_is_checked_later_is_refused_in_the_same_words() -> None:
    x = torch.tensor([[1.0, 2.0], [float("nan"), 1.0]])
    with pytest.raises(NonFiniteError) as at_once:
        gs.gsgd(5)(x, seed=0)
    doubts: list[DeferredCheck] = []
    with checking_later(doubts):
        gs.gsgd(5)(x, seed=0)
    ((sizes, refuse),) = doubts
    assert not torch.isfinite(sizes).all()
    with pytest.raises(NonFiniteError) as later:
        refuse()
    assert str(later.value) == str(at_once.value)
    assert later.value.rows == at_once.value.rows == [1]


BESIDE: dict[str, Callable[[], gs.Problem]] = {
    "breast_cancer": lambda: gs.logistic_regression("breast_cancer", clients=10, dtype="float64"),
    "float32": lambda: gs.logistic_regression("breast_cancer", clients=10),
    "softmax": lambda: gs.problems.softmax_regression("digits", clients=10, equal=False, dtype="float64"),
    "sine": lambda: gs.problems.sine_pl(clients=10, d=31, noise=0.1, rows=50, dtype="float64"),
}


@pytest.mark.parametrize("batch_size", [16, 17, None])
@pytest.mark.parametrize("name", BESIDE)
def test_a_seed_does_not_depend_on_the_seeds_beside_it(name: str, batch_size: int | None) -> None:
    """Bit by bit, over enough rounds for a dithered compressor to amplify any difference."""
    problem, mixing = BESIDE[name](), gs.mixing_matrix(gs.ring(10), "fdla")
    methods = {
        "BEER": gs.BEER(lr=0.05, gamma=0.3, compressor=gs.gsgd(5)),
        "CHOCO": gs.CHOCOSGD(lr=0.05, gamma=0.2, compressor=gs.top_k(3)),
        "D2": gs.D2(lr=0.05),
    }
    # By default a trial decides how often to evaluate, which on a busy machine may come out differently.
    how: Any = {"rounds": 60, "batch_size": batch_size, "x0": "normal:0.1", "eval_every": 2}
    beside = gs.sweep(methods, problem, mixing, seeds=[0, 1, 2], **how)
    alone = gs.sweep(methods, problem, mixing, seeds=[1], **how)
    for one, other in zip([run for run in beside if run.seed == 1], alone, strict=True):
        assert torch.equal(one.x, other.x), one.label
        assert one.frame[["bits", "packets"]].equals(other.frame[["bits", "packets"]])
        measured = [column for column in one.frame if column != "seconds"]  # many models at a time: to the last digit
        pd.testing.assert_frame_equal(
            one.frame[measured], other.frame[measured], rtol=1e-5 if name == "float32" else 1e-12
        )


@pytest.mark.parametrize("graph", ["ring", "complete", "erdos_renyi:0.6"])
@pytest.mark.parametrize("clients", [10, 31, 150])
def test_mixing_does_not_depend_on_the_seeds_beside_it(graph: str, clients: int) -> None:
    mixing = gs.mixing_matrix(build_graph(graph, clients), "metropolis")
    mixer = Mixer(mixing.sparse, torch.device("cpu"))
    q = torch.randn(3 * clients, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = mixer(q)
    for seed in range(3):
        rows = slice(seed * clients, (seed + 1) * clients)
        assert torch.equal(mixer(q[rows].clone()), together[rows])
