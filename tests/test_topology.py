import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs


def test_fdla_gaps_of_the_paper() -> None:
    assert round(gs.mixing_matrix(gs.ring(10), "fdla").rho, 4) == 0.1743
    assert round(gs.mixing_matrix(gs.ring(40), "fdla").rho, 4) == 0.0122
    assert round(gs.mixing_matrix(gs.ring(10), "fdla").lambda_min, 3) == -0.826


def test_complete_graph_averages_in_one_round() -> None:
    mixing = gs.mixing_matrix(gs.complete(7), "fdla")
    np.testing.assert_allclose(mixing.matrix, 1 / 7, atol=1e-12)
    assert mixing.rho == pytest.approx(1)
    assert pytest.approx(1) == mixing.C


@pytest.mark.parametrize("n", [3, 4, 5, 9, 16])
def test_fdla_beats_every_other_constant_and_metropolis(n: int) -> None:
    best = gs.mixing_matrix(gs.ring(n), "fdla").rho
    assert best >= gs.mixing_matrix(gs.ring(n), "metropolis").rho - 1e-12
    laplacian = nx.laplacian_matrix(gs.ring(n)).toarray()
    for weight in np.linspace(0.05, 0.6, 40):
        values = np.linalg.eigvalsh(np.eye(n) - weight * laplacian)
        assert best >= 1 - np.abs(values[:-1]).max() - 1e-12


@given(st.integers(2, 12), st.floats(0.2, 1.0), st.integers(0, 1000))
def test_metropolis_on_random_graphs(n: int, p: float, seed: int) -> None:
    graph = nx.erdos_renyi_graph(n, p, seed=seed)
    graph.add_edges_from((i, i + 1) for i in range(n - 1))
    mixing = gs.mixing_matrix(graph)
    w = mixing.matrix
    np.testing.assert_allclose(w, w.T)
    np.testing.assert_allclose(w.sum(axis=1), 1)
    assert (w >= 0).all()
    assert 0 < mixing.rho <= 1
    assert pytest.approx(np.linalg.norm(w - np.eye(n), 2) ** 2) == mixing.C
    for i in range(n):
        assert mixing.neighbors(i) == sorted(np.flatnonzero(w[i] * (np.arange(n) != i)).tolist())


def test_nodes_of_any_kind_are_numbered() -> None:
    mixing = gs.mixing_matrix(nx.Graph([("a", "b"), ("b", "c")]))
    assert [mixing.neighbors(i) for i in range(3)] == [[1], [0, 2], [1]]
    shuffled = nx.Graph([(2, 1), (1, 0)])
    assert [gs.mixing_matrix(shuffled).neighbors(i) for i in range(3)] == [[1], [0, 2], [1]]


def test_a_matrix_and_a_graph_that_are_not() -> None:
    with pytest.raises(gs.InputError, match=r"mixing_matrix\(\) makes both so"):
        gs.MixingMatrix([[1.0]], nx.empty_graph(1))  # type: ignore[arg-type]
    for bad in (5, "abc", [[1, "x"], [0, 1]]):
        with pytest.raises(gs.InputError, match="weights"):
            gs.mixing_matrix(gs.ring(2), bad)  # type: ignore[arg-type]


def test_own_matrix() -> None:
    w = [[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]]
    assert gs.mixing_matrix(nx.path_graph(3), np.array(w)).clients == 3


BAD_MATRICES = {
    r"3 x 3, got 2 x 2": np.eye(2),
    r"symmetric, but W\[0, 1\] = 0.5 and W\[1, 0\] = 0.4": np.array([[0.5, 0.5, 0], [0.4, 0.6, 0], [0, 0, 1.0]]),
    r"row 0 sums to 0.9": np.array([[0.4, 0.5, 0], [0.5, 0.25, 0.25], [0, 0.25, 0.75]]),
    r"no edge between clients 0 and 2": np.full((3, 3), 1 / 3),
    r"does not mix": np.eye(3),
    r"finite": np.full((3, 3), np.nan),
}


@pytest.mark.parametrize(("said", "matrix"), BAD_MATRICES.items(), ids=range(len(BAD_MATRICES)))
def test_bad_matrix(said: str, matrix: np.ndarray) -> None:
    with pytest.raises(gs.InputError, match=said):
        gs.mixing_matrix(nx.path_graph(3), matrix)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (nx.Graph([(0, 1), (2, 3), (3, 4)]), r"not connected: clients 0, 1 cannot reach the rest"),
        (nx.Graph([(0, 1), (1, 1)]), r"joins client 1 to itself"),
        (nx.DiGraph([(0, 1)]), r"undirected networkx.Graph, got DiGraph"),
        (nx.Graph(), r"no clients"),
        ([[0, 1]], r"got list"),
    ],
)
def test_bad_graph(graph: object, said: str) -> None:
    with pytest.raises(gs.InputError, match=said):
        gs.mixing_matrix(graph)  # type: ignore[arg-type]


def test_fdla_without_a_closed_form_says_what_to_use() -> None:
    with pytest.raises(gs.InputError, match=r"rings and complete graphs.*metropolis"):
        gs.mixing_matrix(nx.path_graph(4), "fdla")
    with pytest.raises(gs.InputError, match=r"no rule for weights 'uniform'; there are 'fdla', 'metropolis'"):
        gs.mixing_matrix(gs.ring(4), "uniform")
    with pytest.raises(gs.InputError, match=r"`clients` must be an integer of 2 or more, got 1"):
        gs.ring(1)
