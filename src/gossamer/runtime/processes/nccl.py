"""Packets from GPU to GPU through NCCL, for hosts whose only fast network is NCCL's.

Packets are made by the host's codecs, so gloo is the default even where models live on GPUs: here each packet is copied
to the GPU first and back at the other end. NCCL cannot take a message of unknown length, cannot tell of a neighbour
that died, and would deadlock on receives posted ahead of sends. So packets are padded to the longest that the method
may make, all sends and receives of an exchange are handed over together, and gloo keeps what it does for `Links`:
notices, goodbyes, and the watch over the neighbours.
"""

import queue
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import RunError
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.transport.gloo import Links

_POLL_SECONDS = 20e-6


@dataclass
class _Exchange:
    """One packet to each neighbour, and one from each, under way."""

    works: list[Any]
    outgoing: Tensor
    incoming: dict[int, Tensor]


class NcclLinks(Links):
    """`Links` whose packets go through NCCL; `device` is where they leave from."""

    def __init__(
        self,
        ranks: Ranks,
        neighbors: Sequence[int],
        capacity: int,
        run: int,
        channel: int,
        device: torch.device,
    ) -> None:
        self._device = device
        self._under_way: deque[_Exchange] = deque()
        super().__init__(ranks, neighbors, capacity, run, channel)

    def send(self, packet: bytes) -> None:
        """One packet to every neighbour, and the receives for theirs with it."""
        if len(packet) > self.capacity:
            raise RunError(
                f"A packet of {len(packet):,} bytes was made, and {self.capacity:,} is the most that was expected."
            )
        if self.failure is not None:
            raise self.error()
        outgoing = torch.zeros(self.capacity, dtype=torch.uint8)
        outgoing[: len(packet)] = torch.frombuffer(bytearray(packet), dtype=torch.uint8)
        outgoing = outgoing.to(self._device)
        incoming = {neighbor: torch.empty_like(outgoing) for neighbor in self.links}
        works = self.ranks.exchange_on_device(dict.fromkeys(self.links, outgoing), incoming)
        self._under_way.append(_Exchange(works, outgoing, incoming))
        for link in self.links.values():
            link.packets_sent += 1
            link.bytes_sent += len(packet)

    def receive(self, neighbor: int, left_at: float) -> Tensor:
        """The next packet of a neighbour, at the start of a longer buffer."""
        link, asked = self.links[neighbor], time.perf_counter()
        exchange = next(one for one in self._under_way if neighbor in one.incoming)
        while exchange.works:
            if self.ranks.is_done(exchange.works[-1]):
                exchange.works.pop()
                continue
            self._look_for_trouble(neighbor, asked)
            time.sleep(_POLL_SECONDS)
        buffer = exchange.incoming.pop(neighbor).cpu()
        if not exchange.incoming:
            self._under_way.remove(exchange)
        now = time.perf_counter()
        link.waiting += now - asked
        # When it arrived is known to be before now only: what was not waited for was hidden.
        link.hidden += max(0.0, asked - left_at)
        link.packets_received += 1
        return buffer

    def _look_for_trouble(self, neighbor: int, asked: float) -> None:
        try:
            while True:
                item = self._inbox.get_nowait()
                if item is not None and item[2] is None:
                    self.links[item[0]].is_through = True
        except queue.Empty:
            pass
        self._check(neighbor, asked)
