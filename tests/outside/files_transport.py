"""A transport of another package: packets are files in a folder that all clients see."""

import time
from collections.abc import Collection
from pathlib import Path

from gossamer.runtime.transport.base import UNKNOWN, Account, Failure, Opening, Transport, failed

_PATIENCE = 30.0


class FilesTransport:
    """`FROM-TO-NUMBER` is a packet; it is written beside its place and renamed, so a reader sees all of it."""

    def __init__(self, folder: Path, opening: Opening) -> None:
        self.folder, self.rank = folder, opening.rank
        self.accounts = {neighbor: Account(neighbor) for neighbor in opening.neighbors}
        self.round = 0
        self.failure: Failure | None = None

    def send(self, packet: bytes, to: Collection[int]) -> None:
        for neighbor in to:
            account = self.accounts[neighbor]
            beside = self.folder / f".{self.rank}-{neighbor}"
            beside.write_bytes(packet)
            beside.rename(self.folder / f"{self.rank}-{neighbor}-{account.packets_sent}")
            account.packets_sent += 1
            account.bytes_sent += len(packet)

    def receive(self, neighbor: int, left_at: float) -> bytes:
        account, limit = self.accounts[neighbor], time.monotonic() + _PATIENCE
        path = self.folder / f"{neighbor}-{self.rank}-{account.packets_received}"
        while not path.exists():
            if time.monotonic() > limit:
                self.fail(f"Client {self.rank} has heard nothing from client {neighbor}.")
                raise failed(self)
            time.sleep(0.001)
        account.packets_received += 1
        packet = path.read_bytes()
        path.unlink()
        account.bytes_received += len(packet)
        return packet

    def fail(self, sentence: str, *, diverged: bool = False, round: int | None = None, since: int = UNKNOWN) -> None:
        self.failure = self.failure or Failure(sentence, round or self.round, diverged, since)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def open_here(opening: Opening) -> Transport:
    """For an entry point: the folder is the one the program runs in."""
    return FilesTransport(Path.cwd(), opening)
