"""A client of an open run as a training loop drives it: no process group, and neighbours that come and go."""

import math
import os
from typing import Any, NoReturn

from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.round import Oracle
from gossamer.compression.base import Codec
from gossamer.errors import InputError
from gossamer.records.checkpoint import Checkpoint
from gossamer.records.typed import Settings
from gossamer.runtime.open.participant import Openness, Participant
from gossamer.runtime.processes.contract import Sent
from gossamer.runtime.processes.ranks import has_group
from gossamer.runtime.session import UnderWay
from gossamer.runtime.transport import opener_from_environment
from gossamer.runtime.transport.base import Open
from gossamer.runtime.transport.curve import CurveOpener
from gossamer.runtime.tuning.caution import warn_of_gamma
from gossamer.topology import MixingMatrix


def opener_of(transport: str | Open, **given: object) -> CurveOpener | None:
    """The opener of the transport, if this is to be an open run; None where all ranks go in step.

    It is one where a setting of open runs is given, or where nothing has started this process as a rank of a group.
    """
    names = [name for name, value in given.items() if value is not None]
    if not names and has_group():
        return None
    if transport == "curve":
        return opener_from_environment()
    if isinstance(transport, CurveOpener):
        return transport
    if names:
        raise InputError(
            f"`{names[0]}` is for clients that come and go; pass transport=opened(peers, key) of "
            f"gossamer.runtime.transport.curve, got transport={transport!r}."
        )
    return None


def openness(how: Openness | None, patience: float | None, timeout: float, start_timeout: float) -> Openness:
    """How long to wait for others: as `how` says, or by the other settings."""
    if how is None:
        return Openness(patience, timeout, start_timeout)
    if not isinstance(how, Openness):
        raise InputError(f"`open` must be an Openness of gossamer.runtime.open.participant, got {how!r}.")
    if patience is not None:
        raise InputError(f"`patience` is part of `open`; leave out patience={patience!r}, or `open`.")
    return how


class OpenClient(UnderWay):
    """A participant that has begun: its model is the first one, or that of a neighbour."""

    def __init__(
        self,
        method: Algorithm,
        mixing: MixingMatrix,
        x: Tensor,
        opener: CurveOpener,
        *,
        how: Openness,
        join: str | int | None,
        seed: int,
        codec: Codec,
        facts: Settings,
        history: str | os.PathLike[str] | None,
    ) -> None:
        warn_of_gamma(method, x.shape[1], mixing.rho)
        via = None if join is None else opener.find(join)
        settings: Any = {"join": via, "seed": seed, "codec": codec, "facts": str(facts), "history": history}
        try:
            self.participant = Participant(method, mixing, x, opener, how=how, **settings)
        except BaseException:
            opener.leave([])
            raise
        try:
            self.participant.begin()
        except BaseException:
            self.participant.close()
            raise
        self.rank, self.mixing, self.codec = opener.me.client, mixing, codec
        self.session = self.participant.member.session
        self.is_closed = False
        self._stop: int | None = None

    @property
    def present(self) -> set[int]:
        """The clients of this part of the graph, as far as is known."""
        return self.participant.present

    @property
    def should_stop(self) -> bool:
        """Whether this client was asked to stop; the others go on."""
        return self._stop is not None and self.t >= self._stop

    def ask_to_stop(self) -> None:
        """Stop this client after the step under way."""
        self._stop = self.t

    @property
    def sent(self) -> Sent:
        """What was sent so far; on one link is the mean over those that were used."""
        used = [one for one in self.participant.accounts.values() if one.packets_sent]
        packets, total = sum(one.packets_sent for one in used), sum(one.bytes_sent for one in used)
        return Sent(packets // max(1, len(used)), total // max(1, len(used)), total, math.nan)

    @property
    def compression_error(self) -> Tensor | None:
        """The share of its messages that the compressor left out, when it was last measured."""
        return self.session.compression_error

    def accounts(self) -> list[dict[str, float]]:
        """What went over each link."""
        return [account.numbers() for account in self.participant.accounts.values()]

    def listen(self) -> None:
        """Answer neighbours, and those who want to join."""
        self.participant.listen()

    def step(self, oracle: Oracle, lr: float | Tensor, *, measure: bool = False) -> None:
        """One round, with the packets that are there in time."""
        self.participant.step(oracle, lr, measure=measure)
        self.session = self.participant.member.session

    def save(self) -> tuple[dict[str, Tensor], Settings]:
        """Refused."""
        _refuse()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Refused."""
        _refuse()

    def close(self) -> None:
        """After the last round: stay until the neighbours have taken theirs, or are silent."""
        self.is_closed = True
        try:
            self.participant.finish()
        except BaseException:
            self.participant.close()
            raise

    def leave(self) -> None:
        """Leave on purpose: a neighbour takes over what the edges have added to the tracker."""
        self.is_closed = True
        try:
            self.participant.leave()
        except BaseException:
            self.participant.close()
            raise

    def give_up(self, error: BaseException) -> None:
        """End at once, after a failure; the neighbours close their edges and go on."""
        self.is_closed = True
        self.participant.close()


def _refuse() -> NoReturn:
    raise InputError(
        "An open run has no checkpoints, because the edges of a client begin anew with its process; keep the "
        "model's own state_dict(), and come back with a neighbour's model by `join`."
    )
