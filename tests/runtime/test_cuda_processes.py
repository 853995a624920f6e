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


def test_nccl_with_fewer_gpus_than_processes_is_an_error_and_no_hang(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(SPEC)
    done = gossamer("launch", "my.toml", "-o", "out", "--device", "cuda", "--transport", "nccl", "-q", cwd=tmp_path)
    print(done.stderr)
    if torch.cuda.device_count() >= 2:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2
        assert done.stderr.startswith("gossamer: NCCL needs a GPU of its own for each of the 2 processes")
        assert len(done.stderr.splitlines()) == 1


SCRIPT = """
import torch
from gossamer.runtime.processes.ranks import Ranks

ranks, device = Ranks(30), torch.device("cuda", 0)
ranks.open_device_group(device)
out = torch.arange(100000, device=device).to(torch.uint8)
for _ in range(5):
    into = torch.zeros_like(out)
    works = ranks.exchange_on_device({0: out}, {0: into})
    while works:
        if ranks.is_done(works[-1]):
            works.pop()
    assert torch.equal(out, into.cpu().to(device))
print("through NCCL")
"""


def test_nccl_carries_bytes_from_a_gpu_to_itself(tmp_path: Path) -> None:
    """All of NCCL that one GPU can show."""
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env=os.environ | one,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "through NCCL" in done.stdout, done.stderr
