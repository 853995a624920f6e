"""The transport for untrusted networks: the same results, links that come back, and strangers who get nothing."""

import contextlib
import errno
import os
import re
import resource
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq
from curve_network import Network, Wire, write_peers
from processes import spawn
from torch import Tensor

import gossamer as gs
from gossamer.errors import RunError
from gossamer.runtime.gradients.oracle import BatchOracle
from gossamer.runtime.processes.client import Client
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.start import starting_models
from gossamer.runtime.transport.curve import opened
from gossamer.runtime.transport.frames import Frame, Greeting, Kind
from gossamer.streams import Streams

N = 4
MIXING = gs.mixing_matrix(gs.ring(N))
PROBLEM = gs.quadratic(clients=N, d=20, noise=0.1, dtype="float64")
METHOD = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(4), start="minibatch")
At = Callable[[int, Client], None]


def train(rank: int, network: Network, rounds: int, at: At | None = None, **settings: Any) -> tuple[Tensor, int]:
    """Train one client; its model, and the most file descriptors that it had open."""
    settings = {"timeout": 20.0, "start_timeout": 30.0, "run": 7} | settings
    run = settings.pop("run")
    transport = opened(network.peers(rank), network.secret(rank), **settings)
    mine, most = PROBLEM.only(rank), 0
    x = starting_models(None, mine, Streams([0], [rank]))
    client = Client(METHOD, MIXING, rank, x, run=run, transport=transport)
    try:
        with torch.no_grad():
            for t in range(rounds):
                if at is not None:
                    at(t, client)
                client.step(BatchOracle(mine, client.streams, client.t, 2, {}), METHOD.lr_at(client.t))
                most = max(most, len(os.listdir("/proc/self/fd")))
        client.close()
    except BaseException as error:
        client.give_up(error)
        raise
    assert threading.active_count() == 1
    return client.state.x, most


def attempt(rank: int, network: Network, rounds: int, at: At | None, settings: dict[str, Any]) -> Any:
    """As `train`, but an error is what comes back."""
    try:
        return train(rank, network, rounds, at, **settings)
    except RunError as error:
        return str(error)


def expected(rounds: int) -> Tensor:
    simulation = Simulation(METHOD, PROBLEM, MIXING, (0,), 2)
    with torch.no_grad():
        for _ in range(rounds):
            simulation.step()
    x: Tensor = simulation.state.x
    return x


def models(results: list[Any]) -> Tensor:
    for result in results:
        assert isinstance(result, tuple), f"{result!r} {getattr(result, '__notes__', '')}"
    return torch.cat([result[0] for result in results])


def test_four_processes_equal_the_simulator(tmp_path: Path) -> None:
    results = spawn(N, train, Network(tmp_path, N), 50, seconds=60)
    assert torch.equal(models(results), expected(50))


def slowly(t: int, client: Client) -> None:
    time.sleep(0.02)


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[tuple[Network, Wire]]:
    """A network in which client 1 reaches client 0 over a wire."""
    network = Network(tmp_path, N)
    wire = Wire(network.ports[0])
    write_peers(network.peers(1), network.ports | {0: wire.port}, network.keys)
    yield network, wire
    wire.close()


def test_a_link_that_breaks_comes_back_and_nothing_is_lost(wired: tuple[Network, Wire]) -> None:
    network, wire = wired
    is_over = threading.Event()

    def saw() -> None:
        while not is_over.wait(0.4):
            wire.cut()

    thread = threading.Thread(target=saw)
    thread.start()
    try:
        results = spawn(N, train, network, 100, slowly, seconds=100)
    finally:
        is_over.set()
        thread.join()
    assert wire.connections >= 3
    assert torch.equal(models(results), expected(100))


# -- strangers


