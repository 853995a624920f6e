import networkx as nx
import numpy as np
import pytest

import gossamer as gs
from gossamer.topology import spectrum
from gossamer.topology.base import edges_of
from gossamer.topology.graphs import build_graph
from gossamer.topology.spectrum import ends, family, from_edge_weights

T = gs.topology

KNOWN = ["ring:4", "ring:9", "path:2", "path:7", "star:8", "complete:5", "grid:2,2", "grid:2,5", "grid:5,2", "grid:4,6"]
KNOWN += ["torus:3", "torus:3,4", "torus:5,3", "torus:4,4", "hypercube:4", "hypercube:32", "exponential:5"]
LARGE = ["erdos_renyi:300,0.05", "small_world:300", "balanced_tree:300", "random_regular:300,3", "barbell:60"]
LARGE += ["grid:15,20", "path:300"]
KNOWN += ["exponential:11", "exponential:20", "exponential:64"]


@pytest.mark.parametrize("name", KNOWN)
def test_closed_forms_of_the_laplacian(name: str) -> None:
    graph = build_graph(name)
    known = family(len(graph), edges_of(graph))
    assert known is not None
    eigenvalues = np.linalg.eigvalsh(nx.laplacian_matrix(graph, nodelist=range(len(graph))).toarray())
    assert known.smallest == pytest.approx(eigenvalues[1])
    assert known.largest == pytest.approx(eigenvalues[-1])


def test_a_graph_with_one_edge_moved_is_not_of_the_family() -> None:
    for name in ("grid:4,6", "torus:4,4", "torus:3,4", "hypercube:32", "exponential:11"):
        graph = build_graph(name)
        i, j = next((i, j) for i in graph for j in graph if i < j and not graph.has_edge(i, j))
        more = graph.copy()
        more.add_edge(i, j)
        assert family(len(more), edges_of(more)) is None
        more.remove_edge(*next(edge for edge in graph.edges if i not in edge and j not in edge))
        assert family(len(more), edges_of(more)) is None


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("rule", ["metropolis", "best_constant", "lazy:metropolis"])
def test_sparse_eigenvalues_agree_with_dense_ones(monkeypatch: pytest.MonkeyPatch, name: str, rule: str) -> None:
    mixing = gs.mixing_matrix(build_graph(name), rule)
    eigenvalues = np.linalg.eigvalsh(mixing.matrix)
    monkeypatch.setattr(spectrum, "_DENSE_UP_TO", 1)
    second, least = ends(mixing.sparse)
    assert second == pytest.approx(eigenvalues[-2], abs=1e-9)
    assert least == pytest.approx(eigenvalues[0], abs=1e-6)
    assert 1 - max(abs(second), abs(least)) == pytest.approx(mixing.rho, rel=1e-5)


def test_rows_sum_to_one_by_construction() -> None:
    rng = np.random.default_rng(0)
    edges = edges_of(T.erdos_renyi(30, 0.3))
    w = from_edge_weights(30, edges, rng.normal(size=len(edges)))
    np.testing.assert_allclose(w.sum(axis=1), 1)
    assert abs(w - w.T).max() == 0
