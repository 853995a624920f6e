"""The sockets of a process in an untrusted network: one thread, one listening socket, one connection per link.

Of two neighbours the one with the larger number connects. ZeroMQ's CURVE encrypts a connection and proves both keys
before anything else is read. A connection that breaks is made again, and goes on after the last frame that arrived: the
greetings say which one that was, so nothing is lost, and nothing is taken twice.
"""

import contextlib
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from gossamer.errors import InputError, RunError
from gossamer.runtime.transport.door import DOMAIN, Door, Gate
from gossamer.runtime.transport.frames import HEAD_SIZE, Frame, Greeting, Kind, read
from gossamer.runtime.transport.link import Link
from gossamer.runtime.transport.peers import Keys, Peer

logger = logging.getLogger(__name__)

MOST_AHEAD = 32
"""Packets that a neighbour may send before we take the first of them."""
_HIGH_WATER = 2 * MOST_AHEAD  # messages that ZeroMQ holds per connection and direction
_CURVE_BYTES = 64  # that CURVE adds to a message, at most
_HANDSHAKE_MS = 5000
_LINGER_MS = 1000
_BACKLOG = 64
_TICK = 0.1
_AGAIN = 0.2  # seconds between two attempts to connect, or two greetings
_KEEP_ALIVE = 2.0  # at most, between two signs of life
_BIND_SECONDS = 5.0
_AT_ONCE = 100  # messages read before other work has its turn
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CLOSED | _LOST | _REFUSED


