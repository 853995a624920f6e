"""The cases on a CPU: what is measured, against what, and the bar."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

import gossamer as gs
from benchmarks.timing import works
from benchmarks.timing.results import Bar
from benchmarks.timing.works import MANY, Setting, Work

Make = Callable[[Setting], Work]
BEFORE = "the commit before"
PUBLISHED = "NumPy, in the published layout"
TURN = 0.25  # seconds of a turn, at the least
NO_BAR = Bar()
LINEAR = Bar(ratio=round(1 / 1.1, 4))
"""At most 10 % more than linear growth."""


@dataclass(frozen=True)
class Floor:
    """What a round must do at the least: bytes to move, and multiplications and additions of gradients."""

    bytes: float
    flops: float


def beer_bytes(coordinates: float, symbol: int = 1) -> float:
    """Bytes that a round of BEER moves, each pass over the coordinates on its own.

    A norm must be known before its vector is dithered, so each message takes two passes and one more to add it to the
    mixed sums. float64: V, H, G and the mixed sums; float32: X and the gradients. Neighbours' symbols are counted once.
    """
    line_6 = (8 + 8 + 8 + 4 + 4) + 8  # read V, G, mixed G, both gradients; write V
    line_3 = (4 + 8 + 8 + 8) + 4  # read X, H, mixed H, V; write X
    follow = (8 + 8 + 8 + symbol) + (4 + 8 + 8 + symbol)  # read the vector and its surrogate; write surrogate, symbols
    mix = 2 * (8 + 8 + symbol)
    gradient = 4 + 4
    return coordinates * float(line_6 + line_3 + follow + mix + gradient)


def _linear_floor(clients: int = 10, rows: int = 100) -> Floor:
    """A row of a9a has 14 features that are not zero: a value and an index each."""
    return Floor(beer_bytes(clients * 124) + clients * rows * 14 * 8, clients * rows * 14 * 4)


def hidden_floor(clients: int, hidden: int, batch: int, symbol: int = 1) -> Floor:
    """Two products with the rows of the batch; MNIST has 784 features and 10 classes."""
    d = 795 * hidden + 10
    return Floor(beer_bytes(clients * d, symbol) + clients * batch * 784 * 4, 4.0 * clients * batch * d)


@dataclass(frozen=True)
class Case:
    """A comparison: `baseline` None is our own side in the source tree of another commit."""

    measures: str
    ours: Make
    baseline: Make | None
    against: str
    bar: Bar = NO_BAR
    threads: int = 1
    floor: Floor | None = None
    scale: float = 1.0
    """What the baseline's time is multiplied by: how many times as large our side is."""
    axis: str = ""
    """The axis of the curve of growth that the case belongs to."""
    sizes: tuple[tuple[int, int, int], ...] = ()
    """Clients, coordinates per client and edges of both sides, for that curve."""


def _rounds(setting: Setting) -> dict[str, Case]:
    hidden = partial(works.hidden_layer, batch=setting.size(100, 20))
    return {
        "figure 1, per round": Case(
            "BEER, gsgd_5, a9a, 10 clients, batch 100; minibatch draw included; one thread",
            works.figure_1,
            works.numpy_figure_1,
            "NumPy",
            Bar(ratio=2.5),
            floor=_linear_floor(),
        ),
        "figure 1, 8 seeds together, per run": Case(
            "the same, 8 seeds in the same tensors; the time per round and seed",
            partial(works.figure_1, seeds=8),
            works.numpy_figure_1,
            "NumPy",
            Bar(ratio=4),
            floor=_linear_floor(),
        ),
        "figure 1, measured every round": Case(
            "the same, with loss, gradient norm and accuracies of the mean and of all clients after every round",
            works.figure_1_measured,
            works.numpy_figure_1_measured,
            "NumPy, one model at a time",
            Bar(ratio=7),
        ),
        "evaluation, per model": Case(
            "loss, gradient norm and test accuracy of 192 models of a9a",
            works.evaluation,
            works.numpy_evaluation,
            "NumPy, one model at a time",
            Bar(ratio=6),
        ),
        "hidden layer, per round": Case(
            "BEER, gsgd_20, MNIST, 32 hidden units, 10 clients, batch 100; two threads",
            hidden,
            works.numpy_hidden_layer_by_client,
            PUBLISHED,
            Bar(ratio=4),
            threads=2,
            floor=hidden_floor(10, 32, 100, symbol=4),
        ),
        "hidden layer, against lean NumPy": Case(
            "the same; two threads",
            hidden,
            works.numpy_hidden_layer,
            "NumPy, the faster of one and two threads",
            threads=2,
            floor=hidden_floor(10, 32, 100, symbol=4),
        ),
        "hidden layer on one thread, per round": Case(
            "the same; one thread",
            hidden,
            works.numpy_hidden_layer,
            "NumPy",
            floor=hidden_floor(10, 32, 100, symbol=4),
        ),
        "100,000 clients, per round": Case(
            "BEER, gsgd_5, a9a, one row per client, ring of 100,000; two threads",
            works.one_row_each,
            works.numpy_one_row_each,
            "NumPy, sparse W",
            Bar(ms=300),
            threads=2,
            floor=_linear_floor(100_000, 1),
        ),
        "1,000 clients, per round": Case(
            "BEER, gsgd_5, MNIST, 32 hidden units, 1,000 clients, batch 20; two threads",
            partial(works.hidden_layer, clients=setting.size(1000, 40), batch=20, method=MANY),
            None,
            BEFORE,
            Bar(ratio=8),
            threads=2,
            floor=hidden_floor(1000, 32, 20),
        ),
    }


