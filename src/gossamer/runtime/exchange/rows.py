"""The exchange of the simulator: all clients are rows of one tensor, and W is applied by a matrix product."""

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, State
from gossamer.algorithms.surrogate import Outgoing, Slots
from gossamer.compression.base import Message
from gossamer.errors import InputError
from gossamer.kernels import Mixer, is_loaded, make_mixer
from gossamer.runtime.exchange.edges import Edges, per_edge
from gossamer.topology import Mixing, MixingMatrix, complete, mixing_matrix
from gossamer.topology.rounds import RoundWeights

_MOST_MIXERS = 32


def network_of(method: Algorithm, mixing: Mixing) -> Mixing:
    """The network that a method runs on: the given one, or the complete graph for a centralized method.

    An InputError if the method cannot use it.
    """
    if method.info.is_centralized and mixing.clients > 1:
        return mixing_matrix(complete(mixing.clients), "metropolis")
    check_schedule(method, mixing)
    return mixing


def check_schedule(method: Algorithm, schedule: Mixing) -> None:
    """Refuse a schedule that a method cannot use."""
    if isinstance(schedule, MixingMatrix) or method.info.is_centralized:
        return
    if not schedule.is_symmetric and not method.info.allows_directed:
        raise InputError(
            f"{method.info.title} needs symmetric weights in every round, but this schedule is directed; use its "
            "symmetric form, DSGD or gradient tracking."
        )
    if not schedule.connects(method.rounds_between_exchanges):
        raise InputError(
            f"The schedule is never connected for {method.info.title}, which communicates in every "
            f"{method.rounds_between_exchanges}th round: other rounds of the period of {schedule.period} are never "
            "used; change the number of local steps."
        )


class Mixers:
    """What multiplies rows by the weights of a round; made again where they were not among the last few."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: list[tuple[MixingMatrix | RoundWeights, bool, Mixer]] = []

    def of(self, w: MixingMatrix | RoundWeights) -> Mixer:
        """The mixer of these weights."""
        loaded = is_loaded()  # a mixer of the reference is replaced once there are kernels
        for known, was_loaded, mixer in self._known:
            if known is w and was_loaded == loaded:
                return mixer
        made = make_mixer(w.sparse, self._device)
        self._known = [*self._known[1 - _MOST_MIXERS :], (w, loaded, made)]
        return made


class Arrived:
    """An exchange that is over: the sums are formed when they are asked for."""

    def __init__(self, exchange: "RowExchange", messages: tuple[Outgoing | None, ...]) -> None:
        self._messages, self._mixer = messages, exchange.mixer()
        self._sums = {number: exchange.zero for number, message in enumerate(messages) if message is None}
        for number, message in enumerate(messages):
            if isinstance(message, Slots):
                self._sums[number] = exchange.swap(message)

    def wait(self) -> tuple[Tensor, ...]:
        """Nothing to wait for."""
        return tuple(self._sum(number) for number in range(len(self._messages)))

    def add(self, number: int, mixed: Tensor, a: float) -> Tensor:
        """H W + a Q W."""
        message = self._messages[number]
        assert isinstance(message, Message)
        return message.add_to(mixed, self._mixer, a)

    def _sum(self, number: int) -> Tensor:
        message = self._messages[number]
        if number not in self._sums and isinstance(message, Message):
            self._sums[number] = self._mixer(message.dense())
        return self._sums[number]


class RowExchange:
    """W_t times the rows of all clients, seed by seed."""

    def __init__(self, mixing: Mixing, device: torch.device) -> None:
        self.mixing, self.device, self.rho = mixing, device, mixing.rho
        self.packets: list[tuple[Outgoing, ...]] = []
        """What was sent in the round under way: one entry per exchange."""
        self.edges = None if isinstance(mixing, MixingMatrix) else Edges(mixing, range(mixing.clients), device)
        self._mixers = Mixers(device)
        self.zero = torch.zeros((), dtype=torch.float64, device=device)
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
        return Arrived(self, messages)

    def mixer(self) -> Mixer:
        """What multiplies rows by W_t."""
        return self._mixers.of(self.mixing.at(self._t))

    def mix(self, x: Tensor) -> Tensor:
        """X W_t."""
        return self.mixer()(x)

    def swap(self, slots: Slots) -> Tensor:
        """Each neighbour's message, over the edges of this round."""
        assert self.edges is not None
        return self.edges.swap(torch.stack([one.dense() for one in slots.messages], dim=1))
