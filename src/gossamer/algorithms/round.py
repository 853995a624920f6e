"""What a step may use: gradients, randomness, and messages to and from the neighbours."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gossamer.algorithms.surrogate import Arriving, Outgoing, Pending, Speaks, Surrogate
from gossamer.compression.base import Compressor, Followed, Message
from gossamer.compression.dense import identity
from gossamer.compression.layout import Layout
from gossamer.errors import InputError
from gossamer.kernels import begin, tensors
from gossamer.streams import Draw


class Oracle(Protocol):
    """Gradients, row i for client i."""

    def __call__(self, x: Tensor) -> Tensor:
        """This round's minibatch gradient at x; at several points of one round, the minibatch is the same."""

    def full(self, x: Tensor) -> Tensor:
        """The gradient over all of each client's data."""

    def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> "Samples":
        """The gradients of this round's minibatch row by row, or those of all of each client's rows.

        Another `purpose` draws another minibatch of the same size, independent of the first.
        """

    def corrected(self, x: Tensor, correction: Tensor) -> "Taken":
        """What this round's local steps from x come to, where each gradient has the correction added to it.

        Without local steps there is one of size 1: the gradient and the correction.
        """
        gradient = self(x)
        return Taken(gradient + correction, gradient)


class Taken(NamedTuple):
    """What clients have done on their own in a round."""

    change: Tensor
    """(rows, d): the sum of their steps, the models before minus the models after them."""
    gradient: Tensor
    """(rows, d): the mean of their gradients on the way, without the correction."""


@dataclass(frozen=True)
class Samples:
    """Gradients of single data rows."""

    rows: Tensor
    """(rows, b): the data rows that each client took."""
    gradients: Tensor
    """(rows, b, d): the gradient of each; zero where a client has fewer rows than others."""
    taken: Tensor
    """(rows, 1): the number of rows that each client took; less than b where it has fewer."""
    counts: Tensor
    """(rows, 1): the number of data rows that each client has in all."""


class Exchange(Protocol):
    """Messages out, weighted neighbour sums back. `runtime/exchange` has the implementations."""

    def __call__(self, *messages: Outgoing | None) -> Pending:
        """Send one packet with these messages to each neighbour; None is no message, and its sum is zero.

        For `Slots`, one message per neighbour, what comes back is not a sum but each neighbour's message, (rows, k, d).
        """


@dataclass(frozen=True)
class Sent:
    """Vectors on their way to the neighbours: ask for the neighbours' when you need them."""

    messages: tuple[Message | None, ...]
    pending: Pending

    def mixed(self) -> tuple[Tensor, ...]:
        """For each vector z, its weighted sum z W, in float64; zero where nothing was sent."""
        return tuple(begin(mixed) for mixed in self.pending.wait())

    def dense(self) -> tuple[Tensor, ...]:
        """What the neighbours get of the vectors that were sent: the vectors themselves, if not compressed."""
        return tuple(message.dense() for message in self.messages if message is not None)

    def pulls(self) -> tuple[Tensor, ...]:
        """For each vector z, z (W - I): adding it to z keeps the mean of z exactly."""
        return tuple(
            mixed if message is None else mixed - message.dense()
            for message, mixed in zip(self.messages, self.mixed(), strict=True)
        )


@dataclass(frozen=True)
class Round:
    """All that a step may use beside its state."""

    t: int
    lr: float | Tensor
    oracle: Oracle
    random: Callable[[str], Draw]
    exchange: Exchange
    dtype: torch.dtype
    rho: float = 1.0
    """The spectral gap of the mixing matrix, which all clients know before they start."""
    errors: list[Tensor] | None = None
    """Collects, for each message, the share ||C(z) - z||^2 / ||z||^2 that was left out; None if not measured."""
    published: set[str] = field(default_factory=set)
    """The names of the surrogates that were published in this round."""

    def arrived(self, *surrogates: Surrogate) -> tuple[Surrogate, ...]:
        """The surrogates after what is under way has arrived: H W + a Q W."""
        return tuple(one.settled() for one in surrogates)

    def publish(
        self,
        *pairs: tuple[Surrogate, Tensor | None],
        compressor: Compressor,
        a: float = 1.0,
        where: Speaks | None = None,
    ) -> tuple[Surrogate, ...]:
        """Tell the neighbours of each value: H + a Q with Q = C(value - H). All messages leave in one packet.

        Args:
            pairs: A surrogate and the value that it follows; a value of None sends nothing.
            compressor: The compressor C of the paper.
            a: The memory step of LEAD, C-GT and CEDAS.
            where: Given value - H, says which rows speak; the others send an empty message.
        """
        followed: list[tuple[Surrogate, Outgoing | None, Tensor | None]] = []
        told = [(surrogate, value) for surrogate, value in pairs if value is not None]
        own = [surrogate.own for surrogate, _ in told if isinstance(surrogate, Surrogate)]  # not those of edges
        values = iter(tensors(*(value for _, value in told), apart_from=own))
        for surrogate, given in pairs:
            value = None if given is None else next(values)
            if value is None:
                followed.append((surrogate, None, None))
                continue
            if surrogate.name in self.published:
                raise InputError(f"The surrogate {surrogate.name!r} was already published in round {self.t}.")
            self.published.add(surrogate.name)
            followed.append(surrogate.follow(value, self, compressor, a, where))
        pending = self.exchange(*(message for _, message, _ in followed))
        return tuple(
            one if message is None else replace(one, arriving=Arriving(pending, number, a, estimate))
            for number, (one, message, estimate) in enumerate(followed)
        )

    def send(self, compressor: Compressor | None = None, **vectors: Tensor | None) -> Sent:
        """Send vectors to the neighbours, in full unless a compressor is given, and go on while they travel."""
        messages = tuple(
            None if z is None else self.compress(compressor or identity(), z, name) for name, z in vectors.items()
        )
        return Sent(messages, self.exchange(*messages))

    def mix(self, z: Tensor, name: str = "x") -> Tensor:
        """Z W, by one uncompressed exchange, computed as z + z (W - I)."""
        return z + self.send(None, **{name: z}).pulls()[0]

    def compress(self, compressor: Compressor, z: Tensor, name: str) -> Message:
        """C(z), in the models' type. The name keys its randomness: a random compressor needs one for each call."""
        line = begin(z)
        z = tensors(line, line.to(self.dtype))[1]  # in one pass: z itself is asked for later
        message = compressor(z, self.random(name))
        self._measure(message, z)
        return message

    def follow(self, compressor: Compressor, value: Tensor, own: Tensor, name: str) -> Followed:
        """Q = C(value - own) in the models' type, and own + Q."""
        layout = Layout.whole(value.shape[1])
        message, moved = compressor.follow(value, own, self.random(name), layout, self.dtype)
        if self.errors is not None:
            self._measure(message, (value - own).to(self.dtype))
        return message, moved

    def _measure(self, message: Message, z: Tensor) -> None:
        if self.errors is not None:
            lost, size = (torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in (message.dense() - z, z))
            self.errors.append(torch.where(size > 0, (lost / size).square(), size))
