"""Graphs for tests."""

import networkx as nx
from hypothesis import strategies as st


@st.composite
def graphs(draw: st.DrawFn, most: int = 10) -> "nx.Graph[int]":
    """Connected graphs: a random tree with random edges added, clients numbered in any order."""
    n = draw(st.integers(2, most))
    parents = [draw(st.integers(0, i - 1)) for i in range(1, n)]
    extra = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=2 * n))
    order = draw(st.permutations(range(n)))
    graph: nx.Graph[int] = nx.empty_graph(n)
    graph.add_edges_from((order[i], order[parent]) for i, parent in enumerate(parents, 1))
    graph.add_edges_from((i, j) for i, j in extra if i != j)
    return graph
