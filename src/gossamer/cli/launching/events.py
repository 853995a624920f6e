"""What ranks and their launcher say to each other, over pipes that only they hold.

A launcher gives its ranks two pipes. Their standard output carries events, one JSON object per line: how far a run is,
what is worth a note, how a rank ended. So the launcher learns of a full disk, which no file could tell. Their standard
input carries the stop request, a single byte that any one rank reads; it ends when the launcher does, and then so do
the ranks.
"""

import contextlib
import json
import logging
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
"""The variable that tells a process that its standard streams are those of a launcher."""
STORE = "GOSSAMER_STORE"
"""The variable that says where ranks find each other: a file, or tcp://HOST:PORT."""
_STOP = b"s"
_LONGEST_LINE = 4000  # what a pipe takes as a whole, so that the lines of several ranks do not mix
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Event:
    """One line of a rank, of a host, or of the launcher's own making."""

    kind: str
    """progress, note, end (with the sentence and exit code), exit (the process is gone), store, failed."""
    rank: int = -1
    sentence: str = ""
    code: int = 0
    label: str = ""
    seed: int = 0
    done: int = 0

    def line(self) -> bytes:
        """As it travels."""
        said = {name: value for name, value in asdict(self).items() if value != _DEFAULTS.get(name)}
        line = json.dumps(said).encode()
        if len(line) > _LONGEST_LINE:
            line = Event(self.kind, self.rank, self.sentence[:500] + " ...", self.code).line()[:-1]
        return line + b"\n"

    @classmethod
    def read(cls, line: bytes) -> "Event | None":
        """The event in a line, or None for anything else that was printed."""
        try:
            said = json.loads(line)
            event = cls(**said)
        except (ValueError, TypeError, RecursionError):
            return None
        kinds = {field.name: field.type for field in fields(cls)}
        return event if all(type(value) is kinds[name] for name, value in said.items()) else None


_DEFAULTS = {field.name: field.default for field in fields(Event)}


def reading(stream: int, put: Callable[[Event], None]) -> threading.Thread:
    """A thread that reads events until the pipe ends, and closes it."""

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
    """The launcher, as its rank sees it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.wants_stop = False
        sys.stdout.flush()
        self._events = os.dup(1)
        os.dup2(2, 1)  # whatever else prints must not come between
        with contextlib.suppress(OSError, AttributeError):  # so that a launcher that is frozen does not freeze us
            os.set_blocking(self._events, False)
        threading.Thread(target=self._listen, name="gossamer-launcher", daemon=True).start()

    def tell(self, event: Event) -> None:
        """Say something; progress that there is no room for is left out."""
        deadline = time.monotonic() + (0.0 if event.kind == "progress" else _PATIENCE_SECONDS)
        while True:
            try:
                os.write(self._events, event.line())
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.01)
            except OSError:  # nobody listens
                return

    def _listen(self) -> None:
        while os.read(0, 1):
            self.wants_stop = True
        logger.error("Rank %d ends, because its launcher has ended.", self.rank)
        store = os.environ.get(STORE, "")
        if store and "://" not in store:
            shutil.rmtree(Path(store).parent, ignore_errors=True)  # the launcher's, which cannot do it any more
        os._exit(1)


class Lifeline:
    """The launcher's end of its ranks' standard input."""

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()

    def ask_to_stop(self) -> None:
        """Have one rank read the request; its neighbours learn of it from its packets."""
        with contextlib.suppress(OSError):
            os.write(self._ours, _STOP)

    def started(self) -> None:
        """All ranks have their end."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def end(self) -> None:
        """What the end of the launcher would do, too: ranks that still run end now."""
        self.started()
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1
