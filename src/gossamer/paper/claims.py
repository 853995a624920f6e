"""The paper's claims and their verdicts. claims.toml has the claims and their limits; here they are measured.

A claim holds if every seed agrees, does not hold if no seed does, and is inconclusive where seeds disagree, where a run
is missing, or where runs were shortened.
"""

import math
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from statistics import fmean
from typing import Literal

from gossamer.paper.rates.fit import Fit
from gossamer.paper.results import MissingRunsError, Numbers, Results, each, largest, less, ratio, smallest, times
from gossamer.report.conclusions import ClaimRow
from gossamer.theory.verdict import VERDICTS, Verdict

Quantity = Callable[[Results], Numbers]
"""One number per seed, or one in all where nothing is random."""

PUBLISHED = "-published"
"""What the name of a claim ends in that is judged again, on runs as published."""

_NEAR = 1.2  # a level that a method must reach is this far above a floor, so that the floor's noise does not decide
_quantities: dict[str, Quantity] = {}


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it is judged."""

    id: str
    where: str
    says: str
    """The paper's statement, in few words."""
    quantity: str
    """What is measured, for each seed."""
    bound: Literal["at most", "at least"]
    limit: float
    why: str
    """Why this limit."""
    note: str = ""
    """What is known of why it fails; shown where it does."""
    published: bool = False
    """Whether it is also judged on the runs as published."""

    @property
    def rule(self) -> str:
        """The limit, in words."""
        return f"{self.bound} {self.limit:.3g}"

    def is_met(self, value: float) -> bool:
        """Whether one seed agrees."""
        return value <= self.limit if self.bound == "at most" else value >= self.limit


@dataclass(frozen=True)
class Judged:
    """A claim with what was measured."""

    claim: Claim
    verdict: Verdict
    values: Numbers = field(default_factory=list)
    note: str = ""
    rule: str = ""
    """In place of the claim's own."""

    def row(self) -> ClaimRow:
        """For files and tables; a number that is not finite is None."""
        claim = self.claim
        finite = [value if math.isfinite(value) else None for value in self.values]
        whole = [value for value in finite if value is not None]
        return ClaimRow(
            claim.id,
            claim.where,
            claim.says,
            claim.quantity,
            self.rule or claim.rule,
            claim.why,
            tuple(finite),
            fmean(whole) if whole and len(whole) == len(finite) else None,
            self.verdict,
            self.note,
        )


def claims() -> list[Claim]:
    """Every claim of section 5."""
    table = tomllib.loads(files("gossamer.paper").joinpath("claims.toml").read_text(encoding="utf-8"))
    return [Claim(**entry) for entry in table["claims"]]


def judge(claim: Claim, results: Results, *, too_short: bool = False) -> Judged:
    """The verdict on a claim; of shortened runs, the numbers are given and nothing is concluded."""
    try:
        values = _quantities[claim.id](results)
    except MissingRunsError:
        return Judged(claim, "inconclusive", note="The runs it needs are not there.")
    agree = [claim.is_met(value) for value in values if not math.isnan(value)]
    if not values or len(agree) < len(values):
        return Judged(claim, "inconclusive", values, "The quantity is not defined on these runs.")
    verdict: Verdict = "holds" if all(agree) else "does not hold" if not any(agree) else "inconclusive"
    if too_short:
        return Judged(claim, "inconclusive", values, f"These runs are shortened; so far: {verdict}.")
    notes = ["The seeds disagree."] if verdict == "inconclusive" else []
    if any(math.isinf(value) for value in values):
        notes.append("Infinite: a run diverged, or never got there.")
    notes += [claim.note] if claim.note and verdict != "holds" else []
    return Judged(claim, verdict, values, " ".join(notes))


def judge_published(claim: Claim, results: Results, *, too_short: bool = False) -> Judged:
    """The verdict on the runs as published."""
    records = results.records.items()
    renamed = {name.removesuffix(PUBLISHED): kept for name, kept in records if name.endswith(PUBLISHED)}
    other = replace(claim, where=f"{claim.where}, as published", note="")
    judged = judge(other, replace(results, records=renamed), too_short=too_short)
    return replace(judged, claim=replace(other, id=f"{claim.id}{PUBLISHED}"))


def judge_fit(fit: Fit, *, too_short: bool = False) -> Judged:
    """The verdict on a rate: of tables 1 and 3, and of the theorems."""
    power = f"{'at most ' if fit.is_bound else ''}{fit.theory:.3g}"
    claim = Claim(
        re.sub(r"[^a-z0-9.]+", "-", f"rates {fit.method} {fit.what}".lower()),
        "Tables 1 and 3, theorems 4.1 to 4.4",
        f"{fit.method}: the slope of {fit.what} is {power}",
        f"fitted slope of {fit.y} against {fit.x}",
        "at most",
        fit.theory + fit.tolerance,
        "the whole interval, to a tenth of theory's exponent for a finite range and a grid of steps",
    )
    rule = claim.rule if fit.is_bound else f"{fit.theory:.3g}, give or take {fit.tolerance:.2g}"
    interval = f"95% confidence interval {fit.low:.3g} to {fit.high:.3g}."
    if too_short:
        return Judged(claim, "inconclusive", [fit.slope], f"Shortened; so far: {fit.agrees}. {interval}", rule)
    return Judged(claim, fit.agrees, [fit.slope], f"{interval} {fit.note}".strip(), rule)


