"""Examples run as they stand, and stay short."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gossamer as gs

ROOT = Path(__file__).parents[1]


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PROCESSES = ["train_mnist.py"]  # started with torchrun


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.name not in PROCESSES], ids=lambda path: path.name)
def test_example(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.slow
def test_training_mnist_with_torchrun(data_dir: Path, tmp_path: Path) -> None:
    """Stopped by SIGTERM to one rank, and gone on with."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    command = [
        *torchrun,
        str(ROOT / "examples" / "train_mnist.py"),
        "--data-dir",
        str(data_dir),
        "--checkpoints",
        "kept",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 100
        while not list(tmp_path.glob("kept/client0-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        os.kill(int(found.stdout.split()[2]), signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    latest = {max(path.name.split("-")[1] for path in tmp_path.glob(f"kept/client{rank}-*")) for rank in range(4)}
    assert len(latest) == 1, "all stopped at one round"
    assert "step 300" not in out, "before the end"
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("step 300:")
    assert float(last.split()[-1]) > 0.85


@pytest.mark.slow
def test_a_transformer_simulated_and_launched(tmp_path: Path) -> None:
    """The same file, unchanged, for both; the spec names what the example defines."""
    (tmp_path / "examples").mkdir()
    for name in ("transformer.py", "transformer.toml"):
        text = (ROOT / "examples" / name).read_text().replace("rounds = 80", "rounds = 8")
        (tmp_path / "examples" / name).write_text(text)
    for command, folder in (("run", "simulated"), ("launch", "real")):
        done = subprocess.run(
            [sys.executable, "-m", "gossamer", command, "examples/transformer.toml", "-q", "-o", folder],
            cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    frames = [gs.read_record(tmp_path / folder / "CHOCO-SGD-seed0.jsonl").frame for folder in ("simulated", "real")]
    assert frames[0]["token_accuracy"].iloc[-1] > 0
    assert (frames[0]["loss"] - frames[1]["loss"]).abs().max() < 1e-3
