"""Events and stop requests between a launcher and its ranks, over private pipes.

A launcher gives its ranks two pipes. Their standard output carries events, one JSON object per line: progress, notes,
how a rank ended. Events need no file, so the launcher also learns of a full disk. Their standard input carries the stop
request, a single byte that one rank reads. It closes when the launcher ends, and then the ranks end too.
"""

import contextlib
import enum
import json
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

logger = logging.getLogger(__name__)

LAUNCHED = "GOSSAMER_LAUNCHED"
"""Environment variable: set if the standard streams of a process belong to a launcher."""
STORE = "GOSSAMER_STORE"
"""Environment variable: the file where the ranks of one host find each other; empty on several hosts."""
KEYS = "GOSSAMER_KEYS"
"""Environment variable: the folder with the keys of a host's ranks and the peers file; empty on one host."""
GRAPH = "GOSSAMER_GRAPH"
"""Environment variable: a digest of the graph, by which ranks tell whether their spec is that of the launcher."""
_STOP = b"s"
_LONGEST_LINE = 4000  # a pipe takes a line of this length in one piece, so lines of several ranks do not mix
_SEND_SECONDS = 5.0


class Kind(enum.StrEnum):
    """What an event is about."""

    PROGRESS = "progress"
    LOSS = "loss"
    """A rank's loss on its last minibatch."""
    NOTE = "note"
    """A message for the user, unless quiet."""
    WARNING = "warning"
    """A message for the user, even when quiet."""
    END = "end"
    """How a rank ended: its sentence and exit code."""
    EXIT = "exit"
    """A process is gone."""
    PEER = "peer"
    """The address and the public key of a rank."""


@dataclass(frozen=True)
class Event:
    """A message from a rank or a host to its launcher."""

    kind: Kind
    rank: int = -1
    sentence: str = ""
    code: int = 0
    label: str = ""
    seed: int = 0
    done: int = 0
    loss: float = math.inf
    """Infinite if it is not known."""

    def line(self) -> bytes:
        """The event as one line of JSON."""
        content = {name: value for name, value in asdict(self).items() if value != _DEFAULTS.get(name)}
        line = json.dumps(content).encode()
        if len(line) > _LONGEST_LINE:
            line = Event(self.kind, self.rank, self.sentence[:500] + " ...", self.code).line()[:-1]
        return line + b"\n"

    @classmethod
    def read(cls, line: bytes) -> "Event | None":
        """The event in a line; None if the line is anything else that was printed."""
        try:
            content = json.loads(line)
            event = cls(**content | {"kind": Kind(content["kind"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return event if all(type(getattr(event, field.name)) is field.type for field in fields(cls)) else None


class Losses:
    """The last minibatch loss of each rank, in the run of which one heard last."""

    def __init__(self) -> None:
        self._run: tuple[str, int] | None = None
        self._known: dict[int, float] = {}

    def note(self, event: Event) -> None:
        """What a rank has told."""
        if (event.label, event.seed) != self._run:
            self._run, self._known = (event.label, event.seed), {}
        if event.loss != math.inf:
            self._known[event.rank] = event.loss

    def mean(self) -> float | None:
        """Over the ranks of which one is known."""
        return sum(self._known.values()) / len(self._known) if self._known else None


_DEFAULTS = {field.name: field.default for field in fields(Event)}


def reading(stream: int, put: Callable[[Event], None]) -> threading.Thread:
    """Start a thread that reads events until the pipe ends, and closes it."""

    def read() -> None:
        with os.fdopen(stream, "rb") as lines:
            for line in lines:
                event = Event.read(line)
                if event is not None:
                    put(event)

    thread = threading.Thread(target=read, name="gossamer-events", daemon=True)
    thread.start()
    return thread


class Launcher:
    """The launcher, seen from a rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.wants_stop = False
        sys.stdout.flush()
        self._events = os.dup(1)
        os.dup2(2, 1)  # other output goes to standard error
        with contextlib.suppress(OSError, AttributeError):  # a frozen launcher must not freeze its ranks
            os.set_blocking(self._events, False)
        threading.Thread(target=self._listen, name="gossamer-launcher", daemon=True).start()

    def send(self, event: Event) -> None:
        """Send an event; progress and losses are dropped while the pipe is full."""
        deadline = time.monotonic() + (0.0 if event.kind in (Kind.PROGRESS, Kind.LOSS) else _SEND_SECONDS)
        while True:
            try:
                os.write(self._events, event.line())
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.01)
            except OSError:  # the launcher is gone
                return

    def _listen(self) -> None:
        while os.read(0, 1):
            self.wants_stop = True
        logger.error("Rank %d ends, because its launcher has ended.", self.rank)
        store, keys = os.environ.get(STORE), os.environ.get(KEYS)
        for folder in [*([Path(store).parent] if store else []), *([Path(keys)] if keys else [])]:
            shutil.rmtree(folder, ignore_errors=True)  # which the launcher can no longer remove
        os._exit(1)


class Lifeline:
    """The launcher's end of its ranks' standard input."""

    def __init__(self) -> None:
        theirs, ours = os.pipe()
        self.theirs, self._ours = os.fdopen(theirs, "rb", buffering=0), os.fdopen(ours, "wb", buffering=0)

    def ask_to_stop(self) -> None:
        """Send the request to one rank; its packets pass it on to its neighbours."""
        with contextlib.suppress(OSError, ValueError):
            self._ours.write(_STOP)

    def end(self) -> None:
        """Close the pipe, as the end of the launcher would: ranks that still run end."""
        self.theirs.close()
        self._ours.close()
