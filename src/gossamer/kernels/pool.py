"""Threads for kernels: rows are split in a fixed way, so that results do not depend on the number of threads.

Kernels that are noted can be called again as a chain: some rows go through all of them while they are in the cache.
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

Array = np.ndarray[Any, Any]
_WORTH = 1 << 17  # numbers from which a second thread pays; waking one costs 20 to 60 microseconds


class Call(NamedTuple):
    """A kernel on all of its rows."""

    rows: int
    work: float
    """Numbers to compute."""
    function: Callable[[int, int], bool | None]
    """Takes a range of rows; says whether all is well, if it knows."""
    across: tuple[Array, Array] | None = None
    """Of a kernel that reads other rows than its own: what it reads so, and what it writes."""
    is_blas: bool = False
    """Whether it calls a BLAS, which must then keep to one thread."""
    kernels: int = 1
    """How many it consists of: threads take turns in the Python between them."""

    def run(self) -> bool:
        """At once if there is little work, else in as many threads as torch has, or as `workers` says.

        Returns whether all is well.
        """
        with blas().limit(limits=1) if self.is_blas else contextlib.nullcontext():
            return self._run()

    def _run(self) -> bool:
        count = min(self.rows, _most.get() or torch.get_num_threads()) if self.work >= _WORTH * self.kernels else 1
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


def split(
    rows: int,
    work: float,
    function: Callable[[int, int], bool | None],
    across: tuple[Array, Array] | None = None,
    *,
    is_blas: bool = False,
) -> bool:
    """Call function(begin, end) for all rows, and say whether all is well; see `Call`."""
    call, recorded = Call(rows, work, function, across, is_blas), _recorded.get()
    if recorded is not None:
        recorded.append(call)
    return call.run()


def finite(numbers: Array) -> Callable[[int, int], bool]:
    """Whether some rows are finite, and so is their sum."""
    return lambda begin, end: bool(np.isfinite(numbers[begin:end].sum()))


_AT_ONCE = 1 << 15  # numbers that go through a chain at once


def chained(calls: Sequence[Call]) -> list[Call]:
    """The same work in fewer calls: kernels in a row that need only their own rows become one.

    No two of them may write to the same memory.
    """
    chains: list[list[Call]] = []
    for call in calls:
        if not chains or not _can_follow(chains[-1], call):
            chains.append([])
        chains[-1].append(call)
    return [chain[0] if len(chain) == 1 else _chain(chain) for chain in chains]


def _can_follow(chain: list[Call], call: Call) -> bool:
    """Whether all rows that a call reads are there when the chain has done the same rows."""
    if call.rows != chain[0].rows:
        return False
    if call.across is None:
        return True
    return all(one.across and not np.may_share_memory(one.across[1], call.across[0]) for one in chain)


def _chain(chain: list[Call]) -> Call:
    rows, functions = chain[0].rows, [one.function for one in chain]
    many = max(1, int(_AT_ONCE * rows / max(1, *(one.work for one in chain if not one.is_blas))))

    def run(begin: int, end: int) -> bool:
        for first in range(begin, end, many):
            last = min(end, first + many)
            for function in functions:
                if function(first, last) is False:
                    return False
        return True

    work, is_blas = sum(one.work for one in chain), any(one.is_blas for one in chain)
    return Call(rows, work, run, is_blas=is_blas, kernels=len(chain))


@cache
def blas() -> Any:
    """The controller of NumPy's and SciPy's BLAS; cached because finding them takes milliseconds."""
    importlib.import_module("scipy.linalg.cython_blas")  # whose functions numba calls
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(internal_api="openblas")


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="gossamer")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has none of its parent's threads
