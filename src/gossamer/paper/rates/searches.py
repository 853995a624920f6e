"""What each study of rates runs: settings and seeds in, fits out."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer import algorithms as al
from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Compressor
from gossamer.compression.sparse import top_k
from gossamer.paper.rates.fit import Fit, fit_line, fit_power, means
from gossamer.paper.rates.sweep import SharedRandK, StudyProgress, World, edges, grid, round_the_ring, scattered, sweep
from gossamer.problems.base import Problem
from gossamer.problems.regression import logistic_regression
from gossamer.problems.sine import sine_pl
from gossamer.runtime.simulation import Simulation
from gossamer.topology import MixingMatrix, hypercube, mixing_matrix, ring

StudySettings = dict[str, Any]
"""All that the result of a study depends on but the seeds, as JSON."""
_METHODS: dict[str, Callable[..., Algorithm]] = {
    "BEER": al.BEER,
    "CHOCO-SGD": al.CHOCOSGD,
    "DeepSqueeze": al.DeepSqueeze,
    "SQuARM-SGD": al.SQuARMSGD,
}
_OPERATORS: dict[str, Callable[[int], Compressor]] = {"rand_k": SharedRandK, "top_k": top_k}
_Tuned = list[tuple[float, int]]
"""Rounds to epsilon, and which steps gave them."""
_AVERAGE = "mean over t < T of ||grad f(x-bar)||^2"
_ROUNDS = "rounds until that mean is at most epsilon^2"


def slopes(at: StudySettings, seeds: Sequence[int], watch: StudyProgress) -> list[Fit]:
    """The averaged squared gradient norm against T, and from the same runs the rounds to epsilon."""
    mixing, times = mixing_matrix(ring(at["clients"])), at["rounds"]
    found, inverse = [], []
    for name, steps in watch.parts(at["methods"].items()):
        worlds = _worlds(at, seeds, at["G"], grid(steps["lr"], steps["gamma"]))
        tuned = sweep(_method(name, at["k"]), worlds, mixing, times[-1], watch)
        columns = np.array(times) - 1
        ys = tuned.averages[:, columns]
        note = _tuned_over(steps, tuned.best[:, columns].ravel()) + steps["note"]
        line = fit_power(times, ys)
        what, theory = "averaged squared gradient norm against T", steps["power"]
        found.append(Fit("slopes", what, name, "T (rounds)", _AVERAGE, *line[:3], theory, True, means(times, ys), note))
        if steps["epsilon_power"] is None:
            continue
        # Seeds differ by a constant, so each has its epsilons in units of its own at the first T: what all then pass
        # through lies within the range of T.
        shares = np.geomspace(1.0, (ys[:, -1] / ys[:, 0]).max() * (1 + 1e-12), at["epsilons"])
        inverses = (1 / np.sqrt(shares)).tolist()
        hits = np.array([tuned.rounds_to(share * ys[:, 0]) for share in shares]).T
        chosen = [tuned.best[row, int(t) - 1] for row, ts in enumerate(hits) for t in ts if t < math.inf]
        line = fit_power(inverses, hits)
        what, x = "rounds to epsilon against 1/epsilon", f"epsilon_0/epsilon (epsilon_0^2: the mean at T = {times[0]})"
        points, note = means(inverses, hits), _tuned_over(steps, chosen)
        inverse.append(Fit("epsilon", what, name, x, _ROUNDS, *line[:3], steps["epsilon_power"], True, points, note))
    return found + inverse


def heterogeneity(at: StudySettings, seeds: Sequence[int], watch: StudyProgress) -> list[Fit]:
    """Rounds to epsilon against G, of the same f."""
    mixing, found = mixing_matrix(hypercube(at["clients"])), []
    jobs = [(each, name, steps) for each in at["ranges"] for name, steps in each["methods"].items()]
    for each, name, steps in watch.parts(jobs):
        worlds = [one for G in each["G"] for one in _worlds(at, seeds, G, _steps(steps, at["epsilon"] / G))]
        tuned = [_rounds(_method(name, at["k"]), worlds, mixing, at, watch)]
        what = f"rounds to epsilon against G, {each['name']}"
        found.append(_fit("heterogeneity", what, name, "G (norms of the first gradient)", each["G"], tuned, steps))
    return found


def compression(at: StudySettings, seeds: Sequence[int], watch: StudyProgress) -> list[Fit]:
    """Rounds to epsilon against 1/alpha."""
    mixing, found, d = mixing_matrix(ring(at["clients"])), [], at["d"]
    parts = watch.parts(range(len(at["operators"]) * len(at["k"])))
    for operator, steps in at["operators"].items():
        tuned = []
        for k in at["k"]:
            next(parts)
            worlds = _worlds(at, seeds, at["G"], _steps(steps, k / d))
            tuned.append(_rounds(_method("BEER", k, _OPERATORS[operator]), worlds, mixing, at, watch))
        what, inverses = f"rounds to epsilon against 1/alpha, {operator}", [d / k for k in at["k"]]
        found.append(_fit("compression", what, "BEER", "1/alpha = d/k", inverses, tuned, steps))
    watch.at(1.0)
    return found


def network(at: StudySettings, seeds: Sequence[int], watch: StudyProgress) -> list[Fit]:
    """Rounds to epsilon against 1/rho, of rings of different sizes."""
    mixings, found = [mixing_matrix(ring(clients)) for clients in at["rings"]], []
    parts = watch.parts(range(len(at["methods"]) * len(mixings)))
    for name, steps in at["methods"].items():
        tuned = []
        for mixing in mixings:
            next(parts)
            like = at | {"clients": mixing.clients}
            worlds = _worlds(like, seeds, at["G"], _steps(steps, mixing.rho), round_the_ring)
            tuned.append(_rounds(_method(name, at["k"]), worlds, mixing, at, watch))
        inverses = [1 / mixing.rho for mixing in mixings]
        found.append(_fit("network", "rounds to epsilon against 1/rho", name, "1/rho", inverses, tuned, steps))
    watch.at(1.0)
    return found


def linear(at: StudySettings, seeds: Sequence[int], watch: StudyProgress) -> list[Fit]:
    """Linear convergence under the PL condition, with full gradients."""
    mixing, found = mixing_matrix(ring(at["clients"])), []
    for lr in watch.parts(at["lr"]):
        curves = []
        for number, seed in enumerate(seeds):
            problem = sine_pl(at["clients"], at["d"], heterogeneity=at["G"] ** 2, seed=seed, dtype="float64")
            sim = Simulation(al.BEER(lr=lr, gamma=at["gamma"], compressor=top_k(at["k"])), problem, mixing, (seed,))
            gaps = [_gap(sim)]
            with torch.no_grad():
                while gaps[-1] > at["until"] * gaps[0] and sim.t < at["rounds"]:
                    sim.step()
                    gaps.append(_gap(sim))
                    if sim.t % 25 == 0:
                        watch.at((number + sim.t / at["rounds"]) / len(seeds))
            curves.append(gaps)
        # From where all seeds have left the nonconvex region to where the first comes near rounding errors.
        first = max(next(t for t, gap in enumerate(gaps) if gap <= at["begin"] * gaps[0]) for gaps in curves)
        times = list(range(first, min(map(len, curves))))
        ys = [[gaps[t] for t in times] for gaps in curves]
        line = fit_line(times, np.log(ys).tolist())
        mu = problem.pl_constant()
        decades = math.log10(ys[0][0] / ys[0][-1])
        every = max(1, len(times) // 60)
        note = (
            f"gamma = {at['gamma']:g}, over {decades:.0f} decades; R^2 = {line.straightness:.4f}. Theory is the "
            "guaranteed log(1 - mu lr) with mu = 1/32; near its minimum f has curvature 8 and falls as (1 - 8 lr)^2t, "
            "until the clients' disagreement is the larger part, which mixing removes at a rate of its own."
        )
        what, y = f"linear convergence under PL, lr = {lr:g}", "f(x-bar) - f* + L mean ||x_i - x-bar||^2"
        theory, points = math.log(1 - mu * lr), means(times, ys)[::every]
        found.append(Fit("linear", what, "BEER", "t (rounds)", y, *line[:3], theory, True, points, note, True))
    return found


def neighbourhood(at: StudySettings, seeds: Sequence[int], watch: StudyProgress) -> list[Fit]:
    """The floor that noisy gradients leave at fixed steps, against the batch size."""
    found = []
    parts = watch.parts([size for each in at["problems"] for size in each["batch_sizes"]])
    for each in at["problems"]:
        problem, start, measure = _noisy(each, at)
        mixing = mixing_matrix(ring(at["clients"]))
        method = al.BEER(lr=each["lr"], gamma=each["gamma"], compressor=top_k(at["k"]))
        floors = []
        for _ in each["batch_sizes"]:
            batch_size = next(parts)
            sim = Simulation(method, problem, mixing, seeds, batch_size, start)
            total = torch.zeros(len(seeds), dtype=torch.float64)
            with torch.no_grad():
                while sim.t < each["rounds"]:
                    sim.step()
                    if sim.t > each["burn_in"]:
                        total += measure(problem.evaluate(sim.models().mean(dim=1)))
                    if sim.t % 25 == 0:
                        watch.at(sim.t / each["rounds"])
            floors.append((total / (each["rounds"] - each["burn_in"])).tolist())
        ys = np.array(floors).T
        line = fit_power(each["batch_sizes"], ys)
        note = (
            f"lr = {each['lr']:g}, gamma = {each['gamma']:g}; mean over rounds {each['burn_in']} to {each['rounds']}; "
            f"{each['note']}"
        )
        what, points = f"floor against batch size, {each['name']}", means(each["batch_sizes"], ys)
        y = each["floor"]
        found.append(Fit("neighbourhood", what, "BEER", "b (rows)", y, *line[:3], -1.0, False, points, note))
    watch.at(1.0)
    return found


def _method(name: str, k: int, operator: Callable[[int], Compressor] = top_k) -> Algorithm:
    """The method with steps that a sweep replaces."""
    return _METHODS[name](lr=0.1, gamma=0.1, compressor=operator(k))


def _steps(steps: StudySettings, scale: float) -> list[dict[str, float]]:
    """The grid, in which lr may be a multiple of a number that the studied quantity gives."""
    lr = min(steps.get("lr_most", math.inf), steps["lr_times"] * scale) if "lr_times" in steps else 1.0
    return grid([lr * one for one in steps["lr"]], steps["gamma"])


def _worlds(at: StudySettings, seeds: Sequence[int], G: float, settings: Any, make: Any = scattered) -> list[World]:
    """A problem per seed, with the steps to be tried on it."""
    return [World(make(at["clients"], at["d"], at["condition"], seed), G, seed, settings) for seed in seeds]


def _rounds(
    method: Algorithm, worlds: Sequence[World], mixing: MixingMatrix, at: StudySettings, watch: StudyProgress
) -> _Tuned:
    """For each world, the tuned rounds to epsilon, and which steps gave them."""
    squared = at["epsilon"] ** 2
    tuned = sweep(method, worlds, mixing, at["most_rounds"], watch, squared)
    hits = tuned.rounds_to([squared] * len(worlds))
    return [(t, int(tuned.best[row, int(t) - 1]) if t < math.inf else -1) for row, t in enumerate(hits)]


def _fit(
    study: str, what: str, method: str, x: str, xs: Sequence[float], tuned: Iterable[_Tuned], steps: StudySettings
) -> Fit:
    """The power of tuned rounds, given x after x and for each the seeds."""
    hits, chosen = zip(*(one for several in tuned for one in several), strict=True)
    ys = np.array(hits).reshape(len(xs), -1).T
    line = fit_power(xs, ys)
    missed = sum(math.isinf(t) for t in hits)
    note = _tuned_over(steps, chosen) + steps["note"]
    note += f" {missed} of {len(hits)} did not get there, and their places are left out." if missed else ""
    return Fit(study, what, method, x, _ROUNDS, *line[:3], steps["power"], True, means(xs, ys), note)


def _tuned_over(steps: StudySettings, chosen: Sequence[int]) -> str:
    """A sentence on the grid, and one on its edges."""
    lr, gamma = (f"{min(steps[name]):.3g} to {max(steps[name]):.3g}" for name in ("lr", "gamma"))
    lr += f" times {steps['lr_of']}" if "lr_times" in steps else ""
    where = edges(chosen, steps["lr"], steps["gamma"])
    return f"Best of {len(steps['lr'])} lr ({lr}) with {len(steps['gamma'])} gamma ({gamma}). {where}"


def _gap(sim: Simulation) -> float:
    """What theorem 4.3's Lyapunov function is made of, without the surrogates: f - f* and the clients' disagreement."""
    models, problem = sim.models()[0], sim.problem
    mean = models.mean(dim=0)
    f, least, L = float(problem.evaluate(mean[None])["loss"][0]), problem.minimum(), problem.smoothness()
    assert least is not None
    assert L is not None
    return f - least + L * float((models - mean).square().sum(dim=1).mean())


def _noisy(each: StudySettings, at: StudySettings) -> tuple[Problem, Tensor, Callable[[dict[str, Tensor]], Tensor]]:
    """A problem, where to start so that little but noise is left, and what is averaged."""
    clients = at["clients"]
    if each["problem"] == "sine_pl":
        problem: Problem = sine_pl(
            clients, each["d"], heterogeneity=1.0, noise=each["noise"], rows=each["rows"], dtype="float64"
        )
        return problem, problem.x0(), lambda measured: measured["loss"]
    problem = logistic_regression(each["data"], clients=clients, dtype="float64")
    x = problem.x0()
    L = problem.smoothness()
    assert L is not None
    with torch.no_grad():
        for _ in range(each["descent"]):
            x = x - problem.gradient(x.expand(clients, -1).contiguous()).mean(dim=0) / L
    return problem, x, lambda measured: measured["grad_norm"].square()
