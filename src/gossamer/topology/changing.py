"""Networks that change, by name: matchings, one-peer exponential graphs, several graphs in turn, failing edges."""

from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy import sparse

from gossamer.errors import InputError, check_bool, check_unit, unknown
from gossamer.registry import graphs as known_graphs
from gossamer.registry import networks, normal
from gossamer.topology.base import Graph, check_clients, checked, edges_of, ordered
from gossamer.topology.graphs import build_graph, name_of, with_clients
from gossamer.topology.mixing import MixingMatrix, by_rule, mixing_matrix
from gossamer.topology.plans import Alternating, Plan, RandomMatchings, Repeated, Unreliable
from gossamer.topology.rounds import RoundWeights
from gossamer.topology.schedule import Mixing, MixingSchedule

FAILURES = ("dropout", "sleeping", "failure_seed")
"""Settings that any network of a spec may have."""


@networks.register("matchings")
def matchings(graph: "Graph | str | Mapping[str, Any]", clients: int | None = None) -> MixingSchedule:
    """Every edge of a graph in turn, in rounds in which each client talks to at most one neighbour, with weight 1/2.

    Args:
        graph: A graph, or the description of one, such as `"ring"`.
        clients: The number of clients, for a description without it.

    >>> import gossamer as gs
    >>> gs.topology.matchings(gs.ring(8))
    MixingSchedule(clients=8, rounds=2, edges=8, rho=0.1464)
    """
    graph = checked(graph if isinstance(graph, nx.Graph) else build_graph(graph, clients))
    colors = nx.greedy_color(nx.line_graph(graph), "largest_first")
    many = max(colors.values(), default=-1) + 1
    by_color = [ordered([edge for edge, one in colors.items() if one == color]) for color in range(many)]
    rounds = [RoundWeights.on_edges(len(graph), edges, np.full(len(edges), 0.5)) for edges in by_color]
    return MixingSchedule(Repeated(tuple(rounds or [RoundWeights(np.eye(len(graph)))])))


@networks.register("one_peer_exponential")
def one_peer_exponential(clients: int, directed: bool = False) -> MixingSchedule:
    """One neighbour per round, 1, 2, 4, 8, ... places away in turn (Ying et al., 2021, arXiv 2110.13363).

    Args:
        clients: The number of clients.
        directed: In round k, whether client i receives from client i + 2^k and sends to client i - 2^k, as in the
            paper. These weights are doubly stochastic and not symmetric, which few methods allow. By default clients i
            and i xor 2^k exchange messages, which needs a power of two. With a power of two, both forms average exactly
            in log2(clients) rounds.

    >>> import gossamer as gs
    >>> gs.topology.one_peer_exponential(16)
    MixingSchedule(clients=16, rounds=4, edges=32, rho=0.25)
    """
    clients = check_clients("clients", clients, 2)
    check_bool("directed", directed)
    i, turns = np.arange(clients), (clients - 1).bit_length()
    if directed:
        rounds = []
        for k in range(turns):
            w = _directed(clients, (i + (1 << k)) % clients)
            rounds.append(RoundWeights(w, directed=True))
        return MixingSchedule(Repeated(tuple(rounds)))
    if clients & (clients - 1):
        below = 1 << (clients.bit_length() - 1)
        raise InputError(
            f"A symmetric one-peer exponential graph needs a power of two clients, got {clients}; use {below} or "
            f"{2 * below}, `random_matchings`, or directed = true for methods that allow it."
        )
    pairs = [ordered(np.stack([i, i ^ (1 << k)], axis=1)) for k in range(turns)]
    return MixingSchedule(Repeated(tuple(RoundWeights.on_edges(clients, e, np.full(len(e), 0.5)) for e in pairs)))


@networks.register("random_matchings")
def random_matchings(clients: int, seed: int = 0) -> MixingSchedule:
    """In each round all clients are paired at random, with weight 1/2; of an odd number, one waits.

    Every pair may meet, so a method with surrogates keeps them for clients - 1 neighbours.

    >>> import gossamer as gs
    >>> gs.topology.random_matchings(16, seed=1)
    MixingSchedule(clients=16, rounds=random, edges=120, rho=0.5333)
    """
    return MixingSchedule(RandomMatchings(check_clients("clients", clients, 2), seed))


@networks.register("alternating")
def alternating(
    graphs: "Sequence[Graph | Mixing | str | Mapping[str, Any]] | str",
    weights: str = "metropolis",
    clients: int | None = None,
) -> MixingSchedule:
    """One round on each network in turn. Each may be disconnected; all of them together must be connected.

    Args:
        graphs: Graphs, mixing matrices, schedules, or descriptions of them, in a list or as `"ring+star"`.
        weights: The rule for the weights of graphs.
        clients: The number of clients, for descriptions without it.

    >>> import gossamer as gs
    >>> gs.topology.alternating([gs.ring(8), gs.topology.star(8)])
    MixingSchedule(clients=8, rounds=2, edges=13, rho=0.1601)
    """
    if isinstance(graphs, str):
        graphs = [one.strip() for one in graphs.split("+")]
    if isinstance(graphs, nx.Graph) or not isinstance(graphs, Sequence):
        raise InputError(f"`alternating` takes a list of graphs, got {type(graphs).__name__}.")
    return MixingSchedule(Alternating(tuple(_plan(one, weights, clients) for one in graphs)))