class Endpoint:
    """Sockets, and the thread that owns them. Other threads call `open`, `leave`, `wake`, `replace` and `close`."""

    def __init__(self, client: int, peers: dict[int, Peer], keys: Keys, listen: str, timeout: float) -> None:
        self.client, self.peers = client, peers
        self._keys, self._listen_at, self._timeout = keys, listen, timeout
        self._process = secrets.randbits(64)
        self._links: dict[tuple[int, int], Link] = {}
        self._routes: dict[bytes, Link] = {}
        self._capacity = 0
        self._listener: Any = None
        self._door: Door | None = None
        self._is_ending = False
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._on: dict[Any, Callable[[], None]] = {}
        self._bell, self._bell_rope = socket.socketpair()
        for end in (self._bell, self._bell_rope):
            end.setblocking(False)
        self._watch(self._bell.fileno(), self._hush)
        self._gate = Gate(self._context, peers)
        self._watch(self._gate.socket, self._gate.judge)
        self._thread = threading.Thread(target=self._loop, name="gossamer-curve", daemon=True)
        self._thread.start()

    def open(self, links: list[Link]) -> None:
        """Serve these links; an InputError or a RunError if the endpoint cannot listen."""

        def begin() -> None:
            most = max(link.capacity for link in links)
            if any(not link.connects for link in links) and (self._listener is None or most > self._capacity):
                self._capacity = max(most, self._capacity)
                self._listen()
            self._links |= {(link.channel, link.neighbor): link for link in links}

        self._ask(begin)

    def leave(self, links: list[Link]) -> bool:
        """Serve these links no longer; whether there are others."""

        def end() -> None:
            for link in links:
                self._links.pop((link.channel, link.neighbor), None)
                self._drop(link, "", linger=_LINGER_MS)

        if self._thread.is_alive():
            self._ask(end)
        return bool(self._links)

    def replace(self, peers: dict[int, Peer]) -> None:
        """Accept the keys of these peers, and no others from now on."""
        self._tasks.put(lambda: self._replace(peers))
        self.wake()

    def wake(self) -> None:
        """Have the thread look at what is to be sent."""
        with contextlib.suppress(OSError):  # full, so the thread will wake; or closed
            self._bell_rope.send(b"\0")

    def close(self) -> None:
        """End the thread and close all sockets; what was sent has a second to leave."""
        self._is_ending = True
        self.wake()
        self._thread.join()

    def _ask(self, function: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def task() -> None:
            try:
                function()
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)

        self._tasks.put(task)
        self.wake()
        done.result()

    def _loop(self) -> None:
        try:
            while not self._is_ending:
                for ready, _ in self._poller.poll(int(1000 * _TICK)):
                    if ready in self._on:  # one of those before it may have closed it
                        self._on[ready]()
                while not self._tasks.empty():
                    self._tasks.get()()
                for link in list(self._links.values()):
                    self._serve(link)
        finally:
            self._context.destroy(linger=_LINGER_MS)
            self._bell.close()
            self._bell_rope.close()

    def _watch(self, ready: Any, handler: Callable[[], None]) -> None:
        self._on[ready] = handler
        self._poller.register(ready, zmq.POLLIN)

    def _forget(self, ready: Any) -> None:
        del self._on[ready]
        self._poller.unregister(ready)

    def _hush(self) -> None:
        with contextlib.suppress(OSError):
            self._bell.recv(4096)

    def _replace(self, peers: dict[int, Peer]) -> None:
        gone = {peer.client for peer in self.peers.values() if peer.key not in {other.key for other in peers.values()}}
        self.peers = peers
        self._gate.admit(peers)
        for link in list(self._links.values()):
            if link.neighbor in gone:
                self._drop(link, "its key was removed from the peers file", linger=0)
                self._links.pop((link.channel, link.neighbor))
                link.is_revoked = True
                link.break_off("has no longer a key in the peers file")
        if gone and self._listener is not None:
            # ZeroMQ cannot close one connection of a listening socket. All are closed, and the others connect again.
            self._listen()

    def _options(self, made: Any, capacity: int) -> Any:
        made.linger = 0
        made.sndhwm = made.rcvhwm = _HIGH_WATER
        made.maxmsgsize = capacity + HEAD_SIZE + _CURVE_BYTES
        made.handshake_ivl = _HANDSHAKE_MS
        made.heartbeat_ivl = max(100, int(1000 * self._timeout / 6))
        made.heartbeat_timeout = max(1000, int(1000 * self._timeout / 2))
        made.ipv6 = True
        made.curve_publickey, made.curve_secretkey = self._keys.public, self._keys.secret
        return made

    def _listen(self) -> None:
        """Listen, or listen again: all connections to the old socket are closed."""
        for link in list(self._routes.values()):
            self._drop(link, "the connection broke", linger=0)
        if self._listener is not None and self._door is not None:
            self._forget(self._door.monitor)
            self._forget(self._listener)
            self._listener.disable_monitor()
            self._door.close()
            self._listener.close(linger=0)
            self._listener = self._door = None
        made = self._options(self._context.socket(zmq.ROUTER), self._capacity)
        made.curve_server = True
        made.zap_domain = DOMAIN
        made.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        made.backlog = _BACKLOG
        made.router_mandatory = True
        door = Door(made)
        limit = time.monotonic() + _BIND_SECONDS
        while True:
            try:
                made.bind(f"tcp://{self._listen_at}")
                break
            except zmq.ZMQError as error:  # the old socket takes a moment to let go of the port
                if error.errno != zmq.EADDRINUSE or time.monotonic() > limit:
                    door.close()
                    made.close(linger=0)
                    kind = RunError if error.errno == zmq.EADDRINUSE else InputError
                    raise kind(f"Client {self.client} cannot listen at {self._listen_at}: {error.strerror}.") from None
            time.sleep(0.02)
        self._listener, self._door = made, door
        self._watch(made, self._read_listener)
        self._watch(door.monitor, door.look)

    def _connect(self, link: Link) -> None:
        peer = self.peers[link.neighbor]
        made = self._options(self._context.socket(zmq.DEALER), link.capacity)
        made.curve_serverkey = peer.key
        made.reconnect_ivl, made.reconnect_ivl_max = 100, 2000
        link.socket, link.monitor = made, made.get_monitor_socket(_WATCHED)
        self._watch(link.monitor, lambda: self._read_monitor(link))
        self._watch(made, lambda: self._read_link(link))
        made.connect(f"tcp://{peer.address}")

    def _drop(self, link: Link, reason: str, linger: int) -> None:
        """Close a connection; the end that connects will do so again, if the link is still served."""
        link.is_connected = link.is_authenticated = False
        link.reason, link.due = reason, time.monotonic() + _AGAIN
        if link.route is not None:
            self._routes.pop(link.route, None)
            link.route = None
        if link.socket is not None:
            self._forget(link.monitor)
            self._forget(link.socket)
            link.socket.disable_monitor()
            link.monitor.close(linger=0)
            link.socket.close(linger=linger)
            link.socket = link.monitor = None

    def _serve(self, link: Link) -> None:
        """Send what waits, and what is due."""
        while link.waiting_frames:
            kind, body = link.waiting_frames.popleft()
            link.numbered += 1
            link.unacknowledged.append(Frame(kind, link.numbered, 0, body))
        while link.is_connected and link.sent < link.numbered:
            if not self._put(link, link.unacknowledged[link.sent - link.numbered]):
                break
            link.sent += 1
        now = time.monotonic()
        if link.is_connected and link.connects and now - link.heard > self._timeout / 2:
            self._drop(link, "the connection broke (nothing came)", linger=0)
        elif link.is_connected:
            if now - link.spoke > (_TICK if link.received > link.told else min(_KEEP_ALIVE, self._timeout / 6)):
                self._acknowledge(link)
        elif link.connects and now >= link.due and link.neighbor in self.peers:
            link.due = now + _AGAIN
            if link.socket is None:
                self._connect(link)
            elif link.is_authenticated:
                self._send(link, self._greeting(Kind.HELLO, link).pack())

    def _greeting(self, kind: Kind, link: Link) -> Greeting:
        return Greeting(kind, link.run, link.channel, self.client, link.neighbor, self._process, link.received)

    def _put(self, link: Link, frame: Frame) -> bool:
        """Send a frame, with the number of the last one that we have; False if it must be sent again."""
        received = link.received
        is_sent = self._send(link, Frame(frame.kind, frame.number, received, frame.body).pack())
        link.told = received if is_sent else link.told
        return is_sent

    def _acknowledge(self, link: Link) -> None:
        self._put(link, Frame(Kind.ACK, 0, 0))

    def _send(self, link: Link, data: bytes) -> bool:
        link.spoke = time.monotonic()
        try:
            if link.connects:
                link.socket.send(data, zmq.DONTWAIT, copy=False)
            else:
                self._listener.send_multipart([link.route, data], zmq.DONTWAIT, copy=False)
        except zmq.Again:  # the connection takes no more for now
            return False
        except zmq.ZMQError as error:
            self._drop(link, f"the connection broke ({error.strerror})", linger=0)
            return False
        return True

    def _read_listener(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                parts = self._listener.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.ZMQError:
                return
            if len(parts) != 2:
                continue
            route, user = parts[0].bytes, parts[1].get("User-Id")
            found, link = read(memoryview(parts[1].buffer)), self._routes.get(route)
            if isinstance(found, Greeting):
                self._greeted(route, user, int(parts[1].get(zmq.SRCFD)), found)
            elif link is not None and user == str(link.neighbor):  # else of a connection that another has replaced
                self._take(link, found)

    def _greeted(self, route: bytes, user: str, connection: int, hello: Greeting) -> None:
        link = self._links.get((hello.channel, hello.sender))
        if link is None or link.connects or user != str(hello.sender) or route in self._routes:
            return
        if hello.kind != Kind.HELLO or not self._agrees(link, hello):
            return
        if link.route is not None:
            self._drop(link, "", linger=0)
        link.route, self._routes[route] = route, link
        link.is_authenticated = True
        assert self._door is not None
        self._door.know(connection)
        self._send(link, self._greeting(Kind.WELCOME, link).pack())
        self._resume(link, link.known_of(hello.received))

    def _agrees(self, link: Link, greeting: Greeting) -> bool:
        """Whether a greeting is of the neighbour and the run that we know."""
        if greeting.receiver != self.client or greeting.sender != link.neighbor:
            link.reason = f"it takes us for client {greeting.receiver}; compare the peers files"
        elif (greeting.run, greeting.channel) != (link.run, link.channel):
            link.reason = f"it is in run {greeting.run}, and we are in run {link.run}"
        elif link.process is None or link.process == greeting.process or link.renew(greeting.process):
            link.process = greeting.process
            return True
        else:
            link.break_off("was started again, or two processes use its key")
        return False

    def _resume(self, link: Link, received: int) -> None:
        """Go on after the last frame that the neighbour has."""
        link.is_connected, link.heard = True, time.monotonic()
        link.sent = received
        if self._settle(link, received):
            self._serve(link)

    def _settle(self, link: Link, received: int) -> bool:
        """Forget the frames that the neighbour has."""
        if received > link.numbered:
            link.break_off(f"claims to have frame {received}, and {link.numbered} were made")
            return False
        while link.unacknowledged and link.unacknowledged[0].number <= received:
            link.unacknowledged.popleft()
        return True

    def _read_link(self, link: Link) -> None:
        for _ in range(_AT_ONCE):
            if link.socket is None:
                return
            try:
                part = link.socket.recv(zmq.DONTWAIT, copy=False)
            except zmq.ZMQError:
                return
            found = read(memoryview(part.buffer))
            if not isinstance(found, Greeting):
                if link.is_connected:
                    self._take(link, found)
            elif found.kind == Kind.WELCOME and not link.is_connected and self._agrees(link, found):
                self._resume(link, found.received)

    def _take(self, link: Link, frame: Frame | None) -> None:
        """A frame of a neighbour: the next one, or none at all."""
        link.heard = time.monotonic()
        if frame is None:
            link.break_off("sent bytes that are no frame")
        elif not self._settle(link, frame.received) or frame.kind == Kind.ACK:
            return
        elif frame.number != link.received + 1:
            link.break_off(
                f"sent frame {frame.number} again or out of order, where frame {link.received + 1} was expected"
            )
        else:
            link.received += 1
            link.hand_over(frame)
            if frame.kind == Kind.BYE or link.received - link.told >= MOST_AHEAD // 8:
                self._acknowledge(link)

    def _read_monitor(self, link: Link) -> None:
        while link.monitor is not None:
            try:
                event: Any = recv_monitor_message(link.monitor, zmq.DONTWAIT)
            except zmq.ZMQError:
                return
            kind = event["event"]
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                link.is_authenticated = True
                self._send(link, self._greeting(Kind.HELLO, link).pack())
                link.reason, link.due = "it does not answer", time.monotonic() + _AGAIN
            elif kind & _REFUSED:
                self._drop(link, "it does not accept our key", linger=0)
            elif kind & _LOST:
                proven = link.is_authenticated
                self._drop(
                    link,
                    "the connection broke" if proven else "its key is not that in the peers file, or it is no peer",
                    linger=0,
                )
            elif link.reason == "":
                link.reason = "nobody answers there"
