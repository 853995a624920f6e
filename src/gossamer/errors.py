"""Errors as sentences: what was wrong, the value that was given, and what to do about it.

Every check of an argument goes through a function here, so that one kind of mistake reads the same everywhere.
"""

import difflib
import math
import os
from collections.abc import Iterable


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


def is_real(value: object) -> bool:
    """Whether `value` is a finite int or float (a bool is not a number here)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_positive(name: str, value: object) -> None:
    """Refuse anything but a finite number above zero."""
    if not is_real(value) or not value > 0:  # type: ignore[operator]
        raise InputError(f"`{name}` must be a number above 0, got {value!r}.")


def check_unit(name: str, value: object) -> None:
    """Refuse anything but a number in (0, 1]."""
    if not is_real(value) or not 0 < value <= 1:  # type: ignore[operator]
        raise InputError(f"`{name}` must be in (0, 1], got {value!r}.")


def check_nonnegative(name: str, value: object) -> None:
    """Refuse anything but a finite number of zero or more."""
    if not is_real(value) or not value >= 0:  # type: ignore[operator]
        raise InputError(f"`{name}` must be a number of 0 or more, got {value!r}.")


def check_bool(name: str, value: object) -> None:
    """Refuse anything but True or False."""
    if not isinstance(value, bool):
        raise InputError(f"`{name}` must be true or false, got {value!r}.")


def check_path(name: str, value: object) -> None:
    """Refuse anything but a string or a path."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"`{name}` must be a string or a path, got {value!r}.")


def check_integer(name: str, value: object, low: int, high: int | None = None, *, why: str = "") -> None:
    """Refuse anything but an integer in [low, high]; `why` is a sentence that explains a bound."""
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or value < low or (high is not None and value > high):  # type: ignore[operator]
        span = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise InputError(f"`{name}` must be an integer {span}, got {value!r}." + (f" {why}" if why else ""))


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse anything but one of `choices`, with a guess at what was meant."""
    choices = list(choices)
    if value not in choices:
        close = difflib.get_close_matches(str(value), choices, n=1)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        listed = ", ".join(repr(c) for c in choices)
        raise InputError(f"`{name}` must be one of {listed}; got {value!r}.{guess}")
