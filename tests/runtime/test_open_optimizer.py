"""The optimiser as a client of an open run: processes without a process group that come, go, are late and come back."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # which the first step of any optimiser imports: once here, not in every client
from curve_network import Network, write_peers
from processes import spawn
from torch import Tensor, nn

import gossamer as gs
from gossamer.errors import GossamerError
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.open.history import read_history
from gossamer.runtime.open.participant import Openness
from gossamer.runtime.open.replaying import replay
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.transport.curve import opened
from gossamer.streams import Streams
from gossamer.topology import matchings
from gossamer.trackers.base import Event

N, BATCH = 4, 16
MIXING = gs.mixing_matrix(gs.ring(N))
BEER = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(4))
TARGETS = torch.randn(N, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def clients(many: int, function: Callable[..., Any], network: Network, *arguments: Any) -> list[Any]:
    """What `function(client, network, ...)` returns in a process per client, or the sentence of its error."""
    results = spawn(many, _alone, function, network, arguments, seconds=40)
    for result in results:
        assert not isinstance(result, Exception), f"{result!r} {getattr(result, '__notes__', '')}"
    return results


def _alone(client: int, function: Callable[..., Any], network: Network, arguments: Any) -> Any:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    try:
        return function(client, network, *arguments)
    except GossamerError as error:
        return str(error)


def transport(client: int, network: Network, start_timeout: float = 20.0) -> Any:
    return opened(network.peers(client), network.secret(client), start_timeout=start_timeout)


class Line:
    """A model of 20 numbers whose loss is half the squared distance to its client's target."""

    def __init__(self, client: int, network: Network, method: Any = BEER, **settings: Any) -> None:
        self.x = nn.Parameter(torch.zeros(20, dtype=torch.float64))
        self.target = TARGETS[client]
        start = settings.pop("start_timeout", 20.0)
        self.optimizer = gs.DecentralizedOptimizer(
            [self.x], method, MIXING, transport=transport(client, network, start), **settings
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        (self.x - self.target).square().sum().mul(0.5).backward()
        self.optimizer.step()

    def train(self, rounds: int, at: Callable[[int], None] = lambda t: None) -> "Line":
        while self.optimizer.rounds < rounds:
            at(self.optimizer.rounds)
            self.step()
        return self

    def settled(self) -> tuple[Tensor, Tensor, Tensor, dict[int, int]]:
        """The model, the tracker, its own gradient and the terms applied per edge, once nothing is under way."""
        part: Any = self.optimizer.client
        part = part.participant
        deadline = time.monotonic() + 10
        while part._missing(also_late=True) and time.monotonic() < deadline:
            part._listen(0.05)
        part.member.absorb(part._talk.there(part.member.waiting))
        state = part.member.state
        applied = {j: edge.applied for j, edge in part.member.edges.items()}
        self.optimizer.close()
        return self.x.detach().clone(), state.v[0], state.old[0], applied


def check_settled(results: dict[int, Any]) -> None:
    """All are at the best model of those who are present, and the trackers' mean is the gradients' mean."""
    models, trackers, gradients, applied = zip(*results.values(), strict=True)
    for i, edges in zip(results, applied, strict=True):
        assert all(results[j][3][i] == many for j, many in edges.items()), "nothing is in flight"
    drift = torch.stack(trackers).mean(dim=0) - torch.stack(gradients).mean(dim=0)
    assert float(drift.abs().max()) < 1e-10
    best = TARGETS[list(results)].mean(dim=0)
    for model in models:
        assert float((model - best).square().mean()) < 1e-6


def network_of_digits() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)).double()


def problem() -> Any:
    model = network_of_digits()
    return gs.module_problem(model, "digits", clients=N, partition="sorted", gradients="loop", dtype="float64")


def digits(client: int, network: Network, method: Any, rounds: int, folder: Path) -> tuple[Tensor, int, Any, Any]:
    mine, model = problem().only(client), network_of_digits()
    heard: list[Event] = []
    optimizer = gs.DecentralizedOptimizer(
        model.parameters(), method, MIXING, transport=transport(client, network),
        history=folder / f"client{client}.history", trackers=[heard.append], track_every=10,
    )  # fmt: skip
    for t in range(rounds):
        rows = Streams([0], [client]).at(t, "batch").below(mine.rows_per_client, BATCH)[0]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(mine.rows.inputs(rows)), mine.rows.labels[rows]).backward()
        optimizer.step()
    assert optimizer.present == set(range(N))
    optimizer.close()
    part: Any = optimizer.client
    return nn.utils.parameters_to_vector(model.parameters()).detach(), part.participant.run, optimizer.traffic, heard


def test_without_losses_it_is_the_simulators_method(tmp_path: Path) -> None:
    """Top-k draws nothing at random, so all edges say the same; sums are added in another order only."""
    method, rounds = gs.BEER(lr=0.2, gamma=0.3, compressor=gs.top_k(60)), 40
    results = clients(N, digits, Network(tmp_path, N), method, rounds, tmp_path)
    simulation = Simulation(method.with_minibatch_start(), problem(), MIXING, (0,), BATCH)
    with torch.no_grad():
        for _ in range(rounds):
            simulation.step()
    models = torch.stack([result[0] for result in results])
    assert float((models - simulation.state.x).abs().max()) <= 1e-10


def test_a_history_gives_the_same_models_again(tmp_path: Path) -> None:
    """With random symbols, which each edge draws for itself; and what went over the links is counted."""
    rounds = 40
    results = clients(N, digits, Network(tmp_path, N), BEER, rounds, tmp_path)
    history = {i: read_history(tmp_path / f"client{i}.history") for i in range(N)}
    how: Any = {"batch_size": BATCH, "codec": "auto", "run": results[0][1]}
    members = replay(BEER.with_minibatch_start(), problem(), MIXING, history, **how)
    for i, (model, _, traffic, heard) in enumerate(results):
        assert float((model - members[i].state.x[0]).abs().max()) <= 1e-10
        assert traffic.packets_sent == 2 * rounds
        assert sorted(traffic.links) == sorted(MIXING.neighbors(i))
        for j, link in traffic.links.items():
            other = results[j][2].links[i]
            assert (link.packets_sent, link.bytes_sent) == (rounds, members[i].bytes // 2) or link.bytes_sent > 0
            assert link.packets_received in (rounds - 1, rounds)
            assert link.bytes_received <= other.bytes_sent
        assert [event.round for event in heard] == [10, 20, 30, 40]
        assert 0 < heard[-1].values["compression_error"] < 1
        assert heard[-1].values["bytes_total"] == traffic.bytes_sent
