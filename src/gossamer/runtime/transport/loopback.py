"""A transport inside one process: each client is a thread, and packets go through queues. For tests.

network = Loopback(clients)
transport = network.open(Opening(rank, neighbors, capacity, run))
"""

import queue
import time
from collections.abc import Collection

from gossamer.runtime.transport.base import UNKNOWN, Account, Failure, Opening, failed

_PATIENCE = 60.0


class Loopback:
    """The queues between the clients of a run."""

    def __init__(self, clients: int) -> None:
        self.queues: dict[tuple[int, int], queue.SimpleQueue[bytes | Failure]] = {
            (i, j): queue.SimpleQueue() for i in range(clients) for j in range(clients)
        }

    def open(self, opening: Opening) -> "LoopbackTransport":
        """One client's end of it."""
        return LoopbackTransport(self, opening)


class LoopbackTransport:
    """One client's end of a loopback network."""

    def __init__(self, network: Loopback, opening: Opening) -> None:
        self._network, self._rank = network, opening.rank
        self.accounts = {neighbor: Account(neighbor) for neighbor in opening.neighbors}
        self.round = 0
        self.failure: Failure | None = None

    def send(self, packet: bytes, to: Collection[int]) -> None:
        """One packet to each of these neighbours."""
        for neighbor in to:
            self._network.queues[self._rank, neighbor].put(packet)
            self.accounts[neighbor].packets_sent += 1
            self.accounts[neighbor].bytes_sent += len(packet)

    def receive(self, neighbor: int, left_at: float) -> bytes:
        """The next packet of a neighbour."""
        account, asked = self.accounts[neighbor], time.perf_counter()
        try:
            packet = self._network.queues[neighbor, self._rank].get(timeout=_PATIENCE)
        except queue.Empty:
            packet = Failure(f"Client {self._rank} has heard nothing from client {neighbor}.", self.round)
        if isinstance(packet, Failure):
            self._tell(packet)
            raise failed(self)
        account.waiting += time.perf_counter() - asked
        account.packets_received += 1
        account.bytes_received += len(packet)
        return packet

    def fail(self, sentence: str, *, diverged: bool = False, round: int | None = None, since: int = UNKNOWN) -> None:
        """Note why the run cannot go on, and tell the neighbours."""
        self._tell(Failure(sentence, self.round if round is None else round, diverged, since))

    def _tell(self, failure: Failure) -> None:
        if failure.precedes(self.failure):
            self.failure = failure
            for neighbor in self.accounts:
                self._network.queues[self._rank, neighbor].put(failure)

    def close(self) -> None:
        """Nothing to leave."""

    def abort(self) -> None:
        """Nothing to end."""
