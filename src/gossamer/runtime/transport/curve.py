"""Packets to and from graph neighbours over networks that nobody trusts: ZeroMQ with CURVE.

    open_curve = opened("peers.toml", "key.secret")
    client = Client(method, mixing, rank, x, transport=open_curve)

`peers.py` says who may connect, `frames.py` what travels, `endpoint.py` how.
"""

import contextlib
import functools
import logging
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from gossamer.errors import InputError, RunError, check_positive
from gossamer.runtime.transport.base import UNKNOWN, Failure, Opening, Transport, failed
from gossamer.runtime.transport.endpoint import MOST_AHEAD, Endpoint
from gossamer.runtime.transport.frames import Frame, Kind
from gossamer.runtime.transport.link import Link
from gossamer.runtime.transport.notices import read_notice, write_notice
from gossamer.runtime.transport.peers import Peer, read_keys, read_peers

logger = logging.getLogger(__name__)

_LEAST_CAPACITY = 1024
_LEAVE_SECONDS = 900.0
_FAREWELL_SECONDS = 2.0  # for the last acknowledgements, and for notices


def opened(
    peers: str | os.PathLike[str],
    key: str | os.PathLike[str],
    *,
    listen: str | None = None,
    timeout: float = 60.0,
    start_timeout: float = 300.0,
) -> "CurveOpener":
    """A function that opens the transport, for `transport=` of `DecentralizedOptimizer` or `Client`.

    Args:
        peers: The peers file; all clients of the run are in it, this one too.
        key: The file with this client's secret key.
        listen: HOST:PORT to listen at, if not the address in the peers file.
        timeout: Seconds after which a silent neighbour is an error, unless the optimiser says so.
        start_timeout: Seconds for all processes to start. Until then a neighbour that is connected may be silent, as
            it may wait for another one.
    """
    return CurveOpener(peers, key, listen, timeout, start_timeout)


@functools.cache
def shared(peers: str, key: str) -> "CurveOpener":
    """The same opener for every transport of a process."""
    return opened(peers, key)


class CurveOpener:
    """Opens transports that share one endpoint. On SIGHUP the peers file is read again."""

    def __init__(
        self,
        peers: str | os.PathLike[str],
        key: str | os.PathLike[str],
        listen: str | None,
        timeout: float,
        start_timeout: float,
    ) -> None:
        self._path, self._keys, self._peers = peers, read_keys(key), read_peers(peers)
        self.timeout, self.start_timeout = (
            check_positive("timeout", timeout),
            check_positive("start_timeout", start_timeout),
        )
        own = [peer for peer in self._peers.values() if peer.key == self._keys.public]
        if not own:
            raise InputError(
                f"The public key {self._keys.public.decode()!r} of '{os.fspath(key)}' is not in the peers file "
                f"'{os.fspath(peers)}'."
            )
        self.me: Peer = own[0]
        self._listen = self.me.address if listen is None else listen
        self._known = dict(self._peers)
        self._endpoint: Endpoint | None = None
        self._restore: Callable[[], None] = lambda: None

    def __call__(self, opening: Opening) -> Transport:
        """One client's links."""
        if opening.rank != self.me.client:
            raise InputError(
                f"This process is client {opening.rank}, but its key is that of client {self.me.client} "
                f"({self.me.name!r}) in the peers file '{os.fspath(self._path)}'."
            )
        for neighbor in opening.neighbors:
            if neighbor not in self._peers:
                raise InputError(f"The peers file '{os.fspath(self._path)}' has no client {neighbor}, a neighbour.")
        timeout = self.timeout if opening.ranks is None else float(opening.ranks.timeout)
        endpoint = self.endpoint(timeout)
        try:
            return CurveTransport(self, endpoint, opening, timeout)
        except BaseException:
            self.leave([])
            raise

    def endpoint(self, timeout: float) -> Endpoint:
        """The sockets of this process."""
        if self._endpoint is None:
            self._endpoint = Endpoint(self.me.client, self._peers, self._keys, self._listen, timeout)
            self._restore = _on_hangup(self.reload)
        return self._endpoint

    @property
    def peers(self) -> dict[int, Peer]:
        """Who may connect now."""
        return self._peers

    def peer(self, client: int) -> Peer:
        """What the peers file said about a client when it was last there."""
        return self._known[client]

    def find(self, who: str | int) -> int:
        """The client with this name, address or number in the peers file."""
        for peer in self._peers.values():
            if str(who) in (peer.name, peer.address, str(peer.client)):
                return peer.client
        names = ", ".join(peer.name for peer in self._peers.values())
        raise InputError(f"No peer has the name, address or number {str(who)!r}; the peers file has {names}.")

    def reload(self) -> None:
        """Read the peers file again. If it is not valid, the old one remains, and the log says why."""
        try:
            peers = read_peers(self._path)
        except InputError as error:
            logger.error("%s The keys remain as they are.", error)
            return
        logger.info("The peers file has %d keys.", len(peers))
        self._peers = peers
        self._known |= peers
        if self._endpoint is not None:
            self._endpoint.replace(peers)

    def leave(self, links: list[Link]) -> None:
        """Serve these links no longer, and close the endpoint if there are no others."""
        endpoint = self._endpoint
        if endpoint is not None and not endpoint.leave(links):
            self._endpoint = None
            endpoint.close()
            self._restore()


