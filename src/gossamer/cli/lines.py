"""Lines of text on standard output and standard error, and requests to stop; imports nothing heavy."""

import contextlib
import os
import signal
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from gossamer.errors import ConvergenceWarning


def mend_streams() -> None:
    """Streams may be closed (`>&-`), or know fewer letters than a table has."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="replace")


def complain(sentence: object, code: int) -> int:
    """Say one sentence on standard error, and hand back the exit code."""
    note(f"gossamer: {sentence}")
    return code


def note(text: str) -> None:
    """A line on standard error; whoever closed it does not want it."""
    with contextlib.suppress(OSError, ValueError):
        print(visible(text), file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """Text from a record or a file cannot steer a terminal: signs that are not seen are replaced by one that is."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    kept = (sign in "\n\t" or unicodedata.category(sign) not in hidden for sign in text)
    return "".join(sign if keep else "\N{REPLACEMENT CHARACTER}" for sign, keep in zip(text, kept, strict=True))


def show_warnings_as_lines() -> None:
    """Have a warning about a run be one line, without the place in the code that gave it."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ConvergenceWarning):
            note(f"gossamer: {message}")
        else:
            others(message, category, *where, **more)

    warnings.showwarning = show


@contextlib.contextmanager
def results() -> Iterator[None]:
    """Printing to standard output, whose reader may leave, as in `gossamer methods | head -1`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _StopRequest:
    """Whether someone asked the program to stop, and by which signal."""

    signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None


stop_request = _StopRequest()


@contextlib.contextmanager
def stop_signals(*, loud: bool = True) -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask politely: the round is finished and a checkpoint written. A second one does not ask."""
    stop_request.signal = None
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: object) -> None:
        stop_request.signal = number
        for one, handler in before.items():
            signal.signal(one, handler)
        if loud:
            note("gossamer: finishing the round; once more to stop at once.")

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop_request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
