"""Members of an open run in this process, with every packet on record; and what their trackers should then hold."""

from collections.abc import Mapping
from typing import Any

import networkx as nx
import torch
from torch import Tensor

import gossamer as gs
from gossamer.compression import packet
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.open.history import History
from gossamer.runtime.open.member import Member
from gossamer.runtime.open.replaying import Replay

Key = tuple[int, int, int, int]
"""Sender, receiver, number of the edge, number of the packet."""


class Packets(dict[Key, bytes]):
    """Packets that were sent and not yet taken; `every` has all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.every: dict[Key, bytes] = {}
        self._told: dict[Key, Tensor] = {}

    def __setitem__(self, key: Key, data: bytes) -> None:
        assert key not in self.every, "no packet is sent twice"
        self.every[key] = data
        super().__setitem__(key, data)

    def told(self, sender: int, receiver: int, number: int, k: int) -> Tensor:
        """What the first k packets over an edge say of the sender's tracker: the second message of each, added up."""
        key = sender, receiver, number, k
        if key not in self._told:
            read = packet.decode(self.every[key])
            said = [message.dense().double() for message in read.messages]
            new = said[1] if len(said) == 2 else torch.zeros_like(said[0])
            self._told[key] = new + self.told(*key[:3], k - 1) if k > 1 else new
        return self._told[key]


def recorded(method: gs.Algorithm, problem: Any, mixing: Any, history: History, **how: Any) -> tuple[Replay, Packets]:
    """A replay whose packets are on record."""
    players, packets = Replay(method, problem, mixing, history, **how), Packets()
    players._packets = packets
    return players, packets


class Network:
    """Members who take steps whenever a test says so, with any of the packets that have been sent to them."""

    def __init__(self, method: gs.Algorithm, problem: Any, mixing: gs.MixingMatrix, batch_size: int | None) -> None:
        self.problem, self.batch_size, self.packets = problem, batch_size, Packets()
        self.members = {i: Member(method, mixing, i, problem.only(i).x0()[None]) for i in range(mixing.clients)}
        self._each = {i: problem.only(i) for i in self.members}
        for number, (i, j) in enumerate(sorted(mixing.graph.edges)):
            self.members[i].open(j, number, None)
            self.members[j].open(i, number, None)

    def there(self, i: int) -> list[int]:
        """The neighbours whose next packet could be applied now."""
        member = self.members[i]
        return [
            j for j in member.waiting if (j, i, member.edges[j].number, member.edges[j].applied + 1) in self.packets
        ]

    def step(self, i: int, neighbors: list[int]) -> None:
        """A round of client i."""
        member = self.members[i]
        keys = {j: (j, i, member.edges[j].number, member.edges[j].applied + 1) for j in neighbors}
        taken = {j: member.read(j, self.packets.pop(key)) for j, key in keys.items()}
        oracle = BatchOracle(self._each[i], member.streams, member.t, self.batch_size, {})
        for j, data in member.step(oracle, member.method.lr_at(member.t), taken).items():
            self.packets[i, j, member.edges[j].number, member.edges[j].said] = data


def in_flight(members: Mapping[int, Member], packets: Packets, mixing: gs.MixingMatrix) -> Tensor:
    """The sum of the terms that one end of an edge has applied, and the other has not: gamma w_ij (said - said)."""
    method, d = next((member.method, member.state.x.shape[1]) for member in members.values())
    gamma = float(getattr(method, "gamma"))  # noqa: B009 (not every method has one)
    total = torch.zeros(1, d, dtype=torch.float64)
    for i, member in members.items():
        for j, edge in member.edges.items():
            other = members[j].edges.get(i) if j in members else None
            known = other.applied if other is not None and other.number == edge.number else 0
            for k in range(known + 1, edge.applied + 1):
                theirs, mine = packets.told(j, i, edge.number, k), packets.told(i, j, edge.number, k)
                total += gamma * float(mixing.matrix[i, j]) * (theirs - mine)
    return total


def settle(members: Mapping[int, Member], packets: Packets) -> None:
    """Apply what is under way, until both ends of every edge have applied the same terms; no end takes a round."""
    for i, member in members.items():
        for j, edge in list(member.edges.items()):
            other = members[j].edges[i]
            assert other.number == edge.number
            while edge.applied < other.applied:
                member.absorb({j: member.read(j, packets.every[j, i, edge.number, edge.applied + 1])})


def parts(members: Mapping[int, Member]) -> list[set[int]]:
    """The connected parts of the graph of open edges."""
    graph: nx.Graph[int] = nx.Graph((i, j) for i, member in members.items() for j in member.edges)
    graph.add_nodes_from(members)
    return list(nx.connected_components(graph))


def gap(members: Mapping[int, Member], followed: str = "old") -> Tensor:
    """Mean V - mean gradient, or what else V follows."""
    return torch.cat([member.state.v - getattr(member.state, followed).double() for member in members.values()]).mean(
        dim=0, keepdim=True
    )
