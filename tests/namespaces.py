"""Several hosts on one machine for a test: network namespaces on a bridge, whose names are their addresses."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest


def _reason() -> str:
    """Why there are none, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command `ip` is not installed"
    probe = f"gsm-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return f"network namespaces cannot be made: {done.stderr.strip()}" if done.returncode else ""


def switch() -> str:
    """The namespace of the bridge; the port of host number i is the device `p{i}`."""
    return f"gsm-switch-{os.getpid()}"


@contextlib.contextmanager
def joined(count: int) -> Iterator[list[str]]:
    """So many hosts; skips the test where they cannot be made, and leaves nothing behind."""
    if reason := _reason():
        pytest.skip(reason)
    # Named after this process: what a run that was killed, or one beside this, has left is not in the way.
    high, low = divmod(os.getpid() % 2**16, 256)
    names = [f"10.{high}.{low}.{i + 1}" for i in range(count)]
    _remove([*names, switch()])
    commands = [
        f"ip netns add {switch()}",
        f"ip -n {switch()} link add br0 type bridge",
        f"ip -n {switch()} link set br0 up",
    ]
    for number, name in enumerate(names):
        commands += [
            f"ip netns add {name}",
            f"ip -n {name} link set lo up",
            f"ip link add eth0 netns {name} type veth peer name p{number} netns {switch()}",
            f"ip -n {name} addr add {name}/24 dev eth0",
            f"ip -n {name} link set eth0 up",
            f"ip -n {switch()} link set p{number} master br0",
            f"ip -n {switch()} link set p{number} up",
        ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield names
    finally:
        _remove([*names, switch()])


def _remove(names: list[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
