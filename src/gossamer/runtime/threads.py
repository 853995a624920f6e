"""How many threads a run uses: as many as torch was given where the work is large, and one where it is small."""

import contextlib
from collections.abc import Iterator

import torch

from gossamer.kernels.pool import workers
from gossamer.problems.base import Problem

_NUMBERS = 1_000_000  # coordinates of all rows from which a second thread pays in a method's own lines
_OPERATIONS = 30_000_000  # multiplications of a round's gradients, or of an evaluation, from which it pays there
_ROWS = 1 << 13  # data rows that are evaluated in one product, at the most


def is_small(problem: Problem, rows: int, batch_size: int | None) -> bool:
    """Whether a round of so many rows is too small for threads to pay.

    Threads that wait for each other some hundred times per round cost more than they gain, and far more where other
    programs want the processors too: a thread spins until its partner is given one.
    """
    data = problem.rows_per_client if batch_size is None else batch_size
    return rows * problem.d < _NUMBERS and rows * problem.d * data < _OPERATIONS


def is_small_evaluation(problem: Problem) -> bool:
    """Whether the products of an evaluation are too small for threads to pay."""
    data = problem.rows_per_client if problem.rows is None else problem.rows.total
    return problem.models_at_once * min(data, _ROWS) * problem.d < _OPERATIONS


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Have torch use so many threads inside, and as many as before afterwards; None leaves it alone.

    Kernels keep theirs.
    """
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        with workers(before):
            yield
    finally:
        torch.set_num_threads(before)
