"""Where gradients come from: minibatches as each client's stream draws them, local steps, or a user's training loop."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.algorithms.round import Oracle, Samples, Taken
from gossamer.errors import InputError
from gossamer.kernels import begin, tensors
from gossamer.problems.base import Problem
from gossamer.runtime.gradients.local import LocalSteps, Steps
from gossamer.streams import Streams

Extras = dict[str, Any]
"""What a problem takes beside models and rows."""


class BatchOracle(Oracle):
    """A round's gradients; the minibatch is drawn when it is first asked for, and is the same for the whole round.

    The first gradient of a round moves the clients' buffers; others on the same minibatch do not move them again.
    """

    def __init__(
        self, problem: Problem, streams: Streams, t: int | Tensor, batch_size: int | None, buffers: dict[str, Tensor]
    ) -> None:
        self.problem, self.streams, self.t, self.batch_size = problem, streams, t, batch_size
        self.buffers, self._before = buffers, buffers
        self._batches: dict[str, Tensor] = {}
        self.asked: list[tuple[Tensor, Tensor | None]] | None = None
        """Set it to a list before a round whose loss is wanted: it gets the point and the rows of each gradient."""

    def __call__(self, x: Tensor) -> Tensor:
        """On this round's minibatch."""
        return begin(self._gradient(x, self._minibatch()))

    def full(self, x: Tensor) -> Tensor:
        """Over all of each client's rows."""
        return self._gradient(x, None)

    def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> Samples:
        """Row by row: each data row is a batch of its own, and they all stand beside one another like seeds."""
        problem, rows = self.problem, None if whole else self._minibatch(purpose)
        if self.asked is not None:
            self.asked.append((x, rows))
        if problem.has_buffers or problem.is_random or problem.least_batch > 1:
            raise InputError("Batch norm and dropout do not allow the gradient of a single data row.")
        counts = problem.row_counts
        counts = torch.full((problem.clients,), problem.rows_per_client) if counts is None else counts
        counts = counts.to(x.device).repeat(len(x) // problem.clients)[:, None]
        if rows is None:
            rows = torch.arange(int(counts.max()), device=x.device).expand(len(x), -1)
        own = torch.minimum(rows, counts - 1)
        each = problem.gradient(x.repeat(rows.shape[1], 1), own.T.reshape(-1, 1)).view(rows.shape[1], *x.shape)
        is_there = rows < counts
        gradients = torch.where(is_there[..., None], each.transpose(0, 1), 0)
        return Samples(rows, gradients, is_there.sum(dim=1, keepdim=True), counts)

    def _minibatch(self, purpose: str = "batch") -> Tensor | None:
        if self.batch_size is not None and purpose not in self._batches:
            self._batches[purpose] = self._drawn(purpose, self.batch_size)
        return self._batches.get(purpose)

    def _drawn(self, purpose: str, rows: int) -> Tensor:
        counts = self.problem.row_counts
        high = self.problem.rows_per_client if counts is None else counts
        return self.streams.at(self.t, purpose).below(high, rows)

    def loss(self) -> float | None:
        """The mean loss over clients where the round asked for its first gradient, and on the rows that it had there.

        With local steps, that is before the first step. It takes a forward pass; None where the problem has no
        `batch_loss`, or the round took no such gradient.
        """
        if not self.asked:
            return None
        x, batch = self.asked[0]
        losses = self.problem.batch_loss(x, batch, **self._extras())
        return None if losses is None else float(losses.double().mean())

    def _extras(self) -> Extras:
        """What a problem takes beside models and rows: copies of the buffers, and seeds."""
        more: Extras = {}
        if self.problem.has_buffers:
            more["buffers"] = {name: buffer.clone() for name, buffer in of_module(self._before).items()}
        if self.problem.is_random:
            more["seeds"] = self.streams.at(self.t, "module").seeds()
        return more

    def _gradient(self, x: Tensor, batch: Tensor | None) -> Tensor:
        if self.asked is not None:
            self.asked.append((x, batch))
        more = self._extras()
        gradient = self.problem.gradient(x, batch, **more)
        if more.get("buffers") and self.buffers is self._before:
            self.buffers = more["buffers"]
        return gradient


class LocalOracle(BatchOracle):
    """The sum of local steps in place of a gradient; each step has a minibatch of its own.

    The moments of the optimiser are kept beside the clients' buffers.
    """

    def __init__(self, local: LocalSteps, *given: Any) -> None:
        super().__init__(*given)
        self._local, self._is_taken = local, False

    def __call__(self, x: Tensor) -> Tensor:
        """x minus where the local steps lead from it."""
        return self._taken(x, None).change

    def corrected(self, x: Tensor, correction: Tensor) -> Taken:
        """The same, where each gradient has the correction added to it."""
        return self._taken(x, tensors(begin(correction).to(x))[0])

    def _taken(self, x: Tensor, correction: Tensor | None) -> Taken:
        if self._is_taken:
            raise InputError(
                "Local steps take the place of one gradient per round, but the method asks for several; use BEER or "
                "CHOCO-SGD, say."
            )
        self._is_taken = True
        problem, many, b = self.problem, self._local.steps, self.batch_size
        own = {name: buffer.clone() for name, buffer in of_module(self._before).items()}
        drawn = None if b is None else self._drawn("batch", many * b)
        seeds = self.streams.at(self.t, "module").seeds() if problem.is_random else None
        if self.asked is not None:
            self.asked.append((x, None if drawn is None else drawn[:, :b]))

        def gradient(y: Tensor, k: int) -> Tensor:
            more: Extras = {"buffers": own} if problem.has_buffers else {}
            more |= {} if seeds is None else {"seeds": seeds + k}
            return problem.gradient(y, drawn if drawn is None or b is None else drawn[:, k * b : (k + 1) * b], **more)

        shapes = getattr(problem, "named_shapes", {"": torch.Size([problem.d])})
        steps = Steps(self._local, x, shapes, moments(self._before), int(self.t) * many)
        taken = steps.taken(gradient, correction)
        self.buffers = own | {_MOMENTS + name: tensor for name, tensor in steps.moments.items()}
        return taken

    def full(self, x: Tensor) -> Tensor:
        """Refused."""
        raise InputError("Local steps replace minibatch gradients, but the method asks for full gradients.")

    def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> Samples:
        """Refused."""
        raise InputError("Local steps replace minibatch gradients, but the method asks for those of single data rows.")


_MOMENTS = "@local."  # no buffer of a module begins like this


def of_module(buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The buffers that belong to the problem's module."""
    return {name: buffer for name, buffer in buffers.items() if not name.startswith(_MOMENTS)}


def moments(buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the optimiser of local steps keeps from round to round."""
    return {name.removeprefix(_MOMENTS): one for name, one in buffers.items() if name.startswith(_MOMENTS)}


class _UserOracle(Oracle):
    """What a training loop has: never more than a minibatch."""

    def __init__(self, title: str) -> None:
        self._title = title

    def full(self, x: Tensor) -> Tensor:
        """Refused."""
        raise InputError(f"{self._title} asks for full gradients, which an optimiser never sees.")

    def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> Samples:
        """Refused."""
        raise InputError(f"{self._title} asks for the gradient of each data row, which an optimiser never sees.")


class LoopOracle(_UserOracle):
    """Gradients as a training loop has them: at its model `own` what `backward` left, elsewhere by its closure."""

    def __init__(
        self, title: str, own: Tensor, here: Callable[[Tensor], Tensor], elsewhere: Callable[[Tensor], Tensor] | None
    ) -> None:
        super().__init__(title)
        self._own, self._here, self._elsewhere = own, here, elsewhere

    def __call__(self, x: Tensor) -> Tensor:
        """On the minibatch of this step."""
        if x is self._own:
            return self._here(x)
        if self._elsewhere is None:
            raise InputError(
                f"{self._title} takes gradients at several points of a round; pass a closure to step() that calls "
                "zero_grad, computes the loss and calls backward."
            )
        return self._elsewhere(x)


class GivenOracle(_UserOracle):
    """The steps that a client has taken by its own optimiser, in place of a gradient."""

    def __init__(self, title: str, taken: Taken) -> None:
        super().__init__(title)
        self._taken, self._is_asked = taken, False

    def __call__(self, x: Tensor) -> Tensor:
        """The sum of the steps, once."""
        if self._is_asked:
            raise InputError(
                f"{self._title} takes several gradients per round, which local steps do not give; use BEER."
            )
        self._is_asked = True
        return self._taken.change

    def corrected(self, x: Tensor, correction: Tensor) -> Taken:
        """The steps, which had the correction."""
        return self._taken


class SameOracle(Oracle):
    """The same gradient whatever the model, or none: for a client that has no data left, or that only mixes."""

    def __init__(self, gradient: Tensor | None = None) -> None:
        self._gradient = gradient

    def __call__(self, x: Tensor) -> Tensor:
        """The gradient, or zero."""
        return torch.zeros_like(x) if self._gradient is None else self._gradient

    def corrected(self, x: Tensor, correction: Tensor) -> Taken:
        """A step along it; none without a gradient."""
        return Taken(self(x), self(x)) if self._gradient is None else super().corrected(x, correction)

    def full(self, x: Tensor) -> Tensor:
        """The gradient, or zero."""
        return self(x)

    def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> Samples:
        """None."""
        return Samples(x.new_zeros(len(x), 0, dtype=torch.long), x.new_zeros(len(x), 0, x.shape[1]), x[:, :1], x[:, :1])