def _messages() -> dict[str, Case]:
    return {
        "gsgd_5 of 10 x 1,000,000": Case(
            "compressing, with its random numbers; one thread",
            works.compress,
            works.numpy_compress,
            "NumPy, float32",
            Bar(ratio=1),
        ),
        "fixed-width packet of 1,000,000": Case(
            "a gsgd_5 message to a packet and back, with header, checksum and checks",
            partial(works.packets, codec="fixed"),
            works.numpy_packets,
            "NumPy's packbits and unpackbits",
            Bar(ms=13.3),
        ),
        "entropy-coded packet of 1,000,000": Case(
            "the same, entropy-coded",
            partial(works.packets, codec="entropy"),
            works.zlib_packets,
            "zlib, level 1",
            Bar(ms=50),
        ),
        "entropy-coded packet of 124": Case(
            "the same, as short as a message of figure 1",
            partial(works.packets, codec="entropy", d=124),
            partial(works.zlib_packets, d=124),
            "zlib, level 1",
            Bar(ms=0.06),
        ),
    }


def _before(setting: Setting) -> dict[str, Case]:
    """Cases without a bar that show what a change does to other methods."""
    choco, dsgd = gs.CHOCOSGD(lr=0.05, gamma=0.1, compressor=gs.top_k(10)), gs.DSGD(lr=0.05)
    makes: dict[str, tuple[str, Make]] = {
        "figure 1": ("BEER, gsgd_5, a9a", works.figure_1),
        "CHOCO-SGD": ("CHOCO-SGD, top_k of 10, a9a", partial(works.figure_1, method=choco)),
        "DSGD": ("DSGD, a9a", partial(works.figure_1, method=dsgd)),
        "hidden layer": (
            "BEER, gsgd_20, MNIST, 32 hidden units",
            partial(works.hidden_layer, batch=setting.size(100, 20)),
        ),
        "200 clients": (
            "BEER, gsgd_5, a9a, 200 clients",
            partial(works.figure_1, clients=setting.size(200, 20)),
        ),
    }
    return {
        f"{name}, against {BEFORE}": Case(f"{what}; one thread", make, None, BEFORE)
        for name, (what, make) in makes.items()
    }


# States larger than the caches of a processor, and than what is replayed: a smaller one is faster per number.
GROWTH_CLIENTS, GROWTH_HIDDEN = (1000, 4000, 16_000), (4, 16, 64)
_TINY_CLIENTS, _TINY_HIDDEN = (10, 20, 40), (2, 4, 8)
_DEGREES = (4, 8, 16, 32)


def _grown(setting: Setting, clients: int, hidden: int, mixing: Any = None) -> Work:
    # Metropolis weights, because the fastest ones of a random graph take minutes to find.
    mixing = gs.mixing_matrix(gs.ring(clients), "metropolis") if mixing is None else mixing
    return works.hidden_layer(setting, clients, hidden, 10, MANY, mixing)


def _size(setting: Setting, clients: int, hidden: int) -> tuple[int, int, int]:
    """Clients, coordinates per client and edges of a ring."""
    features = setting.size(784, 64)
    return clients, hidden * (features + 1) + 10 * (hidden + 1), clients


def growth(setting: Setting) -> dict[str, Case]:
    """Each step of the curves of clients and of coordinates; the baseline is linear growth from the smaller size."""
    everyone = _TINY_CLIENTS if setting.tiny else GROWTH_CLIENTS
    widths = _TINY_HIDDEN if setting.tiny else GROWTH_HIDDEN
    steps = [("clients", (few, widths[0]), (many, widths[0])) for few, many in pairwise(everyone)]
    steps += [("coordinates", (everyone[0], thin), (everyone[0], wide)) for thin, wide in pairwise(widths)]
    cases = {}
    for axis, small, large in steps:
        before, after = _size(setting, *small), _size(setting, *large)
        at = 0 if axis == "clients" else 1
        cases[f"growth from {before[at]:,} to {after[at]:,} {axis}"] = Case(
            f"BEER, gsgd_5, MNIST, {after[1]:,} coordinates, {after[0]:,} clients on a ring, batch 10; one thread",
            partial(_grown, clients=large[0], hidden=large[1]),
            partial(_grown, clients=small[0], hidden=small[1]),
            f"{before[at]:,} {axis}, in proportion",
            LINEAR,
            scale=after[0] * after[1] / (before[0] * before[1]),
            axis=axis,
            sizes=(before, after),
        )
    return cases


