"""Registering a component is enough to have it tested."""

import inspect
import os
import zlib

import pytest

from gossamer import registry
from gossamer.testing import check_compressor, check_method, check_method_on
from gossamer.topology import mixing_matrix
from gossamer.topology.graphs import build_graph

GRAPHS = [
    "balanced_tree",
    "barbell",
    "complete",
    "erdos_renyi:0.5",
    "exponential",
    "grid:2,4",
    "hypercube",
    "path",
    "random_regular:3",
    "ring",
    "small_world",
    "star",
    "torus:3,3",
]


@pytest.mark.parametrize("name", registry.methods.names())
def test_method(name: str) -> None:
    check_method(registry.methods.get(name))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", registry.compressors.names())
def test_compressor(name: str) -> None:
    check_compressor(registry.compressors.get(name))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [registry.methods, registry.compressors], ids=lambda r: r.kind)
def test_every_component_is_documented(kind: registry.Registry) -> None:
    for name in kind:
        assert inspect.getdoc(kind.get(name)), name


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", registry.methods.names())
def test_method_on_every_graph(name: str, graph: str) -> None:
    """With every compressor that it may use; CI takes a third of the pairs, `GOSSAMER_ALL=1` all of them."""
    if zlib.crc32(f"{name} {graph}".encode()) % 3 and not os.environ.get("GOSSAMER_ALL"):
        pytest.skip("one of three pairs")
    clients = 9 if graph.startswith("torus") else 8
    check_method_on(registry.methods.get(name), mixing_matrix(build_graph(graph, clients), "metropolis"))  # type: ignore[arg-type]


def test_every_graph_of_the_registry_is_there() -> None:
    from_files = {"adjacency", "edge_list"}
    assert {graph.partition(":")[0] for graph in GRAPHS} == set(registry.graphs.names()) - from_files
