"""The contract of a transport: bytes to and from each neighbour, in order, and the name of whoever failed.

To add one, write a class with these methods and pass a function that opens it (see `Opening`) as `transport=` to
`DecentralizedOptimizer`, or register that function under a name in the entry point group `gossamer.transports`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from gossamer.errors import RunError

UNKNOWN = 2**63


@dataclass(frozen=True)
class Failure:
    """Why a run cannot go on; `diverged` if it is the method's doing and the processes are well."""

    sentence: str
    round: int
    diverged: bool = False
    since: int = UNKNOWN
    """The round in which a client's messages began to grow. What grew first is why a run diverged."""

    def precedes(self, known: "Failure | None") -> bool:
        """Whether this is the reason to give: the first, but of two reasons to diverge the one that began earlier."""
        return known is None or (self.diverged and known.diverged and self.since < known.since < UNKNOWN)


@dataclass
class Account:
    """What went to one neighbour and came from it, in numbers."""

    neighbor: int
    packets_sent: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    bytes_received: int = 0
    waiting: float = 0.0
    """Seconds that steps stood still for this neighbour's packets."""
    hidden: float = 0.0
    """Seconds that packets were under way while the step computed."""

    def numbers(self) -> dict[str, float]:
        """What a record keeps."""
        return {field.name: round(getattr(self, field.name), 6) for field in fields(Account)}

    def restore(self, numbers: Mapping[str, float]) -> None:
        """Go on counting from there."""
        for field in fields(Account):
            setattr(self, field.name, numbers[field.name])


class Transport(Protocol):
    """Packets between one client and its neighbours. Only one thread calls it."""

    round: int
    """The round under way, which the session sets: for messages that say when something happened."""
    failure: Failure | None
    """Why the run cannot go on, once somebody knows."""

    @property
    def accounts(self) -> Mapping[int, Account]:
        """What went over each link, by neighbour."""

    def send(self, packet: bytes, to: Collection[int]) -> None:
        """One packet to each of these neighbours; a RunError if one of them is known to be gone."""

    def receive(self, neighbor: int, left_at: float) -> bytes:
        """The next packet of a neighbour; waits for it, and raises a RunError if there is no point in waiting.

        `left_at` is when our own packet of that exchange left, for the account of what waiting costs.
        """

    def fail(self, sentence: str, *, diverged: bool = False, round: int | None = None, since: int = UNKNOWN) -> None:
        """Note why the run cannot go on, and tell the neighbours, who tell theirs."""

    def close(self) -> None:
        """Take leave of the neighbours after the last round."""

    def abort(self) -> None:
        """End at once, after a failure."""


@dataclass(frozen=True)
class Opening:
    """What a transport is opened with."""

    rank: int
    neighbors: Sequence[int]
    capacity: int
    """The most bytes that a packet of the run has."""
    run: int
    """A number that all clients of the run share; bytes of another run are refused."""
    channel: int = 0
    """Tells several transports of one process apart."""
    ranks: Any = None
    """The processes of the run (`runtime.processes.group.Group`), where there are processes."""


Open = Callable[[Opening], Transport]


def failed(transport: Transport) -> RunError:
    """The failure of a transport, to be raised."""
    assert transport.failure is not None
    return RunError(transport.failure.sentence)
