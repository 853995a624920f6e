"""Round trips and throughput of the encrypted transport (`curve`) against gloo's, in one run.

    python -m benchmarks.transports [--blocks 7] [--json]
    python -m benchmarks.transports --mbit 10 [--blocks 7] [--json]

Two processes on loopback. For each size, both transports are opened, and blocks alternate between them:

    round trip    one packet goes there, and one of the same size comes back
    throughput    each process sends four packets before it takes the other's four

Times are medians over blocks, of both processes. The ratio is curve / gloo for round trips (below 1 is faster), and for
throughput as well (above 1 is faster).

With `--mbit`, a ring of four hosts in network namespaces runs BEER with gsgd_5 and d = 1,000,000 over links of that
many Mbit/s, and blocks of 10 rounds alternate between the transports. Needs root, `ip`, `tc` and `ethtool`.
"""

import argparse
import ctypes
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import gossamer as gs
from benchmarks.links.hosts import Hosts, probe
from benchmarks.processes import spawn
from gossamer.compression import packet
from gossamer.compression.dense import Dense
from gossamer.runtime.gradients.oracle import SameOracle
from gossamer.runtime.processes.client import Client
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.transport.base import Open, Opening, Transport
from gossamer.runtime.transport.curve import opened
from gossamer.runtime.transport.gloo import GlooTransport
from gossamer.runtime.transport.peers import write_keys

SIZES = (214, 26_000, 4_000_000)
AT_ONCE = 4
HOSTS, ROUNDS = 4, 10
_NEWNET = 0x40000000
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


def prepare(folder: Path, addresses: list[str]) -> None:
    """Keys, and a peers file."""
    tables = []
    for client, address in enumerate(addresses):
        key = write_keys(folder / str(client)).public.decode()
        tables.append(f'[[peer]]\nclient = {client}\nname = "{client}"\naddress = "{address}"\nkey = "{key}"\n')
    (folder / "peers.toml").write_text("".join(tables))


def free_addresses() -> list[str]:
    """Two on loopback."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in held]
    for server in held:
        server.close()
    return addresses


def rounds(rank: int, folder: str, blocks: int, namespaces: list[str]) -> dict[str, float]:
    """Seconds per round of BEER at one of four hosts, by transport."""
    with Path("/var/run/netns", namespaces[rank]).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespaces[rank]}")
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    store = dist.FileStore(f"{folder}/store", HOSTS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=HOSTS)
    ranks = Ranks(60)
    curve = opened(Path(folder) / "peers.toml", Path(folder) / str(rank) / "key.secret")
    method = gs.BEER(lr=0.01, gamma=0.3, compressor=gs.gsgd(5))
    mixing, x = gs.mixing_matrix(gs.ring(HOSTS)), torch.zeros(1, 1_000_000)
    gradient = torch.randn(1, 1_000_000, generator=torch.Generator().manual_seed(rank))
    transports: dict[str, Open] = {"gloo": GlooTransport, "curve": curve}
    clients = {
        name: Client(method, mixing, rank, x, ranks=ranks, channel=channel, transport=transport)
        for channel, (name, transport) in enumerate(transports.items())
    }
    seen: dict[str, list[float]] = {name: [] for name in clients}
    with torch.no_grad():
        for block in range(blocks + 1):
            for name, client in clients.items():
                ranks.share(block)  # all begin together, and the link is idle
                began = time.perf_counter()
                for _ in range(ROUNDS):
                    client.step(SameOracle(gradient), 0.01)
                client.session.settle()
                if block:
                    seen[name].append((time.perf_counter() - began) / ROUNDS)
    for client in clients.values():
        client.close()
    ranks.leave()
    sent = clients["gloo"].exchange.bytes_total / clients["gloo"].t
    return {"bytes": sent} | {name: median(times) for name, times in seen.items()}


def on_slow_links(mbit: float, blocks: int) -> dict[str, float]:
    """Seconds per round, by transport, and their ratio."""
    probe()
    with tempfile.TemporaryDirectory() as folder, Hosts(HOSTS, delay_ms=0.0) as hosts:
        hosts.shape(mbit)
        prepare(Path(folder), [f"{hosts.address(i)}:5555" for i in range(HOSTS)])
        names = [hosts.namespace(i) for i in range(HOSTS)]
        every = spawn(HOSTS, rounds, folder, blocks, names, seconds=600)
    gloo, curve = (max(one[name] for one in every) for name in ("gloo", "curve"))
    sent = max(one["bytes"] for one in every)
    return {"Mbit/s": mbit, "bytes per round": sent, "bytes / bandwidth s": sent * 8e-6 / mbit, "gloo s": gloo} | {
        "curve s": curve,
        "curve / gloo": curve / gloo,
    }


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
    parser.add_argument("--mbit", type=float, help="time rounds over links of that many Mbit/s instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.mbit is not None:
        found = on_slow_links(options.mbit, options.blocks)
        print(json.dumps(found) if options.json else "  ".join(f"{name} {value:.4g}" for name, value in found.items()))
        return
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), free_addresses())
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
