"""`benchmarks/membership.py`, shortened, and the table that is committed."""

import json
from pathlib import Path

import numpy as np
import pytest

import gossamer as gs
from benchmarks.membership import FAR, LATEST, NEAR, Setting, norms, phases, play, table, verdict
from gossamer.runtime.open.simulated.events import Lost

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def short() -> Setting:
    problem = gs.logistic_regression("breast_cancer", clients=4, partition="sorted", nonconvex=0.05)
    method = gs.BEER(lr=0.2, gamma=1.0, compressor=gs.gsgd(5))
    return Setting(problem, method, 32, rounds=200, leave=60, back=130, window=30, floor=60, latest=30)


def test_the_rule_keeps_the_floor_low() -> None:
    """Two of four clients are lost; without the rule the others go where the lost ones wanted to."""
    one = short()
    lost = [Lost(i, one.leave - 0.75) for i in (1, 2)]
    fresh, ruled, bare = (
        float(np.nanmean(norms(one, play(one, 0, events, absent, rule=rule))[-one.floor :]))
        for events, absent, rule in (([], (1, 2), True), (lost, (), True), (lost, (), False))
    )
    assert ruled < NEAR * fresh
    assert bare > 2 * fresh


@pytest.mark.slow
def test_a_shortened_version() -> None:
    one = short()
    rows = [verdict(one, phase) | {"seed": 0} for phase in phases(one, 0)]
    assert [(row["run"], row["change"]) for row in rows] == [
        (run, change)
        for run in ("leave", "lost", "lost, no rule", "leave, not adjacent")
        for change in ("two go", "one returns")
    ]
    assert len(table(rows).splitlines()) == 2 + len(rows)


def test_the_committed_table() -> None:
    rows = json.loads((RESULTS / "membership.json").read_text())
    assert table(rows) == (RESULTS / "membership.md").read_text()
    ruled = [row for row in rows if row["run"] in ("leave", "lost")]
    assert len(ruled) == 12
    assert all(row["rounds"] <= LATEST and row["ratio"] <= NEAR for row in ruled)
    assert all(row["ratio"] >= FAR for row in rows if row["run"] == "lost, no rule")
