"""Processes whose models live on a GPU; two may share one, since packets go by the host's memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gossamer.records.checkpoint import read

SPEC = """
rounds = 40
batch_size = 16
[problem]
objective = "logistic_regression"
data = "digits_or_so"
clients = 2
dtype = "float64"
[graph]
name = "complete"
[[methods]]
name = "beer"
lr = 0.1
gamma = 0.3
compressor = "gsgd:5"
[[methods]]
name = "dsgd"
lr = 0.1
""".replace("digits_or_so", "breast_cancer")

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


def gossamer(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gossamer", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_launched_on_a_gpu_is_simulated_on_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(SPEC)
    for command, folder in (("run", "simulated"), ("launch", "real")):
        done = gossamer(command, "my.toml", "-o", folder, "--device", "cuda", "-q", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    for name in ("BEER-seed0", "DSGD-seed0"):
        one, two = (
            read(tmp_path / folder / f"{name}.safetensors").tensors["models"] for folder in ("simulated", "real")
        )
        assert float((one - two).abs().max()) <= 1e-9