def unreliable(mixing: Mixing, dropout: float = 0.0, sleeping: float = 0.0, seed: int = 0) -> MixingSchedule:
    """A network whose edges and clients fail at random.

    Args:
        mixing: A mixing matrix or a symmetric schedule.
        dropout: The probability that an edge fails in a round. Both ends then do without it.
        sleeping: The probability that a client sleeps in a round. It sends and receives nothing. It still takes its
            gradient step.
        seed: Seed of the failures. Each round draws its own, independent of all others.

    >>> import gossamer as gs
    >>> gs.topology.unreliable(gs.mixing_matrix(gs.ring(8)), dropout=0.2)
    MixingSchedule(clients=8, rounds=random, edges=8, rho=0.1562)
    """
    shares = {
        "dropout": check_unit("dropout", dropout, zero=True),
        "sleeping": check_unit("sleeping", sleeping, zero=True),
    }
    for name, share in shares.items():
        if share == 1:
            raise InputError(f"The schedule is never connected with `{name}` = 1; use a share below 1.")
    if isinstance(mixing, MixingSchedule) and not mixing.is_symmetric:
        raise InputError(
            "Edges can fail only on a symmetric schedule: without one of its edges, a directed W_t is no longer doubly "
            "stochastic."
        )
    return MixingSchedule(Unreliable(_plan(mixing, "metropolis", None), **shares, seed=seed))


def build_network(description: object, clients: int | None = None, weights: Any = None) -> Mixing:
    """The network of a description: a graph with its weights, or a schedule, with failures if it names any.

    Args:
        description: Such as `"grid:8,5"`, `"random_matchings:seed=1"`, `"ring:dropout=0.2"` or a table
            `{"name": "ring", "dropout": 0.2}`. Any network takes `dropout`, `sleeping` and `failure_seed`.
        clients: The number of clients, for a description without it.
        weights: The rule for the weights, `"metropolis"` by default.
    """
    description, failures = _without_failures(description)
    name = name_of(description)
    if isinstance(name, str) and normal(name) in networks.names():
        mixing: Mixing = _build_schedule(description, normal(name), clients, weights)
    elif isinstance(name, str) and normal(name) not in known_graphs.names():
        raise unknown("graph", name, [*known_graphs.names(), *networks.names()])
    else:
        mixing = mixing_matrix(build_graph(description, clients), "metropolis" if weights is None else weights)
    if not failures:
        return mixing
    seed = failures.get("failure_seed", 0)
    return unreliable(mixing, failures.get("dropout", 0.0), failures.get("sleeping", 0.0), seed)  # type: ignore[arg-type]


def _build_schedule(description: object, name: str, clients: int | None, weights: Any) -> MixingSchedule:
    described, more = with_clients(networks, description, clients)
    if weights is not None and name != "alternating":
        raise InputError(f"The weights of {name!r} are fixed, got weights = {weights!r}; leave `weights` out.")
    mixing: MixingSchedule = networks.build(described, **more, **({} if weights is None else {"weights": weights}))
    if clients is not None and mixing.clients != clients:
        raise InputError(f"The graph {name!r} has {mixing.clients} clients; expected {clients}.")
    return mixing


def _without_failures(description: object) -> tuple[object, dict[str, float]]:
    """A description without its settings `dropout`, `sleeping` and `failure_seed`, and those."""
    if isinstance(description, str):
        name, _, rest = description.partition(":")
        parts = [part.partition("=") for part in rest.split(",")] if rest else []
        taken = {key.strip(): value for key, named, value in parts if named and key.strip() in FAILURES}
        kept = ",".join("".join(part) for part in parts if part[0].strip() not in FAILURES)
        return (f"{name}:{kept}" if kept else name), {key: _number(key, value) for key, value in taken.items()}
    table = dict(description)  # type: ignore[call-overload]
    return table, {key: table.pop(key) for key in FAILURES if key in table}


def _number(key: str, text: str) -> float | int:
    try:
        return int(text) if key == "failure_seed" else float(text)
    except ValueError:
        raise InputError(f"`{key}` must be a number, got {text!r}.") from None


def _plan(network: Any, weights: str, clients: int | None) -> Plan:
    """The plan of a network in any form."""
    if isinstance(network, str | Mapping):
        is_schedule = normal(str(name_of(network))) in networks.names()
        network = build_network(network, clients, None if is_schedule else weights)
    if isinstance(network, MixingSchedule):
        return network.plan
    if isinstance(network, MixingMatrix):
        return Repeated((RoundWeights(network.sparse),))
    if not isinstance(network, nx.Graph):
        raise InputError(f"A network is a graph, a mixing matrix or a schedule, got {type(network).__name__}.")
    return Repeated((_round_of(network, weights),))


def _round_of(graph: Graph, weights: str) -> RoundWeights:
    """The weights of a graph that need not be connected."""
    if len(graph) and (nx.is_connected(graph) or set(graph) != set(range(len(graph)))):
        return RoundWeights(mixing_matrix(graph, weights).sparse)
    edges = edges_of(graph)
    return RoundWeights.on_edges(len(graph), edges, by_rule(weights, len(graph), edges))


def _directed(clients: int, source: npt.NDArray[np.int64]) -> sparse.coo_array:
    """Weight 1/2 for itself and for one sender."""
    i = np.arange(clients)
    at = (np.r_[i, i], np.r_[i, source])
    return sparse.coo_array((np.full(2 * clients, 0.5), at), shape=(clients, clients))
