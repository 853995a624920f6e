"""Whole rounds on a CPU as a list of kernels: without the Python and the torch calls between them.

A round of ten clients is some dozen kernels that take less time than the code that calls them. Once they are noted,
with the minibatch, the gradient, the messages and the sums of the neighbours, a round calls them one after another in
the same memory. That is possible where a round does all of its arithmetic in kernels; any other operation of torch is
noticed when the round is recorded, and the first replayed rounds are compared with real ones.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer.kernels.pool import Call

_VIEWS = {
    "lift_fresh",
    "detach",
    "view",
    "alias",
    "select",
    "slice",
    "as_strided",
    "t",
    "transpose",
    "_unsafe_view",
    "expand",
}


class Unfit(Exception):
    """A round that is not the same kernels every time."""


class BadRound(Exception):
    """A replayed round whose numbers are not all finite; nothing was changed."""


class OnlyKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses every operation of torch that computes."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Views are fine: they share memory."""
        name = function.overloadpacket.__name__
        if name not in _VIEWS:
            raise Unfit(f"a round computes {name} outside of kernels")
        return function(*args, **(kwargs or {}))


class Tape:
    """The kernels of a round, and what is copied over the old state at its end."""

    def __init__(self, calls: list[Call], models: Tensor, pairs: list[tuple[Tensor, Tensor]], t: Tensor) -> None:
        self._calls, self._models = calls, models.numpy()
        self._pairs = [(to.numpy(), what.numpy()) for to, what in pairs if to is not what]
        self._t = t.numpy()

    def replay(self) -> None:
        """The next round; a BadRound, and nothing changed, if its models are not finite."""
        for call in self._calls:
            if not call.run():
                raise BadRound
        if not np.isfinite(self._models.sum()):
            raise BadRound
        for to, what in self._pairs:
            to[...] = what
        self._t += 1


def compared(one: list[Tensor], two: list[Tensor]) -> bool:
    """Whether all numbers are the same."""
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
