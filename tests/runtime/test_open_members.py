"""Members of open runs, without a network: terms that are late, edges that close, and what stays exact."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from open_network import Network, gap, in_flight, parts, recorded, settle

import gossamer as gs
from gossamer.compression import packet
from gossamer.errors import CodecError
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.open.member import Member, check_open
from gossamer.runtime.open.replaying import Replay, replay
from gossamer.runtime.open.simulated.events import Down, Frozen, Happens, Joins, Leaves, Lost, draw_events
from gossamer.runtime.open.simulated.timetable import timetable
from gossamer.runtime.simulation import Simulation
from gossamer.topology import MixingSchedule

BEER = gs.BEER(lr=0.05, gamma=0.4, compressor=gs.gsgd(5))
METHODS = [
    BEER,
    gs.BEER(lr=0.05, gamma=0.4, compressor=gs.gsgd(5), start="minibatch", h0="model"),
    gs.algorithms.MoTEF(lr=0.05, gamma=0.4, compressor=gs.top_k(2), lam=0.3),
    gs.algorithms.MoTEF(lr=0.05, gamma=0.4, compressor=gs.gsgd(5), start="minibatch", h0="model"),
    gs.CHOCOSGD(lr=0.05, gamma=0.3, compressor=gs.top_k(2), order="stale"),
]
GRAPHS = {
    "ring": gs.ring(6),
    "path": gs.topology.path(5),
    "star": gs.topology.star(5),
    "complete": gs.topology.complete(4),
    "grid": gs.topology.grid(2, 3),
}
seeds = st.integers(0, 2**32)


def quadratic(clients: int, d: int = 4, **more: Any) -> Any:
    """Clients that differ in curvature and minimiser."""
    return gs.quadratic(clients=clients, d=d, condition=10.0, dtype="float64", **more)


def followed(method: gs.Algorithm) -> str:
    """What the mean of V is the mean of."""
    return "m" if isinstance(method, gs.algorithms.MoTEF) else "old"


def played(players: Replay, order: np.random.Generator | None = None, check: Any = lambda: None) -> None:
    """Play all events, those of the clients in any order, and check after each."""
    clients, order = sorted(players._history), order or np.random.default_rng(0)
    with torch.no_grad():
        while any(players.next_event(i) for i in clients):
            moved = False
            for i in order.permutation(clients):
                for _ in range(order.integers(1, 4)):
                    moved |= players.advance(int(i))
                    check()
            assert moved, {i: players.next_event(i) for i in clients}


# Nothing happens: the simulator's rounds.


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_without_events_it_is_the_simulator_with_a_surrogate_per_edge(graph: str, method: gs.Algorithm) -> None:
    mixing = gs.mixing_matrix(GRAPHS[graph])
    problem = quadratic(mixing.clients, noise=0.2)
    members = replay(method, problem, mixing, timetable(mixing, rounds=25), batch_size=2, seed=3)
    sim = Simulation(method, problem, MixingSchedule([mixing]), seeds=[3], batch_size=2)
    for _ in range(25):
        sim.step()
    found = torch.cat([members[i].state.x for i in range(mixing.clients)])
    # Up to two neighbours are added in one order only. From three on, torch may add them in another.
    if max(dict(GRAPHS[graph].degree).values()) <= 2:
        assert torch.equal(found, sim.state.x)
    assert torch.allclose(found, sim.state.x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [m for m in METHODS if "top_k" in repr(m)], ids=repr)
def test_without_randomness_it_is_the_simulator_with_one_surrogate(method: gs.Algorithm) -> None:
    """Random compressors draw once per edge here, and once for all neighbours there."""
    mixing = gs.mixing_matrix(GRAPHS["ring"])
    problem = quadratic(6, noise=0.2)
    members = replay(method, problem, mixing, timetable(mixing, rounds=25), batch_size=2, seed=3)
    run = gs.simulate(method, problem, mixing, rounds=25, batch_size=2, seed=3)
    assert torch.allclose(torch.cat([members[i].state.x for i in range(6)]), run.x.view(6, -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "events",
    [(), pytest.param((Lost(1, 50.3), Leaves(3, 80.4), Joins(1, 120.0), Joins(3, 130.0)), marks=pytest.mark.slow)],
)
def test_beer_is_exact(events: tuple[Happens, ...]) -> None:
    mixing, problem = gs.mixing_matrix(gs.ring(4)), quadratic(4)
    method = gs.BEER(lr=0.3, gamma=0.8, compressor=gs.gsgd(5))
    members = replay(method, problem, mixing, timetable(mixing, rounds=700 if events else 450, events=events))
    models = torch.cat([members[i].state.x for i in range(4)])
    assert float(problem.evaluate(models)["grad_norm"].max()) < 1e-10


# Whatever is late.


@given(st.sampled_from(sorted(GRAPHS)), st.sampled_from(METHODS[:4]), st.data())
@settings(deadline=None, max_examples=12)
def test_terms_that_are_late(graph: str, method: gs.Algorithm, data: st.DataObject) -> None:
    """The terms at the two ends are opposite to the last bit, and applied once and in order, whatever the delays."""
    mixing = gs.mixing_matrix(GRAPHS[graph])
    network = Network(method, quadratic(mixing.clients, noise=0.2), mixing, batch_size=2)
    order = np.random.default_rng(data.draw(seeds))
    flows: dict[tuple[int, int, int], torch.Tensor] = {}
    for _ in range(60):
        i = int(order.integers(mixing.clients))
        member, before = network.members[i], {j: edge.applied for j, edge in network.members[i].edges.items()}
        arrived = [j for j in network.there(i) if order.random() < 0.6]
        network.step(i, arrived)
        for row, (j, edge) in enumerate(member.edges.items()):
            assert edge.applied == before[j] + (j in arrived)
            flows[i, j, edge.applied] = member.state.g.flow[row]
            assert edge.said - edge.applied in (0, 1)
            assert abs(edge.said - network.members[j].edges[i].said) <= 1
        expected = in_flight(network.members, network.packets, mixing) / mixing.clients
        assert torch.allclose(gap(network.members, followed(method)), expected, rtol=0, atol=1e-12)
    common = [key for key in flows if (key[1], key[0], key[2]) in flows]
    assert common
    assert all(torch.equal(flows[i, j, k], -flows[j, i, k]) for i, j, k in common)
    settle(network.members, network.packets)
    assert gap(network.members, followed(method)).abs().max() < 1e-12


@given(
    st.sampled_from(sorted(GRAPHS)),
    st.sampled_from(METHODS[:4]),
    st.sampled_from([None, 0.4, 1.5, 6.0]),
    st.sampled_from([0.0, 1.0, 5.0]),
    seeds,
)
@settings(deadline=None, max_examples=10)
def test_links_that_are_down_and_clients_that_are_frozen(
    graph: str, method: gs.Algorithm, patience: float | None, jitter: float, seed: int
) -> None:
    mixing, rounds = gs.mixing_matrix(GRAPHS[graph]), 12
    events = draw_events(mixing, rounds=rounds, seed=seed, frozen=2, down=2, length=5.0)
    late: Any = {"patience": patience, "jitter": jitter, "seed": seed}
    history = timetable(mixing, rounds=rounds, events=events, **late)
    problem = quadratic(mixing.clients, noise=0.2)
    players, packets = recorded(method, problem, mixing, history, batch_size=2, seed=seed)

    def check() -> None:
        if len(players.members) == mixing.clients and all(member.t for member in players.members.values()):
            expected = in_flight(players.members, packets, mixing) / mixing.clients
            assert torch.allclose(gap(players.members, followed(method)), expected, rtol=0, atol=1e-12)

    played(players, np.random.default_rng(seed), check)
    assert {member.t for member in players.members.values()} == {rounds}
    again = replay(method, problem, mixing, history, batch_size=2, seed=seed)
    assert all(torch.equal(again[i].state.x, member.state.x) for i, member in players.members.items()), "in any order"


def test_a_client_that_stood_still_goes_on_from_the_round_of_its_neighbours() -> None:
    mixing, problem = gs.mixing_matrix(GRAPHS["ring"]), quadratic(6)
    network = Network(BEER, problem, mixing, None)
    for _ in range(20):
        for i in range(5):
            network.step(i, network.there(i))
    assert [network.members[i].t for i in range(6)] == [20] * 5 + [0]
    network.step(5, [])
    for i in (4, 0):
        network.step(i, network.there(i))  # with the first packet of client 5; what they say next is of round 20
    network.step(5, [])
    assert network.members[5].t == 2, "their first packets were not applied: nothing tells where they are"
    network.step(5, network.there(5))
    network.step(5, network.there(5))
    assert network.members[5].t == 21
    (data,) = (data for key, data in network.packets.every.items() if key[:2] == (5, 4) and key[3] == 3)
    assert packet.decode(data).round == 20, "and its packets say so"

    history = timetable(mixing, rounds=40, events=[Frozen(2, 4.5, 30.0)], patience=1.0)
    members = replay(BEER, problem, mixing, history)
    assert {member.t for member in members.values()} == {40}
    steps = {i: sum(event.kind == "step" for event in events) for i, events in history.items()}
    assert steps[2] < 20 < steps[0] == 40


# Who comes and goes.


def exact(players: Replay, packets: Any, method: gs.Algorithm) -> list[set[int]]:
    """Check each connected part on its own, with nothing under way; the parts."""
    settle(players.members, packets)
    found = parts(players.members)
    for part in found:
        assert gap({i: players.members[i] for i in part}, followed(method)).abs().max() < 1e-12
    return found


CHANGES: dict[str, tuple[str, list[Happens], int]] = {
    "lost": ("ring", [Lost(2, 8.3)], 1),
    "left": ("ring", [Leaves(2, 8.3)], 1),
    "joins": ("ring", [Lost(2, 8.3), Joins(2, 15.2)], 1),
    "comes back before it was missed": ("ring", [Lost(2, 8.3), Joins(2, 9.0)], 1),
    "two neighbours lost at once": ("ring", [Lost(2, 8.3), Lost(3, 8.3)], 1),
    "two neighbours leave at once": ("ring", [Leaves(2, 8.3), Leaves(3, 8.3)], 1),
    "the heir is lost": ("grid", [Leaves(1, 8.3), Lost(0, 12.0)], 1),
    "the heir leaves": ("grid", [Leaves(1, 8.3), Leaves(0, 12.0)], 1),
    "the heir is lost, unnoticed": ("grid", [Lost(0, 8.3), Leaves(1, 8.9)], 1),
    "the heir comes back, unnoticed": ("grid", [Leaves(1, 8.3), Lost(0, 12.0), Joins(0, 13.0)], 1),
    "an heir again": ("grid", [Leaves(1, 6.3), Lost(0, 9.0), Joins(0, 9.5), Joins(1, 9.7), Leaves(1, 10.2)], 1),
    "lost in the middle": ("path", [Lost(2, 8.3)], 2),
    "left in the middle": ("path", [Leaves(2, 8.3)], 2),
    "fell apart later": ("ring", [Leaves(0, 6.3), Lost(3, 9.0)], 2),
    "whole again": ("path", [Leaves(2, 8.3), Joins(2, 16.0)], 1),
    "the star's centre": ("star", [Leaves(0, 8.3)], 4),
    "leaves at once, and returns": ("ring", [Leaves(2, 8.3), Joins(2, 8.4)], 1),
    "leaves while a link is down": ("ring", [Down((1, 2), 6.0, 14.0), Leaves(2, 8.3)], 1),
    "leaves while a neighbour is frozen": ("ring", [Frozen(1, 6.0, 14.0), Leaves(2, 8.3)], 1),
    "leaves when others are done": ("ring", [Frozen(2, 5.5, 26.0), Leaves(2, 27.0)], 1),
    "all but one": ("complete", [Lost(0, 5.1), Leaves(1, 8.2), Lost(2, 9.1)], 1),
}


@pytest.mark.parametrize("patience", [None, 1.5])
@pytest.mark.parametrize("name", CHANGES)
def test_trackers_after_changes(name: str, patience: float | None) -> None:
    graph, events, expected = CHANGES[name]
    mixing = gs.mixing_matrix(GRAPHS[graph])
    how: Any = {"patience": patience, "gone_after": 3.0, "jitter": 0.7}
    history = timetable(mixing, rounds=22, events=events, **how)
    problem = quadratic(mixing.clients, noise=0.2)
    players, packets = recorded(BEER, problem, mixing, history, batch_size=2)
    played(players)
    assert len(exact(players, packets, BEER)) == expected
    assert {member.t for member in players.members.values()} == {22}


@given(
    st.sampled_from(sorted(GRAPHS)),
    st.sampled_from(METHODS[:4]),
    st.sampled_from([None, 1.5]),
    st.sampled_from([0.0, 2.0]),
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)),
    st.sampled_from([None, 1.0, 7.0]),
    seeds,
)
@settings(deadline=None, max_examples=25)
def test_trackers_after_any_changes(
    graph: str,
    method: gs.Algorithm,
    patience: float | None,
    jitter: float,
    counts: tuple[int, int, int, int],
    away: float | None,
    seed: int,
) -> None:
    mixing, rounds = gs.mixing_matrix(GRAPHS[graph]), 16
    many = dict(zip(("lost", "leaves", "frozen", "down"), counts, strict=True))
    events = draw_events(mixing, rounds=rounds, seed=seed, away=away, length=4.0, **many)  # type: ignore[arg-type]
    late: Any = {"patience": patience, "jitter": jitter, "seed": seed, "gone_after": 3.0}
    history = timetable(mixing, rounds=rounds, events=events, **late)
    players, packets = recorded(method, quadratic(mixing.clients, noise=0.2), mixing, history, batch_size=2, seed=seed)
    played(players, np.random.default_rng(seed))
    exact(players, packets, method)
    assert {member.t for member in players.members.values()} <= {rounds}


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_every_method_goes_on_after_changes(method: gs.Algorithm) -> None:
    mixing, problem = gs.mixing_matrix(GRAPHS["ring"]), quadratic(6)
    events: list[Happens] = [Lost(1, 50.3), Leaves(4, 80.4), Joins(1, 90.0), Joins(4, 100.0)]
    members = replay(method, problem, mixing, timetable(mixing, rounds=200, events=events))
    models = torch.cat([members[i].state.x for i in range(6)])
    norm = float(problem.evaluate(models)["grad_norm"].max())
    first = float(problem.evaluate(torch.zeros_like(models[:1]))["grad_norm"].max())
    assert norm < first * (0.5 if isinstance(method, gs.CHOCOSGD) else 0.1)


def test_an_open_edge_takes_memory_and_a_closed_one_none() -> None:
    mixing = gs.mixing_matrix(GRAPHS["complete"])
    network = Network(BEER, quadratic(4), mixing, None)
    member, sizes = network.members[0], dict[int, int]()
    for j in (1, 2, 3):
        every = (member.state.h, member.state.g)
        kept = [part for one in every for part in (one.sent, one.heard, one.flow)]
        sizes[len(member.edges)] = sum(part.numel() for part in kept)
        member.close(j)
    assert sizes == {3: 3 * 6 * 4, 2: 2 * 6 * 4, 1: 6 * 4}, "6 d numbers per open edge"
    assert member.state.g.sent.numel() == 0


# What is refused.


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        (gs.CHOCOSGD(lr=0.1, gamma=0.3, compressor=gs.top_k(2)), "set order='stale'"),
        (gs.BEER(lr=0.1, gamma=0.3, compressor=gs.top_k(2), tracker="reevaluated"), "set tracker='stored'"),
        (gs.DSGD(lr=0.1), "use BEER, MoTEF or CHOCO-SGD in stale order"),
        (gs.algorithms.GradientTracking(lr=0.1), "use BEER, MoTEF or CHOCO-SGD in stale order"),
    ],
    ids=repr,
)
def test_methods_without_a_rule_are_refused(method: gs.Algorithm, remedy: str) -> None:
    mixing = gs.mixing_matrix(gs.ring(4))
    for refuses in (
        lambda: check_open(method, mixing),
        lambda: Member(method, mixing, 0, torch.zeros(1, 4)),
        lambda: Replay(method, quadratic(4), mixing, timetable(mixing, rounds=3)),
    ):
        with pytest.raises(gs.InputError, match="which has no rule for that") as refused:
            refuses()
        assert str(refused.value).endswith(f"{remedy}.")
        assert str(refused.value).count(".") == 1


def test_schedules_are_refused() -> None:
    schedule, mixing = gs.topology.one_peer_exponential(4), gs.mixing_matrix(gs.ring(4))
    with pytest.raises(gs.InputError, match="on a fixed graph of possible edges only, got a schedule"):
        Replay(BEER, quadratic(4), schedule, timetable(mixing, rounds=3))


def test_edges_that_cannot_open() -> None:
    member = Member(BEER, gs.mixing_matrix(gs.ring(4)), 0, torch.zeros(1, 4))
    with pytest.raises(gs.InputError, match="Client 0 has no edge to client 2 that could open"):
        member.open(2, 1, None)
    member.open(1, 1, None)
    with pytest.raises(gs.InputError, match="no edge to client 1 that could open"):
        member.open(1, 2, None)


def test_packets_that_do_not_fit() -> None:
    mixing, problem = gs.mixing_matrix(gs.ring(4)), quadratic(4)
    network = Network(BEER, problem, mixing, None)
    for i in (0, 1, 2):
        network.step(i, [])
    member, data = network.members[1], network.packets[0, 1, 0, 1]
    whole = gs.identity()(torch.zeros(1, 4, dtype=torch.float64), member.streams.at(0, "x"))
    for bad, message in (
        (network.packets[2, 1, 2, 1], "client 0 was expected, but the packet is of client 2"),
        (data[:-1], "too short"),
        (b"", "at least 15 bytes, got 0"),
        (packet.encode([whole] * 3, clients=[0], exchange=1)[0], "has at most 2 messages, got 3"),
    ):
        with pytest.raises(CodecError, match=message):
            member.read(0, bad)
    with pytest.raises(CodecError, match="term 2 was expected"):
        member.read(0, data, after=1)
    contents = member.read(0, data)
    with pytest.raises(gs.InputError, match="The term of client 0 lacks our own packet"):
        network.members[3].step(BatchOracle(problem.only(3), member.streams, 0, None, {}), 0.1, {0: contents})


def test_weights_are_the_same_at_both_ends() -> None:
    """W may differ from its transpose by rounding errors, and terms must not."""
    w = gs.mixing_matrix(gs.ring(4)).matrix.copy()
    w[0, 1] += 1e-12
    w[0, 0] -= 1e-12
    mixing = gs.topology.MixingMatrix(w, gs.ring(4))
    one, other = (Member(BEER, mixing, i, torch.zeros(1, 4)) for i in (0, 1))
    assert one.weights[1] == other.weights[0]


def test_local_steps() -> None:
    local = gs.LocalSteps(torch.optim.AdamW, steps=3, lr=0.01)
    mixing, problem = gs.mixing_matrix(gs.ring(4)), quadratic(4, noise=0.2)
    method = gs.BEER(lr=1.0, gamma=0.4, compressor=gs.gsgd(5), start="minibatch")
    members = replay(method, problem, mixing, timetable(mixing, rounds=15), batch_size=2, local=local)
    sim = Simulation(method, problem, MixingSchedule([mixing]), batch_size=2, local=local)
    for _ in range(15):
        sim.step()
    assert torch.allclose(torch.cat([members[i].state.x for i in range(4)]), sim.state.x, rtol=0, atol=1e-12)
    events: list[Happens] = [Lost(1, 5.5), Joins(1, 9.5)]
    players, packets = recorded(
        method, problem, mixing, timetable(mixing, rounds=15, events=events, gone_after=2.0), batch_size=2, local=local
    )
    played(players)
    exact(players, packets, method)
