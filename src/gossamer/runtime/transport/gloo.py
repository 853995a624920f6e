"""Packets to and from graph neighbours, in order.

gloo cannot poll, cancel or outlive a wait that timed out, and an exchange costs it two one-way delays unless the
receive was posted before the packet left. So each neighbour has a thread that always keeps two receives posted and puts
what arrives into one queue: the step waits for that queue alone, with a time limit of its own, and a neighbour that
dies is noticed at once, whatever the step is doing.
"""

import contextlib
import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.compression.packet import MOST_HEADER
from gossamer.compression.packet import length as packet_length
from gossamer.errors import RunError
from gossamer.runtime.processes.ranks import NO_TAG, PATIENCE, Ranks, reason
from gossamer.runtime.transport.base import UNKNOWN, Account, Failure, Opening, failed
from gossamer.runtime.transport.notices import NOTICE, read_notice, write_notice

logger = logging.getLogger(__name__)

_AHEAD = 2  # receives posted for each neighbour: it may be one round ahead, and the next packet must not wait either
_FIRST_TAG = 0x6000
_BYE, _ALIVE = 0x00, 0xB3  # first bytes of what is neither a packet (0xB1) nor a notice (0xB2)
_LEAVE_SECONDS = 900.0
_LINGER_SECONDS = 0.5  # a connection that is closed too soon after a notice may take the notice with it
_ABORT_SECONDS = 5.0  # for threads to notice that their connections are closed
LEAST_CAPACITY = 1024
_MOST_NOTICE = LEAST_CAPACITY


@dataclass
class Link(Account):
    """One neighbour: its account, and the receives and sends under way."""

    seen_alive: float = 0.0
    """When the neighbour last said that it is waiting, too."""
    is_through: bool = False
    """Whether the neighbour has said goodbye."""
    posted: deque[tuple[Tensor, Any]] = field(default_factory=deque, repr=False)
    arrived: deque[tuple[float, Tensor]] = field(default_factory=deque, repr=False)
    free: deque[Tensor] = field(default_factory=deque, repr=False)
    sends: deque[Any] = field(default_factory=deque, repr=False)


_all: "weakref.WeakSet[GlooTransport]" = weakref.WeakSet()


def listening() -> "list[GlooTransport]":
    """Transports of this process with threads that still wait; a thread keeps its transport in memory."""
    return [transport for transport in _all if transport.is_listening]


