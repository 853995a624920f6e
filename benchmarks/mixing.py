"""One mixing of many clients on a ring, against copying its input and output.

    python benchmarks/mixing.py [--clients 10000] [--dimension 10000]

W times Q must at least read Q and write the result. The baseline is the time to copy two float32 arrays of that shape
(X and Q) once. The mixing reads one, sums in float64 and writes float64, as in the simulator. Both allocate their
memory, in turns within one run. Also measures the time to build graphs, weights and rho. Prints JSON.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import gossamer as gs
from gossamer.kernels import Mixer
from gossamer.topology.graphs import build_graph

REPEATS = 5
GRAPHS = {
    "ring:10000": "fdla",
    "torus:100": "fdla",
    "hypercube:8192": "fdla",
    "erdos_renyi:10000,0.002": "metropolis",
    "grid:8,5": "fdla",
    "erdos_renyi:40,0.2": "fdla",
    "erdos_renyi:64,0.1": "fdla",
    "erdos_renyi:64,0.5": "fdla",
}


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def network(graph: str, rule: str) -> float:
    return gs.mixing_matrix(build_graph(graph), rule).rho


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--dimension", type=int, default=10_000)
    options = parser.parse_args()

    network("grid:3,4", "fdla")  # imports the solver
    networks = {
        f"{graph} {rule}": round(min(seconds(partial(network, graph, rule)) for _ in range(2)), 3)
        for graph, rule in GRAPHS.items()
    }

    x, q = (torch.randn(options.clients, options.dimension) for _ in range(2))
    mixer = Mixer(gs.mixing_matrix(gs.ring(options.clients), "fdla").sparse, torch.device("cpu"))
    copies, mixings = [], []
    for _ in range(REPEATS):
        copies.append(seconds(lambda: (x.clone(), q.clone())))
        mixings.append(seconds(lambda: mixer(q)))
    result = {
        "graph, weights and rho, s": networks,
        "clients": options.clients,
        "dimension": options.dimension,
        "copy of X and Q, s": round(min(copies), 3),
        "one mixing, s": round(min(mixings), 3),
        "ratio": round(min(mixings) / min(copies), 2),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
