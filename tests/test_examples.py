"""Examples run as they stand, and stay short; so do the benchmarks' claims."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.slow
def test_evaluation_benchmark(data_dir: Path) -> None:
    command: list[str | Path] = [sys.executable, ROOT / "benchmarks" / "evaluation.py", "--data-dir", data_dir]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=os.environ)
    result = json.loads(done.stdout)
    print("\n", result)
    assert result["ratio"] >= 6
