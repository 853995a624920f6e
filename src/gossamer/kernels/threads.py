"""Divide rows among threads."""

from collections.abc import Callable


def split(rows: int, work: float, fn: Callable[[int, int], None]) -> None:
    """Call `fn(begin, end)` on ranges that cover the rows; `work` is the number of operations."""
    fn(0, rows)
