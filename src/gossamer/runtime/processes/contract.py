"""The contract of a client under way: what a training loop, trackers and the end of a program ask of it."""

from typing import NamedTuple, Protocol

from torch import Tensor

from gossamer.algorithms.base import Algorithm, State
from gossamer.algorithms.round import Oracle
from gossamer.compression.base import Codec
from gossamer.records.checkpoint import Checkpoint
from gossamer.records.typed import Settings
from gossamer.runtime.session import Session
from gossamer.streams import Streams
from gossamer.topology import Mixing


class Sent(NamedTuple):
    """What a client has sent so far."""

    packets: int
    """On one link."""
    bytes: int
    """On one link; where packets differ between neighbours, their mean."""
    bytes_total: int
    """On all links."""
    bits_nominal: float
    """On one link; NaN where it was not counted."""


class Leaving(Protocol):
    """What has neighbours who wait for its goodbye."""

    @property
    def is_closed(self) -> bool:
        """Whether there are no more rounds."""

    def close(self) -> None:
        """Take leave of the neighbours after the last round."""

    def give_up(self, error: BaseException) -> None:
        """End at once, after a failure; the neighbours are told."""


class Counting(Protocol):
    """What trackers hear of."""

    @property
    def rank(self) -> int:
        """The number of this client."""

    @property
    def t(self) -> int:
        """Rounds done."""

    @property
    def method(self) -> Algorithm:
        """The method."""

    @property
    def streams(self) -> Streams:
        """Where randomness comes from."""

    @property
    def state(self) -> State:
        """The method's state."""

    @property
    def mixing(self) -> Mixing:
        """The graph with its weights."""

    @property
    def codec(self) -> Codec:
        """How packets are written."""

    @property
    def sent(self) -> Sent:
        """What was sent so far."""

    @property
    def compression_error(self) -> Tensor | None:
        """The share of its messages that the compressor left out, when it was last measured."""

    def accounts(self) -> list[dict[str, float]]:
        """What went over each link."""


class TrainingClient(Leaving, Counting, Protocol):
    """What a training loop drives."""

    @property
    def session(self) -> Session:
        """The method under way."""

    @property
    def should_stop(self) -> bool:
        """Whether this is the round after which to stop, because somebody asked for it."""

    def ask_to_stop(self) -> None:
        """Stop as soon as that may be."""

    def listen(self) -> None:
        """Between two rounds: answer those who ask for something."""

    def step(self, oracle: Oracle, lr: float | Tensor, *, measure: bool = False) -> None:
        """One round; with `measure`, how much the compressor left out is noted on the way."""

    def save(self) -> tuple[dict[str, Tensor], Settings]:
        """Tensors and facts from which `restore` goes on."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be where a client with the same settings was when it was saved."""
