"""Graph builders: each returns a networkx graph with clients numbered 0, 1, ...; edges join neighbours."""

import inspect
import math
from collections.abc import Callable
from functools import partial

import networkx as nx
import numpy as np

from gossamer.errors import InputError, check_integer, check_unit
from gossamer.registry import Registry, graphs, settings_of
from gossamer.topology.base import Edges, Graph, check_clients, check_size, from_edges, ordered

_DRAWS = 100  # attempts to draw a connected random graph


@graphs.register("ring")
def ring(clients: int) -> Graph:
    """A cycle: each client has two neighbours."""
    i = np.arange(check_clients("clients", clients, 2))
    return from_edges(len(i), _joined(i, np.roll(i, -1)))


@graphs.register("path")
def path(clients: int) -> Graph:
    """A line: a ring without one edge."""
    clients = check_clients("clients", clients, 2)
    return from_edges(clients, grid_edges(1, clients))


@graphs.register("star")
def star(clients: int) -> Graph:
    """Client 0 is the neighbour of all others."""
    clients = check_clients("clients", clients, 2)
    return from_edges(clients, [(0, i) for i in range(1, clients)])


@graphs.register("complete")
def complete(clients: int) -> Graph:
    """All clients are neighbours of each other."""
    clients = check_clients("clients", clients, 2)
    check_size(f"A complete graph of {clients:,} clients", clients * (clients - 1) / 2)
    return from_edges(clients, np.stack(np.triu_indices(clients, 1), axis=1))


@graphs.register("grid")
def grid(rows: int, cols: int) -> Graph:
    """A grid with up to four neighbours per client; the client in row r and column c is number r * cols + c."""
    rows, cols = check_clients("rows", rows, 1), check_clients("cols", cols, 1)
    if rows * cols < 2:
        raise InputError("A grid needs at least 2 clients, got 1 x 1.")
    check_size(f"A grid of {rows:,} x {cols:,}", 2 * rows * cols)
    return from_edges(rows * cols, grid_edges(rows, cols))


@graphs.register("torus")
def torus(rows: int, cols: int | None = None) -> Graph:
    """A grid whose borders are joined, so that all clients have four neighbours; `cols` defaults to `rows`."""
    rows = check_clients("rows", rows, 3)
    cols = rows if cols is None else check_clients("cols", cols, 3)
    check_size(f"A torus of {rows:,} x {cols:,}", 2 * rows * cols)
    return from_edges(rows * cols, torus_edges(rows, cols))


@graphs.register("hypercube")
def hypercube(clients: int) -> Graph:
    """Clients whose numbers differ in one binary digit are neighbours; `clients` must be a power of two."""
    clients = check_clients("clients", clients, 2)
    if clients & (clients - 1):
        below = 1 << (clients.bit_length() - 1)
        raise InputError(f"A hypercube needs a power of two clients, got {clients}; use {below} or {2 * below}.")
    check_size(f"A hypercube of {clients:,} clients", clients * math.log2(clients) / 2)
    return from_edges(clients, hypercube_edges(clients))


@graphs.register("exponential")
def exponential(clients: int) -> Graph:
    """Each client is a neighbour of those 1, 2, 4, 8, ... places away on a ring, in both directions."""
    clients = check_clients("clients", clients, 2)
    check_size(f"An exponential graph of {clients:,} clients", clients * math.log2(clients))
    return from_edges(clients, exponential_edges(clients))


@graphs.register("erdos_renyi")
def erdos_renyi(clients: int, p: float, seed: int = 0) -> Graph:
    """Each pair is joined with probability p; redrawn with the next seed until the graph is connected."""
    clients, p = check_clients("clients", clients, 2), check_unit("p", p)
    isolated = clients * (1 - p) ** (clients - 1)  # expected number; P(connected) is about exp(-isolated)
    what = f"Erdos-Renyi graph of {clients:,} clients with p = {p:g}"
    if isolated > 3 or 1 - p == 1:
        raise InputError(
            f"An {what} will not be connected: about {isolated:,.0f} would have no neighbours; use p above "
            f"log(clients)/clients = {math.log(clients) / clients:.2g}."
        )
    check_size(f"An {what}", p * clients * (clients - 1) / 2)
    return _connected(partial(nx.fast_gnp_random_graph, clients, p), seed, f"an {what}; use a larger p")


@graphs.register("random_regular")
def random_regular(clients: int, degree: int, seed: int = 0) -> Graph:
    """A random graph in which all clients have `degree` neighbours; redrawn until it is connected."""
    clients = check_clients("clients", clients, 2)
    degree = check_integer("degree", degree, 1, clients - 1)
    if clients * degree % 2:
        raise InputError(f"`clients` x `degree` must be even, got {clients} x {degree}; an edge has two ends.")
    if degree == 1 and clients > 2:
        raise InputError(f"{clients} clients with 1 neighbour each are not connected; use a degree of 2 or more.")
    check_size(f"A regular graph of {clients:,} clients", clients * degree / 2)
    if 2 * degree >= clients:  # drawing the complement is faster
        seed = check_integer("seed", seed, 0)
        return nx.complement(nx.random_regular_graph(clients - 1 - degree, clients, seed=seed))
    what = f"a regular graph of {clients:,} clients with {degree} neighbours each; use 3 or more"
    return _connected(partial(nx.random_regular_graph, degree, clients), seed, what)


