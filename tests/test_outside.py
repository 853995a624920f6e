"""Things of other packages, each in one file under `outside/`: found by an argument, or by an entry point."""

import functools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from outside.brain import brain
from outside.files_transport import FilesTransport
from outside.heavy_ball import HeavyBall
from outside.log_rows import LogRows
from outside.wheel import wheel

import gossamer as gs
from gossamer.testing import check_compressor, check_method, loopback

OUTSIDE = Path(__file__).parent / "outside"
PROBLEM = gs.quadratic(clients=5, d=6, noise=0.1, dtype="float64")


def test_a_method() -> None:
    check_method(HeavyBall(lr=0.05, gamma=0.2, compressor=gs.gsgd(5)))
    lines = (OUTSIDE / "heavy_ball.py").read_text().splitlines()
    assert len(lines) <= 50


def test_a_compressor_with_its_own_message_kind() -> None:
    check_compressor(brain())
    run = gs.simulate(gs.BEER(lr=0.1, gamma=0.3, compressor=brain()), PROBLEM, gs.mixing_matrix(gs.ring(5)), rounds=300)
    assert run.final.grad_norm < 1e-3


def test_a_graph() -> None:
    run = gs.simulate(gs.DSGD(lr=0.1), PROBLEM, gs.mixing_matrix(wheel(5)), rounds=5)
    assert run.record.header.mixing is not None
    assert run.record.header.mixing.edges == 8


def test_a_transport(tmp_path: Path) -> None:
    method, mixing = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(5)), gs.mixing_matrix(gs.ring(5))
    real = loopback(
        method, PROBLEM, mixing, rounds=10, batch_size=2, transport=functools.partial(FilesTransport, tmp_path)
    )
    run = gs.simulate(method, PROBLEM, mixing, rounds=10, batch_size=2)
    assert torch.equal(real.x, run.x)
    assert real.bits == run.final.bits


def test_a_logging_hook(caplog: pytest.LogCaptureFixture) -> None:
    hook = LogRows()
    with caplog.at_level(logging.INFO, "rows"):
        gs.simulate(gs.DSGD(lr=0.1), PROBLEM, gs.mixing_matrix(gs.ring(5)), rounds=20, eval_every=10, hooks=[hook])
    assert hook.rounds == 20
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "DSGD seed 0 round 0",
        "DSGD seed 0 round 10",
        "DSGD seed 0 round 20",
    ]


SPEC = """
rounds = 20
[problem]
objective = "quadratic"
clients = 5
[graph]
name = "wheel"
[[methods]]
name = "heavy_ball"
lr = 0.05
gamma = 0.2
compressor = "brain"
"""
ENTRY_POINTS = """
[gossamer.methods]
heavy_ball = outside.heavy_ball:HeavyBall
[gossamer.compressors]
brain = outside.brain:brain
[gossamer.graphs]
wheel = outside.wheel:wheel
[gossamer.transports]
files = outside.files_transport:open_here
"""


def test_all_of_them_by_entry_points(tmp_path: Path) -> None:
    """As an installed package declares them."""
    info = tmp_path / "site" / "outside-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "my.toml").write_text(SPEC)
    places = [str(tmp_path / "site"), str(OUTSIDE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-m", "gossamer", "run", "my.toml", "--json", "-q"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["methods"][0]["method"] == "Heavy ball"
    script = "from gossamer.registry import transports; print(transports.names())"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['curve', 'files', 'gloo']\n"
