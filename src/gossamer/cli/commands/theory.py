"""What theory says before a run: `gossamer theory`."""

import argparse
import json
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
from gossamer.runtime.tuning.auto import auto, gradients_and_smoothness
from gossamer.theory import Certificate, bits_to, certify, lyapunov, rounds_to, theorem_steps
from gossamer.topology import MixingMatrix, mixing_matrix
from gossamer.topology.graphs import build_graph

_USUAL = {
    "graph": "ring",
    "clients": 10,
    "weights": "metropolis",
    "compressor": "gsgd:5",
    "problem": "breast_cancer",
}
_SHARES = (1.0, 0.9, 0.7, 0.5, 0.3)  # of the largest certified step: at its very edge the weights, and Phi_0, are huge


def theory(options: argparse.Namespace) -> int:
    """`gossamer theory`."""
    if options.check is not None:
        return check(options)
    if options.output is not None:
        raise InputError("-o names the picture that --check draws; leave it out.")
    for name, usual in _USUAL.items():
        if getattr(options, name) is None:
            setattr(options, name, usual)
    check_integer("clients", options.clients, 2)
    if options.epsilon is not None:
        check_positive("epsilon", options.epsilon)
    compressor = registry.compressors.build(options.compressor)
    with downloads(options.json), waiting("Reading the data, working out the constants", options.json):
        mixing = mixing_matrix(build_graph(options.graph, options.clients), options.weights)
        problem = _problem(options.problem, mixing.clients, options.data_dir)
        row = _measured(problem, mixing, compressor, options.epsilon)
    names = {"graph": options.graph, "weights": options.weights, "compressor": str(compressor)}
    row = {"problem": options.problem} | names | row
    with results():
        if options.json:
            print(json.dumps(row, indent=2, allow_nan=False))
        else:
            _show(row)
    return 0


def _problem(name: str, clients: int, data_dir: str | None) -> Problem:
    """An objective by its name, or the regression that fits a data set."""
    kind = name.split(":", maxsplit=1)[0]
    if registry.normal(kind) in registry.objectives.names() and registry.normal(kind) not in registry.datasets.names():
        settings: Any = {"name": registry.normal(kind), "clients": clients}
        problem: Problem = registry.objectives.build(settings)
        return problem
    dataset = load(name, data_dir)
    if len(dataset.classes("Regression")) == 2:
        return logistic_regression(dataset, clients=clients, nonconvex=0.05)
    return softmax_regression(dataset, clients=clients)


def _measured(problem: Problem, mixing: MixingMatrix, compressor: Compressor, epsilon: float | None) -> dict[str, Any]:
    gradients, L = gradients_and_smoothness(problem)
    alpha, n = compressor.alpha(problem.d), problem.clients
    least, mu = problem.minimum(), problem.pl_constant()
    at_x0 = problem.evaluate(problem.x0()[None].double())
    start = float(at_x0["grad_norm"][0])
    target = epsilon if epsilon is not None else start / 10
    gap = None if least is None else max(0.0, float(at_x0["loss"][0]) - least)
    certificate = certify(alpha, mixing.rho, mixing.C, L)
    gamma, lr = theorem_steps(alpha, mixing.rho, mixing.C, L)
    practical = auto(BEER, problem, mixing, compressor, rounds=0)
    bits = _bits_a_round(practical, problem, mixing)
    said: dict[str, Any] = {
        "clients": n,
        "d": problem.d,
        "alpha": alpha,
        "rho": mixing.rho,
        "C": mixing.C,
        "L": L,
        "mu": mu,
        "f_gap": gap,
        "grad_norm": start,
        "heterogeneity": problem.heterogeneity() ** 0.5,
        "certified": {"gamma": certificate.gamma, "lr": certificate.lr},
        "theorem": {"gamma": gamma, "lr": lr},
        "practical": {"gamma": practical.gamma, "lr": practical.lr_at(0)},
        "bits_a_round": bits,
        "epsilon": target,
    }
    said["rounds"] = said["bits"] = None
    if gap is not None:
        tried = [
            certify(alpha, mixing.rho, mixing.C, L, gamma=certificate.gamma, lr=share * certificate.lr)
            for share in _SHARES
        ]
        best = min(tried, key=lambda one: rounds_to(target, one, _phi(one, gap, problem.x0(), gradients)))
        phi = _phi(best, gap, problem.x0(), gradients)
        said |= {"rounds": rounds_to(target, best, phi), "bits": bits_to(target, best, phi, bits)}
    return said


def _phi(certificate: Certificate, gap: float, x0: torch.Tensor, v: torch.Tensor) -> float:
    """Phi_0 with all clients at x0 and H = G = 0: the surrogates' errors are the models and the trackers themselves."""
    apart = v - v.mean(dim=0)
    omegas = (len(v) * float(x0.double().square().sum()), float(v.square().sum()), 0.0, float(apart.square().sum()))
    return lyapunov(gap, omegas, certificate.weights_for(len(v)))


def _bits_a_round(method: BEER, problem: Problem, mixing: MixingMatrix) -> int:
    """Bits on one link in a round with both messages; the first round has one."""
    sim = Simulation(method, problem, mixing)
    with torch.no_grad():
        sim.step()
        before = sim.traffic.on_one_link(0)
        sim.step()
    return round(sim.traffic.on_one_link(0) - before)


def _show(row: dict[str, Any]) -> None:
    table = Table(show_header=False, title=escape(f"BEER on {row['problem']}, {row['graph']}"), title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()

    def steps(name: str) -> str:
        return f"gamma {row[name]['gamma']:.3g}, lr {row[name]['lr']:.3g}"

    def maybe(name: str, form: str = ".4g") -> str:
        return "not known" if row[name] is None else format(row[name], form)

    for heading, value, about in (
        ("alpha", f"{row['alpha']:.4g}", f"{row['compressor']} at {row['d']:,} coordinates"),
        ("rho, C", f"{row['rho']:.4g}, {row['C']:.4g}", f"{row['clients']} clients, {row['weights']} weights"),
        ("L", f"{row['L']:.4g}", "smoothness of every client's objective"),
        ("mu", maybe("mu"), "of the PL condition"),
        ("f(x0) - f*", maybe("f_gap"), ""),
        ("||grad f(x0)||", f"{row['grad_norm']:.4g}", ""),
        ("G", f"{row['heterogeneity']:.4g}", "how far the clients' gradients are from their mean at x0"),
        ("certified steps", steps("certified"), "the largest that the proof allows here"),
        ("theorem's steps", steps("theorem"), "from its absolute constants"),
        ("practical steps", steps("practical"), "gossamer.auto: not proven"),
        ("bits a round", human(row["bits_a_round"]), "on one link"),
    ):
        table.add_row(heading, value, about)
    if row["rounds"] is not None:
        table.add_row("guaranteed rounds", f"{row['rounds']:.3g}", f"to a mean ||grad f||^2 of {row['epsilon']:.3g}^2")
        table.add_row("guaranteed bits", human(row["bits"]), "on one link, until then")
    console().show(table)
