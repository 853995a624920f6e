import os
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import gossamer as gs

T = gs.topology


def test_edge_list(tmp_path: Path) -> None:
    file = tmp_path / "graph.txt"
    file.write_text("\ufeff# a square\n0 1\n1,2  # and a half\n\n2\t3\n 3 , 0\n")
    assert nx.is_isomorphic(T.edge_list(file), T.ring(4))
    assert gs.mixing_matrix(T.edge_list(str(file)), "fdla").rho == gs.mixing_matrix(T.ring(4), "fdla").rho


BAD_EDGES = {
    "0 1\n1 1\n": r"Line 2 of .* joins client 1 to itself",
    "0 1\n1 2\n1 0\n": r"Line 3 of .* repeats the edge 0 1 of line 1",
    "0 1\n3 4\n": "Client 2 of .* has no neighbours",
    "1 2\n2 3\n": "Client 0 of .* has no neighbours; clients are numbered from 0",
    "0 1\na b\n": r"Line 2 of .* must name two clients, such as `0 1`, got 'a b'",
    "0 1 2\n": "Line 1 of .* must name two clients",
    "0 -1\n": "Line 1 of .* must name two clients",
    "0 1.5\n": "Line 1 of .* must name two clients",
    "0 999999999\n": "the maximum is 999999",
    "0 99999999999999999999\n": "must name two clients",
    "# nothing\n": "has no edges",
    "\xff": "cannot be read: it is not text",
}


@pytest.mark.parametrize(("text", "message"), BAD_EDGES.items(), ids=range(len(BAD_EDGES)))
def test_bad_edge_lists(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "graph.txt"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(gs.InputError, match=message):
        T.edge_list(file)


def test_a_graph_in_parts_is_refused_when_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "graph.txt"
    file.write_text("0 1\n2 3\n")
    with pytest.raises(gs.InputError, match="not connected: clients 0, 1 cannot reach the rest"):
        gs.mixing_matrix(T.edge_list(file))


def test_adjacency(tmp_path: Path) -> None:
    square = nx.to_numpy_array(T.ring(4))
    np.save(tmp_path / "a.npy", square)
    np.savetxt(tmp_path / "a.csv", square, delimiter=",", fmt="%d")
    np.savetxt(tmp_path / "a.txt", square)
    for matrix in (square, square.astype(bool), square.tolist(), *tmp_path.iterdir(), str(tmp_path / "a.csv")):
        assert set(T.adjacency(matrix).edges) == {(0, 1), (1, 2), (2, 3), (0, 3)}


BAD_MATRICES = {
    "0,1\n1,x\n": r"Line 2, column 2 of .* must be a number, got 'x'",
    "a,b\n0,1\n1,0\n": r"Line 1, column 1 of .* must be a number, got 'a'",
    "0,1\n1\n": "Line 2 of .* has 1 numbers, but the first has 2",
    "0,1,0\n1,0,1\n": "square, got 2 x 3",
    "0,0.5\n0.5,0\n": r"Entry \[0, 1\] = 0.5 .* must be 0 or 1; pass weights to mixing_matrix",
    "0,nan\nnan,0\n": r"Entry \[0, 1\] = nan .* must be 0 or 1",
    "1,1\n1,0\n": r"Entry \[0, 0\] = 1 .* joins a client to itself",
    "0,1\n0,0\n": r"Entry \[0, 1\] = 1 .* differs from its mirror entry",
    "0,1,0\n1,0,0\n0,0,0\n": "Client 2 of the adjacency matrix has no neighbours",
    "": "is empty",
}


@pytest.mark.parametrize(("text", "message"), BAD_MATRICES.items(), ids=range(len(BAD_MATRICES)))
def test_bad_adjacency_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(gs.InputError, match=message):
        T.adjacency(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_text("0 1")
    np.save(tmp_path / "objects.npy", np.array([["a", 1]], object), allow_pickle=True)
    np.save(tmp_path / "vector.npy", np.arange(3))
    for name, message in (
        ("none.csv", "No such file"),
        ("none.npy", "No such file"),
        ("a.npy", "not a .npy file"),
        ("objects.npy", "not a .npy file"),
        ("vector.npy", "must hold a matrix of numbers"),
    ):
        with pytest.raises(gs.InputError, match=message):
            T.adjacency(tmp_path / name)
    (tmp_path / "zip.npy").write_bytes(b"PK\3\4garbage")
    (tmp_path / "header.npy").write_bytes(b"\x93NUMPY\x01\x00\x06\x00{'a':(")
    os.mkfifo(tmp_path / "pipe.csv")
    for name, message in (
        ("zip.npy", "not a .npy file"),
        ("header.npy", "not a .npy file"),
        ("pipe.csv", "not a regular file"),
        (".", "not a regular file"),
        ("a\0b.csv", "must not contain a NUL character"),
        ("a\0b.npy", "must not contain a NUL character"),
        ("\ud800.csv", "cannot be read"),
    ):
        with pytest.raises(gs.InputError, match=message):
            T.adjacency(str(tmp_path / name))
    (tmp_path / "long.csv").write_text("0," + "1" * 200_000)
    with pytest.raises(gs.InputError, match="square, got 1 x 2"):
        T.adjacency(tmp_path / "long.csv")
    for bad in (5, None, [[0, "x"], [1, 0]], [[0, 1], [1]], np.zeros((2, 2, 2)), [[0, 1j], [1j, 0]]):
        with pytest.raises(gs.InputError, match="An adjacency matrix must be a square matrix of 0 and 1, got"):
            T.adjacency(bad)  # type: ignore[arg-type]
    with pytest.raises(gs.InputError, match="`file` must be a string or a path, got 5"):
        T.edge_list(5)  # type: ignore[arg-type]
