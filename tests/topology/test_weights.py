import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from topologies import graphs

import gossamer as gs
from gossamer.registry import weights
from gossamer.topology import fastest
from gossamer.topology.base import edges_of
from gossamer.topology.graphs import build_graph
from gossamer.topology.spectrum import from_edge_weights

T = gs.topology
RULES = weights.names()
CLOSED = ["ring:3", "ring:8", "ring:9", "torus:3", "torus:4", "torus:5", "hypercube:8", "hypercube:16", "complete:6"]
CLOSED += ["star:3", "star:9", "path:4", "path:12"]


@given(graphs(), st.sampled_from(RULES))
def test_every_rule_gives_a_valid_mixing_matrix(graph: "nx.Graph[int]", rule: str) -> None:
    mixing = gs.mixing_matrix(graph, rule)
    w, n = mixing.matrix, len(graph)
    np.testing.assert_allclose(w, w.T, atol=1e-15)
    np.testing.assert_allclose(w.sum(axis=1), 1, atol=1e-12)
    allowed = nx.to_numpy_array(graph, nodelist=range(n)) + np.eye(n)
    assert (w[allowed == 0] == 0).all()
    eigenvalues = np.linalg.eigvalsh(w)
    assert mixing.rho == pytest.approx(1 - np.abs(eigenvalues[:-1]).max(), abs=1e-10)
    assert 0 < mixing.rho <= 1 + 1e-12
    assert mixing.lambda_min == pytest.approx(eigenvalues[0], abs=1e-10)
    assert pytest.approx(np.linalg.norm(w - np.eye(n), 2) ** 2) == mixing.C
    assert mixing.is_nonnegative == (w >= -1e-9).all()
    assert mixing.is_nonnegative or rule in ("fdla", "best_constant")
    for i in range(n):
        assert mixing.neighbors(i) == sorted(graph.neighbors(i))


def test_rules_by_hand() -> None:
    path = T.path(3)
    np.testing.assert_allclose(gs.mixing_matrix(path).matrix * 3, [[2, 1, 0], [1, 1, 1], [0, 1, 2]])
    star = gs.mixing_matrix(T.star(4), "max_degree").matrix
    np.testing.assert_allclose(star, [[0.25] * 4, [0.25, 0.75, 0, 0], [0.25, 0, 0.75, 0], [0.25, 0, 0, 0.75]])
    # The Laplacian of a path of 3 has the eigenvalues 0, 1, 3.
    assert gs.mixing_matrix(path, "best_constant").matrix[0, 1] == pytest.approx(2 / (1 + 3))
    assert gs.mixing_matrix(T.complete(7), "fdla").rho == pytest.approx(1)
    # On a star FDLA gives the hub a negative weight, which FMMC does not allow.
    assert gs.mixing_matrix(T.star(10), "fdla").matrix[0, 0] == pytest.approx(1 - 9 * 2 / 11)
    assert gs.mixing_matrix(T.star(10), "fmmc").matrix[0, 0] == pytest.approx(0)


@pytest.mark.parametrize("graph", ["ring:40", "star:40", "grid:8,5", "ring:10"])
def test_the_gaps_of_the_paper(graph: str) -> None:
    """Section 5.2, with the correct gap of the ring (the paper has 0.022)."""
    expected = {"ring:40": 0.0122, "star:40": 0.0488, "grid:8,5": 0.0626, "ring:10": 0.1743}
    assert round(gs.mixing_matrix(build_graph(graph), "fdla").rho, 4) == expected[graph]


@pytest.mark.slow
def test_the_gaps_of_erdos_renyi_graphs() -> None:
    """Over twenty seeds; the paper swaps the two values."""
    sparse, dense = (
        [gs.mixing_matrix(T.erdos_renyi(40, p, seed=seed), "fdla").rho for seed in range(20)] for p in (0.2, 0.5)
    )
    print(f"p = 0.2: {min(sparse):.3f} to {max(sparse):.3f}; p = 0.5: {min(dense):.3f} to {max(dense):.3f}")
    assert 0.30 < min(sparse) < max(sparse) < 0.53
    assert 0.72 < min(dense) < max(dense) < 0.80


def random_graphs() -> "list[nx.Graph[int]]":
    rng = np.random.default_rng(0)
    found: list[nx.Graph[int]] = []
    while len(found) < 50:
        graph = nx.gnp_random_graph(
            int(rng.integers(2, 13)), float(rng.uniform(0.15, 1)), seed=int(rng.integers(10**6))
        )
        if nx.is_connected(graph):
            found.append(graph)
    return found


