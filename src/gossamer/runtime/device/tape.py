"""Whole rounds on a CPU as a list of kernels: without the Python and the torch calls between them.

A round of ten clients is some dozen kernels that take less time than the code that calls them. Once they are noted,
with the minibatch, the gradient, the messages and the sums of the neighbours, a round calls them one after another in
the same memory. Most of the state is written over in place, and the rest in two places by turns, so that nothing is
copied. Kernels that need their own rows only are chained: a client's numbers go through all of them while they are in
the cache.

That is possible where a round does all of its arithmetic in kernels; any other operation of torch is noticed when the
round is recorded, and the first replayed rounds are compared with real ones.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer.algorithms.base import State
from gossamer.kernels.buffers import Noted
from gossamer.kernels.pool import Call, chained, finite

Array = np.ndarray[Any, Any]

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


class Later:
    """The number of any round from `least` on: it can be compared with smaller numbers, and that is all.

    A method that does more with it, such as computing a period, does not do the same in every round.
    """

    def __init__(self, least: int) -> None:
        self._least = least

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self._is_above(other, strictly=True) and False

    def __ne__(self, other: object) -> bool:
        return self._is_above(other, strictly=True)

    def __lt__(self, other: object) -> bool:
        return not self._is_above(other)

    def __ge__(self, other: object) -> bool:
        return self._is_above(other)

    def __le__(self, other: object) -> bool:
        return not self._is_above(other, strictly=True)

    def __gt__(self, other: object) -> bool:
        return self._is_above(other, strictly=True)

    __hash__ = None  # type: ignore[assignment]

    def _is_above(self, other: object, *, strictly: bool = False) -> bool:
        """True; an error where that is not known of all later rounds."""
        if not isinstance(other, int) or other > self._least - strictly:
            raise Unfit(f"the method compares the number of the round with {other!r}")
        return True


class BadRound(Exception):
    """A replayed round whose numbers are not all finite."""


class OnlyKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses every operation of torch that computes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch would import its compiler, a second's work, to keep it away."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Views are fine: they share memory."""
        name = function.overloadpacket.__name__
        if name not in _VIEWS:
            raise Unfit(f"a round computes {name} outside of kernels")
        return function(*args, **(kwargs or {}))


class Side(NamedTuple):
    """A round from one place in memory to another."""

    calls: list[Call]
    state: State
    """Where the round ends."""
    packets: list[Any]


class Tape:
    """The kernels of a round from one place in memory to a second one, and of a round back. Most numbers stay in place.

    The neighbours' sums at the end of a round wait for the next one: a thread then forms those of its rows and goes on
    with them. `finish` forms those that wait.
    """

    def __init__(self, sides: tuple[Side, Side], t: Tensor) -> None:
        self._sides, self._t = sides, t.numpy()
        split = [apart(side.calls, side.state.x.numpy()) for side in sides]
        checks = [Call(len(side.state.x), side.state.x.numel(), finite(side.state.x.numpy())) for side in sides]
        whole = [[*body, check] for (body, _), check in zip(split, checks, strict=True)]
        self._first = [chained(calls) for calls in whole]
        sums_before = [split[1][1], split[0][1]]
        self._next = [chained([*sums, *calls]) for sums, calls in zip(sums_before, whole, strict=True)]
        self._last = [chained(sums) for _, sums in split]
        self._side, self._waits = 0, False

    def replay(self) -> Side:
        """The next round; a BadRound if its models are not finite, and the state is then lost."""
        calls = (self._next if self._waits else self._first)[self._side]
        self._waits, side = False, self._sides[self._side]
        for call in calls:
            if not call.run():
                raise BadRound
        self._side, self._waits = 1 - self._side, True
        self._t += 1
        return side

    def finish(self) -> None:
        """Form the sums that wait: the state is then there."""
        if self._waits:
            self._waits = False
            for call in self._last[1 - self._side]:
                call.run()


def apart(calls: list[Call], models: Array) -> tuple[list[Call], list[Call]]:
    """The kernels of a round, and those at its end that only form neighbours' sums, unless these are the models."""
    own = [k for k, call in enumerate(calls) if call.across is None or np.may_share_memory(call.across[1], models)]
    end = max(own, default=-1) + 1
    return calls[:end], calls[end:]


def there_and_back(
    before: list[Tensor], after: list[Tensor], noted: Noted, sent: set[int]
) -> tuple[list[Array], list[Array]]:
    """The memory for a round from where the state was, and for one back: `noted` is that of such a round.

    A tensor is written over where its last kernel allows it, and else in two places by turns. All else gets memory of
    its own in both rounds, since they overlap. What was `sent` as it is (addresses) can be looked at after the round.
    """
    place = {array.ctypes.data: k for k, array in enumerate(noted.arrays) if array.size}
    there, back = list(noted.arrays), [np.empty_like(array) for array in noted.arrays]
    for old, new in zip(before, after, strict=True):
        if old is new:
            continue
        k = place.pop(new.data_ptr(), None)
        if k is None or noted.arrays[k].shape != tuple(new.shape):
            raise Unfit("a round hands a tensor on, or makes one outside of kernels")
        if old.data_ptr() in noted.over[k] and old.data_ptr() not in sent:
            there[k] = old.numpy()
        back[k] = old.numpy()
    return there, back


def compared(one: list[Tensor], two: list[Tensor]) -> bool:
    """Whether all numbers are the same."""
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
