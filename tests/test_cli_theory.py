"""`gossamer theory`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import forked, gossamer

import gossamer as gs
from gossamer.theory import certify, lyapunov, rounds_to, theorem_steps


def told(*options: str) -> dict[str, Any]:
    done = gossamer("theory", *options, "--json", cwd=Path())
    assert done.returncode == 0, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def test_numbers_are_those_of_the_library() -> None:
    row = told("--problem", "quadratic", "--compressor", "top_k:0.3", "--graph", "ring", "--clients", "8")
    problem, mixing = gs.quadratic(clients=8), gs.mixing_matrix(gs.ring(8))
    assert row["alpha"] == pytest.approx(0.3)
    assert (row["rho"], row["C"]) == pytest.approx((mixing.rho, mixing.C))
    assert (row["L"], row["mu"]) == pytest.approx((problem.smoothness(), problem.pl_constant()))
    certificate = certify(0.3, mixing.rho, mixing.C, problem.smoothness())
    assert row["certified"] == {"gamma": certificate.gamma, "lr": certificate.lr}
    assert row["theorem"] == dict(
        zip(("gamma", "lr"), theorem_steps(0.3, mixing.rho, mixing.C, problem.smoothness()), strict=True)
    )
    assert row["certified"]["lr"] > row["theorem"]["lr"]
    assert row["practical"]["lr"] > row["certified"]["lr"]
    method = gs.auto_steps(gs.BEER, problem, mixing, gs.top_k(fraction=0.3), rounds=0)
    assert row["practical"]["gamma"] == method.gamma


@pytest.mark.slow
def test_rounds_follow_from_phi() -> None:
    row = told("--problem", "sine_pl", "--clients", "8", "--epsilon", "0.5")
    problem, mixing = gs.problems.sine_pl(clients=8), gs.mixing_matrix(gs.ring(8))
    x0 = problem.x0().double()
    v = problem.gradient(x0.float().expand(8, -1).contiguous()).double()
    omegas = (8 * float(x0 @ x0), float(v.square().sum()), 0.0, float((v - v.mean(dim=0)).square().sum()))
    gap = float(problem.evaluate(x0[None])["loss"][0])
    bounds = []
    largest = certify(row["alpha"], mixing.rho, mixing.C, 8.0)
    for share in (1.0, 0.9, 0.7, 0.5, 0.3):
        one = certify(row["alpha"], mixing.rho, mixing.C, 8.0, gamma=largest.gamma, lr=share * largest.lr)
        bounds.append(rounds_to(0.5, one, lyapunov(gap, omegas, one.weights_for(8))))
    assert row["rounds"] == pytest.approx(min(bounds), rel=1e-6)
    assert row["bits"] == pytest.approx(row["rounds"] * row["bits_per_round"], rel=1e-6)
    assert torch.isfinite(torch.tensor(row["rounds"], dtype=torch.float64))


def test_a_page() -> None:
    done = gossamer("theory", "--problem", "breast_cancer", "--graph", "grid:2,5", "--weights", "fdla", cwd=Path())
    assert done.returncode == 0, done.stderr
    for word in ("certified steps", "theorem's steps", "practical steps", "guaranteed rounds", "rho, C"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--graph", "rong"], "rong"),
        (["--compressor", "gsgd"], "bits"),
        (["--problem", "nothing"], "nothing"),
        (["--clients", "1"], "`clients` must be"),
        (["--epsilon", "0"], "`epsilon` must be"),
        (["--problem", "quadratic", "--compressor", "qsgd:1"], "no contraction"),
    ],
)
def test_mistakes(options: list[str], sentence: str) -> None:
    done = gossamer("theory", *options, cwd=Path())
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


# A run against its proof


SPEC = """
name = "small"
rounds = 30
eval_every = 1
measures = ["omegas"]
[problem]
objective = "sine_pl"
clients = 4
dtype = "float64"
[graph]
name = "complete"
[[methods]]
name = "beer"
lr = "certified"
gamma = "certified"
compressor = "top_k:0.5"
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "work"
    folder.mkdir()
    (folder / "my.toml").write_text(SPEC)
    done = forked("run", "my.toml", "-q", "-o", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_is_checked(recorded: Path) -> None:
    done = forked("theory", "--check", "out", cwd=recorded)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("holds") == 9
    assert "certified for Theorem 4.1 and 4.3" in done.stdout
    assert (recorded / "out" / "BEER-proof.png").stat().st_size > 10_000
    done = forked("theory", "--check", "out/BEER-seed0.jsonl", "-o", "mine.pdf", "--json", cwd=recorded)
    (row,) = json.loads(done.stdout)
    assert (row["verdict"], row["rounds"], row["certified"]) == ("holds", 30, True)
    assert [finding["rounds"] for finding in row["findings"]] == [30] * 8
    assert (recorded / "mine.pdf").read_bytes().startswith(b"%PDF")


def test_a_run_that_breaks_its_proof(recorded: Path) -> None:
    lines = (recorded / "out" / "BEER-seed0.jsonl").read_text().splitlines()
    broken = [json.loads(line) for line in lines]
    broken[10]["omega_3"] += 1.0
    (recorded / "broken.jsonl").write_text("\n".join(map(json.dumps, broken)))
    done = forked("theory", "--check", "broken.jsonl", cwd=recorded)
    assert done.returncode == 1
    assert "does not hold" in done.stdout
    assert "Omega_3; Phi: Broken in 1 of 30 rounds, first in 9." in done.stdout


def test_what_cannot_be_checked(recorded: Path) -> None:
    lines = (recorded / "out" / "BEER-seed0.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    del header["facts"]
    (recorded / "plain.jsonl").write_text("\n".join([json.dumps(header), *lines[1:]]))
    (recorded / "empty.jsonl").write_text("")
    for options, sentence in (
        (["plain.jsonl"], "says nothing of the proof"),
        (["empty.jsonl"], "is empty"),
        (["nowhere"], "There is no 'nowhere'"),
        (["out", "--graph", "ring"], "leave --graph out"),
        (["out", "-o", "x.txt"], "must end in"),
        (["out", "-o", "no/x.png"], "does not exist"),
    ):
        done = forked("theory", "--check", *options, cwd=recorded)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
    done = forked("theory", "-o", "x.png", cwd=recorded)
    assert done.returncode == 2
    assert "--check" in done.stderr
