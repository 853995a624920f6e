"""`gossamer theory`: constants, step sizes and guarantees of BEER before a run."""

import argparse
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from gossamer import registry
from gossamer.algorithms.beer import BEER
from gossamer.cli.commands.check import check
from gossamer.cli.commands.data import downloads
from gossamer.cli.lines import results
from gossamer.cli.output import console, waiting
from gossamer.compression.base import Compressor
from gossamer.errors import InputError, check_integer, check_positive
from gossamer.problems import load, logistic_regression, softmax_regression
from gossamer.problems.base import Problem
from gossamer.report.table import human
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.tuning.auto import auto_steps, gradients_and_smoothness
from gossamer.theory import Certificate, bits_to, certify, lyapunov, rounds_to, theorem_steps
from gossamer.topology import MixingMatrix, mixing_matrix
from gossamer.topology.graphs import build_graph

_DEFAULTS = {
    "graph": "ring",
    "clients": 10,
    "weights": "metropolis",
    "compressor": "gsgd:5",
    "problem": "breast_cancer",
}
_SHARES = (1.0, 0.9, 0.7, 0.5, 0.3)  # of the largest certified step, at which the weights and Phi_0 are huge


@dataclass(frozen=True)
class _Steps:
    gamma: float
    lr: float


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
    rounds: float | None = None
    bits: float | None = None


def theory(options: argparse.Namespace) -> int:
    """`gossamer theory`."""
    if options.check is not None:
        return check(options)
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
    with results():
        if options.json:
            names = {"graph": options.graph, "weights": options.weights, "compressor": str(compressor)}
            print(json.dumps({"problem": options.problem} | names | asdict(facts), indent=2, allow_nan=False))
        else:
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
    bits = _bits_per_round(practical, problem, mixing)
    facts = _Facts(
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
        bits_per_round=bits,
        epsilon=target,
    )
    if gap is None:
        return facts
    smaller = [
        certify(alpha, mixing.rho, mixing.C, L, gamma=certificate.gamma, lr=share * certificate.lr) for share in _SHARES
    ]
    best = min(smaller, key=lambda one: rounds_to(target, one, _phi(one, gap, problem.x0(), gradients)))
    phi = _phi(best, gap, problem.x0(), gradients)
    return replace(facts, rounds=rounds_to(target, best, phi), bits=bits_to(target, best, phi, bits))


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
    table = Table(show_header=False, title=escape(f"BEER on {options.problem}, {options.graph}"), title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()

    def shown(steps: _Steps) -> str:
        return f"gamma {steps.gamma:.3g}, lr {steps.lr:.3g}"

    def maybe(number: float | None) -> str:
        return "unknown" if number is None else f"{number:.4g}"

    for heading, value, about in (
        ("alpha", f"{facts.alpha:.4g}", f"{compressor} at {facts.d:,} coordinates"),
        ("rho, C", f"{facts.rho:.4g}, {facts.C:.4g}", f"{facts.clients} clients, {options.weights} weights"),
        ("L", f"{facts.L:.4g}", "smoothness of every client's objective"),
        ("mu", maybe(facts.mu), "of the PL condition"),
        ("f(x0) - f*", maybe(facts.f_gap), ""),
        ("||grad f(x0)||", f"{facts.grad_norm:.4g}", ""),
        ("G", f"{facts.heterogeneity:.4g}", "distance of the clients' gradients from their mean at x0"),
        ("certified steps", shown(facts.certified), "the largest that the proof allows here"),
        ("theorem's steps", shown(facts.theorem), "from its absolute constants"),
        ("practical steps", shown(facts.practical), "gossamer.auto_steps: not proven"),
        ("bits per round", human(facts.bits_per_round), "on one link"),
    ):
        table.add_row(heading, value, about)
    if facts.rounds is not None and facts.bits is not None:
        table.add_row("guaranteed rounds", f"{facts.rounds:.3g}", f"to a mean ||grad f||^2 of {facts.epsilon:.3g}^2")
        table.add_row("guaranteed bits", human(facts.bits), "on one link, in these rounds")
    console().show(table)
