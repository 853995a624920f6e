"""`gossamer plan`, in a process of its own."""

import json
from pathlib import Path

import pytest
from commands import forked

from gossamer.spec import load_spec

SMALL = ("plan", "--bandwidth", "20Mbit", "--delay", "10ms", "--compute", "10ms")


def test_a_table_and_code(tmp_path: Path) -> None:
    done = forked(*SMALL, "--parameters", "1M", "--hosts", "8", "--rows", "3", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for said in ("1M parameters, 8 hosts (ring), 20 Mbit/s", "per round", "Best: ", "gs.DecentralizedOptimizer("):
        assert said in done.stdout
    assert len([line for line in done.stdout.splitlines() if line.startswith("│")]) == 3


def test_json(tmp_path: Path) -> None:
    done = forked(*SMALL, "--parameters", "1M", "--method", "CHOCO-SGD", "--local", "1,20", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["parameters"] == 1_000_000
    assert found["network"]["hosts"] == 4
    assert {row["way"]["steps"] for row in found["rows"]} == {1, 20}
    assert {row["way"]["method"] for row in found["rows"]} == {"CHOCO-SGD"}


def test_the_spec_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    done = forked(*SMALL, "--module", "mine:build", "--spec", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "planned.toml").write_text(done.stdout)
    assert load_spec(tmp_path / "planned.toml").problem["module"] == "mine:build"
    ran = forked("run", "planned.toml", "-q", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "Give either --parameters, such as 10M, or --module"),
        (("--parameters", "10M", "--module", "my:build"), "Give either --parameters"),
        (("--parameters", "ten"), "`parameters` must be a number such as \"10M\", got 'ten'"),
        (("--module", "nowhere:build"), "`module` = 'nowhere:build' cannot be imported"),
        (("--module", "math:sqrt"), "`module` = 'math:sqrt' failed"),
        (("--parameters", "1M", "--local", "1,x"), "--local must be numbers such as 1,20, got '1,x'"),
        (("--parameters", "1M", "--hosts", "1"), "`hosts` must be an integer of 2 or more, got 1"),
    ],
)
def test_refused(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = forked(*SMALL, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