def graphs(setting: Setting) -> dict[str, Case]:
    """More and more edges, each against the ring in turns; a straight line is laid through all of them afterwards."""
    clients, hidden = setting.size(1000, 30), setting.size(4, 2)
    drawn: dict[str, tuple[Callable[[], Any], int]] = {
        f"random_regular:{degree}": (partial(gs.topology.random_regular, clients, degree), clients * degree // 2)
        for degree in (_DEGREES[:2] if setting.tiny else _DEGREES)
    }
    exponential = gs.topology.exponential(clients)
    drawn["exponential"] = (lambda: exponential, exponential.number_of_edges())
    _, coordinates, ring = _size(setting, clients, hidden)

    def on(graph: Callable[[], Any], setting: Setting) -> Work:
        return _grown(setting, clients, hidden, gs.mixing_matrix(graph(), "metropolis"))

    return {
        f"graph {name}": Case(
            f"BEER, gsgd_5, MNIST, {coordinates:,} coordinates, {clients:,} clients, batch 10; one thread",
            partial(on, graph),
            partial(_grown, clients=clients, hidden=hidden),
            "the ring",
            axis="edges",
            sizes=((clients, coordinates, ring), (clients, coordinates, edges)),
        )
        for name, (graph, edges) in drawn.items()
    }


def cases(setting: Setting) -> dict[str, Case]:
    """All cases that are rows, by name."""
    return _rounds(setting) | _messages() | _before(setting) | growth(setting)


SHORT = (
    "figure 1, per round",
    "figure 1, 8 seeds together, per run",
    "figure 1, measured every round",
    "hidden layer on one thread, per round",
)
"""What CI looks at: one thread, because two of them measure what else the machine is doing."""


class Answers:
    """The work of a measuring process: it keeps one side of one case, and runs it for a while when asked."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.known = setting, cases(setting) | graphs(setting)
        self.kept: tuple[str, str] | None = None
        self.work: Work | None = None
        self.rounds, self.warm_up = 0, 0.0

    def turn(self, case: str, side: str) -> dict[str, float]:
        """Seconds per round of a side, and those of its warm-up."""
        if self.kept != (case, side):
            self.work = None  # free the memory first
            chosen = self.known[case]
            make = chosen.ours if side == "ours" else chosen.baseline
            assert make is not None
            self.work, self.kept = make(self.setting), (case, side)
            self.warm_up = _seconds(self.work, self.work.least)
            again = _seconds(self.work, self.work.least)  # the first round compiles
            if again < 1:  # rounds that take long need no more warming; others are replayed after some
                again += _seconds(self.work, max(8, self.work.least))
            self.warm_up += again
            self.rounds = rounds_per_turn(partial(_seconds, self.work), self.work.least, self.setting)
        assert self.work is not None
        taken = _seconds(self.work, self.rounds)
        return {"seconds": taken / self.rounds / self.work.runs, "warm_up": self.warm_up}

    def machine(self) -> dict[str, float]:
        """The speed of a copy in GB/s and of a matrix product in Gflop/s, on as many threads as this process has."""
        count, side = self.setting.size(1 << 25, 1 << 15), self.setting.size(1024, 64)
        source, square = torch.zeros(count, dtype=torch.float64), torch.ones(side, side)
        target, product = torch.zeros_like(source), torch.empty_like(square)
        copy = min(_seconds(Work(lambda _: target.copy_(source)), 1) for _ in range(5))
        multiply = min(_seconds(Work(lambda _: torch.mm(square, square, out=product)), 1) for _ in range(5))
        return {"copy_gb_s": round(16e-9 * count / copy, 2), "matmul_gflop_s": round(2e-9 * side**3 / multiply, 1)}


def rounds_per_turn(seconds: Callable[[int], float], least: int, setting: Setting) -> int:
    """As many rounds as fill a turn; `seconds` runs so many of them."""
    turn = TURN / 10 if setting.tiny else TURN
    taken = [seconds(least)]
    while len(taken) < 3 and sum(taken) < turn:  # one of them may have been interrupted
        taken.append(seconds(least))
    return max(least, round(turn * least / min(taken)))


def _seconds(work: Work, rounds: int) -> float:
    began = time.perf_counter()
    work.run(rounds)
    return time.perf_counter() - began


def floor_ms(floor: Floor | None, speeds: dict[str, float]) -> float | None:
    """Milliseconds for a floor at the measured speeds."""
    if floor is None:
        return None
    seconds = floor.bytes / (1e9 * speeds["copy_gb_s"]) + floor.flops / (1e9 * speeds["matmul_gflop_s"])
    return float(f"{1e3 * seconds:.4g}")