def judge_all(results: Results, *, too_short: bool = False) -> list[Judged]:
    """Every claim whose runs are there, as the text says and as published; then the rates."""
    judged = [judge(claim, results, too_short=too_short) for claim in claims()]
    judged += [judge_published(claim, results, too_short=too_short) for claim in claims() if claim.published]
    judged = [one for one in judged if one.values or _is_begun(one.claim, results)]
    return judged + [judge_fit(fit, too_short=too_short) for fit in results.fits]


def _is_begun(claim: Claim, results: Results) -> bool:
    """Whether the figure that a claim is about has runs at all."""
    published = claim.id.endswith(PUBLISHED)
    figure = claim.id[:4].replace("fig", "figure")
    return any(name.startswith(figure) and name.endswith(PUBLISHED) == published for name in results.records)


def counted(verdicts: Sequence[str]) -> dict[str, int]:
    """How many claims got each verdict."""
    return {name: sum(one == name for one in verdicts) for name in VERDICTS}


# What is measured.


def _quantity(name: str) -> Callable[[Quantity], Quantity]:
    return lambda quantity: _quantities.setdefault(name, quantity)


_norm = partial(Results.final, column="grad_norm")
_accuracy = partial(Results.final, column="accuracy")


def _norms(job: str, above: str, below: str) -> Quantity:
    """Final gradient norm of one method over another's."""
    return lambda r: ratio(_norm(r, job, above), _norm(r, job, below))


def _race(
    job: str, x: str, level: Quantity, slow: Sequence[str], fast: Sequence[str], column: str = "grad_norm"
) -> Quantity:
    """`x` (rounds or bits) until the column is at the level: the slowest of some over the fastest of others."""

    def measure(r: Results) -> Numbers:
        goal = level(r)
        mine, theirs = ([r.until(job, label, column, goal, x) for label in labels] for labels in (slow, fast))
        return ratio(largest(*mine), smallest(*theirs))

    return measure


def _lead(r: Results, job: str, label: str, *others: str) -> Numbers:
    """By how much a method's final accuracy is above the best of the others'."""
    return less(_accuracy(r, job, label), largest(*(_accuracy(r, job, other) for other in others)))


_quantities["data-a9a"] = lambda r: [abs(5.0 - sum(2 * n > total for (n,), total in r.shares("figure1", ["1"])))]


@_quantity("data-mnist")
def _own_digit(r: Results) -> Numbers:
    shares = r.shares("figure2", [str(digit) for digit in range(10)])
    return [fmean(counts[i % 10] / total for i, (counts, total) in enumerate(shares))]


# Figure 1

_FOUR = ("BEER", "CHOCO-SGD", "DSGD", "D2")
_quantities["fig1-choco"] = _norms("figure1", "CHOCO-SGD", "D2")
_quantities["fig1-beer"] = _norms("figure1", "BEER", "D2")
_quantities["fig1-accuracy"] = lambda r: _lead(r, "figure1", *_FOUR)
_quantities["fig1-bits"] = _race(
    "figure1", "bits", lambda r: times(_NEAR, largest(*(_norm(r, "figure1", label) for label in _FOUR))),
    ("BEER", "CHOCO-SGD"), ("DSGD", "D2"),
)  # fmt: skip
_quantities["fig1-learns"] = _race(
    "figure1", "bits", lambda r: smallest(*(_accuracy(r, "figure1", label) for label in ("BEER", "DSGD", "D2"))),
    ("BEER",), ("DSGD", "D2"), "accuracy",
)  # fmt: skip

# Figure 2, and both together

_quantities["fig2-beer"] = _norms("figure2", "BEER", "D2")
_quantities["fig2-accuracy"] = lambda r: each(abs, _lead(r, "figure2", "BEER", "D2"))
_quantities["fig2-bits"] = _race("figure2", "bits", lambda r: times(1.5, _norm(r, "figure2", "D2")), ["BEER"], ["D2"])


@_quantity("fig2-floor")
def _floors(r: Results) -> Numbers:
    beer, *others = (_norm(r, "figure2", label) for label in ("BEER", "CHOCO-SGD", "DSGD"))
    return ratio(smallest(*others), beer)


@_quantity("fig2-best")
def _lead_of_two(r: Results) -> Numbers:
    beer, choco, dsgd, d2 = (_accuracy(r, "figure2", label) for label in _FOUR)
    return less(smallest(beer, d2), largest(choco, dsgd))


@_quantity("all-choco")
def _after_chocos_bits(r: Results) -> Numbers:
    found = []
    for job in ("figure1", "figure2"):
        ends = [record.rows[-1].bits or 0.0 for record in r.of(job, "CHOCO-SGD")]
        found.append(ratio(r.at(job, "BEER", "grad_norm", "bits", ends), _norm(r, job, "CHOCO-SGD")))
    return largest(*found)


