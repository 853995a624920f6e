"""What the processes of a run settle together in an untrusted network: messages along a tree of graph neighbours.

    opener = opened("peers.toml", "key.secret")
    ranks = TreeRanks(opener, mixing.graph)
    client = Client(method, mixing, ranks.rank, x, ranks=ranks, transport=opener)

For a given root all ranks find the same breadth-first tree of the graph. Facts and tensors go up the tree, one rank's
after the other, and answers go down. A message travels in parts. Integers are little-endian:

====  =======  ==============================================================
byte  type     content
====  =======  ==============================================================
0     uint8    1 (a fact, as JSON), 2 (the bytes of a tensor) or 3 (a token)
1     uint32   number of the operation: 1, 2, 3, ...
5     uint32   the rank that the message is from
9     uint64   length of the message
17    uint64   where in the message this part begins
25    bytes    the part: 128 KiB, or what is left
====  =======  ==============================================================

A neighbour may send 32 parts that were not taken yet. After that it waits for a receipt: byte 4 and a uint32, the
number of parts that were taken since the last one.
"""

import enum
import json
import logging
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from gossamer.errors import GossamerError, InputError, RunError, StoppedError
from gossamer.runtime.processes.group import START_SECONDS, Group
from gossamer.runtime.transport.base import Failure
from gossamer.runtime.transport.curve import CurveOpener
from gossamer.runtime.transport.frames import Frame, Kind
from gossamer.runtime.transport.link import Link
from gossamer.runtime.transport.notices import read_notice, write_notice

logger = logging.getLogger(__name__)

CHANNEL = 2**32 - 1
"""Of the links; those of a `Client` are numbered from 0."""
_HEAD = struct.Struct("<BIIQQ")
_RECEIPT = struct.Struct("<BI")
_PART = 1 << 17
_WINDOW = 32
_MOST_FACT = 1 << 24
_WAKE_SECONDS = 0.5
_FAREWELL_SECONDS = 2.0
_TAKEN = 4


class _What(enum.IntEnum):
    """The first byte of a part."""

    FACT = 1
    TENSOR = 2
    TOKEN = 3


@dataclass(frozen=True)
class Branches:
    """The place of one rank in a tree: its parent, and the ranks of each child's branch in the order they report."""

    parent: int | None
    below: dict[int, list[int]]


def branches(graph: "nx.Graph[Any]", root: int, rank: int) -> Branches:
    """The place of a rank in the breadth-first tree from a root; neighbours are visited in the order of their numbers.

    >>> branches(nx.path_graph(4), root=1, rank=2)
    Branches(parent=1, below={3: [3]})
    """
    tree = dict(nx.bfs_predecessors(graph, root, sort_neighbors=sorted))
    children: dict[int, list[int]] = {one: [] for one in graph}
    for child, parent in tree.items():
        children[parent].append(child)

    def branch(top: int) -> Iterator[int]:
        waiting = [top]
        while waiting:
            one = waiting.pop()
            waiting += reversed(children[one])
            yield one

    return Branches(tree.get(rank), {child: list(branch(child)) for child in children[rank]})


@dataclass
class _Line:
    """What is under way between this rank and a neighbour."""

    arrived: deque[bytes] = field(default_factory=deque)
    credit: int = _WINDOW
    """Parts that we may still send."""
    taken: int = 0
    """Parts taken since the last receipt."""
    is_through: bool = False
    """Whether the neighbour has ended its run."""


