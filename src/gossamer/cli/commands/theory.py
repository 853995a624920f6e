"""`gossamer theory`: what theory says about BEER before a run, and the proof checked on recorded runs."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Column, Table

from gossamer import registry
from gossamer.algorithms.beer import BEER
from gossamer.cli.commands.data import downloads
from gossamer.cli.lines import complain, note, show_json
from gossamer.cli.output import VERDICTS, check_picture, console, titled, waiting
from gossamer.compression.base import Compressor
from gossamer.errors import GossamerError, InputError, check_integer, check_positive
from gossamer.paper.omegas import Proof, check_records, proof_of
from gossamer.problems import load, logistic_regression, softmax_regression
from gossamer.problems.base import Problem
from gossamer.records.record import Record, record_name
from gossamer.report import proof_figure
from gossamer.report.gather import Group, gather
from gossamer.report.table import human
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.tuning.auto import auto_steps, gradients_and_smoothness
from gossamer.theory import Certificate, Checked, bits_to, certify, lyapunov, rounds_to, theorem_steps
from gossamer.topology import MixingMatrix, mixing_matrix
from gossamer.topology.graphs import build_graph

_DEFAULTS = {"graph": "ring", "clients": 10, "weights": "metropolis"}
_DEFAULTS |= {"compressor": "gsgd:5", "problem": "breast_cancer"}
_SHARES = (1.0, 0.9, 0.7, 0.5, 0.3)  # of the largest certified step, at which the weights and Phi_0 are huge


@dataclass(frozen=True)
class _Steps:
    gamma: float
    lr: float

    def __str__(self) -> str:
        return f"gamma {self.gamma:.3g}, lr {self.lr:.3g}"


@dataclass(frozen=True)
class _Facts:
    """The constants of a problem, a network and a compressor, and what theory says about BEER with them."""

    clients: int
    d: int
    alpha: float
    rho: float
    C: float
    L: float
    mu: float | None
    f_gap: float | None
    grad_norm: float
    heterogeneity: float
    certified: _Steps
    theorem: _Steps
    practical: _Steps
    bits_per_round: int
    epsilon: float
    rounds: float | None
    bits: float | None


def theory(options: argparse.Namespace) -> int:
    """`gossamer theory`."""
    if options.check is not None:
        return _check(options)
    if options.output is not None:
        raise InputError("-o is the picture of --check; leave it out.")
    for name, default in _DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    check_integer("clients", options.clients, 2)
    if options.epsilon is not None:
        check_positive("epsilon", options.epsilon)
    compressor = registry.compressors.build(options.compressor)
    with downloads(options.json), waiting("Reading the data, computing the constants", options.json):
        mixing = mixing_matrix(build_graph(options.graph, options.clients), options.weights)
        problem = _problem(options.problem, mixing.clients, options.data_dir)
        facts = _measured(problem, mixing, compressor, options.epsilon)
    if options.json:
        names = {"graph": options.graph, "weights": options.weights, "compressor": str(compressor)}
        return show_json({"problem": options.problem} | names | asdict(facts))
    _show(facts, options, str(compressor))
    return 0


def _problem(name: str, clients: int, data_dir: str | None) -> Problem:
    """An objective by name, or a regression on a data set."""
    kind = name.split(":", maxsplit=1)[0]
    if registry.normal(kind) in registry.objectives.names() and registry.normal(kind) not in registry.datasets.names():
        settings: Any = {"name": registry.normal(kind), "clients": clients}
        problem: Problem = registry.objectives.build(settings)
        return problem
    dataset = load(name, data_dir)
    if len(dataset.classes("Regression")) == 2:
        return logistic_regression(dataset, clients=clients, nonconvex=0.05)
    return softmax_regression(dataset, clients=clients)


def _measured(problem: Problem, mixing: MixingMatrix, compressor: Compressor, epsilon: float | None) -> _Facts:
    gradients, L = gradients_and_smoothness(problem)
    alpha, minimum = compressor.alpha(problem.d), problem.minimum()
    at_x0 = problem.evaluate(problem.x0()[None].double())
    start = float(at_x0["grad_norm"][0])
    target = epsilon if epsilon is not None else start / 10
    gap = None if minimum is None else max(0.0, float(at_x0["loss"][0]) - minimum)
    certificate = certify(alpha, mixing.rho, mixing.C, L)
    gamma, lr = theorem_steps(alpha, mixing.rho, mixing.C, L)
    practical = auto_steps(BEER, problem, mixing, compressor, rounds=0)
    per_round = _bits_per_round(practical, problem, mixing)
    rounds = bits = None
    if gap is not None:
        lrs = (share * certificate.lr for share in _SHARES)
        smaller = [certify(alpha, mixing.rho, mixing.C, L, gamma=certificate.gamma, lr=one) for one in lrs]
        bounds = [(one, _phi(one, gap, problem.x0(), gradients)) for one in smaller]
        best, phi = min(bounds, key=lambda bound: rounds_to(target, *bound))
        rounds, bits = rounds_to(target, best, phi), bits_to(target, best, phi, per_round)
    return _Facts(
        clients=problem.clients,
        d=problem.d,
        alpha=alpha,
        rho=mixing.rho,
        C=mixing.C,
        L=L,
        mu=problem.pl_constant(),
        f_gap=gap,
        grad_norm=start,
        heterogeneity=problem.heterogeneity() ** 0.5,
        certified=_Steps(certificate.gamma, certificate.lr),
        theorem=_Steps(gamma, lr),
        practical=_Steps(practical.gamma, practical.lr_at(0)),
        bits_per_round=per_round,
        epsilon=target,
        rounds=rounds,
        bits=bits,
    )


def _phi(certificate: Certificate, gap: float, x0: torch.Tensor, v: torch.Tensor) -> float:
    """Phi_0 with all clients at x0 and H = G = 0, where the surrogates' errors are the models and the trackers."""
    apart = v - v.mean(dim=0)
    omegas = (len(v) * float(x0.double().square().sum()), float(v.square().sum()), 0.0, float(apart.square().sum()))
    return lyapunov(gap, omegas, certificate.weights_for(len(v)))


