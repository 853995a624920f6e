"""Networks that change: W_t of every round, the rates, and what is refused."""

import pickle
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer import registry
from gossamer.fingerprint import digest
from gossamer.topology import MixingSchedule, alternating, build_network, one_peer_exponential, random_matchings
from gossamer.topology.rounds import RoundWeights

SYMMETRIC = [
    "one_peer_exponential",
    "random_matchings:seed=1",
    "matchings:ring",
    "alternating:ring+star",
    "alternating:random_matchings+ring",
    "ring:dropout=0.2",
    "exponential:dropout=0.3,sleeping=0.2,failure_seed=4",
    "random_matchings:sleeping=0.5",
    "one_peer_exponential:dropout=0.1",
]
descriptions = st.sampled_from(SYMMETRIC)
rounds = st.integers(0, 2**31)


@given(descriptions, st.sampled_from([4, 8, 16]), rounds)
@settings(deadline=None, max_examples=60)
def test_every_round_is_symmetric_with_unit_row_sums(name: str, clients: int, t: int) -> None:
    schedule = build_network(name, clients)
    assert isinstance(schedule, MixingSchedule)
    w = schedule.at(t)
    dense = w.sparse.toarray()
    assert np.array_equal(dense, dense.T), "equal to the last bit"
    assert np.allclose(dense.sum(axis=1), 1, atol=1e-15)
    edges = {tuple(edge) for edge in w.edges.tolist()}
    assert edges <= {tuple(sorted(edge)) for edge in schedule.graph.edges}
    for i in range(clients):
        assert w.neighbors(i) == w.receivers(i)
        assert all(i in w.neighbors(j) for j in w.neighbors(i)), "both ends use an edge"
        assert w.degrees[i] == len(w.neighbors(i))
    assert np.linalg.eigvalsh(dense)[0] >= schedule.lambda_min - 1e-12


@given(st.integers(2, 20), rounds)
@settings(deadline=None, max_examples=40)
def test_directed_rounds_are_doubly_stochastic(clients: int, t: int) -> None:
    w = one_peer_exponential(clients, directed=True).at(t)
    dense = w.sparse.toarray()
    assert (dense >= 0).all()
    assert (dense.sum(axis=0) == 1).all()
    assert (dense.sum(axis=1) == 1).all()
    assert (w.degrees == 1).all(), "each client sends to one and receives from one"
    for i in range(clients):
        assert all(i in w.receivers(j) for j in w.neighbors(i))


@given(st.integers(2, 17), st.integers(0, 2**32), rounds)
@settings(deadline=None, max_examples=40)
def test_matchings_are_whole_and_depend_on_seed_and_round_alone(clients: int, seed: int, t: int) -> None:
    schedule = random_matchings(clients, seed)
    for later in (5, 3):  # asked for in another order
        schedule.at(t + later)
    w = schedule.at(t)
    assert len(w.edges) == clients // 2
    assert w.degrees.max() == 1
    again = pickle.loads(pickle.dumps(random_matchings(clients, seed))).at(t)
    assert np.array_equal(again.sparse.toarray(), w.sparse.toarray())


def test_a_random_schedule_keeps_no_table() -> None:
    schedule = random_matchings(8)
    for t in range(1000):
        schedule.at(t)
    assert len(schedule._recent) <= 8


def test_failures_are_independent_and_as_frequent_as_asked() -> None:
    schedule = build_network("complete:dropout=0.2,sleeping=0.1,failure_seed=7", 8)
    assert isinstance(schedule, MixingSchedule)
    shares = np.array([len(schedule.at(t).edges) / 28 for t in range(2000)])
    assert abs(shares.mean() - 0.8 * 0.9**2) < 0.01
    measured = sum(schedule.at(t).sparse.toarray() for t in range(2000)) / 2000
    assert np.abs(measured - schedule.matrix).max() < 0.02


@pytest.mark.parametrize("name", SYMMETRIC)
def test_expected_squares(name: str) -> None:
    schedule: Any = build_network(name, 8)
    squares = [(w := schedule.at(t).sparse.toarray()) @ w for t in range(2000)]
    assert np.abs(np.mean(squares, axis=0) - schedule.plan.mean_square().toarray()).max() < 0.02


def test_rates() -> None:
    for clients in (8, 16):
        for directed in (False, True):
            schedule = one_peer_exponential(clients, directed)
            assert schedule.rho_period == pytest.approx(1), "exact averages after log2(clients) rounds"
            assert schedule.rho == pytest.approx(1 / np.log2(clients))
    assert random_matchings(16).rho == pytest.approx(8 / 15)
    assert random_matchings(16).rho_period is None
    fixed = gs.mixing_matrix(gs.ring(8))
    assert MixingSchedule([fixed]).rho_period == pytest.approx(fixed.rho)
    assert alternating([gs.ring(8)]).rho == pytest.approx(fixed.rho)
    twice = MixingSchedule([fixed, fixed]).rho_period
    assert twice == pytest.approx(1 - (1 - fixed.rho) ** 2)


