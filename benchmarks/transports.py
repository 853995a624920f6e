"""Round trips and throughput of the encrypted transport (`curve`) against gloo's, in one run.

    python benchmarks/transports.py [--blocks 7] [--json]

Two processes on loopback. For each size, both transports are opened, and blocks alternate between them:

    round trip    one packet goes there, and one of the same size comes back
    throughput    each process sends four packets before it takes the other's four

Times are medians over blocks, of both processes. The ratio is curve / gloo for round trips (below 1 is faster), and for
throughput as well (above 1 is faster).
"""

import argparse
import json
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from processes import spawn

from gossamer.compression import packet
from gossamer.compression.dense import Dense
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.transport.base import Opening, Transport
from gossamer.runtime.transport.curve import opened
from gossamer.runtime.transport.gloo import GlooTransport
from gossamer.runtime.transport.peers import write_keys

SIZES = (214, 26_000, 4_000_000)
AT_ONCE = 4
Seen = dict[str, dict[str, float]]


def packet_of(size: int, rank: int) -> bytes:
    """A packet of about that many bytes."""
    (data,) = packet.encode([Dense(torch.zeros(1, max(1, (size - 20) // 4)))], run=1, clients=[rank])
    return data


def round_trip(transport: Transport, data: bytes, rank: int) -> float:
    """Seconds until one's own packet was answered; rank 1 answers."""
    began = time.perf_counter()
    if rank == 0:
        transport.send(data, [1])
    transport.receive(1 - rank, began)
    if rank == 1:
        transport.send(data, [0])
    return time.perf_counter() - began


def both_ways(transport: Transport, data: bytes, rank: int) -> float:
    """Seconds until all packets were sent and received."""
    began = time.perf_counter()
    for _ in range(AT_ONCE):
        transport.send(data, [1 - rank])
    for _ in range(AT_ONCE):
        transport.receive(1 - rank, began)
    return time.perf_counter() - began


def measure(rank: int, folder: str, blocks: int) -> list[Seen]:
    """Both transports at one of two ranks: medians by transport and measurement, for each size."""
    ranks, results = Ranks(60), []
    curve = opened(Path(folder) / "peers.toml", Path(folder) / str(rank) / "key.secret")
    for number, size in enumerate(SIZES):
        opening = Opening(rank, [1 - rank], 2 * size + 1024, 1, number, ranks)
        transports: dict[str, Transport] = {"gloo": GlooTransport(opening), "curve": curve(opening)}
        data, many = packet_of(size, rank), 100 if size < 1_000_000 else 10
        turns: dict[str, Callable[[Transport, bytes, int], float]] = {"trip": round_trip, "both": both_ways}
        seen: dict[str, dict[str, list[float]]] = {name: {turn: [] for turn in turns} for name in transports}
        for block in range(blocks + 1):
            for name, transport in transports.items():
                for turn, function in turns.items():
                    taken = [function(transport, data, rank) for _ in range(many)]
                    if block:  # the first is a warm-up
                        seen[name][turn].append(median(taken))
        for transport in transports.values():
            transport.close()
        results.append({name: {turn: median(all_) for turn, all_ in by.items()} for name, by in seen.items()})
    ranks.leave()
    return results


def prepare(folder: Path) -> None:
    """Keys, and a peers file with two free ports."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    tables = []
    for client, server in enumerate(held):
        key = write_keys(folder / str(client)).public.decode()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        tables.append(f'[[peer]]\nclient = {client}\nname = "{client}"\naddress = "{address}"\nkey = "{key}"\n')
        server.close()
    (folder / "peers.toml").write_text("".join(tables))


def rows(both: list[list[Seen]]) -> list[dict[str, float]]:
    """One line per size."""
    lines = []
    for size, *seen in zip(SIZES, *both, strict=True):
        trip, both_ = ({name: median(one[name][turn] for one in seen) for name in seen[0]} for turn in ("trip", "both"))
        speed = {name: AT_ONCE * size / 1e6 / seconds for name, seconds in both_.items()}
        lines.append(
            {"bytes": size, "gloo ms": 1e3 * trip["gloo"], "curve ms": 1e3 * trip["curve"]}
            | {"trip ratio": trip["curve"] / trip["gloo"]}
            | {"gloo MB/s": speed["gloo"], "curve MB/s": speed["curve"], "speed ratio": speed["curve"] / speed["gloo"]}
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=7, help="turns of the measurements")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        lines = rows(spawn(2, measure, folder, options.blocks, seconds=300))
    if options.json:
        print(json.dumps(lines, indent=2))
        return
    print("              round trip, ms                throughput each way, MB/s")
    print("    bytes     gloo    curve  curve / gloo      gloo    curve  curve / gloo")
    for line in lines:
        print(
            f"{line['bytes']:>9,} {line['gloo ms']:8.3f} {line['curve ms']:8.3f} {line['trip ratio']:13.2f} "
            f"{line['gloo MB/s']:9.1f} {line['curve MB/s']:8.1f} {line['speed ratio']:13.2f}"
        )


if __name__ == "__main__":
    main()
