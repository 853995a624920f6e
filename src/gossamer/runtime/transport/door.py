"""Who may connect to a listening socket, and how many strangers may try at a time.

ZeroMQ accepts every connection and closes it if no key was proved in time. Until then each holds a file descriptor, and
a thousand of them would leave none for the files of the run. So the oldest are closed when there are too many.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message
from zmq.utils.z85 import encode as z85

from gossamer.runtime.transport.peers import Peer

DOMAIN = b"gossamer"
MOST_STRANGERS = 64
_AT_ONCE = 1000
_GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Gate:
    """Tells ZeroMQ which keys may connect (ZAP, rfc.zeromq.org/spec/27).

    It is made before anything listens. Without it ZeroMQ would accept every key.
    """

    def __init__(self, context: Any, peers: Mapping[int, Peer]) -> None:
        self.socket: Any = context.socket(zmq.REP)
        self.socket.bind("inproc://zeromq.zap.01")
        self.admit(peers)

    def admit(self, peers: Mapping[int, Peer]) -> None:
        """Accept the keys of these peers, and no others."""
        self._names = {peer.key: str(peer.client) for peer in peers.values()}

    def judge(self) -> None:
        """Answer a question of ZeroMQ; a peer's messages then carry its client number."""
        version, request, domain, _, _, mechanism, *credentials = self.socket.recv_multipart()
        name = None
        if domain == DOMAIN and mechanism == b"CURVE" and len(credentials) == 1 and len(credentials[0]) == 32:
            name = self._names.get(z85(credentials[0]))
        code, text = (b"400", b"unknown key") if name is None else (b"200", b"")
        self.socket.send_multipart([version, request, code, text, (name or "").encode(), b""])


class Door:
    """The connections of a listening socket that have not sent a greeting yet, by file descriptor."""

    def __init__(self, listener: Any) -> None:
        self.monitor: Any = listener.get_monitor_socket(zmq.EVENT_ACCEPTED | _GONE)
        self.refused = 0
        """Connections that were closed because there were too many."""
        self._strangers: dict[int, int] = {}

    def look(self) -> None:
        """Take note of new connections, and close the oldest ones if there are too many."""
        for _ in range(_AT_ONCE):
            try:
                event: Any = recv_monitor_message(self.monitor, zmq.DONTWAIT)
            except zmq.ZMQError:
                break
            connection = int(event["value"])
            self._strangers.pop(connection, None)
            if event["event"] == zmq.EVENT_ACCEPTED:
                inode = _inode(connection)
                if inode is not None:
                    self._strangers[connection] = inode
        while len(self._strangers) > MOST_STRANGERS:
            connection = next(iter(self._strangers))
            _shut(connection, self._strangers.pop(connection))
            self.refused += 1

    def know(self, connection: int) -> None:
        """That connection is not a stranger's."""
        self._strangers.pop(connection, None)

    def close(self) -> None:
        """Watch no longer."""
        self.monitor.close(linger=0)


def _inode(connection: int) -> int | None:
    """Tells a connection from a later one with the same descriptor; None where there is none (or on Windows)."""
    try:
        return os.fstat(connection).st_ino
    except OSError:
        return None


def _shut(connection: int, inode: int) -> None:
    """End a connection that ZeroMQ owns, which closes it then; never another one that has its descriptor by now."""
    try:
        copy = os.dup(connection)
    except OSError:
        return
    try:
        held = socket.socket(fileno=copy)
    except OSError:  # a file, by now
        os.close(copy)
        return
    with held:
        if _inode(copy) == inode:
            try:
                held.shutdown(socket.SHUT_RDWR)
            except OSError:
                return
