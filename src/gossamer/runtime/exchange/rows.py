"""The exchange of the simulator: all clients are rows of one tensor, and W is applied by a matrix product."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, State
from gossamer.algorithms.surrogate import Outgoing, Slots
from gossamer.compression.base import Message
from gossamer.kernels import Mixer
from gossamer.runtime.exchange.edges import Edges, per_edge
from gossamer.topology import MixingMatrix, complete, mixing_matrix
from gossamer.topology.schedule import Mixing


def network_of(method: Algorithm, mixing: Mixing) -> Mixing:
    """The network that a method runs on: the given one, or the complete graph for a centralized method."""
    if not method.info.is_centralized or mixing.clients == 1:
        return mixing
    return mixing_matrix(complete(mixing.clients), "metropolis")


@dataclass(frozen=True)
class Arrived:
    """An exchange that is over."""

    sums: tuple[Tensor, ...]

    def wait(self) -> tuple[Tensor, ...]:
        """Nothing to wait for."""
        return self.sums


MakeMixer = Callable[[Any, torch.device], Callable[[Tensor], Tensor]]
"""Given W in compressed rows and a device, returns the function that multiplies rows by W."""


class RowExchange:
    """W_t times the rows of all clients, seed by seed."""

    def __init__(self, mixing: Mixing, device: torch.device, mixer: MakeMixer = Mixer) -> None:
        self.mixing, self.device, self.rho = mixing, device, mixing.rho
        self.packets: list[tuple[Outgoing, ...]] = []
        """What was sent in the round under way: one entry per exchange."""
        self.edges = None if isinstance(mixing, MixingMatrix) else Edges(mixing, range(mixing.clients), device)
        self._make, self._mixers = mixer, dict[int, Callable[[Tensor], Tensor]]()
        self._zero = torch.zeros((), dtype=torch.float64, device=device)
        self._t = 0

    def begin(self, t: int) -> None:
        """Round t begins."""
        self._t, self.packets = t, []
        if self.edges is not None:
            self.edges.begin(t)

    def adopt(self, state: State) -> State:
        """On a schedule each edge has its own surrogate."""
        return state if self.edges is None else per_edge(state, self.edges)

    def __call__(self, *messages: Outgoing | None) -> Arrived:
        """Everything arrives at once."""
        sent = tuple(message for message in messages if message is not None)
        if sent:
            self.packets.append(sent)
        return Arrived(tuple(self._zero if message is None else self._arrive(message) for message in messages))

    def mix(self, x: Tensor) -> Tensor:
        """X W_t."""
        w = self.mixing.at(self._t)
        if id(w) not in self._mixers:
            self._mixers[id(w)] = self._make(w.sparse, self.device)
        return self._mixers[id(w)](x)

    def _arrive(self, message: Message | Slots) -> Tensor:
        if isinstance(message, Slots):
            assert self.edges is not None
            return self.edges.swap(torch.stack([one.dense() for one in message.messages], dim=1))
        return self.mix(message.dense())