def _on_hangup(reload: Callable[[], None]) -> Callable[[], None]:
    """Call a function on SIGHUP, and then what was called before; what this gives takes it back."""
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = signal.getsignal(signal.SIGHUP)

    def hang_up(number: int, frame: Any) -> None:
        reload()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGHUP, hang_up)

    def restore() -> None:
        if signal.getsignal(signal.SIGHUP) is hang_up and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)

    return restore


class CurveTransport:
    """Packets to and from each neighbour, in order, until `close`, or `abort` after a failure."""

    def __init__(self, opener: CurveOpener, endpoint: Endpoint, opening: Opening, timeout: float) -> None:
        self.rank, self.run, self.timeout = opening.rank, opening.run, timeout
        self.capacity = max(opening.capacity, _LEAST_CAPACITY)
        self.round = 0
        self.failure: Failure | None = None
        self._opener, self._endpoint = opener, endpoint
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[tuple[Link, float, bytes] | None] = queue.SimpleQueue()
        self._arrived: dict[int, deque[tuple[float, bytes]]] = {neighbor: deque() for neighbor in opening.neighbors}
        self._through: set[int] = set()
        self._seen_alive: dict[int, float] = dict.fromkeys(opening.neighbors, 0.0)
        self._told_alive = 0.0
        self._is_left = False
        self._started = time.perf_counter() + opener.start_timeout
        """Until then, processes may still be starting."""
        facts: Any = {"owner": self, "run": opening.run, "channel": opening.channel, "capacity": self.capacity}
        self.accounts: dict[int, Link] = {
            neighbor: Link(neighbor, connects=neighbor < self.rank, **facts) for neighbor in sorted(opening.neighbors)
        }
        if self.accounts:
            endpoint.open(list(self.accounts.values()))

    def send(self, packet: bytes, to: Collection[int]) -> None:
        """One packet to each of these neighbours."""
        if len(packet) > self.capacity:
            raise RunError(
                f"A packet of {len(packet):,} bytes was made, and {self.capacity:,} is the most that was expected of "
                "this method; codec='auto' never takes more."
            )
        if self.failure is not None:
            raise failed(self)
        for neighbor in to:
            link = self.accounts[neighbor]
            link.waiting_frames.append((Kind.PACKET, packet))
            link.packets_sent += 1
            link.bytes_sent += len(packet)
            if len(link.waiting_frames) > MOST_AHEAD:
                self.fail(
                    f"Rank {self.rank} has {len(link.waiting_frames)} packets for its neighbour {neighbor} in round "
                    f"{self.round}, which takes none."
                )
                raise failed(self)
        self._endpoint.wake()

    def receive(self, neighbor: int, left_at: float) -> bytes:
        """The next packet of a neighbour."""
        link, arrived, asked = self.accounts[neighbor], self._arrived[neighbor], time.perf_counter()
        while not arrived:
            left = self._check(link, asked)
            try:
                item = self._inbox.get(timeout=left)
            except queue.Empty:
                continue
            if item is not None:
                source, at, packet = item
                self._arrived[source.neighbor].append((at, packet))
        at, packet = arrived.popleft()
        link.waiting += time.perf_counter() - asked
        link.hidden += max(0.0, min(at, asked) - left_at)
        link.packets_received += 1
        link.bytes_received += len(packet)
        return packet

    def _check(self, link: Link, asked: float) -> float:
        """Raise if there is no point in waiting for a neighbour any longer; else the seconds that are left."""
        now, neighbor = time.perf_counter(), link.neighbor
        # Who is there may wait for somebody whose process has not started yet. Who was there and is gone may not.
        silence = time.monotonic() - link.heard if link.is_known else 0.0
        left = max(asked + self.timeout, self._seen_alive[neighbor] + self.timeout, self._started) - now
        left = min(left, self.timeout - silence)
        if asked + self.timeout / 2 < now and self._told_alive != asked:
            # Who waits for us must not take us for the silent one: we wait, too. Once, or a circle would wait for ever.
            self._told_alive = asked
            for other in self.accounts.values():
                other.waiting_frames.append((Kind.ALIVE, b""))
            self._endpoint.wake()
        if self.failure is None and neighbor in self._through and self._inbox.empty():
            self.fail(
                f"Rank {self.rank} is in round {self.round}, but its neighbour {neighbor} has ended its run; "
                "all ranks must take the same number of steps."
            )
        elif self.failure is None and left <= 0:
            self.fail(self._silent(link, silence))
        if self.failure is not None:
            raise failed(self)
        return min(left, self.timeout / 4)

    def _silent(self, link: Link, silence: float) -> str:
        """Why there is no point in waiting; `silence` is how long nothing came at all, in seconds."""
        peer = self._opener.peer(link.neighbor)
        where = f"neighbour {link.neighbor} ({peer.name!r} at {peer.address})"
        if not link.is_known:
            limit = max(self.timeout, self._opener.start_timeout)
            reason = link.reason if link.connects else "it has not connected"
            return f"Rank {self.rank} could not reach its {where} for {limit:g} s: {reason}."
        if silence < self.timeout:
            return (
                f"Rank {self.rank} has heard nothing from its neighbour {link.neighbor} for {self.timeout:g} s in "
                f"round {self.round}; if a round may take that long, raise the timeout."
            )
        reason = link.reason if link.connects and not link.is_connected else "nothing comes from it"
        return f"Rank {self.rank} lost its {where} for {self.timeout:g} s in round {self.round}: {reason}."

    def fail(self, sentence: str, *, diverged: bool = False, round: int | None = None, since: int = UNKNOWN) -> None:
        """Note why the run cannot go on, and tell the neighbours, who tell theirs."""
        failure = Failure(sentence, self.round if round is None else round, diverged, since)
        with self._lock:
            if not failure.precedes(self.failure):
                return
            self.failure = failure
        logger.log(logging.WARNING if diverged else logging.ERROR, sentence)
        for link in self.accounts.values():
            link.waiting_frames.append((Kind.NOTICE, write_notice(self.run, failure)))
        self._endpoint.wake()
        self._inbox.put(None)

    def heard(self, link: Link, frame: Frame) -> None:
        """The next frame of a neighbour; called by the endpoint's thread."""
        at = time.perf_counter()
        if frame.kind == Kind.PACKET:
            self._inbox.put((link, at, frame.body))
            if len(frame.body) > self.capacity or self._inbox.qsize() > MOST_AHEAD * len(self.accounts):
                self.broken(link, f"sent more than it may (a packet of {len(frame.body):,} bytes)")
        elif frame.kind == Kind.ALIVE:
            self._seen_alive[link.neighbor] = at
        elif frame.kind == Kind.BYE:
            self._through.add(link.neighbor)
            self._inbox.put(None)
        else:
            failure = read_notice(self.run, frame.body)
            if failure is None:
                self.broken(link, "sent bytes that are no notice of this run")
            else:
                self.fail(failure.sentence, diverged=failure.diverged, round=failure.round, since=failure.since)

    def broken(self, link: Link, reason: str) -> None:
        """A neighbour did what it may not; called by the endpoint's thread."""
        self.fail(f"Rank {self.rank} ended in round {self.round}: its neighbour {link.neighbor} {reason}.")

    def renewed(self, link: Link) -> bool:
        """A neighbour that was started again has lost the state of its run."""
        return False

    def close(self) -> None:
        """Take leave of every neighbour, and wait until each has taken its own."""
        for link in self.accounts.values():
            link.waiting_frames.append((Kind.BYE, b""))
        self._endpoint.wake()
        patience = max(_LEAVE_SECONDS, self.timeout)
        limit = time.monotonic() + patience
        while self.failure is None and len(self._through) < len(self.accounts):
            for link in self.accounts.values():
                # Neighbours that still do something else, such as evaluate, are waited for; one that is gone is not.
                if link.neighbor not in self._through and time.monotonic() - link.heard > self.timeout:
                    self.fail(self._silent(link, self.timeout))
            if time.monotonic() > limit:
                self.fail(f"Rank {self.rank} waited {patience:g} s for its neighbours to end round {self.round}.")
            with contextlib.suppress(queue.Empty):
                self._inbox.get(timeout=0.1)
        self._leave()
        if self.failure is not None and not self.failure.diverged:
            raise failed(self)

    def abort(self) -> None:
        """End at once, after a failure."""
        self._leave()

    def _leave(self) -> None:
        """Wait a moment for what is still on its way, and close."""
        if self._is_left:
            return
        self._is_left = True
        limit = time.monotonic() + _FAREWELL_SECONDS
        known = [link for link in self.accounts.values() if link.is_known and not link.is_revoked]
        while time.monotonic() < limit and not all(link.is_delivered for link in known):
            time.sleep(0.005)
        self._opener.leave(list(self.accounts.values()))