def test_fdla_is_optimal() -> None:
    """No other rule and no random change of the weights gives a larger rho."""
    rng = np.random.default_rng(1)
    gain = 0.0
    for graph in random_graphs():
        n, edges = len(graph), edges_of(graph)
        best = gs.mixing_matrix(graph, "fdla")
        others = {rule: gs.mixing_matrix(graph, rule).rho for rule in RULES}
        assert max(others.values()) <= best.rho + 1e-7, others
        gain += best.rho - others["metropolis"]
        w = best.matrix[edges[:, 0], edges[:, 1]]
        for scale in np.geomspace(1e-4, 1, 20):
            change = rng.normal(size=len(w)) * scale
            other = from_edge_weights(n, edges, w + change).toarray()
            assert 1 - np.abs(np.linalg.eigvalsh(other - 1 / n)).max() <= best.rho + 1e-7
    assert gain > 5, "on most graphs it is far better than Metropolis"


def test_fmmc_is_optimal_among_the_nonnegative() -> None:
    rng = np.random.default_rng(2)
    for graph in random_graphs()[:15]:
        n, edges = len(graph), edges_of(graph)
        best = gs.mixing_matrix(graph, "fmmc")
        assert best.is_nonnegative
        assert best.rho >= max(gs.mixing_matrix(graph, rule).rho for rule in ("metropolis", "max_degree")) - 1e-7
        w = best.matrix[edges[:, 0], edges[:, 1]]
        for scale in np.geomspace(1e-4, 1, 20):
            other = from_edge_weights(n, edges, np.maximum(w + rng.normal(size=len(w)) * scale, 0)).toarray()
            if other.min() >= 0:
                assert 1 - np.abs(np.linalg.eigvalsh(other - 1 / n)).max() <= best.rho + 1e-7


@pytest.mark.parametrize("graph", CLOSED)
@pytest.mark.parametrize("nonnegative", [False, True], ids=["fdla", "fmmc"])
def test_closed_forms_agree_with_the_programme(graph: str, nonnegative: bool) -> None:
    built = build_graph(graph)
    n, edges = len(built), edges_of(built)
    programme = fastest._programme(n, edges, nonnegative)
    assert programme is not None
    closed = gs.mixing_matrix(built, "fmmc" if nonnegative else "fdla").rho
    assert gs.MixingMatrix(from_edge_weights(n, edges, programme), built).rho == pytest.approx(closed, abs=2e-7)


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["grid:8,5", "balanced_tree:31", "small_world:24", "grid:2,15"])
def test_the_first_order_method_comes_within_a_few_thousandths(graph: str) -> None:
    built = build_graph(graph)
    best = gs.mixing_matrix(built, "fdla").rho
    found = fastest._first_order(len(built), edges_of(built))
    reached = gs.MixingMatrix(from_edge_weights(len(built), edges_of(built), found), built).rho
    assert 0.998 * best <= reached <= best * 1.0001


def test_the_first_order_method_is_used_if_the_solver_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = T.grid(3, 4)
    best = gs.mixing_matrix(graph, "fdla").rho
    monkeypatch.setattr(fastest, "_programme", lambda *_: None)
    assert gs.mixing_matrix(graph, "fdla").rho == pytest.approx(best, rel=2e-3)
    with pytest.raises(gs.InputError, match=r"'fmmc' .* 12 clients and 17 edges .* did not converge\); use"):
        gs.mixing_matrix(graph, "fmmc")


def test_large_irregular_graphs_are_refused() -> None:
    graph = T.erdos_renyi(1000, 0.02)
    for rule in ("fdla", "fmmc"):
        with pytest.raises(gs.InputError, match=rf"'{rule}' cannot be computed .* use 'best_constant' or 'metropolis'"):
            gs.mixing_matrix(graph, rule)


@pytest.mark.parametrize(
    ("graph", "rule"),
    [
        ("grid:8,5", "fdla"),
        ("erdos_renyi:64,0.5", "fdla"),
        ("ring:10000", "fdla"),
        ("torus:100", "fdla"),
        ("hypercube:8192", "fdla"),
        ("erdos_renyi:10000,0.002", "metropolis"),
    ],
)
@pytest.mark.timeout(60)
def test_large_graphs_are_possible(graph: str, rule: str) -> None:
    """`benchmarks/mixing.py` measures how long they take: a second or less."""
    mixing = gs.mixing_matrix(build_graph(graph), rule)
    assert 0 < mixing.rho < 1


@pytest.mark.slow
def test_clarabel_is_used_if_scs_does_not_converge() -> None:
    """Long graphs, and FMMC on sparse graphs, are hard for SCS."""
    lollipop = nx.lollipop_graph(10, 30)
    n, edges = len(lollipop), edges_of(lollipop)
    best = gs.mixing_matrix(lollipop, "fdla").rho
    near = gs.MixingMatrix(from_edge_weights(n, edges, fastest._first_order(n, edges)), lollipop).rho
    assert 0.99 * best <= near <= best * (1 + 1e-6)
    sparse = gs.mixing_matrix(T.erdos_renyi(40, 0.2), "fmmc")
    assert sparse.is_nonnegative
    assert sparse.rho > gs.mixing_matrix(T.erdos_renyi(40, 0.2), "metropolis").rho
