"""The check of plans against measurements, on a matrix that is made up."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.links import check_plan
from benchmarks.links.contenders import CONTENDERS

NAMES = ("DDP float32", "all-reduce, H 20", "CHOCO-SGD, blockwise_gsgd_2,64, H 20", "BEER, gsgd_5")


@pytest.fixture
def rows(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Seconds as predicted, and times that follow the predicted order."""
    monkeypatch.setenv("GOSSAMER_DATA", str(data_dir))
    made: list[dict[str, Any]] = []
    for mbit in (None, 10.0):
        for name in NAMES:
            assert name in CONTENDERS
            row: Any = {"task": "hidden", "split": "digit", "hosts": 4, "graph": "ring", "contender": name}
            row |= {"mbit": mbit, "delay_ms": 10.0, "seconds": 1.0, "gradient": 0.003, "time": None}
            found = check_plan.checked(row, 2)
            assert found is not None
            made.append(row | {"seconds": found.cost.seconds, "time": 30 * found.cost.seconds * found.ratio})
    return made


def run(rows: list[dict[str, Any]], folder: Path) -> int:
    path = folder / "links.json"
    path.write_text(json.dumps(rows))
    return check_plan.main(["--measured", str(path), "--processors", "2"])


def test_predictions_that_are_right_pass(
    rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(rows, tmp_path) == 0
    shown = capsys.readouterr().out
    assert "Seconds per round within 30 %: 100% of 8 rows" in shown
    assert "Recommended within 1.5 times the best: 100% of 2 cells" in shown


def test_wrong_seconds_fail(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    assert run([row | {"seconds": 2 * row["seconds"]} for row in rows], tmp_path) == 1


def test_a_bad_recommendation_fails(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """What is recommended never reached the target."""
    best = {
        mbit: min((row for row in rows if row["mbit"] == mbit), key=lambda row: row["time"]) for mbit in (None, 10.0)
    }
    assert run([row | ({"time": None} if row in best.values() else {}) for row in rows], tmp_path) == 1


def test_no_measurements(tmp_path: Path) -> None:
    assert check_plan.main(["--measured", str(tmp_path / "none.json")]) == 2
