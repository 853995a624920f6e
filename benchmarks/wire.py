"""Processes on a network: bytes on the interface against counted bytes, and the time per round against the delay.

    python benchmarks/wire.py [bytes | delay] [--json]

Hosts are Linux network namespaces, so this needs Linux, root, iproute2 and ethtool (`delay`: /dev/net/tun). Without
them the benchmark prints the reason and exits with code 0. No traffic leaves the machine, and every namespace is
removed at the end.

bytes: four hosts on a bridge, one rank each on a ring. The bytes that eth0 transmits from before the first round to
after the last are compared with the bytes of the record, once for each neighbour, plus a fixed cost of 400 bytes per
packet and neighbour for gloo's control messages and small frames. The ratio must be within 8 % of 1 on every rank.
Offloads are off, because otherwise frames of 64 kB are counted without their headers. Most of the overhead is 66 bytes
of Ethernet, IP and TCP headers for each 1,448 bytes of a packet (4.6 %). The rest is gloo's control messages, and ACKs
of 66 bytes each that could not be sent with other data. `frames` counts all frames.

delay: two hosts on a switch that holds each frame for 10 ms, at 100 Mbit/s. An exchange cannot be faster than one such
delay, and the median round, with its computation, must take at most 1.3 of them.

If two ranks do not start at the same moment, one is early in even rounds and the other in odd rounds. A round is
therefore measured as half of two consecutive ones. `true` is the delay of a byte in a plain TCP connection (half a
round trip). `gloo` is an exchange of the same number of bytes with isend and irecv, without a receive posted ahead; it
takes about two delays, because gloo sends only when it knows of the receive.
"""

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

PREFIX = f"gsm-{os.getpid()}-"
PORT = 29_500
HOSTS = 4
FIXED = 400  # bytes per packet and neighbour
TOLERANCE = 0.08
RATE, DELAY = 100e6, 0.010
MOST = 1.3
LIMIT = 300.0  # most seconds for the ranks
TRAFFIC = (("BEER", 25_450, 30), ("DSGD", 25_450, 30), ("BEER", 1_000_000, 10), ("DSGD", 1_000_000, 10))
ROUNDS = (("BEER", 124, 100), ("BEER", 1_300, 100), ("CHOCO-SGD", 1_300, 100))
TUNSETIFF, IFF_TAP, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0002, 0x1000, 0x40000000

Result = dict[str, Any]


class Unavailable(Exception):
    """Something that the benchmark needs is missing or not permitted."""


def sh(command: str) -> None:
    """Run a command that sets up the network."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"`{command}` failed ({done.stderr.strip() or done.returncode})")


def require(part: str) -> None:
    """Raise Unavailable if the network cannot be set up."""
    if sys.platform != "linux":
        raise Unavailable("network namespaces need Linux")
    if os.geteuid() != 0:
        raise Unavailable("network namespaces need root")
    tools = ("ip", "ethtool") if part == "bytes" else ("ip",)
    for tool in tools:
        if shutil.which(tool) is None:
            raise Unavailable(f"`{tool}` is not installed")
    if part == "delay" and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise Unavailable("/dev/net/tun is not accessible")


@contextlib.contextmanager
def namespaces(names: Sequence[str]) -> Iterator[list[str]]:
    """Temporary network namespaces."""
    full = [PREFIX + name for name in names]
    made: list[str] = []
    try:
        for name in full:
            made.append(name)
            sh(f"ip netns add {name}")
            sh(f"ip -n {name} link set lo up")
        yield full
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def bridge(hosts: Sequence[str], switch: str) -> None:
    """Give host i an eth0 with the address 10.77.0.(i + 1), on one bridge."""
    sh(f"ip -n {switch} link add br0 type bridge")
    sh(f"ip -n {switch} link set br0 up")
    for i, host in enumerate(hosts):
        sh(f"ip link add eth0 netns {host} type veth peer name p{i} netns {switch}")
        sh(f"ip -n {host} addr add 10.77.0.{i + 1}/24 dev eth0")
        sh(f"ip -n {host} link set eth0 up")
        sh(f"ip -n {switch} link set p{i} master br0")
        sh(f"ip -n {switch} link set p{i} up")
        sh(f"ip netns exec {host} ethtool -K eth0 tso off gso off gro off")


def tap(host: str, address: str) -> int:
    """Give a host a tap0 with this address; its frames are read from the returned descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/var/run/netns/{host}", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise Unavailable(f"setns failed ({os.strerror(ctypes.get_errno())})")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"tap0", IFF_TAP | IFF_NO_PI))
        sh(f"ip addr add {address}/24 dev tap0")
        sh("ip link set tap0 up")
        return device
    except OSError as error:
        raise Unavailable(f"creating a tap device failed ({error.strerror})") from None
    finally:
        libc.setns(home, CLONE_NEWNET)
        os.close(home)
        os.close(there)


