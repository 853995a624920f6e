"""Graphs as networkx objects and as arrays of edges."""

from typing import Any, TypeAlias

import networkx as nx
import numpy as np
import numpy.typing as npt

from gossamer.errors import InputError, check_integer

Matrix = npt.NDArray[np.float64]
Edges = npt.NDArray[np.int64]
"""(edges, 2): each row ascending, rows in lexicographic order."""
Graph: TypeAlias = "nx.Graph[Any]"

MOST_CLIENTS = 1_000_000
_MOST_EDGES = 5_000_000  # networkx takes about 200 bytes per edge


def check_clients(name: str, value: object, low: int) -> int:
    """Check a number of clients, rows or columns: from `low` to MOST_CLIENTS."""
    return check_integer(name, value, low, MOST_CLIENTS)


def check_size(what: str, edges: float) -> None:
    """Refuse a graph with too many edges."""
    if edges > _MOST_EDGES:
        raise InputError(f"{what} would have {edges:,.0f} edges; the maximum is {_MOST_EDGES:,}.")


def from_edges(clients: int, edges: npt.ArrayLike) -> Graph:
    """The graph of clients 0, 1, ... with these edges."""
    graph: Graph = nx.empty_graph(clients)
    pairs = np.asarray(edges, np.int64).reshape(-1, 2)
    graph.add_edges_from(zip(pairs[:, 0].tolist(), pairs[:, 1].tolist(), strict=True))
    return graph


def ordered(edges: npt.ArrayLike) -> Edges:
    """Each edge once, from the lower client to the higher, in lexicographic order."""
    pairs = np.sort(np.asarray(edges, np.int64).reshape(-1, 2), axis=1)
    size = int(pairs.max(initial=0)) + 1
    keys = np.unique(pairs[:, 0] * size + pairs[:, 1])
    return np.stack([keys // size, keys % size], axis=1)


def edges_of(graph: Graph) -> Edges:
    """The edges of a graph whose clients are 0, 1, ..."""
    return ordered(np.array(graph.edges, np.int64))


def checked(graph: Graph) -> Graph:
    """The graph with clients numbered from 0; raises an InputError unless it is simple, undirected and connected."""
    if not isinstance(graph, nx.Graph) or graph.is_directed() or graph.is_multigraph():
        raise InputError(f"A graph must be an undirected networkx.Graph, got {type(graph).__name__}.")
    if graph.number_of_nodes() == 0:
        raise InputError("The graph has no clients.")
    check_size("The graph", graph.number_of_edges())
    loop = next(iter(nx.selfloop_edges(graph)), None)
    if loop is not None:
        raise InputError(f"The graph joins client {loop[0]} to itself; remove the self loop.")
    if not nx.is_connected(graph):
        part = min(nx.connected_components(graph), key=len)
        shown = ", ".join(str(node) for node in sorted(part, key=str)[:5])
        raise InputError(
            f"The graph is not connected: client{'s' if len(part) > 1 else ''} {shown} cannot reach the rest; "
            "add an edge."
        )
    # Nodes that already are 0..n-1 keep their numbers, in whatever order they were added.
    nodes = sorted(graph) if set(graph) == set(range(len(graph))) else list(graph)
    numbers = {node: number for number, node in enumerate(nodes)}
    return from_edges(len(nodes), [(numbers[a], numbers[b]) for a, b in graph.edges])
