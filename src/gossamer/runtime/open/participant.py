"""A member on a network: it waits for late neighbours as long as it is told, and goes on without those that are gone.

participant = Participant(method, mixing, x, opened("peers.toml", "key.secret"), how=Openness(patience=2.0))
participant.begin()
while participant.t < rounds:
    participant.step(oracle, lr)
participant.finish()
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.round import Oracle
from gossamer.errors import NonFiniteError, RunError, StoppedError, check_choice, check_positive
from gossamer.runtime.open.control import Closed, Done
from gossamer.runtime.open.conversation import Conversation
from gossamer.runtime.open.history import Step
from gossamer.runtime.open.member import Member
from gossamer.runtime.open.terms import Contents
from gossamer.runtime.transport.base import Account
from gossamer.runtime.transport.curve import CurveOpener
from gossamer.topology import Mixing

logger = logging.getLogger("gossamer.open")
_POLL = 0.1
_ASLEEP = 2.0  # seconds without a look at the clock: this process itself stood still


@dataclass(frozen=True)
class Openness:
    """How long to wait for others."""

    patience: float | None = None
    """Seconds that a step waits for late neighbours; None waits until they have come or are gone."""
    gone_after: float = 30.0
    """Seconds of silence after which a neighbour is gone."""
    start_timeout: float = 300.0
    """Seconds for the first neighbours to appear."""
    apart: Literal["continue", "wait"] = "continue"
    """What to do where the graph falls apart."""

    def __post_init__(self) -> None:
        if self.patience is not None:
            check_positive("patience", self.patience)
        check_positive("gone_after", self.gone_after)
        check_positive("start_timeout", self.start_timeout)
        check_choice("apart", self.apart, ("continue", "wait"))


class Participant:
    """A client of an open run. Call `begin`, then `step` once per round, then `finish` or `leave`."""

    def __init__(
        self,
        method: Algorithm,
        mixing: Mixing,
        x: Tensor,
        opener: CurveOpener,
        *,
        how: Openness | None = None,
        should_leave: Callable[[], bool] = lambda: False,
        **settings: Any,
    ) -> None:
        """`settings` are those of `Conversation`: join, seed, codec, facts and history.

        Where `should_leave` says so, nothing is waited for any more.
        """
        self.how, self._should_leave = how or Openness(), should_leave
        self._talk = Conversation(method, mixing, x, opener, silence=self.how.gone_after, **settings)
        self.client, self.run = self._talk.client, self._talk.run
        self.waited = 0.0
        """Seconds that steps waited for packets."""
        self._looked = self._awake = time.monotonic()

    @property
    def member(self) -> Member:
        """The method's part."""
        return self._talk.member

    @property
    def t(self) -> int:
        """Rounds done."""
        return self.member.t

    @property
    def present(self) -> set[int]:
        """The clients of this part of the graph, as far as is known."""
        return self._talk.members.reachable()

    def begin(self) -> None:
        """Wait for neighbours: for the model of one, when joining; else until all that are expected are there.

        Where the neighbour by which this client was to join does not answer in `gone_after` seconds, any other will do.
        """
        talk, begun = self._talk, time.monotonic()
        limit = begun + self.how.start_timeout
        while time.monotonic() < limit:
            self._listen(_POLL)
            if self._should_leave():
                raise StoppedError(f"Client {self.client} was stopped before its first round.")
            if talk.waits_for_model:
                if talk.via is not None and time.monotonic() > begun + self.how.gone_after:
                    logger.warning("Client %d gives no model; that of any other neighbour will do.", talk.via)
                    talk.via = None
                continue
            is_whole = len(self.member.edges) == len(talk.links.links)
            # Where the run is under way, others open their edges when they come.
            if is_whole or (not talk.began_at_start and self.member.edges):
                talk.has_begun = True
                return
        if talk.waits_for_model or not self.member.edges:
            reasons = "; ".join(
                f"client {j}: {talk.neighbors[j].refused or link.why_not_connected}"
                for j, link in talk.links.links.items()
            )
            raise RunError(
                f"Client {self.client} found no neighbour within {self.how.start_timeout:g} s "
                f"({reasons or 'the peers file has none'})."
            )
        talk.has_begun = True

    @property
    def accounts(self) -> Mapping[int, Account]:
        """What went over each possible edge, by neighbour; `hidden` is not counted."""
        return self._talk.accounts

    def step(self, oracle: Oracle, lr: float | Tensor, *, measure: bool = False) -> None:
        """One round, with the packets that are there in time."""
        packets = self._collect()
        try:
            sent = self.member.step(oracle, lr, packets, measure=measure)
        except NonFiniteError:
            method = self.member.method
            raise RunError(
                f"{method.info.title} diverged in round {self.t + 1}: the model of client {self.client} is no longer "
                f"finite; {method.remedy()}."
            ) from None
        self._talk.note(Step(tuple(sorted(packets))))
        self._talk.send_terms(sent)

    def listen(self) -> None:
        """Take in what has come, without a round: others need not wait for an answer while this client computes."""
        self._listen(0.0)

    def leave(self, timeout: float = 10.0) -> None:
        """Leave on purpose: a neighbour takes over what the edges have added to the tracker."""
        limit = time.monotonic() + timeout
        while self._missing(also_late=True) and time.monotonic() < limit:
            self._listen(_POLL)
        for j in [j for j in self.member.waiting if not self._talk.neighbors[j].packets]:
            self._talk.close(j, "did not answer when we left")
        self._talk.leave()
        self._talk.end()

    def finish(self) -> None:
        """After the last round: say so, and stay until the neighbours have taken theirs, or are silent."""
        talk = self._talk
        talk.is_over = True
        for j, edge in self.member.edges.items():
            talk.links.send(j, Done(edge.number))
        limit = time.monotonic() + self.how.gone_after
        while time.monotonic() < limit and not all(talk.neighbors[j].is_done for j in self.member.edges):
            self._listen(_POLL)
        talk.end()

    def close(self) -> None:
        """End at once: the neighbours need not wait until this client is silent."""
        self._talk.is_over = True
        for j, edge in self.member.edges.items():
            self._talk.links.send(j, Closed(edge.number))
        self._talk.end()

    def _collect(self) -> dict[int, Contents]:
        """The packets that this step applies."""
        asked = time.monotonic()
        self._listen(0.0)
        while self._talk.cut_off and self.how.apart == "wait" and not self._should_leave():
            self._listen(_POLL)
        while (missing := self._missing(also_late=self._is_deserted())) and not self._should_leave():
            left = math.inf if self.how.patience is None else asked + self.how.patience - time.monotonic()
            if left <= 0:
                for j in [j for j in missing if not self._talk.neighbors[j].is_late]:
                    self._talk.neighbors[j].is_late = True
                    logger.info("Client %d is late in round %d; the step goes on without it.", j, self.t)
                break
            before = time.monotonic()
            self._listen(min(left, _POLL))
            for j in missing:
                self.accounts[j].waiting += (time.monotonic() - before) / len(missing)
        self.waited += time.monotonic() - asked
        return self._talk.there(self.member.waiting)

    def _is_deserted(self) -> bool:
        """Whether every neighbour is late: without a wait, this client would run ahead alone."""
        known = [self._talk.neighbors[j] for j in self.member.edges]
        return all(one.is_late for one in known)

    def _missing(self, *, also_late: bool = False) -> list[int]:
        """The neighbours whose packet must be waited for."""
        known = self._talk.neighbors
        return [
            j
            for j in self.member.waiting
            if not known[j].packets and not known[j].is_done and (also_late or not known[j].is_late)
        ]

    def _listen(self, timeout: float) -> None:
        """Take in what has come, wait for more at most so long, and look who is silent."""
        talk, heard = self._talk, self._talk.links.next(timeout)
        while heard is not None:
            talk.take(heard.neighbor, heard.said)
            heard = talk.links.next(0.0)
        now = time.monotonic()
        if now - self._looked > _ASLEEP:
            self._awake = now  # we stood still, and nothing can be said of others
        self._looked = now
        for j in list(self.member.edges):
            silent = min(talk.links.silence(j), now - self._awake)
            if j in talk.links.banned or j not in talk.links.links:
                talk.close(j, talk.links.banned.get(j, "has no longer a key in the peers file"))
            elif silent > self.how.gone_after and not talk.neighbors[j].is_done:
                talk.close(j, f"was silent for {silent:.0f} s")
        talk.look()
