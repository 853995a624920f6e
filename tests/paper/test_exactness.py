"""The exactness table: every entry holds, and the check can fail."""

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commands import forked, gossamer

from gossamer import algorithms as al
from gossamer.compression.dense import identity
from gossamer.paper.exactness import Entry, entries, run
from gossamer.registry import methods

BEER = al.BEER(lr=0.2, gamma=0.5, compressor=identity())


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
    clipped = [row for row in rows if row["grad_norm"] is not None]
    assert [row["method"] for row in clipped] == [f"PORTER, clipped to 1, D = {D}" for D in (10, 100, 1000)]
    assert all("clipped fixed point" in row["expected"] for row in clipped)
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        assert [row["method"] for row in csv.DictReader(file)] == [row["method"] for row in rows]


@pytest.mark.parametrize(("apart", "norm"), [(10.0, 2.5), (100.0, 32.0), (1000.0, 332.0)])
def test_porter_with_clipping_stops_where_the_clipped_gradients_sum_to_zero(apart: float, norm: float) -> None:
    (entry,) = (entry for entry in entries() if entry.apart == apart)
    outcome = run(entry, 2000)
    assert outcome.holds
    assert outcome.grad_norm is not None
    assert outcome.grad_norm == pytest.approx(norm, rel=0.03)
    # From the definition: the clipped gradients of the three clients cancel there, and their own do not.
    x = apart / 3 - outcome.grad_norm
    clipped = sum(z / (1 + abs(z)) for z in (x, x, x - apart))
    assert abs(clipped) < 1e-6
    assert not run(replace(entry, method=BEER), 2000).holds, "BEER goes to the minimiser"
    assert not replace(outcome, grad_norm=1.1 * outcome.grad_norm).holds
    assert not replace(outcome, errors={0.2: 1e-3}).holds


def test_the_command_fails_if_porter_does_not_stop_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = (entry for entry in entries() if entry.apart == 10.0)
    for method, code in ((entry.method, 0), (BEER, 1)):
        tried = [replace(entry, method=method)]
        monkeypatch.setattr("gossamer.paper.exactness.entries", partial(list, tried))
        done = forked("reproduce", "exactness", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert "PORTER, clipped to 1, D = 10" in done.stdout
    assert "does not hold for PORTER, clipped to 1, D = 10" in done.stderr


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
    assert "inconclusive" in forked("reproduce", "exactness", "--rounds", "1000", cwd=tmp_path).stdout
