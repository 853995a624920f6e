"""Real processes: everything that Gossamer asks of torch.distributed, and the only file that imports it.

Packets go point to point between graph neighbours. gloo cannot poll, cancel or outlive a wait that timed out, and an
exchange costs it two one-way delays unless the receive was posted before the packet left. So each neighbour has a
thread that always keeps two receives posted and puts what arrives into one queue: the step waits for that queue alone,
with a time limit of its own, and a neighbour that dies is noticed at once, whatever the step is doing.
"""

import contextlib
import fcntl
import json
import logging
import os
import queue
import socket
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gossamer.errors import InputError, RunError

logger = logging.getLogger(__name__)

_AHEAD = 2  # receives posted for each neighbour: it may be one round ahead, and the next packet must not wait either
_PATIENCE = timedelta(days=30)  # of the threads that listen; how long a step waits is decided where it waits
_FIRST_TAG = 0x6000
_NO_TAG = 0x5FFF  # on which nothing is ever sent
_BYE, _NOTICE = 0x00, 0xB2  # first bytes of what is not a packet (those begin with 0xB1)
_LONGEST_NOTICE = 900
LEAST_CAPACITY = 1024


class Ranks:
    """The processes of a run, one a client, and what they settle together before the first round and after the last.

    Collectives are used here alone; between the first round and the last there are packets between neighbours only.
    """

    def __init__(self, timeout: float = 60.0) -> None:
        self.timeout = timeout
        limit = timedelta(seconds=timeout)
        self._group: Any = None
        if not dist.is_initialized():
            if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
                raise InputError("There is no process group; start the script with torchrun, one process a client.")
            _choose_interface()
            try:
                dist.init_process_group("gloo", timeout=limit)
            except (RuntimeError, ValueError) as error:
                raise RunError(f"The processes did not find each other: {_reason(error)}.") from None
        else:
            # Packets are bytes in the memory of the host, whatever the model lives on; and a group of our own keeps
            # its time limits and its tags to itself.
            with self._settling("found the others"):
                self._group = dist.new_group(backend="gloo", timeout=limit)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def share(self, fact: Any) -> list[Any]:
        """Every rank's fact, by rank; a fact is anything that JSON holds."""
        mine = torch.frombuffer(bytearray(json.dumps(fact).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._settling("agreed on the settings"):
            dist.all_gather(lengths, torch.tensor([len(mine)]), group=self._group)
            longest = int(torch.cat(lengths).max())
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(mine)] = mine
            every = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(every, padded, group=self._group)
        texts = [one[: int(n)].numpy().tobytes() for one, n in zip(every, lengths, strict=True)]
        return [json.loads(text) for text in texts]

    def agree(self, facts: dict[str, Any]) -> None:
        """Raise, on every rank, if any rank's facts are not those of rank 0: the first that differs is named."""
        every = self.share(facts)
        for rank, theirs in enumerate(every):
            for name in every[0] | theirs:
                one, other = every[0].get(name), theirs.get(name)
                if one != other:
                    raise InputError(
                        f"The ranks do not agree: {name} is {_short(other)} on rank {rank}, but {_short(one)} on rank "
                        "0; start every rank with the same settings."
                    )

    def mean(self, x: Tensor) -> Tensor:
        """The mean of every rank's tensor, in float64: a collective, for what is measured and not for training."""
        total = x.detach().to("cpu", torch.float64, copy=True)
        with self._settling("averaged the models"):
            dist.all_reduce(total, group=self._group)
        return (total / self.size).to(x)

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's tensor."""
        sent = x.detach().cpu().clone()
        with self._settling("had rank 0's model"):
            dist.broadcast(sent, src=0, group=self._group)
        return sent.to(x.device)

    def collect(self, mine: Tensor, collector: int) -> list[Tensor] | None:
        """Every rank's tensor, by rank, on the collecting rank; the others get None, and wait as long as it takes."""
        tag = _NO_TAG - 1
        with self._settling("had been heard"):
            if self.rank != collector:
                self.isend(mine, collector, tag).wait(_PATIENCE)
                return None
            every = [torch.empty_like(mine) for _ in range(self.size)]
            every[self.rank] = mine
            for rank, into in enumerate(every):
                if rank != self.rank:
                    self.irecv(into, rank, tag).wait(timedelta(seconds=self.timeout))
            return every

    def leave(self) -> None:
        """Give the process group back."""
        if self._group is None and dist.is_initialized():
            dist.destroy_process_group()

    def isend(self, tensor: Tensor, to: int, tag: int) -> Any:
        """Start to send; the tensor must stay as it is until the work was waited for."""
        return dist.isend(tensor, dst=to, group=self._group, tag=tag)

    def irecv(self, tensor: Tensor, source: int, tag: int) -> Any:
        """Post a receive."""
        return dist.irecv(tensor, src=source, group=self._group, tag=tag)

    @contextlib.contextmanager
    def _settling(self, what: str) -> Any:
        try:
            yield
        except RuntimeError as error:
            raise RunError(
                f"A process went away, or was silent for {self.timeout:g} s, before all had {what}: {_reason(error)}."
            ) from None


@dataclass
class Link:
    """What went to one neighbour and came from it, in numbers."""

    neighbor: int
    packets_sent: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    bytes_received: int = 0
    waiting: float = 0.0
    """Seconds that steps stood still for this neighbour's packets."""
    hidden: float = 0.0
    """Seconds that packets were under way while the step computed."""
    posted: deque[tuple[Tensor, Any]] = field(default_factory=deque, repr=False)
    arrived: deque[tuple[float, Tensor]] = field(default_factory=deque, repr=False)
    free: deque[Tensor] = field(default_factory=deque, repr=False)
    sends: deque[Any] = field(default_factory=deque, repr=False)

    def numbers(self) -> dict[str, float]:
        """What a record keeps."""
        names = ("neighbor", "packets_sent", "bytes_sent", "packets_received", "bytes_received", "waiting", "hidden")
        return {name: round(getattr(self, name), 6) for name in names}


@dataclass(frozen=True)
class Failure:
    """Why a run cannot go on; `diverged` if it is the method's doing and the processes are well."""

    sentence: str
    diverged: bool = False


class Links:
    """Packets to and from each neighbour, in order, until `close`, or `abort` after a failure."""

    def __init__(self, ranks: Ranks, neighbors: Sequence[int], capacity: int, run: int, channel: int = 0) -> None:
        self.ranks, self.run, self.timeout = ranks, run, ranks.timeout
        self.capacity = max(capacity, LEAST_CAPACITY)
        self.round = 0  # for whoever must say when something happened
        self.failure: Failure | None = None
        self.links = {neighbor: Link(neighbor) for neighbor in sorted(neighbors)}
        self._tag = _FIRST_TAG + channel
        self._inbox: queue.SimpleQueue[tuple[int, float, Tensor] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._notices: list[Any] = []
        self._threads = []
        for link in self.links.values():
            for _ in range(_AHEAD):
                self._post(link)
            name = f"gossamer-from-{link.neighbor}"
            self._threads.append(threading.Thread(target=self._listen, args=(link,), name=name, daemon=True))
            self._threads[-1].start()

    def send(self, packet: bytes) -> None:
        """One packet to every neighbour, from the same memory."""
        if len(packet) > self.capacity:
            raise RunError(
                f"A packet of {len(packet):,} bytes was made, and {self.capacity:,} is the most that was expected of "
                "this method; codec='auto' never takes more."
            )
        tensor = torch.frombuffer(bytearray(packet), dtype=torch.uint8)
        for link in self.links.values():
            self._send(link, tensor)
            link.packets_sent += 1
            link.bytes_sent += len(packet)

    def receive(self, neighbor: int, left_at: float) -> Tensor:
        """The next packet of a neighbour, somewhere in a larger buffer; `release` the buffer when it was read.

        `left_at` is when our own packet of that exchange left, for the account of what waiting costs.
        """
        link = self.links[neighbor]
        asked = time.perf_counter()
        while not link.arrived:
            if self.failure is not None:
                raise self.error()
            left = asked + self.timeout - time.perf_counter()
            try:
                item = self._inbox.get(timeout=max(left, 1e-3))
            except queue.Empty:
                self.fail(
                    f"Rank {self.ranks.rank} has heard nothing from its neighbour {neighbor} for {self.timeout:g} s in "
                    f"round {self.round}; if a round may take that long, raise the timeout."
                )
                raise self.error() from None
            if item is not None:
                self.links[item[0]].arrived.append(item[1:])
        arrived, buffer = link.arrived.popleft()
        link.waiting += time.perf_counter() - asked
        link.hidden += max(0.0, min(arrived, asked) - left_at)
        link.packets_received += 1
        # A neighbour sends its packet k + 1 only when it has our packet k, so that send is over.
        while link.sends and link.packets_sent - len(link.sends) < link.packets_received - 1:
            link.sends.popleft().wait(_PATIENCE)
        return buffer

    def release(self, neighbor: int, buffer: Tensor, length: int) -> None:
        """The packet in the buffer was read, and was of this length."""
        link = self.links[neighbor]
        link.bytes_received += length
        link.free.append(buffer)

    def fail(self, sentence: str, *, diverged: bool = False) -> None:
        """Note why the run cannot go on, and tell the neighbours, who tell theirs."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = Failure(sentence, diverged)
        logger.log(logging.WARNING if diverged else logging.ERROR, sentence)
        notice = torch.frombuffer(bytearray(_notice(self.run, self.failure)), dtype=torch.uint8)
        for link in self.links.values():
            with contextlib.suppress(RuntimeError):
                self._notices.append(self.ranks.isend(notice, link.neighbor, self._tag))
        self._inbox.put(None)

    def error(self) -> RunError:
        """The failure, to be raised."""
        assert self.failure is not None
        return RunError(self.failure.sentence)

    def close(self) -> None:
        """Take leave of every neighbour, and wait until each has taken its own; the group can then be used again."""
        bye = torch.full((1,), _BYE, dtype=torch.uint8)
        # One for every receive that is posted there.
        farewells = [self._send(link, bye, keep=False) for link in self.links.values() for _ in range(_AHEAD)]
        limit = time.monotonic() + self.timeout
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self.fail(f"Rank {self.ranks.rank} waited {self.timeout:g} s for its neighbours to end round {self.round}.")
        if self.failure is not None and not self.failure.diverged:
            raise self.error()
        for link in self.links.values():
            farewells += link.sends
            link.sends.clear()
        for work in [*farewells, *self._notices]:
            with contextlib.suppress(RuntimeError):
                work.wait(_PATIENCE)

    def abort(self) -> None:
        """End every connection of this process, so that no thread waits any longer and every neighbour notices.

        gloo has no way to do so, but that it closes all pairs of a process when one wait of it times out.
        """
        for notice in self._notices:
            with contextlib.suppress(RuntimeError):
                notice.wait(timedelta(seconds=0.5))
        nothing = torch.empty(1, dtype=torch.uint8)
        for neighbor in self.links:
            with contextlib.suppress(RuntimeError):
                self.ranks.irecv(nothing, neighbor, _NO_TAG).wait(timedelta(milliseconds=1))
        for thread in self._threads:
            thread.join(1.0)

    def numbers(self) -> list[dict[str, float]]:
        """The account of each link."""
        return [link.numbers() for link in self.links.values()]

    def _send(self, link: Link, tensor: Tensor, keep: bool = True) -> Any:
        try:
            work = self.ranks.isend(tensor, link.neighbor, self._tag)
        except RuntimeError as error:
            self._lost(link, error)
            raise self.error() from None
        if keep:
            link.sends.append(work)
        return work

    def _post(self, link: Link) -> None:
        buffer = link.free.popleft() if link.free else torch.empty(self.capacity, dtype=torch.uint8)
        link.posted.append((buffer, self.ranks.irecv(buffer, link.neighbor, self._tag)))

    def _listen(self, link: Link) -> None:
        """What a neighbour's thread does: receive, hand over, post the next receive, until it says goodbye."""
        goodbyes = 0
        try:
            while goodbyes < _AHEAD:
                buffer, work = link.posted.popleft()
                work.wait(_PATIENCE)
                arrived = time.perf_counter()
                first = int(buffer[0])
                if first == _BYE:
                    goodbyes += 1
                    continue
                self._post(link)
                if first == _NOTICE:
                    self._told(link, buffer)
                else:
                    self._inbox.put((link.neighbor, arrived, buffer))
        except RuntimeError as error:
            self._lost(link, error)

    def _lost(self, link: Link, error: RuntimeError) -> None:
        self.fail(
            f"Rank {self.ranks.rank} lost its neighbour {link.neighbor} in round {self.round}: the process died or the "
            f"connection broke ({_reason(error)})."
        )

    def _told(self, link: Link, buffer: Tensor) -> None:
        failure = _read_notice(self.run, buffer.numpy())
        if failure is None:
            source = f"Rank {self.ranks.rank} got bytes from its neighbour {link.neighbor} in round {self.round} that"
            self.fail(f"{source} are no packet of this run.")
        else:
            self.fail(failure.sentence, diverged=failure.diverged)


def _notice(run: int, failure: Failure) -> bytes:
    """0xB2 | run (4 bytes) | 1 if the run diverged | length (2 bytes) | sentence | CRC-32."""
    text = failure.sentence.encode()[:_LONGEST_NOTICE]
    body = struct.pack("<BIBH", _NOTICE, run, failure.diverged, len(text)) + text
    return body + struct.pack("<I", zlib.crc32(body))


def _read_notice(run: int, buffer: np.ndarray[Any, Any]) -> Failure | None:
    _, theirs, diverged, length = struct.unpack("<BIBH", buffer[:8].tobytes())
    body, checksum = buffer[: 8 + length].tobytes(), buffer[8 + length : 12 + length].tobytes()
    if theirs != run or length > _LONGEST_NOTICE or struct.pack("<I", zlib.crc32(body)) != checksum:
        return None
    return Failure(body[8:].decode(errors="replace"), bool(diverged))


def _choose_interface() -> None:
    """Have gloo announce the address by which this host reaches the first one.

    Left to itself it announces what the host's name resolves to, which often is 127.0.0.1.
    """
    master = os.environ.get("MASTER_ADDR", "")
    if "GLOO_SOCKET_IFNAME" in os.environ or not master:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))  # of UDP, so nothing is sent
        mine = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode())
                if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, request)[20:24]) == mine:  # SIOCGIFADDR
                    os.environ["GLOO_SOCKET_IFNAME"] = name
                    return


def _reason(error: BaseException) -> str:
    """What gloo says, without where in its source it says so."""
    text = str(error).strip().split("\n")[0]
    return text.split("] ", 1)[-1].split(". This ")[0].rstrip(".") or type(error).__name__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
