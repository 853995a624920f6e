"""Simulated = real: the same models, the same symbols, the same packet lengths, the same bits."""

import os
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import spawn

import gossamer as gs
from gossamer.compression import packet
from gossamer.registry import compressors, methods
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.processes.client import Client
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.start import starting_models
from gossamer.runtime.transport.base import Open, Opening, Transport
from gossamer.runtime.transport.gloo import GlooTransport
from gossamer.streams import Streams

BATCH = 17  # an odd size: vector instructions leave a remainder, which must not be rounded in another way
GRAPHS = {"ring": partial(gs.ring, 8), "random": partial(gs.topology.erdos_renyi, 6, 0.5, seed=1)}
Case = tuple[gs.Algorithm, int, str]  # method, rounds, codec


def every_case() -> list[Case]:
    """BEER with every compressor; every setting of every other method with one of those it may use, in turn."""
    found: list[Case] = [(gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(5), start="minibatch"), 500, "fixed")]
    made: list[Any] = [compressors.get(name) for name in compressors.names()]
    every = [one(**options) for one in made for options in one.examples]
    for name in methods.names():
        cls: Any = methods.get(name)
        for settings in cls.examples:
            if "compressor" not in {field.name for field in fields(cls)}:
                found.append((cls(**settings), 50, "fixed"))
                continue
            usable = [one for one in every if admits(cls, one)]
            turn = len(found) % len(usable)
            for one in usable if cls is gs.BEER and settings == cls.examples[0] else usable[turn : turn + 1]:
                codec = ("fixed", "entropy", "auto")[len(found) % 3]
                found.append((cls(**settings, compressor=one).with_minibatch_start(), 50, codec))
    return found


def admits(cls: Any, compressor: gs.Compressor) -> bool:
    omega = compressor.omega(124)
    contracts = omega is None or omega < 1
    return {"contractive": contracts, "unbiased": omega is not None, "any": True}[cls.info.compressors.value]


def some_cases() -> list[Case]:
    top = gs.top_k(10)
    return [
        (gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(5), start="minibatch"), 100, "fixed"),
        (gs.BEER(lr=0.1, gamma=0.2, compressor=top, start="minibatch", tracker="reevaluated"), 30, "auto"),
        (gs.CHOCOSGD(lr=0.1, gamma=0.2, compressor=gs.compression.sign(), order="stale"), 30, "fixed"),
        (gs.CHOCOSGD(lr=0.1, gamma=0.2, compressor=gs.gsgd(3)), 30, "entropy"),
        (gs.DSGD(lr=0.1), 30, "fixed"),
        (gs.D2(lr=0.1), 30, "fixed"),
        (gs.algorithms.GradientTracking(lr=0.05, order="adapt-then-combine"), 20, "fixed"),
        (gs.algorithms.DESTRESS(lr=0.05, inner_mixing=2, outer_mixing=3), 12, "fixed"),
        (gs.algorithms.SQuARMSGD(lr=0.05, gamma=0.2, compressor=top, local_steps=3, threshold=2.0), 30, "auto"),
        (gs.algorithms.CentralizedSGD(lr=0.1), 20, "fixed"),
        (gs.algorithms.PORTER(lr=0.1, gamma=0.2, compressor=top, per_sample=True, noise=0.1), 20, "fixed"),
        (gs.algorithms.GTSAGA(lr=0.05), 10, "fixed"),
        (gs.algorithms.GTSAGA(lr=0.05, order="combine-then-adapt"), 10, "fixed"),
        (gs.algorithms.LEAD(lr=0.05, gamma=0.1, compressor=gs.qsgd(16)), 20, "fixed"),
    ]


def noting(sent: list[bytes]) -> Open:
    """Opens gloo, and keeps the packets that are sent."""

    def opened(opening: Opening) -> Transport:
        transport = GlooTransport(opening)
        send = transport.send

        def note(packet: bytes, to: Collection[int]) -> None:
            sent.append(packet)
            send(packet, to)

        transport.send = note  # type: ignore[method-assign]
        return transport

    return opened


