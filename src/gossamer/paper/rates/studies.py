"""The rates of the BEER paper's tables 1 to 3 and theorems 4.1 to 4.4, measured: fitted slopes beside theory's.

The problems are quadratics whose clients differ in curvature and in centre, with f, its minimiser and the start the
same however much they differ (`sweep.Disagreement`), in units of the first gradient: ||grad f(x^0)|| = 1, and the
largest curvature is 1. "Tuned" means the best of a grid of (lr, gamma), separately for every T or epsilon. Grids are
wide enough that the best is not on their edge, except where larger steps diverge or gamma is 1, its largest value; the
note of each fit says where it was. Everything is in float64 and a function of the seeds, which draw the problem and any
noise.

Bounds are worst cases. What can be seen is whether a method does at least as well (`Fit.agrees`), and whether the bound
is tight on these problems (`Fit.is_reached`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gossamer.paper.rates import searches as rates_runs
from gossamer.paper.rates.fit import Fit
from gossamer.paper.rates.searches import StudySettings
from gossamer.paper.rates.sweep import StudyProgress

_Work = Callable[[StudySettings, Sequence[int], StudyProgress], list[Fit]]


@dataclass(frozen=True)
class Study:
    """One rate, and how it is measured."""

    name: str
    title: str
    settings: StudySettings
    """All that the result depends on but the seeds; JSON-able."""
    work: _Work = field(repr=False)

    def run(
        self,
        seeds: Sequence[int],
        progress: Callable[[float], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[Fit]:
        """The fits from these seeds together; `progress` is called with the share that is done, up to 1."""
        watch = StudyProgress(progress, should_stop)
        watch.at(0.0)
        return self.work(self.settings, list(seeds), watch)


def studies(quick: bool = False) -> list[Study]:
    """All studies; the quick ones exercise everything on ranges too short to tell much."""
    return [
        Study("slopes", "The averaged squared gradient norm against T", _slopes(quick), rates_runs.slopes),
        Study("heterogeneity", "Rounds to epsilon against G", _heterogeneity(quick), rates_runs.heterogeneity),
        Study("compression", "Rounds to epsilon against alpha", _compression(quick), rates_runs.compression),
        Study("network", "Rounds to epsilon against rho", _network(quick), rates_runs.network),
        Study("linear", "Linear convergence under PL", _linear(quick), rates_runs.linear),
        Study("neighbourhood", "The floor against the batch size", _neighbourhood(quick), rates_runs.neighbourhood),
    ]


_BASE: StudySettings = {"version": 1, "clients": 8, "d": 10, "condition": 4.0, "k": 3}


def _halves(high: float, low: float, quick: bool) -> list[float]:
    """Steps from high to low, a factor sqrt(2) apart (4 in the quick studies)."""
    many = round(np.log2(high / low) * 2) + 1
    return [float(f"{high * 2 ** (-i / 2):.4g}") for i in range(0, many, 4 if quick else 1)]


def _slopes(quick: bool) -> StudySettings:
    # G is 100 times the first gradient, so that at every T in the range the clients' disagreement, not smoothness,
    # limits the steps of methods that depend on it: the tuned lr is far below 1/L, and below gamma rho, where the floor
    # is proportional to lr^2 as in the analyses. By T = 600, the tuned lr is a fifth of gamma rho, and lr T some 20.
    # The largest stable gamma falls a little as T grows, so gamma's grid is fine where it is large.
    rounds = [300, 500, 800] if quick else [600, 900, 1300, 2000, 3000, 4400, 6400, 9400, 13700, 20000]
    gamma = [0.7, 0.85] if quick else [0.88, 0.91, 0.94, 0.97, 1.0]
    why = (
        " Momentum 0.9. Without noise table 3 would give SQuARM-SGD 1/T, by leaving out the term 1/sqrt(nT) of its own "
        "theorem that is not noise."
    )
    return _BASE | {
        "G": 100.0,
        "rounds": rounds,
        "epsilons": 4 if quick else 8,
        "methods": {
            name: {"lr": _halves(*lr, quick), "power": power, "epsilon_power": inverse, "gamma": gamma, "note": note}
            for name, lr, power, inverse, note in (
                ("BEER", (0.8, 0.05), -1.0, 2.0, ""),
                ("CHOCO-SGD", (0.07, 0.0031), -2 / 3, 3.0, ""),
                ("DeepSqueeze", (0.07, 0.0031), -2 / 3, None, ""),
                ("SQuARM-SGD", (0.007, 0.00031), -1 / 2, None, why),
            )
        },
    }


def _heterogeneity(quick: bool) -> StudySettings:
    # Up to the first gradient's size, and beyond it. Below, the largest stable step nearly serves CHOCO-SGD too; beyond
    # it, its bias rules. BEER's bound is 2 Phi_0 / (lr epsilon^2), and Phi_0 holds c_4 rho^2 G^2 / L through V^0: flat
    # while that is small against f(x^0) - f*, and not beyond. The network, a hypercube, mixes well (rho = 1/2): that
    # leaves more room between the G from which CHOCO-SGD's bias shows and the G from which Phi_0 does.
    free = {"lr": _halves(2.4, 0.3, quick), "gamma": [0.3, 0.7] if quick else [0.25, 0.35, 0.5, 0.7, 1.0]}
    far = {"lr": _halves(1.7, 0.3, quick), "gamma": [0.35, 0.5] if quick else [0.25, 0.35, 0.5, 0.7, 1.0]}
    led = {"lr": _halves(1.42, 0.125, quick), "lr_times": 24.0, "lr_of": "24 epsilon / G"}
    why = " Phi_0 of theorem 4.1 grows with G^2 through V^0, which the paper's count of rounds leaves out."
    return _BASE | {
        "epsilon": 0.1 if quick else 1 / 30,
        "most_rounds": 2000 if quick else 40000,
        "ranges": [
            {
                "name": "up to the first gradient",
                "G": [0.1, 0.3, 1.0] if quick else [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0],
                "methods": {"BEER": free | {"power": 0.0, "note": ""}, "CHOCO-SGD": free | {"power": 1.0, "note": ""}},
            },
            {
                "name": "beyond the first gradient",
                "G": [1.4, 2.0, 2.8] if quick else [1.0, 1.4, 2.0, 2.8, 4.0],
                "methods": {
                    "BEER": far | {"power": 0.0, "note": why},
                    "CHOCO-SGD": led | {"gamma": [0.85] if quick else [0.7, 0.85, 1.0], "power": 1.0, "note": ""},
                },
            },
        ],
    }


def _compression(quick: bool) -> StudySettings:
    # rand_k loses exactly what its alpha says, whatever it is given; top_k much less on most vectors. alpha = k/d is at
    # most 1/4: above that, smoothness limits the steps and compression costs hardly any rounds.
    lr = _halves(2.4, 0.42, quick)
    return _BASE | {
        "d": 32,
        "k": [4, 6, 8] if quick else [1, 2, 3, 4, 6, 8],
        "G": 1.0,
        "epsilon": 0.1 if quick else 0.07,
        "most_rounds": 1500 if quick else 10000,
        "operators": {
            "rand_k": {"lr": lr, "gamma": _halves(0.7, 0.06, quick), "power": 1.0, "note": ""},
            "top_k": {"lr": lr, "gamma": _halves(1.0, 0.12, quick), "power": 1.0, "note": ""},
        },
    }


def _network(quick: bool) -> StudySettings:
    # Rings of different sizes rather than I - c (I - W) on one: there gamma (W - I) depends on c gamma alone, so that
    # tuning gamma undoes the change until gamma is 1. On rings ||W - I|| stays the same while rho falls.
    beer = {"lr": _halves(1.42, 0.125, quick), "lr_times": 6.0, "lr_most": 1.6, "lr_of": "min(1.6, 6 rho)"}
    choco = {"lr": _halves(1.42, 0.125, quick), "lr_times": 1.5, "lr_of": "1.5 rho"}
    return _BASE | {
        "d": 8,
        "epsilon": 0.1,
        "most_rounds": 4000 if quick else 30000,
        "G": 1.0,
        "rings": [4, 5, 6] if quick else [6, 8, 10, 12, 16, 20],
        "methods": {
            "BEER": beer | {"gamma": [0.7] if quick else [0.5, 0.7, 0.85, 1.0], "power": 3.0, "note": ""},
            "CHOCO-SGD": choco | {"gamma": [0.85] if quick else [0.85, 1.0], "power": 2.0, "note": ""},
        },
    }


def _linear(quick: bool) -> StudySettings:
    return {
        **{"version": 1, "clients": 8, "d": 10, "k": 3, "G": 1.0},
        **{"gamma": 0.4, "lr": [0.005, 0.01, 0.02], "rounds": 4000},
        "begin": 1e-3,  # of the first gap: beyond this f is convex
        "until": 1e-12 if quick else 1e-22,  # of the first gap: rounding errors are at 1e-28
    }


def _neighbourhood(quick: bool) -> StudySettings:
    sine: StudySettings = {
        "name": "sine_pl",
        "problem": "sine_pl",
        "d": 10,
        "noise": 0.3,
        "rows": 64,
        "lr": 0.01,
        "gamma": 0.2,
        "rounds": 300 if quick else 1500,
        "burn_in": 200 if quick else 500,
        "batch_sizes": [1, 8, 64] if quick else [1, 2, 4, 8, 16, 32, 64],
        "floor": "f(x-bar) - f*",
        "note": "rows drawn with replacement (theorem 4.4).",
    }
    common = {name: value for name, value in sine.items() if name not in ("d", "noise", "rows")}
    logistic = common | {
        "name": "nonconvex logistic regression",
        "problem": "logistic_regression",
        "data": "breast_cancer",
        "lr": 0.05,
        "rounds": 300 if quick else 2500,
        "burn_in": 100 if quick else 500,
        "descent": 500 if quick else 5000,
        "batch_sizes": [1, 8, 32] if quick else [1, 2, 4, 8, 16, 32],
        "floor": "||grad f(x-bar)||^2",
        "note": "breast_cancer sorted by label, from where gradient descent had come to rest (theorem 4.2).",
    }
    return {"version": 1, "clients": 8, "k": 3, "problems": [sine, logistic]}
