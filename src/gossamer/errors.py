"""Error classes, and argument checks whose messages show the value and the valid range.

All argument checks go through these functions, so that the same mistake gives the same message everywhere.
"""

import difflib
import errno
import math
import os
from collections.abc import Iterable
from numbers import Integral, Real

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Error codes of a full disk or an exhausted quota."""


class GossamerError(Exception):
    """Base class of Gossamer's errors; the command line prints one line and exits with code 2."""


class InputError(GossamerError, ValueError):
    """A bad argument, setting or spec file."""


class DataError(GossamerError):
    """A data file is missing, damaged or of another format."""


class CodecError(GossamerError):
    """Bytes are not a packet, or not the expected packet."""


class NonFiniteError(GossamerError):
    """A NaN or an infinity stops a method; `rows` lists the affected rows."""

    def __init__(self, sentence: str, rows: list[int]) -> None:
        super().__init__(sentence)
        self.rows = rows


class RunError(GossamerError):
    """A run failed, for lack of memory or disk space for example; the command line exits with code 1."""


class StoppedError(RunError):
    """A run was asked to stop; it can be resumed."""


class ConvergenceWarning(UserWarning):
    """The step sizes are probably too large, or the loss of a run grows."""


class TrackerWarning(UserWarning):
    """A tracker failed; the run goes on without it."""


def _number(value: object) -> float | None:
    """Convert a finite real number to float; None for anything else, booleans included."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def check_positive(name: str, value: object) -> float:
    """Return the value as a float; refuse anything but a finite number above zero."""
    number = _number(value)
    if number is None or number <= 0:
        raise InputError(f"`{name}` must be a number above 0, got {_shown(value)}.")
    return number


def check_unit(name: str, value: object, *, zero: bool = False) -> float:
    """Return the value as a float; refuse anything outside (0, 1], or [0, 1] where zero is allowed."""
    number = _number(value)
    if number is None or not 0 <= number <= 1 or (number == 0 and not zero):
        raise InputError(f"`{name}` must be in {'[' if zero else '('}0, 1], got {_shown(value)}.")
    return number


def check_nonnegative(name: str, value: object) -> float:
    """Return the value as a float; refuse anything but a finite number of zero or more."""
    number = _number(value)
    if number is None or number < 0:
        raise InputError(f"`{name}` must be a number of 0 or more, got {_shown(value)}.")
    return number


def check_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return the value as an int; refuse anything but an integer (NumPy's included) in [low, high]."""
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
    """Refuse anything but a function or None."""
    if value is not None and not callable(value):
        raise InputError(f"`{name}` must be a function or None, got {_shown(value)}.")


def settle(instance: object, **checked: object) -> None:
    """Assign checked values to fields of a frozen dataclass, in its `__post_init__`."""
    for name, value in checked.items():
        object.__setattr__(instance, name, value)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a number too long to print"
    return text if len(text) <= 80 else text[:77] + "..."


def unknown(kind: str, name: object, known: Iterable[str], owner: str | None = None) -> InputError:
    """The error for an unknown name: the valid names, and a guess at which one was meant.

    >>> print(unknown("setting", "bit", ["bits"], owner="Compressor 'gsgd'"))
    Compressor 'gsgd' has no setting 'bit'; valid settings: 'bits'. Did you mean 'bits'?
    """
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    start = f"Unknown {kind}" if owner is None else f"{owner} has no {kind}"
    return InputError(f"{start} {_shown(name)}; valid {kind}s: {', '.join(map(repr, known))}.{guess}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse anything but one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise InputError(f"`{name}` must be one of {', '.join(map(repr, choices))}; got {_shown(value)}.")
