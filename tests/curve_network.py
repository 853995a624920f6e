"""A network of processes with keys, on loopback ports, and a wire between two of them that a test can cut or record."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from gossamer.runtime.transport.peers import write_keys


def free_ports(many: int) -> list[int]:
    held = [socket.socket() for _ in range(many)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def write_peers(path: Path, ports: dict[int, int], keys: dict[int, str]) -> None:
    tables = [
        f'[[peer]]\nclient = {i}\nname = "peer{i}"\naddress = "127.0.0.1:{port}"\nkey = "{keys[i]}"\n'
        for i, port in ports.items()
    ]
    path.write_text("\n".join(tables))


class Network:
    """Keys in a folder each, and a peers file for each client."""

    def __init__(self, folder: Path, clients: int) -> None:
        self.folder = folder
        self.ports = dict(enumerate(free_ports(clients)))
        self.keys = {i: write_keys(folder / f"key{i}").public.decode() for i in range(clients)}
        for i in range(clients):
            write_peers(self.peers(i), self.ports, self.keys)

    def peers(self, client: int) -> Path:
        return self.folder / f"peers{client}.toml"

    def secret(self, client: int) -> Path:
        return self.folder / f"key{client}" / "key.secret"


class Wire:
    """Forwards TCP connections to a port, records what is said on the first, and can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.recorded = bytearray()
        self.connections = 0
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, function: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=function, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                inside, _ = self._server.accept()
                self._ends.append(inside)
                try:
                    outside = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    _end(inside)
                    continue
                self._ends.append(outside)
                self.connections += 1
                self._begin(self._copy, inside, outside, self.connections == 1)
                self._begin(self._copy, outside, inside, False)

    def _copy(self, source: socket.socket, to: socket.socket, record: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if record:
                    self.recorded += data
                to.sendall(data)
        _end(source)
        _end(to)

    def cut(self) -> None:
        """Break the connections that are open now."""
        for one in self._ends:
            _end(one)

    def close(self) -> None:
        _end(self._server)
        self.cut()
        for thread in self._threads:
            thread.join()
        for one in (self._server, *self._ends):
            one.close()


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
