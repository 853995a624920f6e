"""Surrogates on a network that changes: one for each edge, known to its two ends and moved only by what crossed it.

With one surrogate for all neighbours, a client that was not a neighbour in some round would miss that round's message
and never learn what it said. With one per edge, the terms w_ij (what j said to i - what i said to j) at the two ends of
an edge are opposite in every round, so means are kept whatever edges are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from gossamer.algorithms.base import State
from gossamer.algorithms.round import Round
from gossamer.algorithms.surrogate import Arriving, Slots, Speaks, Surrogate
from gossamer.compression.base import Compressor
from gossamer.compression.partial import Partial
from gossamer.errors import InputError
from gossamer.kernels import move
from gossamer.topology.schedule import Mixing


class Edges:
    """The neighbours of some clients over a whole schedule, in numbered slots, and which of them a round uses."""

    def __init__(self, mixing: Mixing, clients: Sequence[int], device: torch.device) -> None:
        self.mixing, self.clients, self.device = mixing, list(clients), device
        neighbors = [sorted(mixing.graph.neighbors(i)) for i in range(mixing.clients)]
        self.slots = max(1, *(len(neighbors[i]) for i in self.clients))
        self.neighbors = [neighbors[i] for i in self.clients]
        """For each client, the neighbour in each of its slots."""
        place = {i: row for row, i in enumerate(self.clients)}
        shape = (len(self.clients), self.slots)
        self._who, self._slot = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, i in enumerate(self.clients):
            for k, j in enumerate(neighbors[i]):
                self._who[row, k], self._slot[row, k] = place.get(j, 0), neighbors[j].index(i)
        rows = [(row, k, i, j) for row, i in enumerate(self.clients) for k, j in enumerate(neighbors[i])]
        self._every = np.array(rows, np.int64).reshape(-1, 4).T
        self.weights = torch.zeros(shape, dtype=torch.float64)
        """(clients, slots): w_ij of this round; 0 where the edge is not used."""
        self.turns = torch.zeros((len(self.clients), 1), dtype=torch.int64)
        """(clients, most neighbours of a client in this round): the slots in use, then others."""

    def begin(self, t: int) -> None:
        """Round t begins."""
        w = self.mixing.at(t).sparse
        weights = np.zeros(self.weights.shape)
        row, slot, i, j = self._every
        weights[row, slot] = np.asarray(w[i, j]).ravel()
        self.weights = torch.from_numpy(weights).to(self.device)
        most = max(1, int((weights != 0).sum(axis=1).max()))
        self.turns = torch.from_numpy(np.argsort(weights == 0, axis=1, kind="stable")[:, :most].copy()).to(self.device)

    def active(self, row: int) -> list[int]:
        """The slots that a client uses in this round."""
        return [k for k in range(len(self.neighbors[row])) if self.weights[row, k] != 0]

    def swap(self, sent: Tensor) -> Tensor:
        """From what every client sent in each of its turns, (rows, turns, d), what every client gets in each slot."""
        rows, turns, d = sent.shape
        at = self.turns.repeat(rows // len(self.clients), 1)[:, :, None].expand(rows, turns, d)
        q = sent.new_zeros(rows, self.slots, d).scatter(1, at, sent)
        view = q.view(-1, len(self.clients), *q.shape[1:])
        taken = view[:, self._who, self._slot]
        is_used = (self.weights != 0)[None, :, :, None]
        return torch.where(is_used, taken, torch.zeros_like(taken)).view(q.shape)


@dataclass(frozen=True)
class EdgeSurrogate:
    """H for each edge. `pull` is that of the W_t under which the last message was sent."""

    name: str
    edges: Edges
    sent: Tensor
    """(rows, slots, d): what the neighbour in each slot believes of this client, by what was sent to it."""
    heard: Tensor
    """(rows, slots, d): what this client believes of that neighbour."""
    weights: Tensor
    """(rows, slots): the weights of the last exchange."""
    arriving: Arriving | None = None

    @property
    def pull(self) -> Tensor:
        """Sum_j w_ij (what j said to i - what i said to j)."""
        if self.arriving is not None:
            raise InputError(f"A message of the surrogate {self.name!r} is still under way; call round.arrived first.")
        return (self.weights[..., None] * (self.heard - self.sent)).sum(dim=1)

    def follow(
        self, value: Tensor, round: Round, compressor: Compressor, a: float, where: Speaks | None
    ) -> tuple["EdgeSurrogate", Slots, Tensor | None]:
        """Each edge that is in use follows the value: one message per turn, which is one more neighbour of a client."""
        seeds, rows = len(value) // len(self.edges.clients), torch.arange(len(value), device=value.device)
        weights, turns = self.edges.weights.repeat(seeds, 1), self.edges.turns.repeat(seeds, 1)
        messages, sent, estimate = [], self.sent.clone(), self.sent.clone()
        round = replace(round, errors=None)  # what is left out is not measured here: unused slots would count as exact
        used = weights.gather(1, turns) != 0
        for turn, (k, is_used) in enumerate(zip(turns.T, used.T, strict=True)):
            own = self.sent[rows, k]
            difference = torch.where(is_used[:, None], value - own, 0)
            q = round.compress(compressor, difference, f"{self.name}.{turn}")
            q = Partial(q, is_used if where is None else is_used & where(difference))
            sent[rows, k] = move(own, q.dense(), a)
            estimate[rows, k] = move(own, q.dense())
            messages.append(q)
        return (
            replace(self, sent=sent, weights=weights),
            Slots(tuple(messages), used),
            None if a == 1 else estimate,
        )

    def settled(self) -> "EdgeSurrogate":
        """After what is under way has arrived."""
        if self.arriving is None:
            return self
        return replace(self, heard=move(self.heard, self.arriving.heard(), self.arriving.a), arriving=None)

    def estimate(self) -> "EdgeSurrogate":
        """With the whole of the message under way, at both ends."""
        if self.arriving is None:
            return self
        sent = self.sent if self.arriving.own is None else self.arriving.own
        return replace(self, sent=sent, heard=move(self.heard, self.arriving.heard()), arriving=None)


def per_edge(state: State, edges: Edges) -> State:
    """A method's first state with every surrogate, which is the same for all clients there, split into one per edge."""

    def split(value: object) -> object:
        if not isinstance(value, Surrogate):
            return value
        rows = len(value.own)
        known = value.own[:, None].repeat(1, edges.slots, 1)
        return EdgeSurrogate(value.name, edges, known, known, value.own.new_zeros(rows, edges.slots))

    return replace(state, **{field.name: split(getattr(state, field.name)) for field in fields(state)})
