from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from topologies import graphs

import gossamer as gs


def test_properties_of_a_mixing_matrix() -> None:
    mixing = gs.mixing_matrix(gs.ring(10), "fdla")
    assert (mixing.clients, mixing.degrees.tolist(), mixing.neighbors(0)) == (10, [2] * 10, [1, 9])
    assert mixing.sparse.nnz == 30
    np.testing.assert_array_equal(mixing.sparse.toarray(), mixing.matrix)
    assert round(mixing.lambda_min, 3) == -0.826
    assert mixing.is_nonnegative
    assert not gs.mixing_matrix(gs.topology.star(5), "fdla").is_nonnegative
    with pytest.raises(gs.InputError, match="`client` must be an integer from 0 to 9, got 10"):
        mixing.neighbors(10)


@given(graphs(), st.sampled_from(["metropolis", "fmmc"]))
def test_lazy_halves_the_distance_to_one(graph: "nx.Graph[int]", rule: str) -> None:
    mixing = gs.mixing_matrix(graph, rule)
    lazy = gs.topology.lazy(mixing)
    np.testing.assert_allclose(lazy.matrix, (mixing.matrix + np.eye(mixing.clients)) / 2, atol=1e-15)
    assert lazy.lambda_min == pytest.approx((1 + mixing.lambda_min) / 2)
    assert lazy.lambda_min > -1e-9
    by_name = gs.mixing_matrix(graph, f"lazy:{rule}")
    np.testing.assert_allclose(by_name.matrix, lazy.matrix, atol=1e-12)
    assert by_name.rho == pytest.approx(lazy.rho)


def test_d2_refuses_a_matrix_that_is_not_lazy() -> None:
    problem, mixing = gs.quadratic(clients=10, d=3), gs.mixing_matrix(gs.ring(10), "fdla")
    with pytest.raises(gs.InputError, match=r"smallest eigenvalue is above -1/3, got -0.826; leave `lazy`"):
        gs.simulate(gs.D2(lr=0.1, lazy=False), problem, mixing, rounds=1)
    gs.simulate(gs.D2(lr=0.1, lazy=False), problem, gs.topology.lazy(mixing), rounds=1)


def test_nodes_of_any_kind_are_numbered() -> None:
    mixing = gs.mixing_matrix(nx.Graph([("a", "b"), ("b", "c")]))
    assert [mixing.neighbors(i) for i in range(3)] == [[1], [0, 2], [1]]
    shuffled = nx.Graph([(2, 1), (1, 0)])
    assert [gs.mixing_matrix(shuffled).neighbors(i) for i in range(3)] == [[1], [0, 2], [1]]


def test_matrices_of_a_wrong_type_are_refused() -> None:
    for bad in (5, "abc", [[1, "x"], [0, 1]], [[1, 2], [3]]):
        with pytest.raises(gs.InputError, match="A mixing matrix must be a square matrix of numbers"):
            gs.MixingMatrix(bad, nx.empty_graph(1))
    for bad in (5, "abc", [[1, "x"], [0, 1]]):
        with pytest.raises(gs.InputError, match="weight"):
            gs.mixing_matrix(gs.ring(2), bad)


def test_own_matrix(tmp_path: Path) -> None:
    w = np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]])
    np.save(tmp_path / "w.npy", w)
    np.savetxt(tmp_path / "w.csv", w, delimiter=",")
    np.savetxt(tmp_path / "w.txt", w)
    path = gs.topology.path(3)
    for own in (w, w.tolist(), sparse.csr_array(w), sparse.coo_array(w), *tmp_path.iterdir(), str(tmp_path / "w.csv")):
        np.testing.assert_array_equal(gs.mixing_matrix(path, own).matrix, w)


BAD_MATRICES = {
    r"3 x 3, got 2 x 2": np.eye(2),
    r"symmetric, but W\[0, 1\] = 0.5 and W\[1, 0\] = 0.4": np.array([[0.5, 0.5, 0], [0.4, 0.6, 0], [0, 0, 1.0]]),
    r"row 0 sums to 0.9": np.array([[0.4, 0.5, 0], [0.5, 0.25, 0.25], [0, 0.25, 0.75]]),
    r"no edge between clients 0 and 2": np.full((3, 3), 1 / 3),
    r"does not mix.*from 1 to 1; zero weights": np.eye(3),
    r"does not mix.*from -1 to 0.3333; use \(W \+ I\)/2": np.array([[1, 2, 0], [2, -1, 2], [0, 2, 1]]) / 3,
    r"does not mix.*smaller weights": np.array([[-3, 4, 0], [4, -7, 4], [0, 4, -3.0]]),
    r"finite": np.full((3, 3), np.nan),
}


@pytest.mark.parametrize(("message", "matrix"), BAD_MATRICES.items(), ids=range(len(BAD_MATRICES)))
def test_bad_matrix(message: str, matrix: np.ndarray) -> None:
    with pytest.raises(gs.InputError, match=message):
        gs.mixing_matrix(nx.path_graph(3), matrix)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.Graph([(0, 1), (2, 3), (3, 4)]), r"not connected: clients 0, 1 cannot reach the rest"),
        (nx.Graph([(0, 1), (1, 1)]), r"joins client 1 to itself"),
        (nx.DiGraph([(0, 1)]), r"undirected networkx.Graph, got DiGraph"),
        (nx.Graph(), r"no clients"),
        ([[0, 1]], r"got list"),
    ],
)
def test_bad_graph(graph: object, message: str) -> None:
    with pytest.raises(gs.InputError, match=message):
        gs.mixing_matrix(graph)  # type: ignore[arg-type]


def test_unknown_rules_and_too_few_clients() -> None:
    with pytest.raises(gs.InputError, match=r"Unknown weight rule 'uniform'; valid weight rules: 'best_constant'"):
        gs.mixing_matrix(gs.ring(4), "uniform")
    with pytest.raises(gs.InputError, match=r"`clients` must be an integer from 2 to 1000000, got 1"):
        gs.ring(1)


def test_a_sparse_matrix_of_the_user() -> None:
    w = gs.mixing_matrix(gs.ring(6)).sparse
    doubled = sparse.csr_array((np.repeat(w.data / 2, 2), np.repeat(w.indices, 2), w.indptr * 2), shape=w.shape)
    mixing = gs.mixing_matrix(gs.ring(6), doubled)
    assert mixing.sparse.nnz == 18, "duplicate entries are summed"
    own = w.copy()
    kept = gs.mixing_matrix(gs.ring(6), own)
    own.data[:] = 0
    assert kept.sparse.sum() == pytest.approx(6), "later changes by the user have no effect"
    with pytest.raises(gs.InputError, match="matrix of numbers, got complex128"):
        gs.mixing_matrix(gs.ring(6), sparse.csr_array(w + 0.5j * np.eye(6)))
    with pytest.raises(gs.InputError, match="`weights` must be the name of a rule or a square matrix"):
        gs.mixing_matrix(gs.ring(6), torch.eye(6, requires_grad=True))
    with pytest.raises(gs.InputError, match="`lazy` takes a MixingMatrix, got str"):
        gs.topology.lazy("fdla")  # type: ignore[arg-type]
    with pytest.raises(gs.InputError, match="Unknown weight rule 'lazy:fdla'"):
        gs.mixing_matrix(gs.ring(6), "lazy:lazy:fdla")
