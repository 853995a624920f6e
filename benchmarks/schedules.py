"""Graphs that change: rounds and bits until a gradient norm of 1e-6, against the static ring.

    python benchmarks/schedules.py [--only NETWORK] [--method METHOD] [--results docs/results]

A heterogeneous quadratic with 50 coordinates and 16 clients. Bits are those that a client sends on all of its links,
with headers, in fixed width. A run ends when the gradient norm at the mean model and the distance of every client from
it are at most 1e-6. Each method on each network is tried with the same step sizes, and the cheapest run is shown; a
search that is in the JSON file already is not repeated. CHOCO-SGD and DSGD stop at a floor with a constant step on such
a problem; the table shows that floor.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gossamer as gs
from gossamer.algorithms import GradientTracking
from gossamer.files import write_text
from gossamer.runtime.simulation import Simulation
from gossamer.topology import Mixing, build_network

CLIENTS, D, TARGET, MOST, EVERY = 16, 50, 1e-6, 4000, 4
BASELINE = "ring"
NETWORKS = {
    "ring": "ring",
    "exponential": "exponential",
    "one-peer hypercube": "one_peer_exponential",
    "random matchings": "random_matchings:seed=1",
    "ring, dropout 0.2": "ring:dropout=0.2",
}
Setting = dict[str, float]
LRS, GAMMAS = [0.1, 0.2, 0.05, 0.4, 0.8], [0.1, 0.2, 0.4, 0.7, 1.0]
FLOORS = [{"lr": lr} for lr in (0.1, 0.02)]
METHODS: dict[str, tuple[Callable[..., gs.Algorithm], list[Setting]]] = {
    "BEER, gsgd_5": (
        lambda **steps: gs.BEER(compressor=gs.gsgd(5), **steps),
        [{"lr": lr, "gamma": gamma} for lr, gamma in itertools.product(LRS, GAMMAS)],
    ),
    "BEER, top_k": (
        lambda **steps: gs.BEER(compressor=gs.top_k(5), **steps),
        [{"lr": lr, "gamma": gamma} for lr, gamma in itertools.product(LRS, GAMMAS)],
    ),
    "Gradient tracking": (GradientTracking, [{"lr": lr} for lr in (0.02, 0.05, 0.1, 0.2, 0.3, 0.6)]),
    "CHOCO-SGD, gsgd_5": (lambda **steps: gs.CHOCOSGD(gamma=0.4, compressor=gs.gsgd(5), **steps), FLOORS),
    "DSGD": (gs.DSGD, FLOORS),
}


def run(method: gs.Algorithm, mixing: Mixing, most_bits: float) -> dict[str, Any]:
    """One run, until it is there, costs more than another, or makes no progress."""
    problem = gs.quadratic(clients=CLIENTS, d=D, condition=10.0, dtype="float64")
    sim = Simulation(method, problem, mixing)
    best = float("inf")
    while sim.t < MOST:
        for _ in range(EVERY):
            sim.step()
        x = sim.state.x
        mean = x.mean(dim=0)
        error = max(float(problem.evaluate(mean[None])["grad_norm"]), float((x - mean).norm(dim=1).max()))
        best = min(best, error)
        bits = sim.traffic.bits_total[0] / CLIENTS
        if error <= TARGET:
            return {"rounds": sim.t, "kbit": bits / 1000, "messages": sim.traffic.packets, "reached": True}
        if bits > most_bits or not error < 1e6:
            break
    return {"rounds": sim.t, "floor": best, "reached": False}


def search(method: str, network: str) -> dict[str, Any]:
    """The cheapest run of a method on a network, or the lowest floor."""
    make, settings = METHODS[method]
    mixing = build_network(NETWORKS[network], CLIENTS)
    best: dict[str, Any] = {"reached": False, "floor": float("inf")}
    for setting in settings:
        try:
            found = run(make(**setting), mixing, 1000 * best.get("kbit", float("inf"))) | {"setting": setting}
        except gs.GossamerError:  # it diverged
            continue
        if (not found["reached"], found.get("kbit", found.get("floor"))) < (
            not best["reached"],
            best.get("kbit", best.get("floor")),
        ):
            best = found
    return {"method": method, "network": network, "rho": mixing.rho, **best}


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    """The results as Markdown."""
    yield "| method | network | steps | rounds | kbit per client | against the ring |"
    yield "|---|---|---|---|---|---|"
    known = {(one["method"], one["network"]): one for one in results}
    for method, network in itertools.product(METHODS, NETWORKS):
        if (one := known.get((method, network))) is None:
            continue
        steps = ", ".join(f"{name} {value:g}" for name, value in one.get("setting", {}).items())
        base = known.get((method, BASELINE), {})
        if one["reached"]:
            ratio = f"{one['kbit'] / base['kbit']:.2f}" if base.get("reached") else "-"
            yield f"| {method} | {network} | {steps} | {one['rounds']:,} | {one['kbit']:,.0f} | {ratio} |"
        else:
            yield f"| {method} | {network} | {steps} | never | floor {one['floor']:.1e} | - |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=NETWORKS)
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    path = given.results / "schedules.json"
    results = json.loads(path.read_text()) if path.exists() else []
    done = {(one["method"], one["network"]) for one in results}
    for method, network in itertools.product(METHODS, NETWORKS):
        if given.only in (None, network) and given.method in (None, method) and (method, network) not in done:
            results.append(search(method, network))
            write_text(path, json.dumps(results, indent=1) + "\n")
            write_text(given.results / "schedules.md", "\n".join(table(results)) + "\n")
            print(results[-1])


if __name__ == "__main__":
    main()