def _bits_per_round(method: BEER, problem: Problem, mixing: MixingMatrix) -> int:
    """Bits on one link per round with both messages; the first round has only one."""
    sim = Simulation(method, problem, mixing)
    with torch.no_grad():
        sim.step()
        before = sim.traffic.on_one_link(0)
        sim.step()
    return round(sim.traffic.on_one_link(0) - before)


def _show(facts: _Facts, options: argparse.Namespace, compressor: str) -> None:
    table = Table(Column(no_wrap=True), Column(justify="right", no_wrap=True), Column(), show_header=False)
    table.title, table.title_justify = escape(f"BEER on {options.problem}, {options.graph}"), "left"

    mu, gap = ("unknown" if number is None else f"{number:.4g}" for number in (facts.mu, facts.f_gap))
    for heading, value, about in (
        ("alpha", f"{facts.alpha:.4g}", f"{compressor} at {facts.d:,} coordinates"),
        ("rho, C", f"{facts.rho:.4g}, {facts.C:.4g}", f"{facts.clients} clients, {options.weights} weights"),
        ("L", f"{facts.L:.4g}", "smoothness of every client's objective"),
        ("mu", mu, "of the PL condition"),
        ("f(x0) - f*", gap, ""),
        ("||grad f(x0)||", f"{facts.grad_norm:.4g}", ""),
        ("G", f"{facts.heterogeneity:.4g}", "distance of the clients' gradients from their mean at x0"),
        ("certified steps", str(facts.certified), "the largest that the proof allows here"),
        ("theorem's steps", str(facts.theorem), "from its absolute constants"),
        ("practical steps", str(facts.practical), "gossamer.auto_steps: not proven"),
        ("bits per round", human(facts.bits_per_round), "on one link"),
    ):
        table.add_row(heading, value, about)
    if facts.rounds is not None and facts.bits is not None:
        table.add_row("guaranteed rounds", f"{facts.rounds:.3g}", f"to a mean ||grad f||^2 of {facts.epsilon:.3g}^2")
        table.add_row("guaranteed bits", human(facts.bits), "on one link, in these rounds")
    console().show(table)