def test_the_period_of_alternating_schedules() -> None:
    schedule = alternating([one_peer_exponential(8), gs.ring(8)])
    assert schedule.period == 6
    assert [len(w.edges) for w in schedule.rounds] == [4, 8] * 3
    halves = [nx.Graph([(0, 1), (2, 3)]), nx.Graph([(1, 2), (3, 0)])]
    assert alternating(halves).graph.number_of_edges() == 4, "only the union must be connected"


def test_news_reaches_everyone_in_time() -> None:
    schedule = random_matchings(16, seed=5)
    for t in (0, 17):
        known = {i: {i} for i in range(16)}
        for after in range(t + 1, t + 1 + schedule.reach(t)):
            assert any(len(one) < 16 for one in known.values())
            heard = {i: set().union(*(known[j] for j in schedule.at(after).neighbors(i))) for i in range(16)}
            known = {i: known[i] | heard[i] for i in range(16)}
        assert all(len(one) == 16 for one in known.values())


def test_other_seeds_are_other_schedules() -> None:
    contents = [
        digest(*build_network(name, 8).content())
        for name in (
            *SYMMETRIC,
            "random_matchings:seed=2",
            "ring:dropout=0.2,failure_seed=1",
            "ring:dropout=0.3",
            "ring",
        )
    ]
    assert len(set(contents)) == len(contents)


@pytest.mark.parametrize("name", registry.networks.names())
def test_every_name_is_documented(name: str) -> None:
    assert registry.networks.get(name).__doc__


@given(st.floats(1e-13, 0.4), st.booleans())
@settings(deadline=None, max_examples=30)
def test_an_edge_that_one_end_uses_alone_is_refused(weight: float, flip: bool) -> None:
    w = np.eye(4)
    w[0, 1], w[0, 0] = weight, 1 - weight
    with pytest.raises(gs.InputError, match=r"must be symmetric|must sum to 1|Both ends must use an edge"):
        RoundWeights(w.T if flip else w)
    with pytest.raises(gs.InputError, match=r"must be symmetric|must sum to 1|Both ends must use an edge"):
        MixingSchedule([gs.mixing_matrix(gs.ring(4)), w.T if flip else w])


BLOCK = np.kron(np.eye(2), np.full((2, 2), 0.5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MixingSchedule([BLOCK, BLOCK]), "never connected: no round lets clients 0, 1 reach the rest"),
        (lambda: MixingSchedule([np.eye(3)]), "never connected: no round lets client 0 reach the rest"),
        (lambda: build_network("ring:dropout=1", 4), "never connected with `dropout` = 1"),
        (lambda: build_network("ring:sleeping=1.0", 4), "never connected with `sleeping` = 1"),
        (lambda: MixingSchedule([np.eye(2)[::-1], np.eye(2)]), "does not mix: the product"),
        (lambda: one_peer_exponential(12), "needs a power of two clients, got 12; use 8 or 16"),
        (lambda: one_peer_exponential(1), "`clients` must be an integer"),
        (lambda: random_matchings(4, seed=-1), "`seed` must be an integer"),
        (lambda: random_matchings(4).rounds, "has no period"),
        (lambda: alternating([]), "at least one graph"),
        (lambda: alternating([gs.ring(4), gs.ring(5)]), r"same clients, got \[4, 5\]"),
        (lambda: alternating(gs.ring(4)), "takes a list of graphs, got Graph"),  # type: ignore[arg-type]
        (lambda: alternating([3]), "A network is a graph"),  # type: ignore[list-item]
        (lambda: build_network("nope", 4), "valid graphs: .*'ring'.*'one_peer_exponential'"),
        (lambda: build_network("ring:dropout=often", 4), "`dropout` must be a number, got 'often'"),
        (lambda: build_network("ring:dropout=1.5", 4), r"`dropout` must be in \[0, 1\], got 1.5"),
        (lambda: build_network("random_matchings:5,0", 4), "has 5 clients; expected 4"),
        (lambda: build_network("random_matchings", 4, "fdla"), "weights of 'random_matchings' are fixed"),
        (lambda: build_network("one_peer_exponential:directed=true,dropout=0.1", 5), "only on a symmetric schedule"),
        (lambda: MixingSchedule([[[0.5, 0.5], [1, 0]]], directed=True), "column 0 sums to 1.5"),
        (lambda: MixingSchedule([[[2, -1], [-1, 2]]], directed=True), "must be 0 or more, got -1"),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(gs.InputError, match=message):
        make()
