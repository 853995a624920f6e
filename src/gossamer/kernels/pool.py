"""Threads for kernels: rows are split in a fixed way, so that results do not depend on the number of threads."""

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch

_WORTH = 1 << 17  # numbers from which a second thread pays; waking one costs 20 to 60 microseconds


class Call(NamedTuple):
    """A kernel on all of its rows."""

    rows: int
    work: float
    """Numbers to compute."""
    function: Callable[[int, int], bool | None]
    """Takes a range of rows; says whether all is well, if it knows."""

    def run(self) -> bool:
        """At once if there is little work, else in as many threads as torch has, or as `workers` says.

        Returns whether all is well.
        """
        count = min(self.rows, _most.get() or torch.get_num_threads()) if self.work >= _WORTH else 1
        if count <= 1:
            return self.function(0, self.rows) is not False
        ends = [self.rows * (k + 1) // count for k in range(count)]
        waiting = [_pool().submit(self.function, begin, end) for begin, end in pairwise(ends)]
        try:
            first = self.function(0, ends[0])
        finally:
            others = [one.result() for one in waiting]
        return first is not False and False not in others


_most: ContextVar[int | None] = ContextVar("most", default=None)


@contextlib.contextmanager
def workers(count: int) -> Iterator[None]:
    """Let kernels use so many threads inside, however many torch uses: theirs do not spin while they wait."""
    token = _most.set(count)
    try:
        yield
    finally:
        _most.reset(token)


_recorded: ContextVar[list[Call] | None] = ContextVar("recorded", default=None)


@contextlib.contextmanager
def recording(calls: list[Call]) -> Iterator[None]:
    """Note every kernel that runs inside: called again, they repeat the work in the same memory."""
    token = _recorded.set(calls)
    try:
        yield
    finally:
        _recorded.reset(token)


def is_recording() -> bool:
    """Whether kernels are being noted."""
    return _recorded.get() is not None


def split(rows: int, work: float, function: Callable[[int, int], bool | None]) -> bool:
    """Call function(begin, end) for all rows, and say whether all is well."""
    call, recorded = Call(rows, work, function), _recorded.get()
    if recorded is not None:
        recorded.append(call)
    return call.run()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="gossamer")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has none of its parent's threads
