"""Who may talk to whom (graphs), with what weight (mixing matrices), and how well that mixes (rho, C)."""

from gossamer.topology.files import adjacency, edge_list
from gossamer.topology.graphs import (
    balanced_tree,
    barbell,
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
from gossamer.topology.schedule import Mixing, MixingSchedule, matchings

__all__ = [
    "Mixing",
    "MixingMatrix",
    "MixingSchedule",
    "adjacency",
    "balanced_tree",
    "barbell",
    "complete",
    "edge_list",
    "erdos_renyi",
    "exponential",
    "grid",
    "hypercube",
    "lazy",
    "matchings",
    "mixing_matrix",
    "path",
    "random_regular",
    "ring",
    "small_world",
    "star",
    "torus",
]