def answers(port: int, configure: Callable[[Any], None], seconds: float = 0.5) -> list[bytes]:
    """What a ZeroMQ client of the port is told after it has sent all kinds of frames."""
    context = zmq.Context()
    made = context.socket(zmq.DEALER)
    made.linger = 0
    configure(made)
    made.connect(f"tcp://127.0.0.1:{port}")
    with contextlib.suppress(zmq.Again):
        made.send(Greeting(Kind.HELLO, 7, 0, 1, 0, 12345, 0).pack(), zmq.DONTWAIT)  # as client 1 would
        for kind in Kind:
            made.send(bytes([kind]) + bytes(33), zmq.DONTWAIT)
    heard = []
    with contextlib.suppress(zmq.Again):
        while made.poll(int(1000 * seconds)):
            heard.append(made.recv(zmq.DONTWAIT))
    context.destroy(linger=0)
    return heard


def without_a_key(network: Network, wire: Wire) -> list[bytes]:
    return [answer for port in network.ports.values() for answer in answers(port, lambda made: None)]


def with_a_wrong_key(network: Network, wire: Wire) -> list[bytes]:
    def configure(made: Any) -> None:
        made.curve_publickey, made.curve_secretkey = zmq.curve_keypair()
        made.curve_serverkey = network.keys[0].encode()

    return answers(network.ports[0], configure, 1.0)


def with_a_stolen_name(network: Network, wire: Wire) -> list[bytes]:
    """A stranger knows all public keys, and says that one of them is its own."""

    def configure(made: Any) -> None:
        _, made.curve_secretkey = zmq.curve_keypair()
        made.curve_publickey, made.curve_serverkey = network.keys[1].encode(), network.keys[0].encode()

    return answers(network.ports[0], configure, 1.0)


def replayed(network: Network, wire: Wire) -> list[bytes]:
    """All that client 1 has sent so far, sent again; the server's own part of a handshake is all that comes back."""
    time.sleep(0.5)
    sent = bytes(wire.recorded)
    assert len(sent) > 1000
    with socket.create_connection(("127.0.0.1", network.ports[0]), timeout=2) as made:
        with contextlib.suppress(OSError):
            made.sendall(sent)
        heard = b""
        with contextlib.suppress(OSError):
            while data := made.recv(4096):
                heard += data
    assert len(heard) < 300  # the ZMTP greeting and a WELCOME, which are the same for everyone
    return []


def garbage(network: Network, wire: Wire) -> list[bytes]:
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
    for port in (network.ports[0], network.ports[1]):
        for start in (b"", greeting, greeting + b"\x04\xc8\x05HELLO", b"GET / HTTP/1.0\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=2) as made, contextlib.suppress(OSError):
                made.sendall(start + secrets.token_bytes(5000))
    return []


def a_thousand(network: Network, wire: Wire) -> list[bytes]:
    """Connections that say nothing; each is closed by the other end, or kept for two seconds."""
    with contextlib.ExitStack() as held:
        for _ in range(1000):
            made = held.enter_context(socket.socket())
            made.setblocking(False)
            assert made.connect_ex(("127.0.0.1", network.ports[0])) in (0, errno.EINPROGRESS)
            time.sleep(0.0005)
        time.sleep(2)
    return []


def with_few_files(rank: int, network: Network, rounds: int) -> tuple[Tensor, int]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
    over = network.folder / "over"

    def at(t: int, client: Client) -> None:
        """The last rounds come after the attack."""
        slowly(t, client)
        limit = time.monotonic() + 15
        while t == rounds - 10 and not over.exists() and time.monotonic() < limit:
            time.sleep(0.02)

    return train(rank, network, rounds, at)


@pytest.mark.parametrize(
    "attack", [without_a_key, with_a_wrong_key, with_a_stolen_name, replayed, garbage, a_thousand],
    ids=lambda attack: attack.__name__,
)  # fmt: skip
def test_strangers_read_nothing_and_stop_nothing(
    attack: Callable[[Network, Wire], list[bytes]], wired: tuple[Network, Wire]
) -> None:
    network, wire = wired
    heard: list[Any] = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))

    def strangers() -> None:
        try:
            deadline = time.monotonic() + 30
            while not wire.recorded and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
            heard.append(attack(network, wire))
        except BaseException as error:
            heard.append(error)
        (network.folder / "over").touch()

    thread = threading.Thread(target=strangers)
    thread.start()
    try:
        results = spawn(N, with_few_files, network, 150, seconds=100)
        was_during = not thread.is_alive()
    finally:
        thread.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert torch.equal(models(results), expected(150))
    assert heard == [[]]
    assert was_during, "the attack took longer than the training"
    assert max(result[1] for result in results) < 200


