"""Errors as sentences: what was wrong, the value that was given, and what to do about it.

Every check of an argument goes through a function here, so that one kind of mistake reads the same everywhere.
"""

import contextlib
import difflib
import errno
import math
import os
from collections.abc import Iterable, Iterator
from numbers import Integral, Real

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What the system says when a disk, or what one may use of it, is full."""


class GossamerError(Exception):
    """Anything that Gossamer refuses; the command line prints it as one line and exits with code 2."""


class InputError(GossamerError, ValueError):
    """A bad argument, setting or spec file."""


class DataError(GossamerError):
    """A data file that is missing, damaged or not what it claims to be."""


class CodecError(GossamerError):
    """Bytes that are not a packet, or not the packet that was expected."""


class NonFiniteError(GossamerError):
    """A NaN or an infinity where a method cannot go on; `rows` are the rows that hold one."""

    def __init__(self, sentence: str, rows: list[int]) -> None:
        super().__init__(sentence)
        self.rows = rows


class RunError(GossamerError):
    """A run that could not be finished: no memory, no room on the disk; the command line exits with code 1."""


class StoppedError(RunError):
    """A run that was asked to stop, and can go on."""


class ConvergenceWarning(UserWarning):
    """Steps that are likely too large, or a run whose loss grows."""


def _number(value: object) -> float | None:
    """A finite real number as a float, NumPy's included; None for anything else (a bool is not a number here)."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def check_positive(name: str, value: object) -> float:
    """The value as a float, if it is a finite number above zero."""
    number = _number(value)
    if number is None or number <= 0:
        raise InputError(f"`{name}` must be a number above 0, got {_shown(value)}.")
    return number


def check_unit(name: str, value: object, *, zero: bool = False) -> float:
    """The value as a float, if it is in (0, 1], or in [0, 1] where zero is allowed."""
    number = _number(value)
    if number is None or not 0 <= number <= 1 or (number == 0 and not zero):
        raise InputError(f"`{name}` must be in {'[' if zero else '('}0, 1], got {_shown(value)}.")
    return number


def check_nonnegative(name: str, value: object) -> float:
    """The value as a float, if it is a finite number of zero or more."""
    number = _number(value)
    if number is None or number < 0:
        raise InputError(f"`{name}` must be a number of 0 or more, got {_shown(value)}.")
    return number


def check_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """The value as an int, if it is an integer (NumPy's included) in [low, high]."""
    fits = isinstance(value, Integral) and not isinstance(value, bool)
    if not fits or value < low or (high is not None and value > high):  # type: ignore[operator]
        span = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise InputError(f"`{name}` must be an integer {span}, got {_shown(value)}.")
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_bool(name: str, value: object) -> None:
    """Refuse anything but True or False."""
    if not isinstance(value, bool):
        raise InputError(f"`{name}` must be true or false, got {_shown(value)}.")


def check_path(name: str, value: object) -> None:
    """Refuse anything but a string or a path."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise InputError(f"`{name}` must be a string or a path, got {_shown(value)}.")
    if "\0" in text:
        raise InputError(f"`{name}` must not contain a NUL character, got {_shown(value)}.")


def check_callable(name: str, value: object) -> None:
    """Refuse anything that cannot be called; None stands for no function."""
    if value is not None and not callable(value):
        raise InputError(f"`{name}` must be a function or None, got {_shown(value)}.")


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """A file of a run is written inside; if that fails, the RunError names the file and the cause."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"The run could not be finished: '{os.fspath(path)}' cannot be written: {error.strerror or error}; make "
            "room or choose another folder."
        ) from None


def settle(instance: object, **checked: object) -> None:
    """Put checked values into a frozen dataclass, from its `__post_init__`."""
    for name, value in checked.items():
        object.__setattr__(instance, name, value)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a number too long to print"
    return text if len(text) <= 80 else text[:77] + "..."


def unknown(what: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not there: what there is, and a guess at what was meant."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return InputError(f"There is no {what} {_shown(name)}; there are {', '.join(map(repr, known))}.{guess}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse anything but one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise InputError(f"`{name}` must be one of {', '.join(map(repr, choices))}; got {_shown(value)}.")
