"""Gradients of a problem, round by round, on the minibatches that each client's stream draws."""

from typing import Any

from torch import Tensor

from gossamer.problems.base import Problem
from gossamer.streams import Streams


class BatchOracle:
    """A round's gradients; the minibatch is drawn when it is first asked for, and is the same for the whole round.

    The first gradient of a round moves the clients' buffers; others on the same minibatch do not move them again.
    """

    def __init__(
        self, problem: Problem, streams: Streams, t: int, batch_size: int | None, buffers: dict[str, Tensor]
    ) -> None:
        self.problem, self.streams, self.t, self.batch_size = problem, streams, t, batch_size
        self.buffers, self._before = buffers, buffers
        self._batch: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """On this round's minibatch."""
        if self.batch_size is not None and self._batch is None:
            counts = self.problem.row_counts
            high = self.problem.rows_per_client if counts is None else counts
            self._batch = self.streams.at(self.t, "batch").below(high, self.batch_size)
        return self._gradient(x, self._batch)

    def full(self, x: Tensor) -> Tensor:
        """Over all of each client's rows."""
        return self._gradient(x, None)

    def _gradient(self, x: Tensor, batch: Tensor | None) -> Tensor:
        more: dict[str, Any] = {}
        if self.problem.has_buffers:
            more["buffers"] = {name: buffer.clone() for name, buffer in self._before.items()}
        if self.problem.is_random:
            more["seeds"] = self.streams.at(self.t, "module").seeds()
        gradient = self.problem.gradient(x, batch, **more)
        if more.get("buffers") and self.buffers is self._before:
            self.buffers = more["buffers"]
        return gradient
