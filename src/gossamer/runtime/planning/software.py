"""What a round costs a host beside its gradients: timed here on real packets of a few hundred thousand coordinates.

A client runs its method over a transport that hands its own packets back under the neighbours' names, so that every
line of a round is timed but for the network.
"""

import contextlib
import functools
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Codec
from gossamer.compression.coding.wire import varint, varint_size
from gossamer.runtime.planning.ways import WHOLE, Way
from gossamer.runtime.processes.client import Client
from gossamer.runtime.training.inner import Inner
from gossamer.runtime.training.parameters import Parameters
from gossamer.runtime.training.training import TrainingLoop
from gossamer.runtime.transport.base import UNKNOWN, Account, Failure, Opening
from gossamer.topology import mixing_matrix, ring

TIMED = 1 << 18
"""Coordinates of the messages that are timed; times are extended linearly from there."""
_SHORT = 1 << 12  # coordinates of the messages that tell what every round costs, however short
_TIMES = 5  # rounds that are timed, of which the fastest counts
_LR = 1e-3  # so that models move by more than they are rounded
_NEIGHBORS = 2  # of a client on the ring that is timed
_CLIENT = 5  # where the sender's number begins in a packet of round 0 to 127, less the round's one byte


@dataclass(frozen=True)
class Linear:
    """Seconds that grow with the number of coordinates."""

    start: float
    slope: float

    def at(self, d: int) -> float:
        """Seconds for d coordinates."""
        return max(self.start + self.slope * d, 0.0)

    def plus(self, other: "Linear", times: float = 1.0) -> "Linear":
        """The sum, with the other one so many times."""
        return Linear(self.start + times * other.start, self.slope + times * other.slope)


@dataclass(frozen=True)
class Software:
    """Seconds on one core.

    Args:
        step: Of one local step beside its gradient: the optimiser, and corrections where the method has them.
        exchange: Of one exchange with two neighbours.
        neighbor: Of each neighbour's packet in it: checking, decoding, adding.
    """

    step: Linear
    exchange: Linear
    neighbor: Linear


class _Echo:
    """A transport whose neighbours all send what the client sends, and which times the work on what it receives."""

    def __init__(self, opening: Opening) -> None:
        self._rank = opening.rank
        self.accounts = {neighbor: Account(neighbor) for neighbor in opening.neighbors}
        self.round, self.failure = 0, None
        self._packets: dict[int, list[bytes]] = {neighbor: [] for neighbor in opening.neighbors}
        self.received: list[float] = []

    failure: Failure | None

    def send(self, packet: bytes, to: Collection[int]) -> None:
        """Keep the packet for each neighbour, under that neighbour's name."""
        at = _CLIENT + varint_size(self.round)
        for j in to:
            body = packet[:at] + varint(j) + packet[at + varint_size(self._rank) : -4]
            self._packets[j].append(body + zlib.crc32(body).to_bytes(4, "little"))

    def receive(self, neighbor: int, left_at: float) -> bytes:
        """The next packet of a neighbour, at once."""
        self.received.append(time.perf_counter())
        return self._packets[neighbor].pop(0)

    def fail(self, sentence: str, *, diverged: bool = False, round: int | None = None, since: int = UNKNOWN) -> None:
        """Nobody is there to be told."""
        self.failure = Failure(sentence, self.round, diverged, since)

    def close(self) -> None:
        """Nothing to leave."""

    def abort(self) -> None:
        """Nothing to end."""


def software(way: Way) -> Software:
    """Of a method of Gossamer, as the sum of what its lines and its messages cost."""
    lines, many = _timed(way.method, WHOLE, "fixed", _has_inner(way)), way.build(1.0, 0.1).info.messages
    if (way.compressor, way.codec) == (WHOLE, "fixed") or way.method == "DSGD":
        return lines
    usual, other = (_timed("CHOCO-SGD", *kind, True) for kind in ((WHOLE, "fixed"), (way.compressor, way.codec)))
    exchange = lines.exchange.plus(other.exchange, many).plus(usual.exchange, -many)
    return Software(lines.step, exchange, Linear(many * other.neighbor.start, many * other.neighbor.slope))


@functools.cache
def optimizer_step() -> Linear:
    """A step of Adam."""

    def seconds(d: int) -> float:
        optimizer = torch.optim.Adam([_model(d)], lr=_LR)
        return _fastest(optimizer.step)

    with _one_thread():
        return _line(seconds(_SHORT), seconds(TIMED))


@functools.cache
def flops() -> float:
    """Floating-point operations per second in a product of matrices, with the threads that torch has."""
    a = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    return float(2 * 512**3 / _fastest(lambda: a @ a))


def _has_inner(way: Way) -> bool:
    return way.steps > 1 or way.method in ("CHOCO-SGD", "CHOCO-SGD, stale", "DSGD")


@functools.cache
def _timed(method: str, compressor: str, codec: Codec, has_inner: bool) -> Software:
    """Of one method with one operator and codec; an optimiser takes the local steps, or the method uses gradients."""
    way = Way("gossip", method=method, compressor=compressor, codec=codec)
    with _one_thread():
        short, long = (_seconds(way, d, has_inner) for d in (_SHORT, TIMED))
    step, exchange, neighbor = (_line(*ends) for ends in zip(short, long, strict=True))
    return Software(step, exchange, neighbor)


def _seconds(way: Way, d: int, has_inner: bool) -> tuple[float, float, float]:
    """Of a local step, of the exchange, and of one neighbour's packet in it."""
    lr = 1.0 if has_inner else _LR  # of the sums of local steps, or of gradients
    loop, client, inner = _loop(way.build(lr, 0.1), way.codec, d, has_inner)
    step = 0.0
    if inner is not None:
        inner.every = 10**9
        step = _fastest(lambda: loop.step(None))
        inner.every, inner.steps = 1, 0
    echo: _Echo = client.transport  # type: ignore[assignment]
    between: list[float] = []

    def round() -> None:
        echo.received.clear()
        loop.step(None)
        if echo.received:
            between.append((echo.received[-1] - echo.received[0]) / (_NEIGHBORS - 1))

    whole = _fastest(round)
    return step, max(whole - step, 0.0), min(between, default=0.0)


def _line(short: float, long: float) -> Linear:
    slope = max(long - short, 0.0) / (TIMED - _SHORT)
    return Linear(max(short - slope * _SHORT, 0.0), slope)


def _loop(method: Algorithm, codec: Codec, d: int, has_inner: bool) -> tuple[TrainingLoop, Client, Inner | None]:
    """A training loop of one client among three on a ring."""
    model, mixing = _model(d), mixing_matrix(ring(_NEIGHBORS + 1))
    groups = torch.optim.SGD([model], lr=_LR).param_groups
    kept = {name: groups[0][name] for name in ("params", "lr", "weight_decay")}
    parameters = Parameters([kept], method)
    client = Client(method.with_minibatch_start(), mixing, 1, parameters.row(), codec=codec, transport=_Echo)
    inner = Inner(torch.optim.Adam([model], lr=_LR), 1, 0.0, parameters) if has_inner else None
    return TrainingLoop(client, parameters, inner), client, inner


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Torch and the kernels use one thread inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _model(d: int) -> nn.Parameter:
    """Gaussian parameters with Gaussian gradients."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Parameter(torch.randn(d, generator=generator))
    model.grad = torch.randn(d, generator=generator)
    return model


@torch.no_grad()
def _fastest(work: Callable[[], object]) -> float:
    """Seconds; the first two times are for compiling and for the first packets."""
    for _ in range(2):
        work()
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)
