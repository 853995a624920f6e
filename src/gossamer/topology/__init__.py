"""Graphs, which connect clients to their neighbours, and mixing matrices, which weight these connections.

Graphs
    `ring`, `path`, `star`, `complete`, `grid`, `torus`, `hypercube`, `exponential`, `erdos_renyi`, `random_regular`,
    `small_world`, `barbell` and `balanced_tree`; `edge_list` and `adjacency` read your own. Any connected, undirected
    networkx graph works as well. `build_graph` understands descriptions such as `"grid:8,5"`, and `build_network` those
    of networks that change, too.

Mixing matrices
    `mixing_matrix` applies a rule for the weights, or takes your own; `lazy` makes (W + I)/2.

Networks that change
    `one_peer_exponential`, `random_matchings`, `matchings`, `alternating` and `unreliable` make a `MixingSchedule`.

>>> from gossamer import topology
>>> topology.mixing_matrix(topology.complete(4), weights="metropolis")
MixingMatrix(clients=4, edges=6, rho=1, C=1)
"""

from gossamer.topology.base import Graph
from gossamer.topology.changing import (
    alternating,
    build_network,
    matchings,
    one_peer_exponential,
    random_matchings,
    unreliable,
)
from gossamer.topology.graph_files import adjacency, edge_list
from gossamer.topology.graphs import (
    balanced_tree,
    barbell,
    build_graph,
    complete,
    erdos_renyi,
    exponential,
    grid,
    hypercube,
    path,
    random_regular,
    ring,
    small_world,
    star,
    torus,
)
from gossamer.topology.mixing import MixingMatrix, lazy, mixing_matrix
from gossamer.topology.schedule import Mixing, MixingSchedule

__all__ = [
    "Graph",
    "Mixing",
    "MixingMatrix",
    "MixingSchedule",
    "adjacency",
    "alternating",
    "balanced_tree",
    "barbell",
    "build_graph",
    "build_network",
    "complete",
    "edge_list",
    "erdos_renyi",
    "exponential",
    "grid",
    "hypercube",
    "lazy",
    "matchings",
    "mixing_matrix",
    "one_peer_exponential",
    "path",
    "random_matchings",
    "random_regular",
    "ring",
    "small_world",
    "star",
    "torus",
    "unreliable",
]