class TreeRanks(Group):
    """The processes of a run, one per client, over links of the transport for untrusted networks."""

    def __init__(
        self, opener: CurveOpener, graph: "nx.Graph[Any]", timeout: float = 60.0, start_timeout: float = START_SECONDS
    ) -> None:
        self.rank, self.size, self.timeout = opener.me.client, len(opener.peers), timeout
        if set(opener.peers) != set(graph):
            raise InputError(
                f"The graph has {len(graph)} clients, and the peers file has {self.size} peers; it must have the "
                "clients 0, 1, ... of the graph."
            )
        self._opener, self._graph = opener, graph
        self._begun, self._start_timeout = time.monotonic(), max(timeout, start_timeout)
        self._run = zlib.crc32(b"".join(sorted(peer.key for peer in opener.peers.values())))
        self._operation = 0
        self._failure: Failure | None = None
        self._is_left = False
        self._changed = threading.Condition()
        neighbors = sorted(graph.neighbors(self.rank))
        self._lines = {neighbor: _Line() for neighbor in neighbors}
        facts: Any = {"owner": self, "run": self._run, "channel": CHANNEL, "capacity": _HEAD.size + _PART}
        self.links = {neighbor: Link(neighbor, connects=neighbor < self.rank, **facts) for neighbor in neighbors}
        if self.links:
            try:
                self._endpoint = opener.endpoint(timeout)
                self._endpoint.open(list(self.links.values()))
            except BaseException:
                opener.leave([])
                raise

    def share(self, fact: Any) -> list[Any]:
        """Every rank's fact, by rank; a fact is anything that JSON holds."""
        mine = json.dumps(fact).encode()
        if len(mine) > _MOST_FACT:
            raise RunError(f"Rank {self.rank} has {len(mine):,} bytes to share; at most {_MOST_FACT:,} are possible.")
        place = self._begin(0)
        every = self._gather(place, _What.FACT, mine, range(_MOST_FACT + 1))
        for rank in range(self.size):
            if place.parent is not None:
                every[rank] = self._receive(place.parent, _What.FACT, rank, range(_MOST_FACT + 1))
            for child in place.below:
                self._send(child, _What.FACT, rank, every[rank])
        try:
            return [json.loads(every[rank]) for rank in range(self.size)]
        except (ValueError, RecursionError):
            self._end(f"Rank {self.rank} was sent facts that are not JSON, by one of its neighbours.")

    def collect(self, mine: Tensor, collector: int) -> list[Tensor] | None:
        """Every rank's tensor, by rank, on the collecting rank; None on the others. All have the same shape."""
        mine = mine.detach().cpu().contiguous()
        data = mine.reshape(-1).view(torch.uint8).numpy().tobytes()
        place = self._begin(collector)
        every = self._gather(place, _What.TENSOR, data, range(len(data), len(data) + 1))
        if self.rank != collector:
            return None
        return [mine if rank == collector else _tensor(every[rank], mine) for rank in range(self.size)]

    def wait_for(self, one: int) -> None:
        """Until that rank calls it too, for as long as it takes."""
        place = self._begin(one)
        if place.parent is not None:
            self._receive(place.parent, _What.TOKEN, one, range(1))
        for child in place.below:
            self._send(child, _What.TOKEN, one, b"")

    def leave(self) -> None:
        """Take leave of every neighbour, wait until each has taken its own, and close the links."""
        if self._is_left:
            return
        for link in self.links.values():
            link.waiting_frames.append((Kind.BYE, b""))
        self._pause(
            self._start_timeout,
            lambda link: self._failure is not None or self._lines[link.neighbor].is_through or self._silence(link) > 0,
        )
        self._close()

    def give_up(self, error: BaseException) -> None:
        """Tell the others why this rank ends, and close at once; where all were stopped, take leave."""
        if isinstance(error, StoppedError):
            self.leave()
        if self._is_left:
            return
        sentence = str(error).strip().split("\n")[0]
        if not isinstance(error, GossamerError):
            sentence = f"Rank {self.rank} stopped: {type(error).__name__}: {sentence}"
        self._note(Failure(sentence, 0))
        self._close()

    def _close(self) -> None:
        """Wait a moment for what is still on its way. A neighbour that has left does not acknowledge our goodbye."""
        self._is_left = True
        self._pause(_FAREWELL_SECONDS, lambda link: link.is_delivered or not link.is_connected)
        if self.links:
            self._opener.leave(list(self.links.values()))

    def _pause(self, seconds: float, is_done: Callable[[Link], bool]) -> None:
        """Until that is so for all links, or the time is over."""
        if self.links:
            self._endpoint.wake()
        limit = time.monotonic() + seconds
        with self._changed:
            while time.monotonic() < limit and not all(map(is_done, self.links.values())):
                self._changed.wait(0.01)

    def _begin(self, root: int) -> Branches:
        self._operation += 1
        return branches(self._graph, root, self.rank)

    def _gather(self, place: Branches, what: _What, mine: bytes, sizes: range) -> dict[int, bytes]:
        """Send our message and those of our branch to the parent; at the root, all messages."""
        every = {}
        if place.parent is None:
            every[self.rank] = mine
        else:
            self._send(place.parent, what, self.rank, mine)
        for child, ranks in place.below.items():
            for rank in ranks:
                message = self._receive(child, what, rank, sizes)
                if place.parent is None:
                    every[rank] = message
                else:
                    self._send(place.parent, what, rank, message)
        return every

    def _send(self, neighbor: int, what: _What, origin: int, message: bytes) -> None:
        line = self._lines[neighbor]
        for begin in range(0, max(1, len(message)), _PART):
            head = _HEAD.pack(what, self._operation, origin, len(message), begin)
            with self._changed:
                self._wait(neighbor, lambda: line.credit > 0)
                line.credit -= 1
            self._put(neighbor, head + message[begin : begin + _PART])

    def _receive(self, neighbor: int, what: _What, origin: int, sizes: range) -> bytes:
        """The next message of a neighbour, which must be this one and have one of these sizes."""
        message, length, expected = bytearray(), None, (what, self._operation, origin)
        while length is None or len(message) < length:
            part = self._take(neighbor)
            found = _HEAD.unpack_from(part) if len(part) >= _HEAD.size else (0, 0, 0, 0, 0)
            length = found[3] if length is None else length
            size = min(_PART, length - len(message))
            if found != (*expected, length, len(message)) or length not in sizes or len(part) != _HEAD.size + size:
                self._end(
                    f"Rank {self.rank} ended: its neighbour {neighbor} sent a message of {len(part)} bytes that is not "
                    f"the {what.name.lower()} of rank {origin} in operation {self._operation}."
                )
            message += memoryview(part)[_HEAD.size :]
        return bytes(message)

    def _take(self, neighbor: int) -> bytes:
        """The next part from a neighbour."""
        line = self._lines[neighbor]
        with self._changed:
            self._wait(neighbor, lambda: len(line.arrived) > 0)
            part = line.arrived.popleft()
            line.taken += 1
            taken = line.taken if line.taken >= _WINDOW // 4 else 0
            line.taken -= taken
        if taken:
            self._put(neighbor, _RECEIPT.pack(_TAKEN, taken))
        return part

    def _put(self, neighbor: int, body: bytes) -> None:
        self.links[neighbor].waiting_frames.append((Kind.PACKET, body))
        self._endpoint.wake()

    def _wait(self, neighbor: int, is_ready: Callable[[], bool]) -> None:
        """Until that is so; raises a RunError if there is no point in waiting for the neighbour."""
        link = self.links[neighbor]
        while not is_ready():
            if self._failure is None and self._lines[neighbor].is_through:
                self._end(f"Rank {self.rank} waits for its neighbour {neighbor}, which has ended its run.")
            silence = self._silence(link)
            if self._failure is None and silence > 0:
                peer = self._opener.peer(neighbor)
                how = "lost" if link.is_known else "could not reach"
                reason = "nothing comes from it" if link.is_known else "it has not connected"
                reason = link.reason if link.connects and not link.is_connected else reason
                self._end(
                    f"Rank {self.rank} {how} its neighbour {neighbor} ({peer.name!r} at {peer.address}) for "
                    f"{silence:g} s: {reason}."
                )
            if self._failure is not None:
                raise RunError(self._failure.sentence)
            self._changed.wait(min(_WAKE_SECONDS, self.timeout / 4))

    def _silence(self, link: Link) -> float:
        """How long a neighbour has been silent, in seconds, if that is too long; else 0."""
        since, limit = (link.heard, self.timeout) if link.is_known else (self._begun, self._start_timeout)
        return limit if time.monotonic() - since > limit else 0.0

    def _end(self, sentence: str) -> NoReturn:
        self._note(Failure(sentence, 0))
        assert self._failure is not None
        raise RunError(self._failure.sentence)

    def _note(self, failure: Failure) -> None:
        """Keep the first failure, and tell all neighbours, who tell theirs."""
        with self._changed:
            if self._failure is not None:
                return
            self._failure = failure
            for link in self.links.values():
                link.waiting_frames.append((Kind.NOTICE, write_notice(self._run, failure)))
            self._changed.notify_all()
        logger.error(failure.sentence)
        if self.links:
            self._endpoint.wake()

    def heard(self, link: Link, frame: Frame) -> None:
        """The next frame of a neighbour; called by the endpoint's thread."""
        line, wrong = self._lines[link.neighbor], ""
        with self._changed:
            if frame.kind == Kind.BYE:
                line.is_through = True
            elif self._failure is not None:
                return
            elif frame.kind == Kind.NOTICE:
                failure = read_notice(self._run, frame.body)
                if failure is None:
                    wrong = "sent bytes that are no notice of this run"
                else:
                    self._note(failure)
            elif frame.kind == Kind.PACKET and frame.body[0] == _TAKEN:
                taken = _RECEIPT.unpack(frame.body)[1] if len(frame.body) == _RECEIPT.size else 0
                line.credit += taken
                wrong = "" if taken and line.credit <= _WINDOW else "sent a receipt for parts that it did not get"
            elif frame.kind == Kind.PACKET:
                line.arrived.append(frame.body)
                if len(line.arrived) + line.taken > _WINDOW or len(frame.body) > link.capacity:
                    wrong = f"sent more than it may ({len(line.arrived)} parts, the last of {len(frame.body):,} bytes)"
                    line.arrived.clear()
            self._changed.notify_all()
        if wrong:
            self.broken(link, wrong)

    def broken(self, link: Link, reason: str) -> None:
        """A neighbour did what it may not; called by the endpoint's thread."""
        self._note(Failure(f"Rank {self.rank} ended: its neighbour {link.neighbor} {reason}.", 0))

    def renewed(self, link: Link) -> bool:
        """A neighbour that was started again has lost the state of its run."""
        return False


def _tensor(data: bytes, like: Tensor) -> Tensor:
    """A tensor of these bytes."""
    found = torch.empty_like(like)
    if data:
        found.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(data, np.uint8)
    return found