for _other in ("D2", "DSGD"):
    _pair = (_norms("figure1", "BEER", _other), _norms("figure2", "BEER", _other))
    _quantities[f"all-{_other.lower()}"] = lambda r, pair=_pair: largest(*(one(r) for one in pair))  # type: ignore[misc]


# Figure 3

_GRAPHS = {
    "ring": "figure3-ring",
    "star": "figure3-star",
    "grid": "figure3-grid",
    "random, p = 0.2": "figure3-randomp02",
    "random, p = 0.5": "figure3-randomp05",
}
_GAPS = {"ring": 0.022, "star": 0.049, "grid": 0.063}  # as the paper gives them


def _off(*graphs: str) -> Quantity:
    """How far gaps are from the paper's."""
    return lambda r: [max(abs(r.rho(_GRAPHS[graph]) / _GAPS[graph] - 1) for graph in graphs)]


_quantities["fig3-ring"] = _off("ring")
_quantities["fig3-gaps"] = _off("star", "grid")
_quantities["fig3-random"] = lambda r: [r.rho("figure3-randomp02") - r.rho("figure3-randomp05")]


@_quantity("fig3-similar")
def _spread_of_graphs(r: Results) -> Numbers:
    norms = [_norm(r, job, graph) for graph, job in _GRAPHS.items()]
    return ratio(largest(*norms), smallest(*norms))


@_quantity("fig3-cube")
def _against_the_cube(r: Results) -> Numbers:
    level = times(_NEAR, largest(*(_norm(r, job, graph) for graph, job in _GRAPHS.items())))
    slow, fast = (r.until(_GRAPHS[g], g, "grad_norm", level, "round") for g in ("ring", "random, p = 0.5"))
    cube = (r.rho("figure3-randomp05") / r.rho("figure3-ring")) ** 3
    return times(1 / cube, ratio(slow, fast))


# Figure 4, at the paper's steps and at tuned ones


def _to_the_end(job: str, x: str, *labels: str) -> Quantity:
    """`x` until the norm is near the final one without compression: the slowest of the labels over no compression."""
    base = "no compression"
    return _race(job, x, lambda r: times(_NEAR, _norm(r, job, base)), labels, [base])


for _tag, _job in {"fig4": "figure4", "fig4-tuned": "figure4-tuned"}.items():
    _quantities[f"{_tag}-bits"] = _to_the_end(_job, "bits", "gsgd_5", "top_10")
    _quantities[f"{_tag}-faster"] = _to_the_end(_job, "round", "gsgd_5")
    _quantities[f"{_tag}-slower"] = _to_the_end(_job, "round", "top_10")
    _quantities[f"{_tag}-accuracy"] = lambda r, job=_job: _lead(r, job, "gsgd_5", "no compression", "top_10")  # type: ignore[misc]
    _quantities[f"{_tag}-similar"] = _norms(_job, "gsgd_5", "no compression")


@_quantity("fig4-same-bits")
def _bits_a_round(r: Results) -> Numbers:
    last = [[record.rows[-1] for record in r.of("figure4", label)] for label in ("gsgd_5", "top_10")]
    sent = [[(row.bits or 0.0) / row.round if row.round else math.nan for row in rows] for rows in last]
    return ratio(largest(*sent), smallest(*sent))


# Figure 5

_quantities["fig5-level"] = lambda r: _accuracy(r, "figure5", "BEER")
_quantities["fig5-accuracy"] = lambda r: _lead(r, "figure5", "BEER", "CHOCO-SGD")
_quantities["fig5-norm"] = _norms("figure5", "BEER", "CHOCO-SGD")


@_quantity("fig5-early")
def _early_gain(r: Results) -> Numbers:
    found = []
    for label in ("BEER", "CHOCO-SGD"):
        curves = [curve or [(0, math.nan)] for curve in r.curves("figure5", label, "accuracy")]
        early = [[math.nan, *(value for t, value in curve if t <= curve[-1][0] / 5)][-1] for curve in curves]
        begin, end = ([curve[place][1] for curve in curves] for place in (0, -1))
        gains = [gain if gain > 0 else math.nan for gain in less(end, begin)]  # no gain has no share of it
        found.append(ratio(less(early, begin), gains))
    return smallest(*found)


def _last_half(label: str) -> Quantity:
    """The last gradient norm over the one half-way, each a mean of three evaluations."""

    def measure(r: Results) -> Numbers:
        curves = r.curves("figure5", label, "grad_norm")
        every = [[norm for _, norm in curve] if len(curve) >= 3 else [math.nan] * 3 for curve in curves]
        halves = [fmean(norms[len(norms) // 2 - 1 : len(norms) // 2 + 2]) for norms in every]
        return ratio([fmean(norms[-3:]) for norms in every], halves)

    return measure


_quantities["fig5-improves"] = _last_half("BEER")
_quantities["fig5-floor"] = _last_half("CHOCO-SGD")
