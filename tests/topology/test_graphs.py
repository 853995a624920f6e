import networkx as nx
import pytest

import gossamer as gs
from gossamer.registry import graphs
from gossamer.topology.graphs import build_graph

T = gs.topology

SHAPES = {
    "ring:7": nx.cycle_graph(7),
    "ring:2": nx.path_graph(2),
    "path:6": nx.path_graph(6),
    "star:6": nx.star_graph(5),
    "complete:5": nx.complete_graph(5),
    "grid:3,4": nx.grid_2d_graph(3, 4),
    "grid:1,5": nx.path_graph(5),
    "torus:3,5": nx.grid_2d_graph(3, 5, periodic=True),
    "torus:4": nx.grid_2d_graph(4, 4, periodic=True),
    "hypercube:16": nx.hypercube_graph(4),
    "exponential:6": nx.circulant_graph(6, [1, 2, 4]),
    "exponential:16": nx.circulant_graph(16, [1, 2, 4, 8]),
    "barbell:10": nx.barbell_graph(5, 0),
    "barbell:11,3": nx.barbell_graph(4, 3),
    "balanced_tree:15": nx.balanced_tree(2, 3),
    "balanced_tree:13,branching=3": nx.balanced_tree(3, 2),
}


@pytest.mark.parametrize(("name", "shape"), SHAPES.items(), ids=SHAPES)
def test_shapes(name: str, shape: "nx.Graph[int]") -> None:
    graph = build_graph(name)
    assert sorted(graph) == list(range(len(shape)))
    assert nx.is_isomorphic(graph, shape)


def test_grid_is_numbered_row_by_row() -> None:
    assert gs.mixing_matrix(T.grid(3, 4)).neighbors(5) == [1, 4, 6, 9]


@pytest.mark.parametrize(
    ("name", "edges"),
    [("erdos_renyi:30,0.2", None), ("random_regular:20,4", 40), ("small_world:24", 48), ("small_world:24,6,0", 72)],
)
def test_random_graphs_are_connected_and_repeat(name: str, edges: int | None) -> None:
    one, two = build_graph(name), build_graph(name)
    assert set(one.edges) == set(two.edges)
    assert nx.is_connected(one)
    assert edges is None or one.number_of_edges() == edges
    if not name.endswith(",0"):
        others = [build_graph(f"{name},seed={seed}") for seed in range(1, 4)]
        assert any(set(other.edges) != set(one.edges) for other in others)


@pytest.mark.parametrize(("clients", "degree"), [(50, 48), (100, 90), (9, 4), (9, 8), (10, 5), (2, 1), (12, 6)])
def test_dense_regular_graphs_are_drawn_from_their_complement(clients: int, degree: int) -> None:
    graph = T.random_regular(clients, degree)
    assert {d for _, d in graph.degree} == {degree}
    assert nx.is_connected(graph)


def test_erdos_renyi_tries_the_next_seeds_until_connected() -> None:
    """At this p most draws are not connected, so several seeds give the same graph."""
    draws = {seed: nx.fast_gnp_random_graph(20, 0.13, seed=seed) for seed in range(40)}
    assert sum(map(nx.is_connected, draws.values())) < 15
    for seed in range(10):
        first = next(s for s in range(seed, 40) if nx.is_connected(draws[s]))
        assert set(T.erdos_renyi(20, 0.13, seed=seed).edges) == set(draws[first].edges)


BAD = {
    "ring:1": "`clients` must be an integer from 2 to 1000000, got 1",
    "grid:1,1": "at least 2 clients",
    "grid:3": "needs the setting `cols`",
    "torus:2": "`rows` must be an integer from 3 to 1000000, got 2",
    "hypercube:12": "power of two clients, got 12; use 8 or 16",
    "erdos_renyi:40,0": r"`p` must be in \(0, 1\], got 0",
    "erdos_renyi:1000,0.001": r"will not be connected: about 368 would have no neighbours; use p above .* = 0.0069",
    "erdos_renyi:3,0.01": "None of 100 draws was connected.*use a larger p",
    "random_regular:5,3": "must be even, got 5 x 3",
    "random_regular:5,5": "`degree` must be an integer from 1 to 4, got 5",
    "random_regular:8,1": "8 clients with 1 neighbour each are not connected; use a degree of 2 or more",
    "erdos_renyi:2,1e-17": "will not be connected",
    "erdos_renyi:20000,0.00039": "will not be connected: about 8 would have no neighbours",
    "ring:1000000000000000000": "`clients` must be an integer from 2 to 1000000, got 1000000000000000000",
    "star:" + "9" * 400: "`clients` must be an integer from 2 to 1000000",
    "balanced_tree:2000000": "`clients` must be an integer from 2 to 1000000",
    "grid:1000001,1": "`rows` must be an integer from 1 to 1000000",
    "small_world:10,3": "`degree` of a small world must be even.*got 3",
    "small_world:10,4,1.5": r"`rewire` must be in \[0, 1\], got 1.5",
    "barbell:11": "halves of a barbell must be equal, got 11 clients with 0",
    "complete:10000": "would have 49,995,000 edges; the maximum is 5,000,000",
    "erdos_renyi:10000,0.5": "edges; the maximum is",
    "ring:clients=5,size=3": "Graph 'ring' has no setting 'size'; valid settings: 'clients'",
    "ring:5,clients=5": "multiple values",
    "wheel:5": "Unknown graph 'wheel'; valid graphs: 'adjacency'",
}


@pytest.mark.parametrize(("name", "message"), BAD.items(), ids=BAD)
def test_bad_graphs(name: str, message: str) -> None:
    with pytest.raises(gs.InputError, match=message):
        build_graph(name)


def test_every_graph_builds_from_its_registry_name() -> None:
    built = {name.partition(":")[0] for name in SHAPES} | {"erdos_renyi", "random_regular", "small_world"}
    assert built | {"edge_list", "adjacency"} == set(graphs), "a graph without a test"


def test_build_graph_passes_the_number_of_clients() -> None:
    assert len(build_graph("ring", 6)) == len(build_graph("ring:6", 6)) == 6
    assert set(build_graph("erdos_renyi:0.5,seed=2", 12).edges) == set(T.erdos_renyi(12, 0.5, seed=2).edges)
    assert len(build_graph({"name": "grid", "rows": 2, "cols": 3}, 6)) == 6
    with pytest.raises(gs.InputError, match="'grid' has 12 clients; expected 6"):
        build_graph("grid:3,4", 6)
