"""Real processes: everything that Gossamer asks of torch.distributed, and the only file that imports it."""

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gossamer.errors import InputError, RunError
from gossamer.runtime.processes.group import START_SECONDS, Group

PATIENCE = timedelta(days=30)  # where nobody but the neighbour decides how long it takes
NO_TAG = 0x5FFF  # on which nothing is ever sent
_COLLECT_TAG, _WAIT_TAG = 0x5FFE, 0x5FFD
_LOOPBACK = ("lo", "lo0")  # Linux, macOS
_open: "list[Ranks]" = []


def has_group() -> bool:
    """Whether there is a process group, or torchrun or a launcher has started this process as a rank of one."""
    return dist.is_initialized() or "RANK" in os.environ


def leave_all() -> None:
    """Give back every process group that was made here, at the end of a program."""
    for ranks in reversed(_open[:]):  # the first may have made the group of all processes, which goes last
        ranks.leave()


class Ranks(Group):
    """The processes of a run, one a client, and what they settle together before the first round and after the last.

    Collectives are used here alone; between the first round and the last there are packets between neighbours only.
    """

    def __init__(self, timeout: float = 60.0) -> None:
        self.timeout = timeout
        self._settle_seconds = max(timeout, START_SECONDS)
        limit = timedelta(seconds=self._settle_seconds)
        self._group: Any = None
        if not dist.is_initialized():
            if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
                raise InputError("There is no process group; start the script with torchrun, one process per client.")
            try:
                _meet(limit)
            except (RuntimeError, ValueError) as error:
                raise RunError(f"The processes did not find each other: {reason(error)}.") from None
        else:
            # Packets are bytes in the memory of the host, whatever the model lives on; and a group of our own keeps
            # its time limits and its tags to itself.
            with self._settling("found the others"):
                self._group = dist.new_group(backend="gloo", timeout=limit)
        self._pairs: Any = dist.group.WORLD if self._group is None else self._group
        self.unheard: list[Any] = []
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        _open.append(self)

    def share(self, fact: Any) -> list[Any]:
        """Every rank's fact, by rank; a fact is anything that JSON holds."""
        mine = torch.frombuffer(bytearray(json.dumps(fact).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._settling("agreed on the settings"):
            dist.all_gather(lengths, torch.tensor([len(mine)]), group=self._group)
            longest = int(torch.cat(lengths).max())
            padded = torch.nn.functional.pad(mine, (0, longest - len(mine)))
            every = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(every, padded, group=self._group)
        texts = [one[: int(n)].numpy().tobytes() for one, n in zip(every, lengths, strict=True)]
        return [json.loads(text) for text in texts]

    def mean(self, x: Tensor) -> Tensor:
        """The mean of every rank's tensor, in float64: a collective, for what is measured and not for training."""
        total = x.detach().to("cpu", torch.float64, copy=True)
        with self._settling("averaged the models (every rank must take part)"):
            dist.all_reduce(total, group=self._group)
        return (total / self.size).to(x)

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's tensor."""
        sent = x.detach().cpu().clone()
        with self._settling("had rank 0's model"):
            dist.broadcast(sent, src=0, group=self._group)
        return sent.to(x.device)

    def collect(self, mine: Tensor, collector: int) -> list[Tensor] | None:
        """Every rank's tensor, by rank, on the collecting rank; the others get None, and wait as long as it takes."""
        with self._settling("had been heard"):
            if self.rank != collector:
                self.isend(mine, collector, _COLLECT_TAG).wait(PATIENCE)
                return None
            every = [torch.empty_like(mine) for _ in range(self.size)]
            every[self.rank] = mine
            for rank, into in enumerate(every):
                if rank != self.rank:
                    self.irecv(into, rank, _COLLECT_TAG).wait(timedelta(seconds=self._settle_seconds))
            return every

    def wait_for(self, one: int) -> None:
        """Until that rank calls it too, for as long as it takes."""
        token, tag = torch.zeros(1, dtype=torch.uint8), _WAIT_TAG
        with self._settling("ended"):
            if self.rank != one:
                self.irecv(token, one, tag).wait(PATIENCE)
            else:
                for work in [self.isend(token, rank, tag) for rank in range(self.size) if rank != one]:
                    work.wait(PATIENCE)

    def is_last(self, what: str) -> bool:
        """Say that this rank has come to `what`; whether it is the last."""
        with self._settling(f"come to {what}"):
            store = dist.distributed_c10d._get_default_store()
            return int(store.add(f"gossamer {what}", 1)) == self.size

    def leave(self) -> None:
        """Give back the process group that was made here, and with it the threads in which gloo does its work.

        A thread that still lets go of a tensor while the interpreter is torn down would abort the program.
        """
        if self not in _open:
            return
        _open.remove(self)
        group, self._group, self._pairs = self._group, None, None
        if dist.is_initialized():
            dist.destroy_process_group(group)

    def give_up(self, error: BaseException) -> None:
        """Nothing is told: gloo closes its connections with the process, which the others notice at once."""

    def isend(self, tensor: Tensor, to: int, tag: int) -> Any:
        """Start to send; the tensor must stay as it is until the work was waited for."""
        return self._pairs.send([tensor], to, tag)  # as dist.isend does, without looking the group up every time

    def irecv(self, tensor: Tensor, source: int, tag: int) -> Any:
        """Post a receive."""
        return self._pairs.recv([tensor], source, tag)

    @contextlib.contextmanager
    def _settling(self, what: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:  # a ValueError where the process group is gone
            raise RunError(
                f"A process went away, or was silent for {self._settle_seconds:g} s, before all had {what}: "
                f"{reason(error)}."
            ) from None


def _meet(limit: timedelta) -> None:
    """Find the other ranks: in the file $GOSSAMER_STORE, where Gossamer's launcher started them, or as torchrun says.

    With a file nothing listens beyond loopback, whatever the environment asks for.
    """
    place = os.environ.get("GOSSAMER_STORE")
    if place is None:
        _choose_interface(os.environ.get("MASTER_ADDR", ""))
        dist.init_process_group("gloo", timeout=limit)
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    names = [name for _, name in socket.if_nameindex()]
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for name in (*_LOOPBACK, *names) if name in names)
    store = dist.FileStore(place, size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)


def _choose_interface(master: str) -> None:
    """Have gloo announce the address by which this host reaches the first one.

    Left to itself it announces what the host's name resolves to, which often is 127.0.0.1.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ or not master:
        return
    with contextlib.suppress(OSError, ImportError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl  # not on Windows

        probe.connect((master, 9))  # of UDP, so nothing is sent
        mine = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode())
                if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, request)[20:24]) == mine:  # SIOCGIFADDR
                    os.environ["GLOO_SOCKET_IFNAME"] = name
                    return


def reason(error: BaseException) -> str:
    """What gloo says, without where in its source it says so."""
    text = str(error).strip().split("\n")[0]
    return text.split("] ", 1)[-1].split(". This ")[0].rstrip(".") or type(error).__name__
