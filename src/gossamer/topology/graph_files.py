"""User-defined graphs and weights: edge lists and matrices, from arrays or files."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gossamer.errors import InputError, check_path
from gossamer.registry import graphs
from gossamer.topology.base import MOST_CLIENTS, Graph, Matrix, check_size, from_edges


@graphs.register("edge_list")
def edge_list(file: str | os.PathLike[str]) -> Graph:
    """A graph from a file with one edge per line, `0 1` or `0,1`. `#` starts a comment. Clients are numbered from 0."""
    check_path("file", file)
    edges: dict[tuple[int, int], int] = {}
    for number, line in _lines(file):
        where = f"Line {number} of '{file}'"
        parts = line.replace(",", " ").split()
        if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            raise InputError(f"{where} must name two clients, such as `0 1`, got {line[:40]!r}.")
        i, j = sorted(map(int, parts))
        if i == j:
            raise InputError(f"{where} joins client {i} to itself; remove the self loop.")
        if (i, j) in edges:
            raise InputError(f"{where} repeats the edge {i} {j} of line {edges[i, j]}; list each edge once.")
        if j >= MOST_CLIENTS:
            raise InputError(f"{where} names client {j}; the maximum is {MOST_CLIENTS - 1}.")
        edges[i, j] = number
        check_size(f"The graph in '{file}'", len(edges))
    if not edges:
        raise InputError(f"The edge list '{file}' has no edges.")
    named = {client for edge in edges for client in edge}
    clients = max(named) + 1
    if len(named) < clients:
        missing = min(set(range(clients)) - named)
        hint = "; clients are numbered from 0" if missing == 0 else ""
        raise InputError(f"Client {missing} of '{file}' has no neighbours{hint}.")
    return from_edges(clients, list(edges))


@graphs.register("adjacency")
def adjacency(matrix: npt.ArrayLike | str | os.PathLike[str]) -> Graph:
    """A graph from a symmetric matrix of 0 and 1, or from a .csv or .npy file that holds one."""
    if isinstance(matrix, str | os.PathLike):
        a = read_matrix(matrix)
    else:
        a = as_matrix(matrix, "An adjacency matrix must be a square matrix of 0 and 1")
    if a.shape[0] != a.shape[1] or not len(a):
        raise InputError(f"An adjacency matrix must be square, got {a.shape[0]} x {a.shape[1]}.")
    for wrong, reason in (
        ((a != 0) & (a != 1), "must be 0 or 1; pass weights to mixing_matrix(graph, weights=...)"),
        ((a != 0) & np.eye(len(a), dtype=bool), "joins a client to itself; remove the self loop"),
        (a != a.T, "differs from its mirror entry; the matrix must be symmetric"),
    ):
        if wrong.any():
            i, j = np.argwhere(wrong)[0]
            raise InputError(f"Entry [{i}, {j}] = {a[i, j]:g} of the adjacency matrix {reason}.")
    isolated = np.flatnonzero(a.sum(axis=1) == 0)
    if len(isolated) and len(a) > 1:
        raise InputError(f"Client {isolated[0]} of the adjacency matrix has no neighbours.")
    edges = np.argwhere(np.triu(a))
    check_size("The graph of the adjacency matrix", len(edges))
    return from_edges(len(a), edges)


def as_matrix(values: npt.ArrayLike, what: str) -> Matrix:
    """A matrix of real numbers; otherwise an InputError that starts with `what`."""
    try:
        matrix = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths, a tensor with a graph behind it
        matrix = np.empty(0, object)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        shown = " ".join(str(values).split())
        raise InputError(f"{what}, got {shown if len(shown) <= 60 else shown[:57] + '...'}.")
    return np.asarray(matrix, np.float64)


def read_matrix(file: str | os.PathLike[str]) -> Matrix:
    """A matrix from a .npy file, or from a text file with numbers separated by commas or spaces."""
    check_path("file", file)
    if Path(file).suffix == ".npy":
        try:
            with open(file, "rb") as content:
                loaded = np.load(content, allow_pickle=False)
        except Exception as error:  # a damaged header can make NumPy raise anything
            reason = getattr(error, "strerror", None) or "it is not a .npy file"
            raise InputError(f"The matrix {str(file)!r} cannot be read: {reason}.") from None
        return as_matrix(loaded, f"The file '{file}' must hold a matrix of numbers")
    rows: list[list[float]] = []
    for number, line in _lines(file):
        row: list[float] = []
        cells = [cell.strip().strip('"') for cell in line.split(",")] if "," in line else line.split()
        for column, text in enumerate(cells, 1):
            try:
                row.append(float(text))
            except ValueError:
                raise InputError(
                    f"Line {number}, column {column} of '{file}' must be a number, got {text[:40]!r}."
                ) from None
        if rows and len(row) != len(rows[0]):
            raise InputError(f"Line {number} of '{file}' has {len(row)} numbers, but the first has {len(rows[0])}.")
        rows.append(row)
    if not rows:
        raise InputError(f"The matrix '{file}' is empty.")
    return np.array(rows)


def _lines(file: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """The non-empty lines of a text file, without comments, with their line numbers."""
    try:
        if not Path(file).is_file():  # reading a pipe or a device may never end
            raise FileNotFoundError(0, "No such file" if not Path(file).exists() else "not a regular file")
        with open(file, encoding="utf-8-sig") as text:
            for number, line in enumerate(text, 1):
                bare = line.partition("#")[0].strip()
                if bare:
                    yield number, bare
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"{str(file)!r} cannot be read: {reason}.") from None