def listening(rank: int, network: Network) -> set[str]:
    """The addresses at which a process with a transport listens."""
    places: set[str] = set()

    def look(t: int, client: Client) -> None:
        inodes = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(f"/proc/self/fd/{name}"))
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    address, port = fields[1].split(":")
                    places.add(f"{address} {int(port, 16)}")

    train(rank, network, 3, look)
    return places


def test_what_listens(tmp_path: Path) -> None:
    network = Network(tmp_path, N)
    found = spawn(N, listening, network, seconds=60)
    # The one with the largest number connects to both of its neighbours. Addresses are little-endian, in hexadecimal.
    assert [sorted(int(place.split()[1]) for place in one) for one in found] == [
        *([network.ports[i]] for i in range(N - 1)),
        [],
    ]
    assert all(place.split()[0].endswith("0100007F") for one in found for place in one)


# -- neighbours


def removing(t: int, client: Client) -> None:
    """Client 0 removes the key of client 3 in round 10."""
    time.sleep(0.02)
    if client.rank == 0 and t == 10:
        transport: Any = client.transport
        path = Path(transport._opener._path)
        tables = path.read_text().split("[[peer]]")
        path.write_text("[[peer]]".join(tables[:4]))
        os.kill(os.getpid(), signal.SIGHUP)


def test_removing_a_key_closes_its_link(tmp_path: Path) -> None:
    results = spawn(N, attempt, Network(tmp_path, N), 200, removing, {"timeout": 4.0}, seconds=60)
    assert re.match(r"Rank 0 ended in round \d+: its neighbour 3 has no longer a key in the peers file\.", results[0])
    assert results == [results[0]] * N  # client 3 hears of it from client 2


def reading_a_bad_file(t: int, client: Client) -> None:
    transport: Any = client.transport
    path = Path(transport._opener._path)
    if t == 5:
        path.write_text(path.read_text() + "[[peer]]\n")
        os.kill(os.getpid(), signal.SIGHUP)


def test_a_peers_file_that_became_invalid_changes_nothing(tmp_path: Path) -> None:
    results = spawn(N, train, Network(tmp_path, N), 30, reading_a_bad_file, seconds=60)
    assert torch.equal(models(results), expected(30))


def again(t: int, client: Client) -> None:
    if client.rank == 2 and t == 10:
        _repeat(client, 0)


def out_of_order(t: int, client: Client) -> None:
    if client.rank == 2 and t == 10:
        _repeat(client, 5)


def no_frame(t: int, client: Client) -> None:
    if client.rank == 2 and t == 10:
        transport: Any = client.transport
        transport._endpoint._ask(lambda: transport._endpoint._send(transport.accounts[1], b"\xb1 hello"))


def _repeat(client: Client, ahead: int) -> None:
    """Send the last frame once more, or one that is not its turn."""
    transport: Any = client.transport
    link = transport.accounts[1]
    transport._endpoint._ask(
        lambda: transport._endpoint._put(link, Frame(Kind.PACKET, link.sent + ahead, 0, b"whatever"))
    )


def dying(t: int, client: Client) -> None:
    if client.rank == 2 and t == 10:
        os.kill(os.getpid(), signal.SIGKILL)


