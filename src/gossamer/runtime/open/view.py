"""Who is there: every client tells all others which edges it has open, as link-state routing does.

A record is uint32 client, uint64 stamp, uint32 version, uint16 count, and the neighbours as uint32. The stamp is when
the client's process began; of two records the later one counts. A record that is new is passed on. A client that hears
a later record of itself than its own, because its clock was set back, takes a later stamp.
"""

import struct
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gossamer.errors import CodecError

_HEAD = struct.Struct("<IQIH")
_LATEST = 2**64 - 1


@dataclass(frozen=True)
class Standing:
    """What a client said of itself."""

    stamp: int
    version: int
    neighbors: tuple[int, ...]

    @property
    def age(self) -> tuple[int, int]:
        """Orders the records of a client."""
        return self.stamp, self.version


class Members:
    """The records that are known."""

    def __init__(self, client: int, clients: int) -> None:
        self.client, self._clients = client, clients
        self._known = {client: Standing(time.time_ns(), 0, ())}
        self._renewed: set[int] = set()

    def state(self, neighbors: Collection[int]) -> bytes | None:
        """This client has these edges open: its new record, or None if that was known."""
        mine = self._known[self.client]
        if tuple(sorted(neighbors)) == mine.neighbors:
            return None
        self._known[self.client] = Standing(mine.stamp, mine.version + 1, tuple(sorted(neighbors)))
        return self.records([self.client])

    def records(self, clients: Iterable[int] | None = None) -> bytes:
        """The records of some clients, or all of them."""
        parts = []
        for client in self._known if clients is None else clients:
            one = self._known[client]
            head = _HEAD.pack(client, one.stamp, one.version, len(one.neighbors))
            parts.append(head + struct.pack(f"<{len(one.neighbors)}I", *one.neighbors))
        return b"".join(parts)

    def learn(self, records: bytes) -> bytes:
        """Take in records; those that were new, to be passed on. A CodecError if the bytes are none."""
        fresh, at = [], 0
        while at < len(records):
            try:
                client, stamp, version, count = _HEAD.unpack_from(records, at)
                neighbors = struct.unpack_from(f"<{count}I", records, at + _HEAD.size)
            except struct.error:
                raise CodecError("the records of the members end too early.") from None
            at += _HEAD.size + 4 * count
            if max((client, *neighbors)) >= self._clients:
                raise CodecError(f"client {max((client, *neighbors))} is not in the graph.")
            found, known = Standing(stamp, version, neighbors), self._known.get(client)
            if known is not None and found.age <= known.age:
                continue
            if client == self.client and known is not None:
                found = Standing(min(stamp + 1, _LATEST), 0, known.neighbors)
            elif known is not None and stamp > known.stamp:
                self._renewed.add(client)
            self._known[client] = found
            fresh.append(client)
        return self.records(fresh)

    def pop_renewed(self) -> set[int]:
        """The clients whose process is another one than when this was last asked."""
        renewed, self._renewed = self._renewed, set()
        return renewed

    def reachable(self) -> set[int]:
        """The clients of this part of the graph: those to whom a way leads over edges that are open at both ends."""
        found, todo = {self.client}, [self.client]
        while todo:
            i = todo.pop()
            for j in self._known[i].neighbors:
                if j not in found and j in self._known and i in self._known[j].neighbors:
                    found.add(j)
                    todo.append(j)
        return found