@graphs.register("small_world")
def small_world(clients: int, degree: int = 4, rewire: float = 0.1, seed: int = 0) -> Graph:
    """A ring of `degree` nearest neighbours, each edge rewired with probability `rewire` (Watts and Strogatz, 1998)."""
    clients = check_clients("clients", clients, 3)
    degree = check_integer("degree", degree, 2, clients - 1)
    if degree % 2:
        raise InputError(f"`degree` of a small world must be even, got {degree}; half of them are on each side.")
    rewire = check_unit("rewire", rewire, zero=True)
    check_size(f"A small world of {clients:,} clients", clients * degree / 2)
    what = f"a small world of {clients:,} clients with {degree} neighbours; use a larger degree"
    return _connected(partial(nx.watts_strogatz_graph, clients, degree, rewire), seed, what)


@graphs.register("barbell")
def barbell(clients: int, bridge: int = 0) -> Graph:
    """Two complete halves, joined by a path of `bridge` clients (0: by one edge)."""
    clients = check_clients("clients", clients, 4)
    bridge = check_integer("bridge", bridge, 0, clients - 4)
    half, odd = divmod(clients - bridge, 2)
    if odd:
        raise InputError(f"The halves of a barbell must be equal, got {clients} clients with {bridge} on the bridge.")
    check_size(f"A barbell of {clients:,} clients", half * (half - 1) + bridge + 1)
    graph: Graph = nx.barbell_graph(half, bridge)
    return graph


@graphs.register("balanced_tree")
def balanced_tree(clients: int, branching: int = 2) -> Graph:
    """A tree with root 0 and `branching` children per client; levels are filled one after another."""
    clients, branching = check_clients("clients", clients, 2), check_integer("branching", branching, 1)
    graph: Graph = nx.full_rary_tree(branching, clients)
    return graph


def build_graph(description: object, clients: int | None = None) -> Graph:
    """The graph of a description such as `"grid:8,5"` or `{"name": "ring"}`, with this number of clients, if given."""
    description, more = with_clients(graphs, description, clients)
    graph: Graph = graphs.build(description, **more)
    if clients is not None and len(graph) != clients:
        raise InputError(f"The graph {name_of(description)!r} has {len(graph)} clients; expected {clients}.")
    return graph


def name_of(description: object) -> object:
    """The name in a description."""
    return description.partition(":")[0] if isinstance(description, str) else dict(description).get("name")  # type: ignore[call-overload]


def with_clients(known: Registry, description: object, clients: int | None) -> tuple[object, dict[str, int]]:
    """A description, and the number of clients, if it is to be added."""
    name = name_of(description)
    own = list(inspect.signature(known.get(name)).parameters) if isinstance(name, str) else []
    more = {"clients": clients} if "clients" in own and clients is not None else {}
    if more and isinstance(description, str):
        positional, keywords = settings_of(description.partition(":")[2])
        if len(positional) < len(own):  # `erdos_renyi:0.2`: the given settings come after `clients`
            rest = [setting for setting in own if setting != "clients"]
            description = {"name": name, **dict(zip(rest, positional, strict=False)), **keywords}
        else:
            more = {}
    return description, more


def _connected(draw: Callable[..., Graph], seed: int, what: str) -> Graph:
    """The first connected graph drawn with the seeds `seed`, `seed` + 1, ..."""
    seed = check_integer("seed", seed, 0)
    for attempt in range(_DRAWS):
        graph = draw(seed=seed + attempt)
        if nx.is_connected(graph):
            return graph
    raise InputError(f"None of {_DRAWS} draws was connected: {what} or another seed.")


def _joined(clients: Edges, *others: Edges) -> Edges:
    """Edges from each client to those in the same place of the other arrays; each edge once."""
    return ordered(np.concatenate([np.stack([clients.ravel(), ends.ravel()], axis=1) for ends in others]))


def grid_edges(rows: int, cols: int) -> Edges:
    """Edges of a grid numbered row by row."""
    number = np.arange(rows * cols).reshape(rows, cols)
    return ordered(np.concatenate([_joined(number[:, :-1], number[:, 1:]), _joined(number[:-1], number[1:])]))


def torus_edges(rows: int, cols: int) -> Edges:
    """Edges of a torus numbered row by row."""
    number = np.arange(rows * cols).reshape(rows, cols)
    return _joined(number, np.roll(number, -1, axis=0), np.roll(number, -1, axis=1))


def hypercube_edges(clients: int) -> Edges:
    """Edges between numbers that differ in one binary digit."""
    i = np.arange(clients)
    return _joined(i, *(i ^ (1 << k) for k in range(clients.bit_length() - 1)))


def exponential_edges(clients: int) -> Edges:
    """Edges between places on a ring that are a power of two apart."""
    i = np.arange(clients)
    return _joined(i, *(np.roll(i, -(1 << k)) for k in range((clients - 1).bit_length())))