def switch(hosts: Sequence[str]) -> None:
    """Forward frames between two hosts until standard input ends."""
    ports = [tap(host, f"10.78.0.{i + 1}") for i, host in enumerate(hosts)]
    other = dict(zip(ports, reversed(ports), strict=True))
    free = dict.fromkeys(ports, 0.0)  # when each port will have sent its queue
    held: list[tuple[float, int, int, bytes]] = []
    frames = 0
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        while held and held[0][0] <= now:
            _, _, port, frame = heapq.heappop(held)
            with contextlib.suppress(OSError):
                os.write(port, frame)
        # select, because poll rounds up to whole milliseconds
        ready, _, _ = select.select([0, *ports], [], [], max(0.0, held[0][0] - time.monotonic()) if held else None)
        if 0 in ready:
            return
        for port in ready:
            with contextlib.suppress(BlockingIOError):
                frame = os.read(port, 70_000)
                frames += 1
                free[port] = max(free[port], time.monotonic()) + 8 * len(frame) / RATE
                heapq.heappush(held, (free[port] + DELAY, frames, other[port], frame))


@contextlib.contextmanager
def switched(hosts: Sequence[str]) -> Iterator[None]:
    """Run a switch in a subprocess."""
    command = [sys.executable, __file__, "_switch", *hosts]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if (answer := process.stdout.readline().strip()) != "ready":
            raise Unavailable(answer or "the switch did not start")
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()


