"""The exactness table: every entry holds, and the check can fail."""

import csv
import json
from pathlib import Path

import pytest
from commands import forked, gossamer

from gossamer import algorithms as al
from gossamer.paper.exactness import Entry, entries, run
from gossamer.registry import methods


def test_every_method_is_in_the_table() -> None:
    assert {type(entry.method) for entry in entries()} == {methods.get(name) for name in methods.names()}


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    done = gossamer("reproduce", "exactness", "--json", "-o", str(tmp_path / "table.csv"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == len(entries())
    assert all(row["holds"] for row in rows)
    assert all(row["error"] <= 1e-8 for row in rows if row["expected"] == "exact")
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        assert [row["method"] for row in csv.DictReader(file)] == [row["method"] for row in rows]


def test_what_does_not_hold_is_said() -> None:
    assert not run(Entry("DSGD", al.DSGD(lr=0.02)), 1000).holds, "DSGD is not exact"
    assert not run(Entry("D2", al.D2(lr=0.1), 1.0), 1000).holds, "D2 has no floor"
    assert not run(Entry("DSGD", al.DSGD(lr=0.02), 0.5), 2000).holds, "its floor falls faster"
    assert not run(Entry("DSGD", al.DSGD(lr=50.0), 1.0), 1000).holds, "it diverges"


def test_a_beginning_has_no_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.paper.exactness.entries", lambda: [Entry("DSGD", al.DSGD(lr=0.02))])
    for rounds, code, holds in (("1000", 0, None), ("6000", 1, False)):
        done = forked("reproduce", "exactness", "--rounds", rounds, "--json", "-q", cwd=tmp_path)
        assert done.returncode == code
        assert [row["holds"] for row in json.loads(done.stdout)] == [holds]
    assert "cannot be told" in forked("reproduce", "exactness", "--rounds", "1000", cwd=tmp_path).stdout
