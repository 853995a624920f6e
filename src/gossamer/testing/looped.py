"""A run with real packets inside one process: each client is a thread, and packets go through queues."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Codec
from gossamer.problems.base import Problem
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.processes.client import Client
from gossamer.runtime.start import X0, starting_models
from gossamer.runtime.transport.base import Open
from gossamer.runtime.transport.loopback import Loopback
from gossamer.streams import Streams
from gossamer.topology import Mixing


@dataclass(frozen=True)
class Looped:
    """What such a run came to."""

    x: Tensor
    """(clients, d): the final models."""
    bits: float
    """Bits sent on one link, averaged over clients."""
    clients: list[Client]


def loopback(
    method: Algorithm,
    problem: Problem,
    mixing: Mixing,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    x0: X0 = None,
    codec: Codec = "fixed",
    transport: Open | None = None,
) -> Looped:
    """Run a method with one thread per client and real packets; the result equals that of `simulate`.

    Another `transport` can be tried in place of the loopback.
    """
    open_transport = transport or Loopback(problem.clients).open

    def start(rank: int) -> tuple[Client, Problem]:
        mine = problem.only(rank)
        points = starting_models(x0, problem, Streams([seed], range(problem.clients), problem.device))
        client = Client(method, mixing, rank, points[rank : rank + 1], seed=seed, codec=codec, transport=open_transport)
        return client, mine

    def run(started: tuple[Client, Problem]) -> Client:
        client, mine = started
        buffers = mine.new_buffers(1)
        try:
            with torch.no_grad():
                while client.t < rounds:
                    oracle = BatchOracle(mine, client.streams, client.t, batch_size, buffers)
                    client.step(oracle, method.lr_at(client.t))
                    buffers = oracle.buffers
                client.close()
        except BaseException as error:
            client.give_up(error)
            raise
        return client

    started = [start(rank) for rank in range(problem.clients)]
    with ThreadPoolExecutor(problem.clients) as pool:
        clients = list(pool.map(run, started))
    models = torch.cat([client.state.x for client in clients])
    return Looped(models, 8 * sum(client.exchange.bytes for client in clients) / len(clients), clients)
