"""The cost of a round between two processes, against a plain gloo exchange of the same number of bytes.

    python benchmarks/processes.py [--blocks 9] [--json]
    python benchmarks/processes.py --ranks 32 [--json]

Two ranks on loopback, one thread each, run rounds in float32 with an oracle that returns a fixed gradient. Every block
measures, one after the other and on both ranks at the same time:

    step    client.step
    alone   the same step without a network: the rank's own packet, with the number of its neighbour, is compressed,
            encoded, checked, decoded and added as usual, but never sent
    plain   the same step with isend, irecv and two waits of gloo instead of Gossamer's links
    bare    an exchange of packets through Gossamer's links, without a step
    gloo    isend, irecv and two waits of the same number of bytes, without a step

The cost of the exchange is step - alone. A plain gloo exchange in the same place costs plain - alone, and Gossamer's
should be at most 1.5 times that. The same exchange in a loop of its own (`gloo`) is several times cheaper than either,
because threads are awake, caches are warm, and no rank waits for the computation of the other. Compare it with `bare`.

Times are in milliseconds: medians over the rounds of a block, then over the blocks of both ranks. With `--ranks`, a
ring of that many ranks runs 100 rounds of BEER with d = 124 instead.
"""

import argparse
import json
import multiprocessing
import os
import pickle
import socket
import time
import traceback
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor

import gossamer as gs
from gossamer.algorithms import Algorithm
from gossamer.compression.coding.wire import varint, varint_size
from gossamer.compression.packet import length as packet_length
from gossamer.runtime.gradients.oracle import SameOracle
from gossamer.runtime.processes.client import Client
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.transport.base import Opening, Transport
from gossamer.runtime.transport.loopback import Loopback, LoopbackTransport

TIMES = ("step", "alone", "plain", "bare", "gloo")
GLOO_TAG, PLAIN_TAG = 1, 2
BEGINNING = 5  # bytes before the number of the round
_fork = multiprocessing.get_context("fork")

Row = dict[str, Any]
"""A line of the table: numbers by column, and the title of the method."""


@dataclass(frozen=True)
class Case:
    """A method, the number of coordinates, and the rounds per block."""

    method: Algorithm
    d: int
    rounds: int


def beer() -> Algorithm:
    return gs.BEER(lr=1e-3, gamma=0.5, compressor=gs.gsgd(5))


CASES = (
    Case(beer(), 124, 200),
    Case(beer(), 25_450, 100),
    Case(beer(), 1_000_000, 12),
    Case(gs.DSGD(lr=1e-3), 25_450, 200),
    Case(gs.DSGD(lr=1e-3), 1_000_000, 25),
)


def given(rank: int, d: int) -> SameOracle:
    """An oracle that returns a fixed gradient at no cost."""
    return SameOracle(torch.randn(1, d, generator=torch.Generator().manual_seed(rank)))


class Echo(LoopbackTransport):
    """No network: a neighbour's packet is the rank's own, with the number of the neighbour."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(Loopback(2), opening)
        self.rank = opening.rank
        self.packets: dict[int, bytes] = {}
        self.length = 0
        self.forging = 0.0
        """Seconds spent on changing packets, which are not part of a step."""

    def send(self, packet: bytes, to: Collection[int]) -> None:
        """Keep the packet for each neighbour."""
        began = time.perf_counter()
        self.length = len(packet)
        at = BEGINNING + varint_size(self.round)
        for neighbor in to:
            body = packet[:at] + varint(neighbor) + packet[at + varint_size(self.rank) : -4]
            self.packets[neighbor] = body + zlib.crc32(body).to_bytes(4, "little")
        self.forging += time.perf_counter() - began

    def receive(self, neighbor: int, left_at: float) -> bytes:
        """The packet of a neighbour."""
        return self.packets[neighbor]


class Plain(LoopbackTransport):
    """The simplest transport: a receive is posted when a packet is sent, and the step waits for both."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(Loopback(2), opening)
        self.ranks, self.capacity = opening.ranks, opening.capacity
        self.works: dict[int, tuple[Tensor, Any, Any]] = {}

    def send(self, packet: bytes, to: Collection[int]) -> None:
        """Start sending and receiving."""
        tensor = torch.frombuffer(bytearray(packet), dtype=torch.uint8)
        for neighbor in to:
            buffer = torch.empty(self.capacity, dtype=torch.uint8)
            sending = self.ranks.isend(tensor, neighbor, PLAIN_TAG)
            self.works[neighbor] = (buffer, self.ranks.irecv(buffer, neighbor, PLAIN_TAG), sending)

    def receive(self, neighbor: int, left_at: float) -> bytes:
        """Wait for both."""
        buffer, receiving, sending = self.works[neighbor]
        receiving.wait()
        sending.wait()
        raw = buffer.numpy().tobytes()
        return raw[: packet_length(raw[:160])]


