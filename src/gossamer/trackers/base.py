"""The contract of a tracker: it is told of each run once, and then of every event."""

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from gossamer.errors import InputError, TrackerWarning
from gossamer.records.record import record_name
from gossamer.records.typed import Settings


@dataclass(frozen=True)
class Event:
    """What is known of a run after so many rounds.

    The values of a simulation are the columns of its record, without those that were not measured, and `bytes`. A
    client in a process of its own has what it counts itself (`bytes`, `waiting`, `compression_error`, ...), its
    `batch_loss`, and one value per neighbour and count, such as `neighbour 1/bytes_sent`.
    """

    label: str
    """The name of the method in tables and figures."""
    seed: int
    round: int
    """Rounds done."""
    values: Mapping[str, float] = field(default_factory=dict)
    """By name. A value may be NaN or infinite where a run diverges."""
    client: int | None = None
    """Which client reports, where each is a process of its own; None for all of them."""


class Tracker:
    """Hears of runs. Derive from it and override what you need.

    A tracker that raises an error hears no more of the call; the run goes on, with a `TrackerWarning`.
    """

    def begin(self, label: str, seed: int, client: int | None, settings: Settings) -> None:
        """Before the first event of a run: how it is set. Also when a run is resumed."""

    def event(self, event: Event) -> None:
        """Something was measured."""

    def close(self) -> None:
        """After the last event of a call. Further calls may follow, each of which begins its runs again."""


Heard: TypeAlias = Tracker | Callable[[Event], object]
"""What is admitted as a tracker."""


class Trackers:
    """Several trackers as one. What they raise does not reach the run."""

    def __init__(self, trackers: Iterable[Heard] = ()) -> None:
        self._all = _checked(trackers)
        self._heard = list(self._all)

    def __bool__(self) -> bool:
        return bool(self._all)

    def __iter__(self) -> Iterator[Heard]:
        return iter(self._all)

    def begin(self, label: str, seed: int, client: int | None, settings: Settings) -> None:
        """Tell all of a run."""
        self._tell(lambda one: one.begin(label, seed, client, settings) if isinstance(one, Tracker) else None)

    def event(self, event: Event) -> None:
        """Tell all of an event."""
        self._tell(lambda one: one.event(event) if isinstance(one, Tracker) else one(event))

    def close(self) -> None:
        """Close all, also those that failed."""
        self._heard = list(self._all)
        self._tell(lambda one: one.close() if isinstance(one, Tracker) else None)
        self._heard = list(self._all)

    def _tell(self, how: Callable[[Heard], object]) -> None:
        for one in list(self._heard):
            try:
                how(one)
            except Exception as error:  # anything: other people's code, a server that is away
                self._heard.remove(one)
                reason = (str(error).strip().split("\n")[0] or "no reason given").rstrip(".")
                warnings.warn(
                    f"The tracker {_name(one)} failed and hears no more of this call, which goes on: "
                    f"{type(error).__name__}: {reason}.",
                    TrackerWarning,
                    stacklevel=2,
                )


def _checked(trackers: Any) -> Sequence[Heard]:
    if isinstance(trackers, str | Tracker) or not isinstance(trackers, Iterable):
        raise InputError(f"`trackers` must be a list of trackers or functions, got {trackers!r}.")
    found = list(trackers)
    for one in found:
        if isinstance(one, type) or not (isinstance(one, Tracker) or callable(one)):
            raise InputError(
                "A tracker is an object such as gossamer.trackers.TensorBoard('folder'), or a function that takes an "
                f"Event; got {one!r}."
            )
    return found


def _name(tracker: Heard) -> str:
    return getattr(tracker, "__name__", type(tracker).__name__)


def required(module: str, package: str, extra: str) -> Any:
    """A module of another package; an InputError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"{package} is not installed; install it with `pip install gossamer[{extra}]`.") from None


def run_name(label: str, seed: int, client: int | None) -> str:
    """What a run is called: as its record is, and its client."""
    stem = Path(record_name(label, seed)).stem
    return stem if client is None else f"{stem}/client{client}"


def flat(settings: Settings, under: str = "") -> dict[str, str | int | float | bool]:
    """Settings by one name each, such as `method.lr`; what is None is left out.

    >>> flat({"rounds": 5, "method": {"lr": 0.1, "gamma": None}})
    {'rounds': 5, 'method.lr': 0.1}
    """
    found: dict[str, str | int | float | bool] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{under}{name}.")
        elif value is not None:
            found[under + name] = value if isinstance(value, str | int | float | bool) else str(value)
    return found
