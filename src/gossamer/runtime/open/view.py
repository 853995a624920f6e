"""Who is there: every client tells all others which edges it has open, as link-state routing does.

A record is uint32 client, uint64 stamp, uint32 version, two counts as uint16, the neighbours as uint32, and the numbers
of its debts (`Member.debts`) as uint64. The stamp is when the client's process began; of two records the later one
counts. A record that is new is passed on. A client that hears a later record of itself than its own, because its clock
was set back, takes a later stamp.

Two clients share a debt, and both must take it out, or neither. One that has done so says so by its record, and the
other one follows.
"""

import struct
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gossamer.errors import CodecError

_HEAD = struct.Struct("<IQIHH")
_LATEST = 2**64 - 1


@dataclass(frozen=True)
class Standing:
    """What a client said of itself."""

    stamp: int
    version: int
    neighbors: tuple[int, ...]
    debts: tuple[int, ...] = ()

    @property
    def age(self) -> tuple[int, int]:
        """Orders the records of a client."""
        return self.stamp, self.version


class Members:
    """The records that are known."""

    def __init__(self, client: int, clients: int) -> None:
        self.client, self._clients = client, clients
        self._known = {client: Standing(time.time_ns(), 0, ())}
        self._due: dict[int, float] = {}
        """By when the other end must list a debt; 0 once it has."""

    def state(self, neighbors: Collection[int], debts: Collection[int] = ()) -> bytes | None:
        """This client has these open edges and debts: its new record, or None if that was known."""
        mine, now = self._known[self.client], (tuple(sorted(neighbors)), tuple(sorted(debts)))
        if now == (mine.neighbors, mine.debts):
            return None
        self._known[self.client] = Standing(mine.stamp, mine.version + 1, *now)
        return self.records([self.client])

    def records(self, clients: Iterable[int] | None = None) -> bytes:
        """The records of some clients, or all of them."""
        parts = []
        for client in self._known if clients is None else clients:
            one = self._known[client]
            counts = len(one.neighbors), len(one.debts)
            parts.append(_HEAD.pack(client, one.stamp, one.version, *counts))
            parts.append(struct.pack(f"<{counts[0]}I{counts[1]}Q", *one.neighbors, *one.debts))
        return b"".join(parts)

    def learn(self, records: bytes) -> bytes:
        """Take in records; those that were new, to be passed on. A CodecError if the bytes are none."""
        fresh, at = [], 0
        while at < len(records):
            try:
                client, stamp, version, count, many = _HEAD.unpack_from(records, at)
                numbers = struct.unpack_from(f"<{count}I{many}Q", records, at + _HEAD.size)
            except struct.error:
                raise CodecError("the records of the members end too early.") from None
            at += _HEAD.size + 4 * count + 8 * many
            neighbors, debts = numbers[:count], numbers[count:]
            if max((client, *neighbors)) >= self._clients:
                raise CodecError(f"client {max((client, *neighbors))} is not in the graph.")
            found, known = Standing(stamp, version, neighbors, debts), self._known.get(client)
            if known is not None and found.age <= known.age:
                continue
            if client == self.client and known is not None:
                found = Standing(min(stamp + 1, _LATEST), 0, known.neighbors, known.debts)
            self._known[client] = found
            fresh.append(client)
        return self.records(fresh)

    def overdue(self, debts: Mapping[int, int], patience: float) -> list[int]:
        """Of these debts, given by number and other end, those to be taken out.

        The other end is out of reach, or has taken it out, or has not listed it in so many seconds: it never had it.
        """
        here, now = self.reachable(), time.monotonic()
        self._due = {number: self._due.get(number, now + patience) for number in debts}
        found = []
        for number, client in debts.items():
            known = self._known.get(client)
            is_listed = known is not None and number in known.debts
            if client not in here or (not is_listed and now > self._due[number]):
                found.append(number)
            elif is_listed:
                self._due[number] = 0.0
        return found

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
