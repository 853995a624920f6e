"""What happens between neighbours when something goes wrong: named, told to everyone, and over within seconds."""

import os
import re
import signal
import time
import zlib
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from processes import spawn
from torch import Tensor

import gossamer as gs
from gossamer.compression import packet
from gossamer.errors import RunError
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.processes.client import Client
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.start import starting_models
from gossamer.streams import Streams

N = 6
MIXING = gs.mixing_matrix(gs.ring(N))
PROBLEM = gs.quadratic(clients=N, d=20, noise=0.1, dtype="float64")
METHOD = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(4), start="minibatch")


def client_of(rank: int, timeout: float = 5.0, **settings: Any) -> tuple[Client, gs.Problem]:
    mine = PROBLEM.only(rank)
    x = starting_models(None, mine, Streams([0], [rank]))
    return Client(METHOD, MIXING, rank, x, ranks=Ranks(timeout), run=7, **settings), mine


def train(client: Client, mine: gs.Problem, rounds: int, at: Callable[[int], None] = lambda t: None) -> Tensor:
    with torch.no_grad():
        for t in range(rounds):
            at(t)
            client.step(BatchOracle(mine, client.streams, client.t, 2, {}), METHOD.lr_at(client.t))
            if client.stop is not None and client.t >= client.stop:
                break
    client.close()
    x: Tensor = client.state.x
    return x


def expected(rounds: int) -> Tensor:
    simulation = Simulation(METHOD, PROBLEM, MIXING, (0,), 2)
    with torch.no_grad():
        for _ in range(rounds):
            simulation.step()
    x: Tensor = simulation.state.x
    return x


def changing(client: Client, change: Callable[[bytes], bytes]) -> None:
    send = client.transport.send

    def changed(packet: bytes, to: Collection[int]) -> None:
        send(change(packet), to)

    client.transport.send = changed  # type: ignore[method-assign]


def with_checksum(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "little")


def larger(sent: bytes) -> bytes:
    """The packet of a client whose messages have grown, to values that still are finite."""
    read = packet.decode(sent, d=20, dtype=torch.float64)
    grown = [METHOD.compressor(message.dense() * 1e300, seed=0) for message in read.messages]
    (changed,) = packet.encode(grown, run=7, round=read.round, clients=[read.client])
    return changed


def trouble(rank: int, what: str) -> tuple[float, str, float]:
    """Train until something happens to rank 2; when it was noticed, what was said, and when the threads were gone."""
    client, mine = client_of(rank, timeout=2.0 if what in ("silent", "stopped") else 30.0)

    def at(t: int) -> None:
        if rank != 2 or t != 15:
            return
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "silent":
            time.sleep(4)
        elif what == "corrupt":
            changing(client, lambda sent: sent[:-6] + b"x" + sent[-5:])
        elif what == "another round":
            changing(client, lambda sent: with_checksum(sent[:5] + b"\x10" + sent[6:-4]))
        elif what == "another run":
            changing(client, lambda sent: with_checksum(sent[:1] + b"\x08" + sent[2:-4]))
        elif what == "a lie":
            changing(client, lambda sent: with_checksum(sent[:6] + b"\x03" + sent[7:-4]))
        elif what == "huge":
            changing(client, larger)
        elif what == "rubbish":
            client.transport.send(b"\xb2" + bytes(40), list(client.transport.accounts))
        elif what == "nan":
            client.state.x[0, 3] = torch.nan

    try:
        train(client, mine, 40, at)
    except RunError as error:
        noticed = time.time()
        client.abort()
        return noticed, str(error), time.time()
    return time.time(), "nothing", time.time()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("killed", r"Rank [13] lost its neighbour 2 in round 1[456]"),
        ("silent", r"Rank [13] has heard nothing from its neighbour 2 for 2 s in round 1[56]"),
        ("corrupt", r"Rank [13] got a bad packet from its neighbour 2 in round 15: The checksum"),
        ("another round", r"Rank [13] got a bad packet from its neighbour 2 in round 15: round 15 was expected"),
        ("another run", r"Rank [13] got a bad packet from its neighbour 2 in round 15: run 7 was expected"),
        ("a lie", r"Rank [13] got a bad packet from its neighbour 2 in round 15: client 2 was expected"),
        ("rubbish", r"Rank [13] got bytes from its neighbour 2 in round 1[456] that are no packet of this run"),
        (
            "huge",
            r"BEER with seed 0 diverged in round \d+: the messages of client 2 grew to \d.\de\+\d+ in round 16, and",
        ),
        ("nan", r"BEER with seed 0 diverged in round 16: the model of client 2"),
    ],
)
def test_everyone_learns_what_happened(what: str, said: str) -> None:
    begin = time.time()
    results = spawn(N, trouble, what, seconds=40)
    assert time.time() - begin < 15
    others = [result for rank, result in enumerate(results) if rank != 2 or result is not None]
    for result in others:
        assert isinstance(result, tuple), f"{result!r} {getattr(result, '__notes__', '')}"
        noticed, sentence, ended = result
        assert re.search(said, sentence), sentence
        assert ended - noticed < 3
    if what == "killed":  # by the clocks of one machine, from the first to know to the last
        first, last = min(result[0] for result in others), max(result[0] for result in others)
        assert last - first < 1


def stop_one(rank: int) -> tuple[int, Tensor]:
    client, mine = client_of(rank)

    def at(t: int) -> None:
        if rank == 4 and t == 10:
            client.ask_to_stop()
        if rank == 1 and t == 11:
            client.ask_to_stop()  # a later wish must not win

    x = train(client, mine, 100, at)
    return client.t, x


def test_one_that_is_asked_stops_all_at_one_round() -> None:
    results = spawn(N, stop_one)
    rounds = {result[0] for result in results}
    assert rounds == {10 + MIXING.diameter + 2}
    assert torch.equal(torch.cat([result[1] for result in results]), expected(rounds.pop()))


def fewer(rank: int) -> str:
    client, mine = client_of(rank)
    try:
        train(client, mine, 10 if rank == 0 else 20)
    except RunError as error:
        client.abort()
        return str(error)
    return "through"


def test_who_takes_fewer_steps_than_the_others() -> None:
    results = spawn(N, fewer)
    assert all("neighbour 0 has ended its run" in result for result in results[1:])
    assert results[0] == "through" or "neighbour 0 has ended its run" in results[0]  # told while it took its leave
