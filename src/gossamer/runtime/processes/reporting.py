"""What one process tells of itself while it trains: what went over its links, and events for trackers."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import Tensor

from gossamer._version import __version__
from gossamer.errors import InputError
from gossamer.records.identity import describe_method
from gossamer.records.schema import LinkCount
from gossamer.records.typed import Settings
from gossamer.runtime.processes.contract import Counting
from gossamer.trackers.base import Event, Trackers

_PER_LINK = ("bytes_sent", "bytes_received", "packets_sent", "waiting", "hidden")


@dataclass(frozen=True)
class LinkTraffic:
    """What one client sent to its neighbours and received from them so far, over all links and by neighbour."""

    packets_sent: int
    """Over all links; each neighbour gets a packet of its own."""
    bytes_sent: int
    packets_received: int
    bytes_received: int
    waiting: float
    """Seconds that steps stood still for packets."""
    hidden: float
    """Seconds that packets were under way while a step computed, mean over links."""
    links: Mapping[int, LinkCount]
    """The same by neighbour."""

    @classmethod
    def of(cls, client: Counting) -> "LinkTraffic":
        """What a client has counted."""
        accounts: list[Any] = client.accounts()
        links = {one["neighbor"]: LinkCount(client.rank, **one) for one in accounts}
        every = links.values()
        return cls(
            sum(one.packets_sent for one in every),
            sum(one.bytes_sent for one in every),
            sum(one.packets_received for one in every),
            sum(one.bytes_received for one in every),
            sum(one.waiting for one in every),
            sum(one.hidden for one in every) / max(1, len(links)),
            links,
        )

    def __repr__(self) -> str:
        return (
            f"LinkTraffic({len(self.links)} neighbours: {self.packets_sent:,} packets and {self.bytes_sent:,} bytes "
            f"sent, {self.packets_received:,} and {self.bytes_received:,} received, {self.waiting:.3g} s waiting)"
        )


def counted(client: Counting) -> dict[str, float]:
    """The counters of a client, as journals keep them; NaN for what was not measured."""
    sent, traffic, error = client.sent, LinkTraffic.of(client), client.compression_error
    return {
        "round": client.t,
        "packets": sent.packets,
        "bytes": sent.bytes,
        "bytes_total": sent.bytes_total,
        "bits_nominal": sent.bits_nominal,
        "waiting": traffic.waiting,
        "hidden": traffic.hidden,
        "compression_error": float("nan") if error is None else float(error[0]),
    }


def tell(
    trackers: Trackers, client: Counting, label: str, seed: int, seconds: float, values: Mapping[str, float | None]
) -> None:
    """Tell trackers what a client has counted, and other values that are known."""
    if not trackers:
        return
    counters = counted(client) | {"bits": 8.0 * client.sent.bytes, "seconds": seconds}
    measured = {name: value for name, value in counters.items() if name != "round" and not math.isnan(value)}
    known = measured | {name: value for name, value in values.items() if value is not None}
    for account in client.accounts():
        known |= {f"neighbour {account['neighbor']}/{name}": float(account[name]) for name in _PER_LINK}
    trackers.event(Event(label, seed, client.t, known, client.rank))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)


class Reporter:
    """Tells trackers of an optimiser's steps."""

    def __init__(self, client: Counting, trackers: Trackers, every: int) -> None:
        self._client, self._trackers, self._every = client, trackers, every
        self._label, self._seed = client.method.info.title, client.streams.seeds[0]
        self._since, self._seen = time.perf_counter(), client.t
        self._given: dict[str, object] = {}
        trackers.begin(self._label, self._seed, client.rank, self._settings())

    def _settings(self) -> Settings:
        client, mixing = self._client, self._client.mixing
        return {
            "gossamer": __version__,
            "method": describe_method(client.method),
            "mixing": {"clients": mixing.clients, "rho": mixing.rho},
            "codec": client.codec,
            "parameters": client.state.x.shape[1],
        }

    @property
    def is_due(self) -> bool:
        """Whether trackers hear of the step under way."""
        return bool(self._trackers) and (self._client.t + 1) % self._every == 0

    def give(self, values: Mapping[str, object]) -> None:
        """Values for the event of the next step."""
        for name, value in values.items():
            if not _is_number(value):
                raise InputError(f"`{name}` must be one number, got {value!r}.")
            self._given[name] = value.detach() if isinstance(value, Tensor) else value

    def after(self, loss: object) -> None:
        """After a step, with what its closure returned. Several steps may make one round, which has one event."""
        if _is_number(loss):
            self.give({"batch_loss": loss} | self._given)
        client = self._client
        if client.t == self._seen:
            return
        self._seen, given, self._given = client.t, self._given, {}
        if self._trackers and client.t % self._every == 0:  # only now are tensors looked at, which a GPU waits for
            values = {name: float(value) for name, value in given.items()}  # type: ignore[arg-type]
            tell(self._trackers, client, self._label, self._seed, time.perf_counter() - self._since, values)

    def close(self) -> None:
        """No more steps."""
        self._trackers.close()