def silent(t: int, client: Client) -> None:
    if client.rank == 2 and t == 10:
        time.sleep(5)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (again, r"Rank 1 ended in round \d+: its neighbour 2 sent frame \d+ again or out of order"),
        (out_of_order, r"Rank 1 ended in round \d+: its neighbour 2 sent frame \d+ again or out of order"),
        (no_frame, r"Rank 1 ended in round \d+: its neighbour 2 sent bytes that are no frame"),
        (dying, r"Rank [13] lost its neighbour 2 \('peer2' at 127.0.0.1:\d+\) for 2 s in round 1[01]: "),
        (silent, r"Rank [13] has heard nothing from its neighbour 2 for 2 s in round 1[01]; if a round"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_everyone_learns_what_happened(what: At, sentence: str, tmp_path: Path) -> None:
    results = spawn(N, attempt, Network(tmp_path, N), 60, what, {"timeout": 2.0, "start_timeout": 3.0}, seconds=60)
    others = [result for rank, result in enumerate(results) if rank != 2]
    assert all(isinstance(result, str) and re.match(sentence, result) for result in others), results


def in_another_run(rank: int, network: Network) -> Any:
    return attempt(rank, network, 5, None, {"timeout": 1.0, "start_timeout": 2.0, "run": 7 if rank else 8})


def test_packets_of_another_run_are_refused(tmp_path: Path) -> None:
    results = spawn(N, in_another_run, Network(tmp_path, N), seconds=60)
    assert any("could not reach its neighbour" in result for result in results), results
    assert all(isinstance(result, str) for result in results)


def test_an_unreachable_address_is_one_sentence(tmp_path: Path) -> None:
    alone = attempt(3, Network(tmp_path, N), 5, None, {"timeout": 1.0, "start_timeout": 1.0})
    assert re.fullmatch(
        r"Rank 3 could not reach its neighbour [02] \('peer[02]' at 127.0.0.1:\d+\) for 1 s: nobody answers there\.",
        alone,
    )


def impatient(rank: int, network: Network) -> Any:
    return attempt(rank, network, 5, None, {"timeout": 2.0, "start_timeout": 3.0 if rank == 3 else 20.0})


@pytest.mark.parametrize(
    ("where", "whose", "reason"),
    [(0, 3, "it does not accept our key"), (3, 0, "its key is not that in the peers file, or it is no peer")],
)
def test_keys_that_differ_are_one_sentence(where: int, whose: int, reason: str, tmp_path: Path) -> None:
    network = Network(tmp_path, N)
    write_peers(network.peers(where), network.ports, network.keys | {whose: zmq.curve_keypair()[0].decode()})
    results = spawn(N, impatient, network, seconds=60)
    sentence = rf"Rank 3 could not reach its neighbour 0 \('peer0' at 127.0.0.1:\d+\) for 3 s: {reason}\."
    assert all(re.fullmatch(sentence, result) for result in results[1:]), results


def optimised(rank: int, network: Network) -> tuple[float, Tensor]:
    """How far gossip is from the exact mean, and the parameters in the end."""
    torch.manual_seed(0)
    model = torch.nn.Linear(50, 10)
    method = gs.BEER(lr=0.05, gamma=0.3, compressor=gs.gsgd(5))
    transport = opened(network.peers(rank), network.secret(rank)) if network.keys else "gloo"
    optimizer = gs.DecentralizedOptimizer(model.parameters(), method, MIXING, timeout=20, transport=transport)
    torch.manual_seed(rank + 1)
    means = []
    for how in ("gossip", "exact"):
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(8, 50)).square().mean().backward()
            optimizer.step()
        if how == "gossip":  # its packets are larger than any before: all connections are made again
            with optimizer.average_model(model, how="gossip", rounds=30):
                means.append(model.weight.detach().clone())
            with optimizer.average_model(model):
                means.append(model.weight.detach().clone())
    optimizer.close()
    return float((means[0] - means[1]).abs().max()), model.weight.detach().clone()


def test_an_optimiser_and_its_gossip_share_the_endpoint(tmp_path: Path) -> None:
    network = Network(tmp_path, N)
    ours = spawn(N, optimised, network, seconds=60)
    network.keys = {}
    theirs = spawn(N, optimised, network, seconds=60)
    for (apart, mine), (_, other) in zip(ours, theirs, strict=True):
        assert apart < 1e-6
        assert torch.equal(mine, other)
