"""The claims are judged as they say."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from records import lines

from gossamer.paper.claims import Claim, _quantities, claims, counted, judge, judge_all, judge_fit, judge_published
from gossamer.paper.rates.fit import Fit
from gossamer.paper.results import MissingRunsError, Results, largest, less, ratio, smallest
from gossamer.records.record import Record
from gossamer.records.schema import End, Header, Row, Shares, read_row
from gossamer.records.typed import read_as

FOUR = ("BEER", "CHOCO-SGD", "DSGD", "D2")
SEEDS = (0, 1, 2)


def record(label: str, seed: int, norm: float, accuracy: float, bits: float = 1e4, **header: Any) -> Record:
    """A run whose gradient norm falls to `norm` and whose accuracy rises to `accuracy`, with so many bits a round."""
    first, *rows, _ = lines(label, seed, **header)
    for t, row in enumerate(rows):
        rest = math.exp(-0.5 * t)
        row |= {"grad_norm": norm + rest, "accuracy": accuracy * (1 - rest), "bits": bits * t, "bits_nominal": bits * t}
    return Record(read_as(Header, first), [read_row(row) for row in rows], End("finished", 390))


def results(**norms: float) -> Results:
    """Figure 1, as the paper tells it, but for what is given."""
    usual = {"BEER": 0.004, "CHOCO-SGD": 0.1, "DSGD": 0.1, "D2": 0.004} | {
        k.replace("_", "-"): v for k, v in norms.items()
    }
    shares = {"labels": ["-1", "1"], "counts": [[9, 1]] * 5 + [[1, 9]] * 5}
    runs = [
        record(
            label,
            seed,
            norm,
            0.9 if norm < 0.05 else 0.8,
            4e3 if label in ("BEER", "CHOCO-SGD") else 1e4,
            shares=shares,
        )
        for label, norm in usual.items()
        for seed in SEEDS
    ]
    return Results({"figure1": runs})


def of(name: str) -> Claim:
    return next(claim for claim in claims() if claim.id == name)


def test_every_claim_is_measured_and_says_why() -> None:
    listed = claims()
    ids = [claim.id for claim in listed]
    assert len(ids) == len(set(ids)) >= 25
    assert set(ids) == set(_quantities)
    for claim in listed:
        assert claim.says
        assert claim.quantity
        assert claim.why
        assert claim.bound in ("at most", "at least")


def test_figure_1_as_the_paper_tells_it() -> None:
    verdicts = {one.claim.id: one.verdict for one in judge_all(results())}
    assert verdicts == {
        "data-a9a": "holds",
        "fig1-bits": "holds",
        "fig1-choco": "holds",
        "fig1-beer": "holds",
        "fig1-accuracy": "holds",
        "fig1-learns": "holds",
    }


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("fig1-choco", {"CHOCO_SGD": 0.006}),
        ("fig1-beer", {"BEER": 0.01}),
        ("fig1-accuracy", {"BEER": 0.1}),
    ],
)
def test_a_claim_that_fails_is_said_to_fail(name: str, changed: dict[str, float]) -> None:
    assert judge(of(name), results(**changed)).verdict == "does not hold"


def test_bits_decide_what_is_said_of_bits() -> None:
    changed = results()
    for one in changed.records["figure1"]:
        if one.label == "BEER":
            one.rows = [replace(row, bits=1e5 * t) for t, row in enumerate(one.rows)]
    assert judge(of("fig1-bits"), changed).verdict == "does not hold"
    assert judge(of("fig1-learns"), changed).verdict == "does not hold"


def test_seeds_that_disagree_cannot_tell() -> None:
    mixed = results()
    runs = [one for one in mixed.records["figure1"] if (one.label, one.seed) != ("BEER", 1)]
    judged = judge(of("fig1-beer"), Results({"figure1": [*runs, record("BEER", 1, 0.1, 0.9)]}))
    assert judged.verdict == "inconclusive"
    assert "disagree" in judged.note
    assert len(judged.values) == 3


def test_what_was_not_run_cannot_be_told() -> None:
    judged = judge(of("fig2-beer"), results())
    assert (judged.verdict, judged.values) == ("inconclusive", [])
    assert "not there" in judged.note
    assert all(one.claim.id.startswith(("fig1", "data")) for one in judge_all(results())), "and is not listed"
    some = [one for one in results().records["figure1"] if one.label != "D2"]
    lacking = {one.claim.id: one.verdict for one in judge_all(Results({"figure1": some}))}
    assert lacking["fig1-beer"] == "inconclusive", "but a figure that was begun has all its claims"


def test_a_mistake_in_a_measure_is_not_taken_for_a_missing_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(r: Results) -> list[float]:
        raise KeyError("a slip")

    monkeypatch.setitem(_quantities, "fig1-beer", broken)
    with pytest.raises(KeyError, match="a slip"):
        judge(of("fig1-beer"), results())


def test_shortened_runs_conclude_nothing() -> None:
    judged = judge(of("fig1-beer"), results(), too_short=True)
    assert judged.verdict == "inconclusive"
    assert "so far: holds" in judged.note
    assert len(judged.values) == 3


def test_a_run_that_diverged_is_the_worst_there_is() -> None:
    runs = [one for one in results().records["figure1"] if one.label != "BEER"]
    lost = [record("BEER", seed, 0.004, 0.9) for seed in SEEDS]
    for one in lost:
        one.end = End("diverged", 300, "it did")
    judged = judge(of("fig1-beer"), Results({"figure1": [*runs, *lost]}))
    assert judged.verdict == "does not hold"
    assert judged.values == [math.inf] * 3
    assert "diverged" in judged.note
    assert judged.row().values == (None,) * 3, "JSON has no infinity"
    assert judge(of("fig1-accuracy"), Results({"figure1": [*runs, *lost]})).verdict == "does not hold"


def test_published_runs_are_judged_apart() -> None:
    both = Results(
        {"figure1": results().records["figure1"], "figure1-published": results(BEER=0.01).records["figure1"]}
    )
    assert judge(of("fig1-beer"), both).verdict == "holds"
    published = judge_published(of("fig1-beer"), both)
    assert published.verdict == "does not hold"
    assert published.claim.id == "fig1-beer-published"
    assert "as published" in published.claim.where


def test_a_level_that_is_there_from_the_start_tells_nothing() -> None:
    flat = results()
    for one in flat.records["figure1"]:
        one.rows = [replace(row, accuracy=0.764) for row in one.rows]
    judged = judge(of("fig1-learns"), flat)
    assert judged.verdict == "inconclusive"
    assert all(math.isnan(value) for value in judged.values)


@pytest.mark.parametrize(
    ("slope", "low", "high", "verdict"),
    [
        (-1.0, -1.05, -0.95, "holds"),
        (-0.5, -0.6, -0.4, "does not hold"),
        (-0.9, -1.0, -0.8, "inconclusive"),
    ],
)
def test_rates(slope: float, low: float, high: float, verdict: str) -> None:
    fit = Fit("slopes", "the mean", "BEER", "T", "y", slope, low, high, -1.0, True, ((1.0, 1.0),))
    judged = judge_fit(fit)
    assert judged.verdict == verdict
    assert f"{low:.3g} to {high:.3g}" in judged.note
    assert judge_fit(fit, too_short=True).verdict == "inconclusive"
    assert counted([judged.verdict])[verdict] == 1


def test_experiments_with_other_seeds_are_not_compared() -> None:
    fewer = [one for one in results().records["figure1"] if one.seed < 2]
    judged = judge(of("all-d2"), Results({"figure1": results().records["figure1"], "figure2": fewer}))
    assert judged.verdict == "inconclusive"


def test_questions() -> None:
    r = results()
    assert r.final("figure1", "BEER", "grad_norm") == pytest.approx([0.004] * 3, rel=1e-3)
    assert r.until("figure1", "BEER", "grad_norm", [0.5] * 3, "round") == [20.0] * 3
    assert r.until("figure1", "BEER", "accuracy", [0.99] * 3, "round") == [math.inf] * 3
    assert r.at("figure1", "BEER", "grad_norm", "round", [0, 10, 20])[0] == pytest.approx(1.004)
    with pytest.raises(MissingRunsError):
        r.of("figure1", "nobody")
    with pytest.raises(MissingRunsError):
        r.rho("nothing")
    assert ratio([1, 0, math.inf, 2], [2, 1, 1, 0]) == [0.5, 0, math.inf, math.inf]
    assert all(math.isnan(x) for x in ratio([0, math.inf], [0, math.inf]))
    assert (largest([1, 5], [2, 3]), smallest([1, 5], [2, 3]), less([1], [3])) == ([2, 5], [1, 3], [-2])


def network(damage: Callable[[Record], None], label: str = "BEER") -> Results:
    """Figure 5, with something wrong in one run."""
    runs = [record(name, seed, 0.1, 0.9) for name in ("BEER", "CHOCO-SGD") for seed in SEEDS]
    damage(next(run for run in runs if run.label == label))
    return Results({"figure5": runs})


DAMAGES: dict[str, Callable[[Record], None]] = {
    "no norm at the end": lambda run: run.rows.append(replace(run.rows.pop(), grad_norm=None, accuracy=None)),
    "no norm anywhere": lambda run: setattr(run, "rows", [Row(round=row.round, bits=1.0) for row in run.rows]),
    "two rows": lambda run: run.rows.__delitem__(slice(2, None)),
    "no first rows": lambda run: run.rows.__delitem__(slice(0, 38)),
    "diverged": lambda run: setattr(run, "end", End("diverged", 390, "It diverged.")),
}


@pytest.mark.parametrize(("label", "half"), [("BEER", "fig5-improves"), ("CHOCO-SGD", "fig5-floor")])
@pytest.mark.parametrize("damage", DAMAGES)
def test_runs_that_cannot_be_measured_cannot_tell(damage: str, label: str, half: str) -> None:
    whole = {one.claim.id: one.verdict for one in judge_all(network(lambda run: None))}
    told = {one.claim.id: one.verdict for one in judge_all(network(DAMAGES[damage], label))}
    assert set(told) == set(whole)
    assert told[half] == told["fig5-early"] == "inconclusive"
    assert whole[half] != "inconclusive"


@pytest.mark.parametrize(
    "shares",
    [None, Shares(("0",), ((3,),)), Shares(("1",), ((0,),))],
)
def test_shares_that_are_none_cannot_tell(shares: Shares | None) -> None:
    damaged = results()
    for run in damaged.records["figure1"]:
        run.header = replace(run.header, shares=shares)
    assert judge(of("data-a9a"), damaged).verdict == "inconclusive"


@pytest.mark.parametrize("rho", [None, 0, -1])
def test_a_gap_that_is_none_cannot_tell(rho: Any) -> None:
    mixing = None if rho is None else {"clients": 5, "edges": 5, "rho": rho, "C": 2.0}
    run = record("ring", 0, 0.1, 0.9, mixing=mixing)
    assert judge(of("fig3-ring"), Results({"figure3-ring": [run]})).verdict == "inconclusive"