def real(rank: int, problem: gs.Problem, mixing: gs.MixingMatrix, cases: Sequence[Case]) -> Any:
    ranks = Ranks(60)
    mine = problem.only(rank)
    results = []
    for number, (method, rounds, codec) in enumerate(cases):
        x = starting_models(None, mine, Streams([0], [rank]))
        sent: list[bytes] = []
        how: Any = {"codec": codec, "run": number, "channel": number, "transport": noting(sent)}
        client = Client(method, mixing, rank, x, ranks=ranks, **how)
        with torch.no_grad():
            for _ in range(rounds):
                client.step(BatchOracle(mine, client.streams, client.t, BATCH, {}), method.lr_at(client.t))
        client.close()
        counted = (client.exchange.bytes, client.exchange.bits_nominal)
        results.append((client.state.x, sent, *counted, client.accounts()))
    ranks.leave()
    return results


def simulated(problem: gs.Problem, mixing: gs.MixingMatrix, number: int, case: Case) -> tuple[Simulation, Any]:
    method, rounds, codec = case
    simulation = Simulation(method, problem, mixing, (0,), BATCH, codec=codec)  # type: ignore[arg-type]
    sent: list[list[bytes]] = []
    count = simulation.traffic.count
    latest = [-1, 0]  # round, exchanges so far in it

    def note(messages: Any, t: int, seeds: Sequence[int]) -> None:
        latest[:] = [t, latest[1] + 1 if latest[0] == t else 0]
        how: Any = {"run": number, "round": t, "exchange": latest[1], "codec": codec}
        sent.append(packet.encode(messages, clients=range(mixing.clients), **how))
        count(messages, t, seeds)

    simulation.traffic.count = note  # type: ignore[method-assign]
    with torch.no_grad():
        for _ in range(rounds):
            simulation.step()
    return simulation, sent


def compare(graph: str, cases: Sequence[Case], data: str, data_dir: Path | None = None) -> None:
    mixing = gs.mixing_matrix(GRAPHS[graph](), weights="fdla")
    n = mixing.clients
    problem = gs.logistic_regression(data, clients=n, data_dir=data_dir, dtype="float64")
    results = spawn(n, real, problem, mixing, cases, seconds=280)
    for result in results:
        assert isinstance(result, list), f"{result!r} {getattr(result, '__notes__', '')}"
    for number, case in enumerate(cases):
        simulation, sent = simulated(problem, mixing, number, case)
        network, paper = simulation.mixing, []
        x = torch.cat([result[number][0] for result in results])
        difference = float((x - simulation.state.x).abs().max())
        assert difference == 0, f"{case}: models differ by {difference}"
        for client, result in enumerate(results):
            _, packets, counted, bits_nominal, links = result[number]
            assert counted == sum(map(len, packets))
            paper.append(bits_nominal)
            assert {link["neighbor"] for link in links} == set(network.graph.neighbors(client))
            assert all(link["bytes_sent"] == counted for link in links)
            assert packets == [row[client] for row in sent], f"{case}: the packets of client {client}"
        assert sum(paper) == simulation.traffic.bits_nominal[0]
        total = [result[number][2] for result in results]
        assert 8 * sum(total) / n == simulation.traffic.on_one_link(0)
        assert 8 * sum(b * d for b, d in zip(total, network.degrees, strict=True)) == simulation.traffic.bits_total[0]


def test_simulated_equals_real_in_short(data_dir: Path) -> None:
    compare("ring", some_cases(), "a9a", data_dir)


def test_simulated_equals_real_on_few_features() -> None:
    compare("random", some_cases()[:4], "breast_cancer")


@pytest.mark.parametrize(
    "graph", [pytest.param("ring", marks=pytest.mark.slow), pytest.param("random", marks=pytest.mark.long)]
)
def test_simulated_equals_real(graph: str, data_dir: Path) -> None:
    """Every setting of every method, and BEER with every compressor of the registry; with gsgd_5 for 500 rounds."""
    cases = every_case()
    assert {type(method) for method, _, _ in cases} == {methods.get(name) for name in methods.names()}
    compare(graph, cases, "a9a", data_dir)
    print(f"\n{graph}: {len(cases)} combinations, all models and packets are equal bit by bit")


def threads_left(rank: int) -> tuple[int, int]:
    before = len(os.listdir("/proc/self/task"))
    first, second = Ranks(30), Ranks(30)  # the second finds a process group and makes one of its own
    first.share(rank)
    second.share(rank)
    second.leave()
    first.leave()
    return before, len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_who_leaves_leaves_no_thread() -> None:
    """One that still let go of a tensor while the interpreter is torn down would abort the program."""
    for before, after in spawn(3, threads_left):
        assert after == before
