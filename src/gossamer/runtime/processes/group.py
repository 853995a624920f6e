"""The processes of a run as a group: what they settle together before the first round and after the last."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gossamer.errors import InputError

START_SECONDS = 300.0
"""For all processes to start and read their data, at least."""


class Group(ABC):
    """All processes of a run, one per client. Every rank calls the same operations in the same order."""

    rank: int
    size: int
    timeout: float
    """Seconds after which a silent neighbour is an error."""

    @abstractmethod
    def share(self, fact: Any) -> list[Any]:
        """Every rank's fact, by rank; a fact is anything that JSON holds."""

    @abstractmethod
    def collect(self, mine: Tensor, collector: int) -> list[Tensor] | None:
        """Every rank's tensor, by rank, on the collecting rank; None on the others. All have the same shape."""

    @abstractmethod
    def wait_for(self, one: int) -> None:
        """Until that rank calls it too, for as long as it takes."""

    @abstractmethod
    def leave(self) -> None:
        """Close what was opened, after the last operation."""

    @abstractmethod
    def give_up(self, error: BaseException) -> None:
        """Tell the others why this rank ends, and close at once."""

    def share_or_refuse(self, find: Callable[[], Any]) -> list[Any]:
        """What `find` returns on every rank, by rank; an InputError on any rank is raised on all of them."""
        try:
            fact, refusal = find(), None
        except InputError as error:
            fact, refusal = None, str(error)
        every = self.share([fact, refusal])
        for _, sentence in every:
            if sentence is not None:
                raise InputError(sentence)
        return [fact for fact, _ in every]

    def agree(
        self, facts: dict[str, Any], remedy: str = "start every rank with the same settings", show: bool = True
    ) -> None:
        """Raise, on every rank, if any rank's facts are not those of rank 0: the first that differs is named."""
        every = self.share(facts)
        for rank, theirs in enumerate(every):
            for name in every[0] | theirs:
                one, other = every[0].get(name), theirs.get(name)
                if one != other:
                    differ = f"is {_short(other)} on rank {rank}, but {_short(one)} on rank 0"
                    differ = differ if show else f"on rank {rank} differs from that on rank 0"
                    raise InputError(f"The ranks do not agree: {name} {differ}; {remedy}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
