"""The links of a member to its possible neighbours, over the transport for untrusted networks."""

import queue
import threading
import time
from collections.abc import Collection
from typing import NamedTuple

from gossamer.errors import CodecError
from gossamer.runtime.open.control import Said, View, read, write
from gossamer.runtime.transport.curve import CurveOpener
from gossamer.runtime.transport.frames import Frame, Kind
from gossamer.runtime.transport.link import Link

_MOST_QUEUED = 256  # frames of a neighbour that were not looked at yet, or that it has not taken
_FEW_QUEUED = 32  # beyond which a neighbour gets no more news of others for now
_FAREWELL_SECONDS = 5.0


class Heard(NamedTuple):
    """What came from a neighbour: a message, or None where its process is another one now."""

    neighbor: int
    said: Said | None


class Neighborhood:
    """Messages to and from possible neighbours. A neighbour that breaks the rules is not listened to any more."""

    def __init__(
        self, opener: CurveOpener, neighbors: Collection[int], capacity: int, run: int, silence: float
    ) -> None:
        self._opener, self._capacity, self._run = opener, capacity, run
        self._endpoint = opener.endpoint(silence)
        self._inbox: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._queued: dict[int, int] = {}
        self._lock = threading.Lock()
        self._possible = sorted(neighbors)
        self.links: dict[int, Link] = {}
        self.banned: dict[int, str] = {}
        """Neighbours that broke the rules, and how."""
        self.look()

    def look(self) -> list[int]:
        """Serve links to the possible neighbours that are in the peers file; those that are new."""
        peers, me = self._opener.peers, self._opener.me.client
        for j, link in list(self.links.items()):
            if link.is_revoked:
                del self.links[j]
        new = [j for j in self._possible if j in peers and j not in self.links and j not in self.banned]
        made = [
            Link(
                j,
                owner=self,
                run=self._run,
                capacity=self._capacity,
                connects=j < me,
                may_renew=True,
            )
            for j in new
        ]
        if made:
            self._endpoint.open(made)
        self.links |= {link.neighbor: link for link in made}
        return new

    def send(self, neighbor: int, said: Said) -> None:
        """Queue a message; the transport delivers it, after a reconnect if need be."""
        link = self.links.get(neighbor)
        if link is None or link.is_revoked:
            return
        if isinstance(said, View) and not self.is_free(neighbor):
            return
        link.waiting_frames.append((Kind.PACKET, write(said)))
        link.packets_sent += 1
        self._endpoint.wake()

    def is_connected(self, neighbor: int) -> bool:
        """Whether there is a connection now."""
        link = self.links.get(neighbor)
        return link is not None and link.is_connected

    def is_free(self, neighbor: int) -> bool:
        """Whether a neighbour has taken most of what was sent to it."""
        link = self.links[neighbor]
        return len(link.waiting_frames) + len(link.unacknowledged) < _FEW_QUEUED

    def next(self, timeout: float) -> Heard | None:
        """The next message; None if none came in time."""
        try:
            heard = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None
        with self._lock:
            self._queued[heard.neighbor] -= 1
        return heard

    def deliver(self, neighbor: int, timeout: float) -> bool:
        """Wait until a neighbour has all that was sent to it; False if it has not in time."""
        limit, link = time.monotonic() + timeout, self.links.get(neighbor)
        while link is not None and not link.is_delivered and time.monotonic() < limit:
            time.sleep(0.005)
        return link is not None and link.is_delivered

    def silence(self, neighbor: int) -> float:
        """Seconds since anything came from a neighbour."""
        link = self.links.get(neighbor)
        return float("inf") if link is None else time.monotonic() - link.heard

    def ban(self, neighbor: int, reason: str) -> None:
        """Do not listen to a neighbour any more."""
        self.banned[neighbor] = reason
        link = self.links.pop(neighbor, None)
        if link is not None:
            self._endpoint.leave([link])

    def heard(self, link: Link, frame: Frame) -> None:
        """A frame; called by the endpoint's thread."""
        if frame.kind != Kind.PACKET:
            return
        try:
            self._put(Heard(link.neighbor, read(frame.body)))
        except CodecError as error:
            self.broken(link, f"sent what is not of an open run: {error}")

    def renewed(self, link: Link) -> bool:
        """Another process of the neighbour; called by the endpoint's thread."""
        self._put(Heard(link.neighbor, None))
        return True

    def broken(self, link: Link, reason: str) -> None:
        """A neighbour did what it may not; called by the endpoint's thread."""
        self.banned[link.neighbor] = reason
        link.is_revoked = True
        self._put(Heard(link.neighbor, None))

    def _put(self, heard: Heard) -> None:
        with self._lock:
            many = self._queued[heard.neighbor] = self._queued.get(heard.neighbor, 0) + 1
        if many > _MOST_QUEUED and heard.neighbor not in self.banned:
            self.banned[heard.neighbor] = f"sent {many} messages ahead"
            return
        self._inbox.put(heard)

    def close(self) -> None:
        """Wait a moment for what was sent, and close the links."""
        limit = time.monotonic() + _FAREWELL_SECONDS
        while time.monotonic() < limit and not all(
            link.is_delivered or not link.is_connected for link in self.links.values()
        ):
            time.sleep(0.01)
        self._opener.leave(list(self.links.values()))
