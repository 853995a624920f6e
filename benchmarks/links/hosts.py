"""Several hosts on one machine: network namespaces joined by links with a rate and a delay.

Links without delay are veth pairs on a bridge, shaped by the kernel (`tbf`). Links with a delay go through a switch in
user space (`switch.py`), since not every kernel has `netem`. There is no route out: no packet leaves the machine.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Self

_SUBNET = "10.77.0"
_MOST_SWITCHED = 300.0  # Mbit/s that the switch in user space can keep up with
_JUMBO = 50.0  # Mbit/s from which its frames have 9,000 bytes, so that it takes less of the processors


class Refused(RuntimeError):
    """This machine does not allow what is needed, and why."""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.returncode}")


def probe() -> None:
    """Raise `Refused`, with the reason, where hosts cannot be made."""
    if os.geteuid() != 0:
        raise Refused("network namespaces need root")
    missing = [tool for tool in ("ip", "tc", "ethtool") if shutil.which(tool) is None]
    if missing:
        raise Refused(f"{missing[0]} is not installed (Debian: iproute2, ethtool)")
    if not Path("/dev/net/tun").exists():
        raise Refused("there is no /dev/net/tun")
    with Hosts(2, delay_ms=0.0) as hosts:
        hosts.shape(20.0)


class Hosts:
    """Hosts under way; a context manager that leaves nothing behind.

    Args:
        count: How many.
        delay_ms: One way. 0 takes links of the kernel, anything else the switch.
    """

    def __init__(self, count: int, delay_ms: float) -> None:
        self.count, self.delay_ms = count, delay_ms
        self._name = f"gsmr{os.getpid()}"
        self._switch: subprocess.Popen[str] | None = None
        self.mbit: float | None = None

    @property
    def interface(self) -> str:
        """The name of each host's interface."""
        return "tap0" if self.delay_ms else "eth0"

    def namespace(self, i: int) -> str:
        """Of a host."""
        return f"{self._name}-{i}"

    def address(self, i: int) -> str:
        """Of a host."""
        return f"{_SUBNET}.{i + 1}"

    def __enter__(self) -> Self:
        try:
            for i in range(self.count):
                _run("ip", "netns", "add", self.namespace(i))
                _run("ip", "-n", self.namespace(i), "link", "set", "lo", "up")
            if self.delay_ms:
                self._start_switch()
            else:
                self._join_by_bridge()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _join_by_bridge(self) -> None:
        center = f"{self._name}-sw"
        _run("ip", "netns", "add", center)
        _run("ip", "-n", center, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", center, "link", "set", "br0", "up")
        for i in range(self.count):
            name = self.namespace(i)
            _run("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"p{i}", "netns", center)
            _run("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", center, "link", "set", f"p{i}", "master", "br0")
            _run("ip", "-n", center, "link", "set", f"p{i}", "up")

    def _start_switch(self) -> None:
        names = [self.namespace(i) for i in range(self.count)]
        addresses = [f"{self.address(i)}/24" for i in range(self.count)]
        command = [sys.executable, str(Path(__file__).with_name("switch.py")), *names, *addresses]
        self._switch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._out.readline().strip() != "ready":
            raise Refused("the switch did not start")

    @property
    def _out(self) -> IO[str]:
        assert self._switch is not None
        assert self._switch.stdout is not None
        return self._switch.stdout

    def shape(self, mbit: float | None) -> None:
        """Give every host so many Mbit/s towards the others; None is unlimited."""
        self.mbit = mbit
        if self._switch is not None:
            assert self._switch.stdin is not None
            if mbit is None or mbit > _MOST_SWITCHED:
                raise Refused(f"links with a delay have at most {_MOST_SWITCHED:g} Mbit/s, got {mbit}")
            for i in range(self.count):
                mtu = "9000" if mbit >= _JUMBO else "1500"
                _run("ip", "-n", self.namespace(i), "link", "set", "tap0", "mtu", mtu)
            self._switch.stdin.write(f"{mbit} {self.delay_ms}\n")
            self._switch.stdin.flush()
            self._out.readline()
            return
        for i in range(self.count):
            inside = ["ip", "netns", "exec", self.namespace(i)]
            offload = "on" if mbit is None else "off"  # off: bytes on the interface are those of real packets
            _run(*inside, "ethtool", "-K", "eth0", "tso", offload, "gso", offload, "gro", offload)
            subprocess.run([*inside, "tc", "qdisc", "del", "dev", "eth0", "root"], capture_output=True, check=False)
            if mbit is not None:
                burst = "4kb" if mbit <= 2 else "32kb" if mbit <= 50 else "64kb"
                latency = "100ms" if mbit <= 2 else "20ms"
                rule = ("rate", f"{mbit}mbit", "burst", burst, "latency", latency)
                _run(*inside, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *rule)

    def command(self, i: int, *words: str) -> list[str]:
        """A command line that runs on a host."""
        return ["ip", "netns", "exec", self.namespace(i), *words]

    def __exit__(self, *_: object) -> None:
        if self._switch is not None:
            self._switch.kill()
            self._switch.communicate()
        for name in [*(self.namespace(i) for i in range(self.count)), f"{self._name}-sw"]:
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