class GlooTransport:
    """Packets to and from each neighbour, in order, until `close`, or `abort` after a failure."""

    def __init__(self, opening: Opening) -> None:
        self.ranks: Ranks = opening.ranks
        self.run = opening.run
        self.timeout: float = self.ranks.timeout
        self.capacity = max(opening.capacity, LEAST_CAPACITY)
        self.round = 0  # for whoever must say when something happened
        self.failure: Failure | None = None
        self.accounts: dict[int, Link] = {neighbor: Link(neighbor) for neighbor in sorted(opening.neighbors)}
        self._tag = _FIRST_TAG + opening.channel
        self._inbox: queue.SimpleQueue[tuple[int, float, Tensor | None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._memory = deque(torch.empty(self.capacity, dtype=torch.uint8) for _ in range(_AHEAD + 1))
        self._notices: list[Any] = []
        self._told_alive = 0.0
        self._is_aborted = False
        self._threads: list[threading.Thread] = []
        _all.add(self)
        for link in self.accounts.values():
            try:
                for _ in range(_AHEAD):
                    self._post(link)
            except RuntimeError as error:  # it died before we began
                self._lost(link, error)
                self.abort()
                raise failed(self) from None
            name = f"gossamer-from-{link.neighbor}"
            self._threads.append(threading.Thread(target=self._listen, args=(link,), name=name, daemon=True))
            self._threads[-1].start()

    def send(self, packet: bytes, to: Collection[int]) -> None:
        """One packet to each of these neighbours, from the same memory."""
        if len(packet) > self.capacity:
            raise RunError(
                f"A packet of {len(packet):,} bytes was made, and {self.capacity:,} is the most that was expected of "
                "this method; codec='auto' never takes more."
            )
        tensor = self._room(len(to))[: len(packet)]
        tensor.numpy()[:] = np.frombuffer(packet, np.uint8)
        for neighbor in to:
            link = self.accounts[neighbor]
            self._send(link, tensor)
            link.packets_sent += 1
            link.bytes_sent += len(packet)

    def _room(self, neighbors: int) -> Tensor:
        """Memory for a packet."""
        if neighbors < len(self.accounts):  # who gets how many packets is not known: memory of its own
            return torch.empty(self.capacity, dtype=torch.uint8)
        # Memory is taken in turns, since taking it anew costs more than filling it. No neighbour sends its packet k + 1
        # before it has our packet k, and we do not send k + 2 before we have theirs: that memory is free again.
        if any(len(link.sends) >= len(self._memory) for link in self.accounts.values()):
            self._memory.appendleft(torch.empty(self.capacity, dtype=torch.uint8))  # several packets without a wait
        else:
            self._memory.rotate()
        return self._memory[0]

    def receive(self, neighbor: int, left_at: float) -> bytes:
        """The next packet of a neighbour; a CodecError if what arrived does not begin like a packet."""
        link = self.accounts[neighbor]
        asked = time.perf_counter()
        while not link.arrived:
            left = self._check(neighbor, asked)
            try:
                item = self._inbox.get(timeout=left)
            except queue.Empty:
                continue
            if item is not None:
                source, at, packet = item
                if packet is None:
                    self.accounts[source].is_through = True
                else:
                    self.accounts[source].arrived.append((at, packet))
        arrived, buffer = link.arrived.popleft()
        link.waiting += time.perf_counter() - asked
        link.hidden += max(0.0, min(arrived, asked) - left_at)
        link.packets_received += 1
        # A neighbour sends its packet k + 1 only when it has our packet k, so that send is over.
        while link.sends and link.packets_sent - len(link.sends) < link.packets_received - 1:
            link.sends.popleft().wait(PATIENCE)
        raw = buffer.numpy()
        length = packet_length(raw[:MOST_HEADER].tobytes())
        data = raw[:length].tobytes()
        link.bytes_received += length
        link.free.append(buffer)
        return data

    def _check(self, neighbor: int, asked: float) -> float:
        """Raise if there is no point in waiting for a neighbour any longer; else the seconds that are left."""
        now, link = time.perf_counter(), self.accounts[neighbor]
        left = max(asked, link.seen_alive) + self.timeout - now
        if asked + self.timeout / 2 < now and self._told_alive != asked:
            # Who waits for us must not take us for the silent one: we wait, too. Once, or a circle would wait for ever.
            self._told_alive = asked
            for other in self.accounts.values():
                self._notices.append(self._send(other, torch.full((1,), _ALIVE, dtype=torch.uint8), keep=False))
        if self.failure is None and link.is_through:
            self.fail(
                f"Rank {self.ranks.rank} is in round {self.round}, but its neighbour {neighbor} has ended its run; "
                "all ranks must take the same number of steps."
            )
        elif self.failure is None and left <= 0:
            self.fail(
                f"Rank {self.ranks.rank} has heard nothing from its neighbour {neighbor} for {self.timeout:g} s in "
                f"round {self.round}; if a round may take that long, raise the timeout."
            )
        if self.failure is not None:
            raise failed(self)
        return min(left, self.timeout / 4)

    def fail(self, sentence: str, *, diverged: bool = False, round: int | None = None, since: int = UNKNOWN) -> None:
        """Note why the run cannot go on, and tell the neighbours, who tell theirs."""
        failure = Failure(sentence, self.round if round is None else round, diverged, since)
        with self._lock:
            if not failure.precedes(self.failure):
                return
            self.failure = failure
        logger.log(logging.WARNING if diverged else logging.ERROR, sentence)
        notice = torch.frombuffer(bytearray(write_notice(self.run, self.failure)), dtype=torch.uint8)
        for link in self.accounts.values():
            with contextlib.suppress(RuntimeError):
                self._notices.append(self.ranks.isend(notice, link.neighbor, self._tag))
        self._inbox.put(None)

    def close(self) -> None:
        """Take leave of every neighbour, and wait until each has taken its own; the group can then be used again."""
        bye = torch.full((1,), _BYE, dtype=torch.uint8)
        # One for every receive that is posted there.
        farewells = [self._send(link, bye, keep=False) for link in self.accounts.values() for _ in range(_AHEAD)]
        # Neighbours that still do something else, such as evaluate, are waited for; one that dies is noticed.
        patience = max(_LEAVE_SECONDS, self.timeout)
        limit = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
        if self.is_listening:
            self.fail(f"Rank {self.ranks.rank} waited {patience:g} s for its neighbours to end round {self.round}.")
        if self.failure is not None and not self.failure.diverged:
            raise failed(self)
        for link in self.accounts.values():
            farewells += link.sends
            link.sends.clear()
        for work in farewells:
            with contextlib.suppress(RuntimeError):
                work.wait(PATIENCE)
        self.ranks.unheard += self._notices  # which a neighbour that is through may never ask for

    def abort(self) -> None:
        """End every connection of this process, so that no thread waits any longer and every neighbour notices.

        gloo has no way to do so, but that it closes all pairs of a process when one wait of it times out.
        """
        if not self._is_aborted:
            self._is_aborted = True
            for notice in self._notices:
                with contextlib.suppress(RuntimeError):
                    notice.wait(timedelta(seconds=2))  # a neighbour may not have begun to listen yet
            if self._notices:
                time.sleep(_LINGER_SECONDS)
        limit = time.monotonic() + _ABORT_SECONDS
        nothing = torch.empty(1, dtype=torch.uint8)
        while True:
            for neighbor in self.accounts:
                with contextlib.suppress(RuntimeError, ValueError):  # a ValueError where the process group is gone
                    self.ranks.irecv(nothing, neighbor, NO_TAG).wait(timedelta(milliseconds=1))
            for thread in self._threads:
                thread.join(_ABORT_SECONDS / 10)
            if not self.is_listening or time.monotonic() > limit:
                return

    @property
    def is_listening(self) -> bool:
        """Whether a thread still waits for a neighbour."""
        return any(thread.is_alive() for thread in self._threads)

    def _send(self, link: Link, tensor: Tensor, keep: bool = True) -> Any:
        try:
            work = self.ranks.isend(tensor, link.neighbor, self._tag)
        except (RuntimeError, ValueError) as error:  # a ValueError where the process group is gone
            self._lost(link, error)
            raise failed(self) from None
        if keep:
            link.sends.append(work)
        return work

    def _post(self, link: Link) -> None:
        buffer = link.free.popleft() if link.free else torch.empty(self.capacity, dtype=torch.uint8)
        link.posted.append((buffer, self.ranks.irecv(buffer, link.neighbor, self._tag)))

    def _listen(self, link: Link) -> None:
        """What a neighbour's thread does: receive, hand over, post the next receive, until it says goodbye."""
        goodbyes, broken = 0, None
        try:
            while goodbyes < _AHEAD:
                if broken is not None and not link.posted:
                    raise broken
                buffer, work = link.posted.popleft()
                work.wait(PATIENCE)
                arrived = time.perf_counter()
                first = buffer.numpy()[0]
                if first == _BYE:
                    goodbyes += 1
                    self._inbox.put((link.neighbor, arrived, None))
                    continue
                try:
                    self._post(link)
                except RuntimeError as error:
                    broken = error  # but what has arrived before the connection broke may say why it did
                if first == _ALIVE:
                    link.seen_alive = arrived
                elif first == NOTICE:
                    self._told(link, buffer)
                else:
                    self._inbox.put((link.neighbor, arrived, buffer))
        except RuntimeError as error:
            self._lost(link, error)

    def _lost(self, link: Link, error: Exception) -> None:
        self.fail(
            f"Rank {self.ranks.rank} lost its neighbour {link.neighbor} in round {self.round}: the process died or the "
            f"connection broke ({reason(error)})."
        )

    def _told(self, link: Link, buffer: Tensor) -> None:
        failure = read_notice(self.run, buffer.numpy()[:_MOST_NOTICE].tobytes())
        if failure is None:
            source = f"Rank {self.ranks.rank} got bytes from its neighbour {link.neighbor} in round {self.round} that"
            self.fail(f"{source} are no packet of this run.")
        else:
            self.fail(failure.sentence, diverged=failure.diverged, round=failure.round, since=failure.since)