def step_times(client: Client, oracle: SameOracle, rounds: int) -> list[float]:
    """Seconds of each round, without `Echo.forging`."""
    links, taken = client.transport, []
    for _ in range(rounds):
        aside = links.forging if isinstance(links, Echo) else 0.0
        began = time.perf_counter()
        client.step(oracle, client.method.lr_at(client.t))
        ended = time.perf_counter()
        aside = links.forging - aside if isinstance(links, Echo) else 0.0
        taken.append(ended - began - aside)
    return taken


def bare_times(transport: Transport, packet: bytes, rounds: int) -> list[float]:
    """Seconds of each exchange of packets through the transport."""
    (neighbor,), taken = transport.accounts, []
    for _ in range(rounds):
        began = time.perf_counter()
        transport.send(packet, [neighbor])
        transport.receive(neighbor, began)
        taken.append(time.perf_counter() - began)
    return taken


def gloo_times(ranks: Ranks, length: int, rounds: int) -> list[float]:
    """Seconds of each plain gloo exchange."""
    mine, theirs = (torch.zeros(length, dtype=torch.uint8) for _ in range(2))
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        sending = ranks.isend(mine, 1 - ranks.rank, GLOO_TAG)
        receiving = ranks.irecv(theirs, 1 - ranks.rank, GLOO_TAG)
        receiving.wait()
        sending.wait()
        taken.append(time.perf_counter() - began)
    return taken


class Seen(TypedDict):
    """The measurements of one rank for one case."""

    bytes: int
    times: dict[str, list[float]]


def measure(rank: int, cases: Sequence[Case], blocks: int) -> list[Seen]:
    """The measurements of one of two ranks, case by case."""
    ranks, mixing = Ranks(60), gs.mixing_matrix(gs.ring(2))
    results = []
    for number, case in enumerate(cases):
        oracle, start = given(rank, case.d), torch.zeros(1, case.d)
        opened: list[Echo] = []

        def echo(opening: Opening, opened: list[Echo] = opened) -> Echo:
            opened.append(Echo(opening))
            return opened[0]

        joined, alone, plain = (
            Client(case.method, mixing, rank, start, ranks=ranks, run=number, channel=number, transport=transport)
            for transport in ("gloo", echo, Plain)
        )
        for client in (joined, alone, plain):
            step_times(client, oracle, 3)
        turns: dict[str, Callable[[], list[float]]] = {
            "step": partial(step_times, joined, oracle, case.rounds),
            "alone": partial(step_times, alone, oracle, case.rounds),
            "plain": partial(step_times, plain, oracle, case.rounds),
            "bare": partial(bare_times, joined.transport, opened[0].packets[1 - rank], case.rounds),
            "gloo": partial(gloo_times, ranks, opened[0].length, case.rounds),
        }
        seen: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(blocks):
            for name, turn in turns.items():
                joined.session.settle()
                plain.session.settle()
                dist.barrier()
                seen[name].append(median(turn()))
        joined.close()
        results.append(Seen(bytes=opened[0].length, times=seen))
    ranks.leave()
    return results


