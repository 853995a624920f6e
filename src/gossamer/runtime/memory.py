"""Keeping the memory that arrays leave behind."""

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt, in malloc.h


@cache
def keep_freed_memory() -> None:
    """Let the process keep what it frees, where the C library is glibc.

    A round replaces arrays with others of the same size. By default glibc hands large ones back to the system, which
    clears every page of the next: 0.2 ms a MiB, as much as computing what goes into it.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
