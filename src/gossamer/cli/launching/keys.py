"""The keys and addresses of the ranks of one host, made for one attempt in a private folder.

Secret keys stay in that folder. Addresses and public keys go to the launcher, which sends those of all ranks to every
host.
"""

import os
import socket
import sys
from pathlib import Path

from gossamer.errors import RunError
from gossamer.runtime.transport.peers import SECRET, write_keys

_LOOPBACK = "127.0.0.1"


def peers_path(folder: str | Path) -> Path:
    """The peers file."""
    return Path(folder) / "peers.toml"


def key_path(folder: str | Path, rank: int) -> Path:
    """The secret key of a rank."""
    return Path(folder) / f"rank{rank}" / SECRET


def write_peers(folder: Path, text: str) -> None:
    """Write the peers file, readable by this user only."""
    handle = os.open(peers_path(folder), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


class Places:
    """The ranks of one host: a key pair and a port for each.

    Args:
        folder: For the keys.
        host: The name of this host, for error messages.
        peer: Another host of the run; the ranks listen at the address by which this host reaches it. Empty if there
            is none: then they listen on loopback.
        ranks: The ranks of this host.
        port: Of the first rank; the others have the next ones. With 0 each has a free one.
    """

    def __init__(self, folder: Path, host: str, peer: str, ranks: range, port: int) -> None:
        self._held: list[socket.socket] = []
        family, address = address_towards(peer) if peer else (socket.AF_INET, _LOOPBACK)
        shown = f"[{address}]" if family == socket.AF_INET6 else address
        try:
            for at in range(len(ranks)):
                # Without `listen`, so nobody can connect. On Linux the port stays ours until the rank listens there.
                held = socket.socket(family, socket.SOCK_STREAM)
                self._held.append(held)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((address, port + at if port else 0))
        except OSError as error:
            self.close()
            where, reason = f"{shown}:{port + len(self._held) - 1}", error.strerror or error
            raise RunError(f"Host {host!r} cannot listen at {where}: {reason}; choose another --port.") from None
        self.found = {
            rank: (f"{shown}:{held.getsockname()[1]}", write_keys(key_path(folder, rank).parent).public.decode())
            for rank, held in zip(ranks, self._held, strict=True)
        }
        """The address and the public key of every rank."""
        if sys.platform != "linux":  # elsewhere ranks could not listen there
            self.close()

    def close(self) -> None:
        """Hold the ports no longer."""
        for held in self._held:
            held.close()


def address_towards(peer: str) -> tuple[socket.AddressFamily, str]:
    """The address by which this host reaches another."""
    reason: object = "it has no address"
    try:
        found = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)
    except OSError as error:
        found, reason = [], error.strerror or error
    for family, kind, protocol, _, place in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(place)  # of UDP, so nothing is sent
                return family, str(probe.getsockname()[0])
        except OSError as error:
            reason = error.strerror or error
    raise RunError(f"Host {socket.gethostname()} cannot reach host {peer!r}: {reason}.")
