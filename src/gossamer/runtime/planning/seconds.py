"""Seconds and bytes per round, from what a host computes, what its software costs, and what its links carry."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gossamer.runtime.planning.software import Linear, optimizer_step, software
from gossamer.runtime.planning.ways import Way
from gossamer.runtime.tuning.suggest import coded_share, fixed_bytes

_HEADERS = 1.05  # bytes on the wire per byte handed over: TCP/IP headers and acknowledgements
_EACH = 400  # bytes around every message, however short
_PER_BYTE = 2e-9  # seconds of one core per byte that is sent, and received
_ASKED = (
    2  # delays of a hop of an all-reduce: chosen to match five measurements; gloo probably asks for a message first
)
_HOP = 1e-4  # seconds of one core until a message is handed over
_SIDE = 1000  # rows of the matrices of a model whose shapes nobody gave
# Seconds of one core per coordinate, beside the optimiser: copies into buckets and sums; PowerSGD's products and
# orthogonal vectors; the outer step after an average of all models.
_BUCKETS, _LOW_RANK, _OUTER = 3e-9, 6e-9, 8e-9


@dataclass(frozen=True)
class Network:
    """The links, as a host sees them.

    Args:
        hosts: How many.
        neighbors: Of the host that has most, on the graph of Gossamer's methods.
        rho: The spectral gap of that graph.
        bandwidth: Of a host towards all others, in bits per second.
        delay: One way, in seconds.
    """

    hosts: int
    neighbors: int
    rho: float
    bandwidth: float
    delay: float


@dataclass(frozen=True)
class Cost:
    """Of one round: H local steps and one exchange.

    Args:
        compute: Seconds of the gradients.
        software: Seconds of everything else that the host computes.
        link: Seconds until the messages have arrived.
        seconds: Of the round, with what is done at the same time.
        sent: Bytes that a host hands to its links, to all neighbours together.
        wire: The same with headers.
    """

    compute: float
    software: float
    link: float
    seconds: float
    sent: int
    wire: int


def cost(way: Way, shapes: Sequence[Sequence[int]], network: Network, gradient: float, cores: float = 1.0) -> Cost:
    """Of one round.

    Args:
        way: How the hosts train.
        shapes: Of the parameters.
        network: Who talks to whom, and how fast.
        gradient: Seconds of one gradient.
        cores: That a host has for its software; below 1 if several hosts share one.
    """
    d, share = sum(math.prod(shape) for shape in shapes), min(cores, 1.0)
    if way.kind == "gossip":
        sent, hops = packet_bytes(way, d) * network.neighbors, network.neighbors
        timed = software(way)
        own = way.steps * timed.step.at(d) + timed.exchange.at(d) + (network.neighbors - 2) * timed.neighbor.at(d)
        delays = 1
    else:
        sent, calls = _all_reduced(way, shapes, network.hosts)
        hops = calls * 2 * (network.hosts - 1)
        delays = _ASKED * hops
        line = Linear(0.0, _OUTER if way.kind == "all-reduce" else _BUCKETS + (_LOW_RANK if way.rank else 0.0))
        own = way.steps * optimizer_step().at(d) + line.at(d)
    wire = round(_HEADERS * sent) + _EACH * hops
    busy = (max(own, 0.0) + _PER_BYTE * sent + _HOP * hops) / share
    link, compute = 8 * wire / network.bandwidth + delays * network.delay, way.steps * gradient
    seconds = busy + (compute + link if way.waits else max(compute, link))
    return Cost(compute, busy, link, seconds, sent, wire)


def packet_bytes(way: Way, d: int) -> int:
    """Of what a client of Gossamer sends to each neighbour in one round, going by Gaussian values."""
    return round(_fixed(way.method, way.compressor, d) * (1.0 if way.codec == "fixed" else _coded(way.compressor, d)))


@functools.lru_cache(maxsize=256)
def _fixed(method: str, compressor: str, d: int) -> int:
    way = Way("gossip", method=method, compressor=compressor)
    return fixed_bytes(way.operator(), d, torch.float32, way.build(1.0, 0.1).info.messages)


@functools.lru_cache(maxsize=256)
def _coded(compressor: str, d: int) -> float:
    return coded_share(Way("gossip", compressor=compressor).operator(), d, torch.float32)


def _all_reduced(way: Way, shapes: Sequence[Sequence[int]], hosts: int) -> tuple[int, int]:
    """Bytes that a host sends for a ring all-reduce, and how many of these follow each other."""
    d, around = sum(math.prod(shape) for shape in shapes), 2 * (hosts - 1) / hosts
    if not way.rank:
        return round(around * d * (2 if way.hook == "fp16" else 4)), 1
    numbers = 0
    for shape in shapes:
        rows, columns = shape[0], math.prod(shape[1:])
        factors = way.rank * (rows + columns)
        numbers += factors if len(shape) > 1 and 2 * factors < rows * columns else rows * columns
    return round(around * numbers * 4), 3  # the first factor, the second one, and what has no matrix


def square_matrices(d: int) -> list[tuple[int, ...]]:
    """Shapes of a model of which only the number of parameters is known.

    >>> square_matrices(1_002_570)
    [(1000, 1000), (2570,)]
    """
    side = min(_SIDE, math.isqrt(d))
    many, left = divmod(d, side * side)
    matrices: list[tuple[int, ...]] = [(side, side)] * many
    return [*matrices, (left,)] if left else matrices
