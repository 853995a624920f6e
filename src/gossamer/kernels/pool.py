"""Threads for kernels: rows are split in a fixed way, so that results do not depend on the number of threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import torch

_WORTH = 1 << 18  # numbers from which a second thread pays; waking one costs 20 to 60 microseconds


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="gossamer")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has none of its parent's threads


def split(rows: int, work: float, function: Callable[[int, int], object]) -> None:
    """Call function(begin, end) for all rows: at once if there is little work, else in as many threads as torch has."""
    count = min(rows, torch.get_num_threads()) if work >= _WORTH else 1
    if count <= 1:
        function(0, rows)
        return
    ends = [rows * (k + 1) // count for k in range(count)]
    waiting = [_pool().submit(function, begin, end) for begin, end in pairwise(ends)]
    try:
        function(0, ends[0])
    finally:
        for one in waiting:
            one.result()