@dataclass(frozen=True)
class RunRow:
    """A run with its findings, for JSON and tables."""

    experiment: str
    records: list[Record]
    """One per seed."""
    checked: Checked
    picture: Path

    @property
    def proof(self) -> Proof:
        """What the proof needs to know of the run."""
        return proof_of(self.records[0])

    @property
    def rounds(self) -> int:
        """The most that a seed has run."""
        return max(record.rows[-1].round for record in self.records)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        names = ("name", "says", "verdict", "why", "above", "tightest")
        return {
            "experiment": self.experiment,
            "label": self.records[0].label,
            "seeds": [record.seed for record in self.records],
            "verdict": self.checked.verdict,
            "rounds": self.rounds,
            "lr": self.proof.lr,
            "gamma": self.proof.gamma,
            "certified": self.checked.certificate is not None,
            "figure": str(self.picture),
            "findings": [
                {name: getattr(one, name) for name in names} | {"rounds": one.many} for one in self.checked.findings
            ],
        }


def _check(options: argparse.Namespace) -> int:
    """`gossamer theory --check RUN`: exit code 1 if an inequality of the proof does not hold."""
    for name in ("graph", "clients", "weights", "compressor", "problem", "epsilon", "data_dir"):
        if getattr(options, name) is not None:
            raise InputError(f"--check takes everything from the record; leave --{name.replace('_', '-')} out.")
    source = Path(options.check)
    if options.output is not None:
        check_picture(options.output)
    with waiting(f"Reading {source}", options.json):
        found = gather(source)
    for sentence in found.left_out:
        note(f"gossamer: {sentence}")
    runs = list(_runs(found.groups))
    if options.output is not None and len(runs) > 1:
        raise InputError(
            f"'{source}' holds {len(runs)} runs, and -o names one picture; give one record, or leave it out."
        )
    rows, refused = [], []
    for group, records in runs:
        try:
            with waiting(f"Checking {records[0].label}", options.json):
                checked = check_records(records)
                name = Path(record_name(records[0].label, 0)).stem.rsplit("-seed", 1)[0]
                picture = Path(options.output or group.folder / f"{name}-proof.png")
                proof_figure(checked, picture, f"{group.name}: {records[0].label}")
        except GossamerError as error:
            refused.append(str(error))
            continue
        rows.append(RunRow(group.name, records, checked, picture))
        if not options.json:
            _show_check(rows[-1])
    for sentence in refused:
        note(f"gossamer: {sentence}")
    if not rows:
        return complain(f"Nothing in '{source}' could be checked against the proof.", 2)
    if options.json:
        show_json([row.as_dict() for row in rows])
    return int(any(row.checked.verdict == "does not hold" for row in rows))


def _runs(groups: list[Group]) -> Iterator[tuple[Group, list[Record]]]:
    """The records of each method of each experiment."""
    for group in groups:
        for label in dict.fromkeys(record.label for record in group.records):
            yield group, [record for record in group.records if record.label == label]


def _show_check(row: RunRow) -> None:
    out, checked, certificate, seeds = console(), row.checked, row.checked.certificate, len(row.records)
    title = f"{row.experiment}: {row.records[0].label}, {seeds} {'seed' if seeds == 1 else 'seeds'}"
    table = titled(escape(title), "", "at every round", ">rounds", ">tightest", "verdict")
    for finding in checked.findings:
        many = f"{finding.many:,}" if finding.many else ""
        tightest = "" if finding.tightest is None else f"{finding.tightest:.3g}"
        above = f" (mean above in {finding.above:,})" if finding.above and finding.verdict == "holds" else ""
        table.add_row(finding.name, escape(finding.says), many, tightest, VERDICTS[finding.verdict] + above)
    out.show(table)
    reasons: dict[str, list[str]] = {}
    for finding in checked.findings:
        if finding.why:
            reasons.setdefault(finding.why, []).append(finding.name)
    for why, names in reasons.items():
        out.plain(f"{'; '.join(names)}: {why}")
    if certificate is not None:
        kind = "4.1" if certificate.mu is None else "4.1 and 4.3"
        out.plain(
            f"The steps are certified for Theorem {kind}: lr {certificate.lr:.4g}, gamma {certificate.gamma:.4g}, with "
            f"n s = {', '.join(f'{weight:.3g}' for weight in certificate.weights)}."
        )
    out.print(
        f"Verdict: {VERDICTS[checked.verdict]}. Figure: {escape(str(row.picture))}", highlight=False, soft_wrap=True
    )
