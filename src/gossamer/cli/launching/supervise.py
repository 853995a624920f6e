"""Supervision of a launch until all ranks have ended: progress, stop requests, failures and restarts."""

import contextlib
import queue
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gossamer.cli.launching.events import Event, Kind
from gossamer.cli.launching.fleet import Fleet

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 3.0  # for other ranks to report a failure, after the first rank has ended


@dataclass
class LaunchOutcome:
    """How one attempt to run all ranks ended."""

    ends: dict[int, Event] = field(default_factory=dict)
    """The `END` events, by rank."""
    codes: dict[int, int] = field(default_factory=dict)
    """Exit codes by rank; -1 for torchrun."""
    killed: set[int] = field(default_factory=set)
    """Ranks that the launcher killed after a failure."""
    was_asked: bool = False
    """Whether someone asked the run to stop."""

    @property
    def is_good(self) -> bool:
        """Whether every process ended without an error."""
        return not any(self.codes.values())

    @property
    def is_refused(self) -> bool:
        """Whether the input was refused, so that a restart would fail in the same way."""
        return any(event.code == 2 for event in self.ends.values())

    def crashes(self) -> list[str]:
        """A sentence for each rank that failed without an `END` event."""
        found = []
        for rank, code in sorted(self.codes.items()):
            if code == 0 or rank in self.ends or rank in self.killed:
                continue
            who = f"Rank {rank}" if rank >= 0 else "torchrun"
            how = f"ended with exit code {code}"
            if code < 0:
                with contextlib.suppress(ValueError):
                    how = f"was ended by {signal.Signals(-code).name}"
            found.append(f"{who} {how}.")
        return found


def supervise(
    fleet: Fleet,
    restarts: int,
    show: Callable[[Event], None],
    should_stop: Callable[[], bool],
    note: Callable[[str], None],
) -> LaunchOutcome:
    """Run until every rank has ended; if one fails, restart all of them, at most `restarts` times.

    `show` receives progress and notes, and `note` a sentence per restart.
    """
    for attempt in range(restarts + 1):
        outcome = _attempt(fleet, attempt, show, should_stop)
        if outcome.is_good or outcome.is_refused or outcome.was_asked or attempt == restarts:
            break
        reasons = [*outcome.crashes(), *(end.sentence for end in outcome.ends.values())]
        note(f"{reasons[0]} All ranks start again from their checkpoints ({attempt + 1} of {restarts} restarts).")
    return outcome


def _attempt(
    fleet: Fleet, attempt: int, show: Callable[[Event], None], should_stop: Callable[[], bool]
) -> LaunchOutcome:
    outcome = LaunchOutcome()
    failed_at: float | None = None
    is_running, is_killed = True, False

    def handle(event: Event) -> None:
        nonlocal failed_at
        if event.kind in (Kind.PROGRESS, Kind.LOSS, Kind.NOTE, Kind.WARNING):
            show(event)
            return
        if event.kind is Kind.END:
            outcome.ends[event.rank] = event
        elif event.kind is Kind.EXIT:
            outcome.codes[event.rank] = event.code
            if is_killed:
                outcome.killed.add(event.rank)
        if event.code and failed_at is None and not fleet.restarts_itself:
            failed_at = time.monotonic()

    def handle_all(seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            handle(fleet.events.get(timeout=seconds))
            while True:
                handle(fleet.events.get_nowait())

    try:
        fleet.start(attempt)
        while is_running:
            is_running = fleet.poll()
            handle_all(_POLL_SECONDS if is_running else 0)
            if should_stop() and not outcome.was_asked:
                outcome.was_asked = True
                fleet.ask_to_stop()
            if failed_at is not None and time.monotonic() > failed_at + _GRACE_SECONDS and not is_killed:
                is_killed = True
                fleet.kill()
    finally:
        fleet.end()
    handle_all(0)
    return outcome
