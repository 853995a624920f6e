"""The measurement of language models: a rehearsal, what is counted, and who goes on from the search."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import language_model as bench


@pytest.mark.slow
def test_a_rehearsal(tmp_path: Path) -> None:
    command = ["--tiny", "--search", "--final", "--results", str(tmp_path), "--splits", "iid", "--device", "cpu"]
    assert bench.main([*command, "--seconds", "0"]) == 3, "no time for a run"
    assert bench.main(command) == 0
    path = tmp_path / "language_model.jsonl"
    before = path.read_text()
    lines = [json.loads(line) for line in before.splitlines()]
    assert [line["stage"] for line in lines] == ["search"] * 8 + ["final"] * 4
    for line in lines:
        assert len(line["losses"]) == len(line["bytes"]) == bench.TINY.evaluations
        assert all(0 < loss < 6 for losses in line["losses"] for loss in losses)
        rounds = bench.TINY.steps // int(line["setting"]["H"])
        if line["contender"] in ("All-reduce AdamW", "DiLoCo"):
            assert line["bytes"][-1] == [2 * 7 / 8 * 4 * line["d"] * rounds] * len(line["seeds"])
            assert not line["encoded"]
        else:
            assert 1 <= min(line["encoded"]) <= max(line["encoded"]) < 1.1, "really encoded, against the estimate"
            messages = rounds if line["contender"] == "CHOCO-SGD" else 2 * rounds - 1
            bits = 8 * line["bytes"][-1][0] / (2 * messages * line["d"])
            assert 0.3 < bits < 2.5
    assert bench.main([*command, "--draw"]) == 0
    assert path.read_text() == before, "nothing is run twice"
    assert (tmp_path / "language_model.png").stat().st_size > 10_000
    table = (tmp_path / "language_model.md").read_text()
    for line in lines:
        assert f"| iid | {line['contender']} | {', '.join(f'{k} {v:g}' for k, v in line['setting'].items())} |" in table


def line(name: str, setting: dict[str, float], loss: float, sent: float) -> dict[str, Any]:
    about = {"stage": "search", "split": "iid", "scale": asdict(bench.FULL), "seeds": [0], "diverged": False}
    return about | {"contender": name, "setting": setting, "losses": [[9.0], [loss], [loss + 1]], "bytes": [[sent]]}


def test_the_best_on_the_way_goes_on_if_it_sends_little(tmp_path: Path) -> None:
    book = bench.Book(tmp_path / "language_model.jsonl")
    for one in (
        line("DiLoCo", {"lr": 1}, 1.3, 1000),
        line("DiLoCo", {"lr": 2}, 1.2, 1000),
        line("CHOCO-SGD", {"lr": 1}, 1.1, 101),
        line("CHOCO-SGD", {"lr": 2}, 1.4, 100),
        line("CHOCO-SGD", {"lr": 3}, 1.5, 90),
        line("CHOCO-SGD", {"lr": 4}, 0.1, 90) | {"diverged": True},
        line("BEER", {"lr": 1}, 1.5, 200),
    ):
        book.add(one)
    book = bench.Book(book.path)
    assert bench.chosen(book, "DiLoCo", bench.FULL) == {"lr": 2}
    assert bench.chosen(book, "CHOCO-SGD", bench.FULL) == {"lr": 2}
    assert bench.chosen(book, "BEER", bench.FULL) == {"lr": 1}, "the best, where none sends so little"
    with pytest.raises(SystemExit, match="no search of All-reduce AdamW yet"):
        bench.chosen(book, "All-reduce AdamW", bench.FULL)


def test_contenders_are_searched_alike() -> None:
    """All-reduce AdamW has one setting, its step size, and fewer of them are tried."""
    assert {len(settings) for name, settings in bench.GRIDS.items() if name != "All-reduce AdamW"} == {21}
    for scale in (bench.FULL, bench.TINY):
        for name, settings in bench.GRIDS.items():
            for setting in settings:
                assert scale.steps % setting["H"] == 0, "all see the same number of tokens"
                assert scale.steps // setting["H"] >= scale.evaluations
                method, local = bench.contender(name, setting, scale)
                assert (local is None) == (name == "All-reduce AdamW")
                assert name == method.info.title
