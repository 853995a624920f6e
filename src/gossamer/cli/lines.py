"""Text on standard output and standard error, and stop requests; imports nothing heavy."""

import contextlib
import json
import os
import signal
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from gossamer.errors import ConvergenceWarning, TrackerWarning


def mend_streams() -> None:
    """Make printing safe where a stream is closed (`>&-`) or cannot encode a character."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (stays open)
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="replace")


def complain(sentence: object, code: int) -> int:
    """Print an error message to standard error, and return the exit code."""
    note(f"gossamer: {sentence}")
    return code


def note(text: str) -> None:
    """Print a line to standard error, if it is open."""
    with contextlib.suppress(OSError, ValueError):
        print(visible(text), file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """Replace control and invisible characters, so that text from a file cannot control the terminal."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    kept = (sign in "\n\t" or unicodedata.category(sign) not in hidden for sign in text)
    return "".join(sign if keep else "\N{REPLACEMENT CHARACTER}" for sign, keep in zip(text, kept, strict=True))


def show_warnings_as_lines() -> None:
    """Print Gossamer's own warnings as one line, without their place in the code."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ConvergenceWarning | TrackerWarning):
            note(f"gossamer: {message}")
        else:
            others(message, category, *where, **more)

    warnings.showwarning = show


def show(text: object) -> None:
    """Print a result to standard output."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        ignore_closed_pipe()


def show_json(content: object, **settings: Any) -> int:
    """Print a result as JSON, and return the exit code."""
    show(json.dumps(content, indent=2, **{"allow_nan": False} | settings))
    return 0


def ignore_closed_pipe() -> None:
    """Drop further output: a reader that closes the pipe, as `head -1` does, is no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _StopRequest:
    """Whether the program was asked to stop, and by which signal."""

    signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None


stop_request = _StopRequest()


@contextlib.contextmanager
def stop_signals(*, loud: bool = True) -> Iterator[Callable[[], bool]]:
    """At the first Ctrl-C or SIGTERM, finish the round and write a checkpoint; at the second one, end at once."""
    stop_request.signal = None
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: object) -> None:
        stop_request.signal = number
        for one, handler in before.items():
            signal.signal(one, handler)
        if loud:
            note("gossamer: finishing the round; press again to stop at once.")

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop_request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
