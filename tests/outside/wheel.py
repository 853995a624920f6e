"""A graph of another package: a ring and a client in its middle that knows everyone."""

import networkx as nx


def wheel(clients: int) -> "nx.Graph[int]":
    """A ring of all clients but the first, which is a neighbour of all."""
    graph: nx.Graph[int] = nx.wheel_graph(clients)
    return graph
