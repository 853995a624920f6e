"""One neighbour of a process in an untrusted network: what is under way, and who is told what comes."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from gossamer.runtime.transport.base import Account
from gossamer.runtime.transport.frames import Frame, Kind


class Owner(Protocol):
    """Who is told what happens on a link, by the endpoint's thread."""

    def heard(self, link: "Link", frame: Frame) -> None:
        """The next frame of a neighbour."""

    def broken(self, link: "Link", reason: str) -> None:
        """A neighbour did what it may not; the reason follows its name."""

    def renewed(self, link: "Link") -> bool:
        """Another process has taken the neighbour's place, and numbers start again; False if that may not be."""


@dataclass
class Link(Account):
    """One neighbour: its account, and what is under way. The endpoint's thread alone writes the fields below."""

    owner: "Owner" = field(kw_only=True, repr=False)
    run: int = 0
    channel: int = 0
    capacity: int = 0
    connects: bool = False
    """Whether this end connects; the other listens."""
    may_renew: bool = False
    """Whether another process may take the neighbour's place."""
    waiting_frames: "deque[tuple[Kind, bytes]]" = field(default_factory=deque, repr=False)
    """Frames to be sent; any thread may append."""
    unacknowledged: deque[Frame] = field(default_factory=deque, repr=False)
    numbered: int = 0
    """Frames that have a number so far."""
    sent: int = 0
    """The last frame that was sent on this connection."""
    received: int = 0
    told: int = 0
    """The last frame that the neighbour knows we have."""
    process: int | None = None
    """The neighbour's random number."""
    socket: Any = field(default=None, repr=False)
    monitor: Any = field(default=None, repr=False)
    route: bytes | None = None
    is_connected: bool = False
    is_authenticated: bool = False
    is_revoked: bool = False
    """Whether the neighbour's key was removed."""
    reason: str = "nobody answers there"
    """Why there is no connection."""
    due: float = 0.0
    spoke: float = 0.0
    heard: float = field(default_factory=time.monotonic)
    """When anything last came from the neighbour."""

    @property
    def is_delivered(self) -> bool:
        """Whether the neighbour has all frames."""
        return not self.waiting_frames and not self.unacknowledged

    @property
    def is_known(self) -> bool:
        """Whether there has been a connection."""
        return self.process is not None

    @property
    def why_not_connected(self) -> str:
        """Why there is no connection, as far as this end knows."""
        return self.reason if self.connects or self.is_known else "it has not connected"

    def renew(self, process: int) -> bool:
        """Begin again with another process of the neighbour, if that may be; what waited for the old one is lost."""
        if not self.owner.renewed(self):
            return False
        self.waiting_frames.clear()
        self.unacknowledged.clear()
        self.numbered = self.sent = self.received = self.told = 0
        self.process = process
        return True

    def known_of(self, received: int) -> int:
        """The last frame that a greeting says to have: none, if it speaks of an earlier process of ours."""
        return 0 if self.may_renew and received > self.numbered else received

    def hand_over(self, frame: Frame) -> None:
        """The next frame has come."""
        self.owner.heard(self, frame)

    def break_off(self, reason: str) -> None:
        """The neighbour did what it may not."""
        self.owner.broken(self, reason)