def launch(part: str, hosts: Sequence[str], master: str) -> list[list[Result]]:
    """The results of the rank on each host."""
    environment = os.environ | {
        "WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(PORT),
        "OMP_NUM_THREADS": "1",
    }
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank, host in enumerate(hosts):
            ranks.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", host, sys.executable, __file__, "_rank", part],
                    env=environment | {"RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # only the parent receives Ctrl-C, and ends them
                )
            )
        results, end = [], time.monotonic() + LIMIT
        for rank, process in enumerate(ranks):
            try:
                out, err = process.communicate(timeout=max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise SystemExit(f"Rank {rank} did not finish within {LIMIT:g} s.") from None
            if process.returncode:
                raise SystemExit(f"Rank {rank} failed:\n{err}")
            results.append(json.loads(out.splitlines()[-1]))
        return results
    finally:
        for process in ranks:
            process.kill()  # no effect on a process that has ended
            process.wait()


def client_of(ranks: Any, name: str, d: int, number: int) -> tuple[Any, Callable[[], None]]:
    """A client, and a function that runs its next round."""
    import gossamer as gs
    from gossamer.algorithms.base import Algorithm
    from gossamer.runtime.gradients.oracle import BatchOracle
    from gossamer.runtime.processes.client import Client
    from gossamer.runtime.start import starting_models
    from gossamer.streams import Streams

    methods: dict[str, Algorithm] = {
        "BEER": gs.BEER(lr=1e-3, gamma=0.3, compressor=gs.gsgd(5)),
        "CHOCO-SGD": gs.CHOCOSGD(lr=1e-3, gamma=0.3, compressor=gs.gsgd(5)),
        "DSGD": gs.DSGD(lr=1e-3),
    }
    problem = gs.quadratic(clients=ranks.size, d=d, rows=1).only(ranks.rank)
    x = starting_models(None, problem, Streams([0], [ranks.rank]))
    mixing = gs.mixing_matrix(gs.ring(ranks.size))
    client = Client(methods[name], mixing, ranks, x.float(), run=number, channel=number)
    return client, lambda: client.step(
        BatchOracle(problem, client.streams, client.t, None, {}), client.method.lr_at(client.t)
    )


def transmitted() -> tuple[int, int]:
    """Bytes and frames transmitted on eth0, after a pause for late ACKs."""
    time.sleep(0.3)
    counters = Path("/sys/class/net/eth0/statistics")
    return int((counters / "tx_bytes").read_text()), int((counters / "tx_packets").read_text())


def count_bytes(ranks: Any) -> list[Result]:
    """The bytes that one rank counts and its interface transmits."""
    results = []
    for number, (name, d, rounds) in enumerate(TRAFFIC):
        client, step = client_of(ranks, name, d, number)
        ranks.share(None)  # a barrier, so that no count includes the start or end of another rank
        bytes_before, frames_before = transmitted()
        for _ in range(rounds):
            step()
        client.settle()
        bytes_after, frames_after = transmitted()
        neighbors = len(client.links.links)
        results.append(
            {
                "counted": client.bytes * neighbors,
                "fixed": FIXED * client.packets * neighbors,
                "interface": bytes_after - bytes_before,
                "frames": frames_after - frames_before,
            }
        )
        ranks.share(None)
        client.close()
    return results


def true_delay(rank: int, rounds: int = 50) -> float:
    """Half of the median round trip of a byte in a separate TCP connection."""
    address, times = (os.environ["MASTER_ADDR"], PORT + 1), []
    if rank == 0:
        with socket.create_server(address) as server:
            peer, _ = server.accept()
    else:
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                peer = socket.create_connection(address)
                break
            time.sleep(0.05)
    with peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            began = time.perf_counter()
            if rank == 0:
                peer.sendall(b".")
                peer.recv(1)
                times.append(time.perf_counter() - began)
            else:
                peer.recv(1)
                peer.sendall(b".")
    return median(times) / 2 if times else 0.0


def gloo_exchange(other: int, length: int, rounds: int = 50) -> float:
    """The median time of isend and irecv, neither posted ahead."""
    import torch
    import torch.distributed as dist

    mine, theirs = (torch.zeros(length, dtype=torch.uint8) for _ in range(2))
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        works = dist.isend(mine, dst=other, tag=1), dist.irecv(theirs, src=other, tag=1)
        for work in works:
            assert work is not None
            work.wait()
        times.append(time.perf_counter() - began)
    return median(times)


def time_rounds(ranks: Any) -> list[Result]:
    """The time per round of one of two ranks."""
    true = true_delay(ranks.rank)
    results = []
    for number, (name, d, rounds) in enumerate(ROUNDS):
        client, step = client_of(ranks, name, d, number)
        ends = []
        for _ in range(rounds):
            step()
            ends.append(time.perf_counter())
        client.close()
        length = client.bytes // client.packets
        two = [(later - end) / 2 for end, later in zip(ends, ends[2:], strict=False)]
        gloo = gloo_exchange(1 - ranks.rank, length)
        results.append({"bytes": length, "round": median(two), "true": true, "gloo": gloo})
    return results


def rank(part: str) -> None:
    """Run one rank; prints its results as one line."""
    import torch

    from gossamer.runtime.processes.ranks import Ranks

    torch.set_num_threads(1)
    ranks = Ranks(60)
    print(json.dumps(count_bytes(ranks) if part == "bytes" else time_rounds(ranks)))
    ranks.leave()


def bytes_part() -> list[Result]:
    """One line per case: the sums of all ranks, and the ratio of the worst rank."""
    with namespaces(["sw", *(str(i) for i in range(HOSTS))]) as (middle, *hosts):
        bridge(hosts, middle)
        ranks = launch("bytes", hosts, "10.77.0.1")
    lines = []
    for (name, d, rounds), *seen in zip(TRAFFIC, *ranks, strict=True):
        line: Result = {"method": name, "d": d, "rounds": rounds}
        line |= {key: sum(one[key] for one in seen) for key in seen[0]}
        ratios = [one["interface"] / (one["counted"] + one["fixed"]) for one in seen]
        line["ratio"] = line["interface"] / (line["counted"] + line["fixed"])
        line["worst"] = max(ratios, key=lambda ratio: abs(ratio - 1))
        lines.append(line | {"ok": abs(line["worst"] - 1) <= TOLERANCE})
    return lines


def delay_part() -> list[Result]:
    """One line per case, for the slower rank."""
    with namespaces(["0", "1"]) as hosts, switched(hosts):
        ranks = launch("delay", hosts, "10.78.0.1")
    lines = []
    for (name, d, rounds), *seen in zip(ROUNDS, *ranks, strict=True):
        line: Result = {"method": name, "d": d, "rounds": rounds}
        line |= {key: max(one[key] for one in seen) for key in seen[0]}
        line |= {"ratio": line["round"] / DELAY, "ratio true": line["round"] / line["true"]}
        lines.append(line | {"ok": line["ratio"] <= MOST})
    return lines


def show_bytes(lines: Sequence[Result]) -> None:
    print(f"bytes on the interface of {HOSTS} hosts together, within {TOLERANCE:.0%} of the counted bytes?")
    print("method         d  rounds      counted   fixed cost  on the wire   frames   ratio  worst rank")
    for line in lines:
        print(
            f"{line['method']:6} {line['d']:>9,} {line['rounds']:>7} {line['counted']:>12,} {line['fixed']:>12,} "
            f"{line['interface']:>12,} {line['frames']:>8,} {line['ratio']:>7.3f} {line['worst']:>11.3f}  "
            + ("ok" if line["ok"] else "NOT ok")
        )


def show_delay(lines: Sequence[Result]) -> None:
    print(f"median round at a delay of {1e3 * DELAY:g} ms each way, at most {MOST} delays?")
    print("method         d  packet bytes  round ms  delays  true ms  true delays   gloo ms")
    for line in lines:
        print(
            f"{line['method']:9} {line['d']:>6,} {line['bytes']:>13,} {1e3 * line['round']:>9.2f} "
            f"{line['ratio']:>7.2f} {1e3 * line['true']:>8.2f} {line['ratio true']:>12.2f} {1e3 * line['gloo']:>9.2f}  "
            + ("ok" if line["ok"] else "NOT ok")
        )


PARTS = {"bytes": (bytes_part, show_bytes), "delay": (delay_part, show_delay)}


def stop(*_: Any) -> None:
    raise SystemExit(143)


def main() -> None:
    if sys.argv[1:2] == ["_rank"]:
        return rank(sys.argv[2])
    if sys.argv[1:2] == ["_switch"]:
        try:
            return switch(sys.argv[2:])
        except Unavailable as reason:
            return print(reason)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=tuple(PARTS), help="default: both")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    results: dict[str, list[Result]] = {}
    skipped: dict[str, list[str]] = {}
    try:
        for part in [options.part] if options.part else PARTS:
            try:
                require(part)
                results[part] = PARTS[part][0]()
            except Unavailable as reason:
                skipped.setdefault(str(reason), []).append(part)
            if part in results and not options.json:
                PARTS[part][1](results[part])
    except KeyboardInterrupt:
        sys.exit(130)
    if skipped:
        reasons = "; ".join(f"{' and '.join(parts)}: {reason}" for reason, parts in skipped.items())
        print(f"Skipped {reasons}.", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(results, indent=2))
    sys.exit(not all(line["ok"] for lines in results.values() for line in lines))


if __name__ == "__main__":
    main()
