"""A network switch in user space: each host's frames leave at a rate, and arrive after a delay.

Started by `hosts.py` with the names of the namespaces, then their addresses. Reads lines "MBIT DELAY_MS" from standard
input, and ends with it. Each host has one queue of 200 ms for what it sends; frames that do not fit are dropped.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time

_NEWNET = 0x40000000
_TUNSETIFF, _TAP, _NO_PI = 0x400454CA, 0x0002, 0x1000
_QUEUE_SECONDS = 0.2
_FRAMES = 64  # read from one host in a row


def _open_tap(namespace: str, address: str, home: int) -> int:
    """The end of a host's interface `tap0`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), _NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH", b"tap0", _TAP | _NO_PI))
    for words in (f"ip addr add {address} dev tap0", "ip link set tap0 txqueuelen 1000", "ip link set tap0 up"):
        subprocess.check_call(words.split())
    libc.setns(home, _NEWNET)
    return tap


class Switch:
    """Frames under way between hosts."""

    def __init__(self, taps: list[int]) -> None:
        self.taps = taps
        self.rate, self.delay = 2.5e6, 0.0
        self._hosts: dict[bytes, int] = {}  # by MAC address
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._free = [0.0] * len(taps)  # when a host may send its next frame

    def read(self, i: int) -> None:
        """Take what host i has sent."""
        for _ in range(_FRAMES):
            try:
                frame = os.read(self.taps[i], 70000)
            except BlockingIOError:
                return
            now = time.monotonic()
            self._hosts[frame[6:12]] = i
            if self._free[i] - now > _QUEUE_SECONDS:
                continue
            self._free[i] = max(self._free[i], now) + len(frame) / self.rate
            to = self._hosts.get(frame[:6])
            for j in [to] if to is not None else [j for j in range(len(self.taps)) if j != i]:
                self._number += 1
                heapq.heappush(self._waiting, (self._free[i] + self.delay, self._number, j, frame))

    def deliver(self) -> float:
        """Hand over what has arrived; the seconds until the next frame does."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, j, frame = heapq.heappop(self._waiting)
            with contextlib.suppress(OSError):
                os.write(self.taps[j], frame)
        return max(self._waiting[0][0] - now, 0.0) if self._waiting else 1.0


def main() -> None:
    """Run until standard input ends."""
    given = sys.argv[1:]
    names, addresses = given[: len(given) // 2], given[len(given) // 2 :]
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    switch = Switch([_open_tap(name, address, home) for name, address in zip(names, addresses, strict=True)])
    places = {tap: i for i, tap in enumerate(switch.taps)}
    poll = select.epoll()
    for fd in (*switch.taps, sys.stdin.fileno()):
        poll.register(fd, select.EPOLLIN)
    print("ready", flush=True)
    while True:
        for fd, _ in poll.poll(switch.deliver()):
            if fd in places:
                switch.read(places[fd])
                continue
            line = sys.stdin.readline()
            if not line:
                return
            mbit, delay_ms = map(float, line.split())
            switch.rate, switch.delay = mbit * 1e6 / 8, delay_ms / 1e3
            print("shaped", flush=True)


if __name__ == "__main__":
    main()