def ring(rank: int, size: int, rounds: int) -> dict[str, float]:
    """The mean and median seconds per round of one rank."""
    ranks, d = Ranks(120), 124
    client = Client(beer(), gs.mixing_matrix(gs.ring(size)), rank, torch.zeros(1, d), ranks=ranks)
    oracle = given(rank, d)
    step_times(client, oracle, 3)
    dist.barrier()
    began = time.perf_counter()
    taken = step_times(client, oracle, rounds)
    client.session.settle()
    mean = (time.perf_counter() - began) / rounds
    client.close()
    ranks.leave()
    return {"mean": mean, "median": median(taken)}


def spawn(ranks: int, function: Callable[..., Any], *arguments: Any, seconds: float) -> list[Any]:
    """Call a function on each rank, in forks of this process, and return the results."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    processes, pipes = [], []
    try:
        for rank in range(ranks):
            ours, theirs = _fork.Pipe(duplex=False)
            process = _fork.Process(target=run, args=(theirs, rank, ranks, port, function, arguments), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        results = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(seconds):
                raise SystemExit(f"Rank {rank} did not answer within {seconds:g} s.")
            results.append(pickle.loads(pipe.recv_bytes()))
            if isinstance(results[-1], Exception):
                raise SystemExit("".join(results[-1].__notes__))
        return results
    finally:
        for process in processes:
            process.join(1)
            process.kill()


def run(pipe: Any, rank: int, ranks: int, port: int, function: Callable[..., Any], arguments: Any) -> None:
    """The process of one rank."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    try:
        result = function(rank, *arguments)
    except Exception as error:
        error.add_note(traceback.format_exc())
        result = error
    pipe.send_bytes(pickle.dumps(result))


def rows(cases: Sequence[Case], ranks: Sequence[Sequence[Seen]]) -> list[Row]:
    """One line per case, from the measurements of both ranks."""
    lines: list[Row] = []
    for case, *both in zip(cases, *ranks, strict=True):
        seen = {name: [1e3 * block for rank in both for block in rank["times"][name]] for name in TIMES}
        times = {name: median(blocks) for name, blocks in seen.items()}
        ours, theirs = (
            median(turn - alone for turn, alone in zip(seen[name], seen["alone"], strict=True))
            for name in ("step", "plain")
        )
        lines.append(
            {"method": case.method.title, "d": case.d, "bytes": both[0]["bytes"], **times}
            | {"exchange": ours, "exchange / gloo": ours / times["gloo"], "exchange / plain": ours / theirs}
            | {"bare / gloo": times["bare"] / times["gloo"]}
        )
    return lines


def show(lines: Sequence[Row]) -> None:
    print("                packet      time in ms of                                         exchange /")
    print("method       d   bytes        step    alone    plain     bare     gloo  exchange   gloo  plain  bare / gloo")
    for line in lines:
        print(
            f"{line['method']:4} {line['d']:>9,} {line['bytes']:>9,} "
            + " ".join(f"{line[name]:8.3f}" for name in TIMES)
            + f" {line['exchange']:9.3f} {line['exchange / gloo']:6.2f} {line['exchange / plain']:6.2f} "
            + f"{line['bare / gloo']:12.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9, help="turns of the measurements")
    parser.add_argument("--ranks", type=int, help="run a ring of this many ranks instead")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(1)

    if options.ranks:
        seen = spawn(options.ranks, ring, options.ranks, 100, seconds=300)
        means, medians = ([1e3 * one[name] for one in seen] for name in ("mean", "median"))
        if options.json:
            print(json.dumps({"ranks": options.ranks, "ms": max(means), "median ms": median(medians)}, indent=2))
        else:
            print(f"BEER, gsgd(5), d = 124, ring of {options.ranks}: {max(means):.2f} ms per round over 100 rounds;")
            print(f"the median rank's median round took {median(medians):.2f} ms.")
        return

    lines = rows(CASES, spawn(2, measure, CASES, options.blocks, seconds=600))
    if options.json:
        print(json.dumps(lines, indent=2))
    else:
        show(lines)


if __name__ == "__main__":
    main()
