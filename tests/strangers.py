"""A stranger in the network of a run: `strangers.py PEERS RECORDED`, or first `strangers.py record DEVICE RECORDED`.

It knows the peers file, all public keys included, and the bytes that the ends of a link have sent, but no secret key.
Prints as JSON which ports are open, and what each attack has got.
"""

import contextlib
import errno
import json
import resource
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from gossamer.runtime.transport.frames import Greeting, Kind
from gossamer.runtime.transport.peers import Peer, read_peers

MOST_PLAIN = 300  # bytes of the ZMTP greeting and a WELCOME, which are the same for everyone
_EVERYTHING = 3  # ETH_P_ALL: what leaves the device, too
Configure = Callable[[Any], None]


def answers(peer: Peer, configure: Configure, seconds: float = 1.0) -> dict[str, int]:
    """What a ZeroMQ client gets that sends all kinds of frames: messages, and handshakes that were completed."""
    context = zmq.Context()
    made = context.socket(zmq.DEALER)
    made.linger, made.ipv6 = 0, True
    configure(made)
    monitor: Any = made.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    made.connect(f"tcp://{peer.address}")
    for channel in (0, 2**32 - 1):
        with contextlib.suppress(zmq.Again):
            made.send(Greeting(Kind.HELLO, 7, channel, 1, peer.client, 12345, 0).pack(), zmq.DONTWAIT)
            for kind in Kind:
                made.send(bytes([kind]) + bytes(33), zmq.DONTWAIT)
    found = {"messages": 0, "handshakes": 0}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(zmq.Again):
            made.recv(zmq.DONTWAIT)
            found["messages"] += 1
        with contextlib.suppress(zmq.Again):
            recv_monitor_message(monitor, zmq.DONTWAIT)
            found["handshakes"] += 1
        time.sleep(0.01)
    made.disable_monitor()
    context.destroy(linger=0)
    return found


def without_a_key(peer: Peer, seconds: float = 1.0) -> dict[str, int]:
    """As a client that does not know of CURVE."""
    return answers(peer, lambda made: None, seconds)


def with_a_wrong_key(peer: Peer, seconds: float = 1.0) -> dict[str, int]:
    """With a key pair that is in nobody's peers file."""

    def configure(made: Any) -> None:
        made.curve_publickey, made.curve_secretkey = zmq.curve_keypair()
        made.curve_serverkey = peer.key

    return answers(peer, configure, seconds)


def with_a_stolen_name(peer: Peer, other: Peer) -> dict[str, int]:
    """With the public key of another client, and a secret one that does not belong to it."""

    def configure(made: Any) -> None:
        _, made.curve_secretkey = zmq.curve_keypair()
        made.curve_publickey, made.curve_serverkey = other.key, peer.key

    return answers(peer, configure)


def told(peer: Peer, sent: bytes, seconds: float = 2.0) -> int:
    """The number of bytes that come back for these."""
    host, _, port = peer.address.rpartition(":")
    heard = 0
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=seconds) as made:
        with contextlib.suppress(OSError):
            made.sendall(sent)
        with contextlib.suppress(OSError):
            while data := made.recv(4096):
                heard += len(data)
    return heard


def garbage(peer: Peer) -> int:
    """The most that comes back for bytes that mean nothing."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
    starts = (b"", greeting, greeting + b"\x04\xc8\x05HELLO", b"GET / HTTP/1.0\r\n\r\n")
    return max(told(peer, start + secrets.token_bytes(5000), 0.5) for start in starts)


def a_thousand(peer: Peer, seconds: float = 3.0) -> int:
    """Hold so many connections at once; how many were made."""
    host, _, port = peer.address.rpartition(":")
    made = 0
    with contextlib.ExitStack() as held:
        for _ in range(1000):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            made += one.connect_ex((host, int(port))) in (0, errno.EINPROGRESS)
            time.sleep(0.0005)
        time.sleep(seconds)
    return made


def open_ports(host: str) -> list[int]:
    """All ports that accept a connection."""
    found = []
    for first in range(1, 65536, 500):
        trying: dict[socket.socket, int] = {}
        for port in range(first, min(first + 500, 65536)):
            made = socket.socket()
            made.setblocking(False)
            if made.connect_ex((host, port)) == errno.EINPROGRESS:
                trying[made] = port
            else:
                made.close()  # refused at once
        deadline = time.monotonic() + 2
        while trying and time.monotonic() < deadline:
            for made in select.select([], list(trying), [], 0.1)[1]:
                port = trying.pop(made)
                if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.append(port)
                made.close()
        assert not trying, f"{len(trying)} ports of {host} neither accept nor refuse"
    return found


def record(device: str, path: Path) -> None:
    """Note what travels on a device until the standard input ends: the bytes of every TCP connection, by direction."""
    flows: dict[str, dict[int, bytes]] = {}
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERYTHING)) as wire:
        wire.bind((device, _EVERYTHING))
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([wire, sys.stdin], [], [])
            if sys.stdin in ready:
                break
            frame = wire.recv(1 << 17)
            if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
                continue
            size, tcp = struct.unpack("!H", frame[16:18])[0], 14 + 4 * (frame[14] & 15)
            source, to, number = struct.unpack("!HHI", frame[tcp : tcp + 8])
            begin, flags = tcp + 4 * (frame[tcp + 12] >> 4), frame[tcp + 13]
            ends = [f"{socket.inet_ntoa(frame[at : at + 4])}:{port}" for at, port in ((26, source), (30, to))]
            flow = flows.setdefault(" ".join(ends), {})
            if flags & 2:  # SYN
                flow.clear()
                flow[-1] = struct.pack("!I", (number + 1) % 2**32)
            if begin < 14 + size:
                flow.setdefault(number, frame[begin : 14 + size])
    path.write_text(json.dumps({name: _in_order(flow).hex() for name, flow in flows.items() if -1 in flow}))


def _in_order(flow: dict[int, bytes]) -> bytes:
    """The first bytes of a connection, until one is missing."""
    at, found = struct.unpack("!I", flow[-1])[0], bytearray()
    while data := flow.get(at):
        found += data
        at = (at + len(data)) % 2**32
        if len(found) > 1 << 20:
            break
    return bytes(found)


def attack(peers: dict[int, Peer], recorded: dict[str, str]) -> dict[str, Any]:
    """Everything that a stranger can do."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    hosts = sorted({peer.address.rpartition(":")[0] for peer in peers.values()})
    found: dict[str, Any] = {"open": [f"{host}:{port}" for host in hosts for port in open_ports(host)]}
    listening = [peer for peer in peers.values() if peer.address in found["open"]]
    streams = [
        (peer, bytes.fromhex(text))
        for names, text in recorded.items()
        for peer in listening
        if peer.address == names.split()[1] and len(text) > 2000
    ]
    with ThreadPoolExecutor(64) as pool:
        under_way: dict[str, list[Future[Any]]] = {
            "no key": [pool.submit(without_a_key, peer) for peer in listening],
            "wrong key": [pool.submit(with_a_wrong_key, peer) for peer in listening],
            "stolen name": [
                pool.submit(with_a_stolen_name, a, b) for a in listening for b in peers.values() if a is not b
            ],
            "garbage": [pool.submit(garbage, peer) for peer in listening],
            "replayed": [pool.submit(told, peer, sent) for peer, sent in streams],
        }
        found |= {name: [one.result() for one in many] for name, many in under_way.items()}
        found["held"] = list(pool.map(a_thousand, listening))
    return found


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2], Path(sys.argv[3]))
    else:
        print(json.dumps(attack(read_peers(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))))
