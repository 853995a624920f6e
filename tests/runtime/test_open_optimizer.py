"""The optimiser as a client of an open run: processes without a process group that come, go, are late and come back."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # which the first step of any optimiser imports: once here, not in every client
from curve_network import Network, write_peers
from processes import spawn
from torch import Tensor, nn

import gossamer as gs
from gossamer.errors import GossamerError
from gossamer.runtime.open.history import read_history
from gossamer.runtime.open.participant import Openness
from gossamer.runtime.open.replaying import replay
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.transport.curve import opened
from gossamer.streams import Streams
from gossamer.topology import matchings
from gossamer.trackers.base import Event

N, BATCH = 4, 16
MIXING = gs.mixing_matrix(gs.ring(N))
BEER = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(4))
TARGETS = torch.randn(N, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def clients(many: int, function: Callable[..., Any], network: Network, *arguments: Any) -> list[Any]:
    """What `function(client, network, ...)` returns in a process per client, or the sentence of its error."""
    results = spawn(many, _alone, function, network, arguments, seconds=40)
    for result in results:
        assert not isinstance(result, Exception), f"{result!r} {getattr(result, '__notes__', '')}"
    return results


def _alone(client: int, function: Callable[..., Any], network: Network, arguments: Any) -> Any:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    try:
        return function(client, network, *arguments)
    except GossamerError as error:
        return str(error)


def transport(client: int, network: Network, start_timeout: float = 20.0) -> Any:
    return opened(network.peers(client), network.secret(client), start_timeout=start_timeout)


class Line:
    """A model of 20 numbers whose loss is half the squared distance to its client's target."""

    def __init__(self, client: int, network: Network, method: Any = BEER, **settings: Any) -> None:
        self.x = nn.Parameter(torch.zeros(20, dtype=torch.float64))
        self.target = TARGETS[client]
        start = settings.pop("start_timeout", 20.0)
        self.optimizer = gs.DecentralizedOptimizer(
            [self.x], method, MIXING, transport=transport(client, network, start), **settings
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        (self.x - self.target).square().sum().mul(0.5).backward()
        self.optimizer.step()

    def train(self, rounds: int, at: Callable[[int], None] = lambda t: None) -> "Line":
        while self.optimizer.rounds < rounds:
            at(self.optimizer.rounds)
            self.step()
        return self

    def settled(self) -> tuple[Tensor, Tensor, Tensor, dict[int, int]]:
        """The model, the tracker, its own gradient and the terms applied per edge, once nothing is under way."""
        part: Any = self.optimizer.client
        part = part.participant
        deadline = time.monotonic() + 10
        while part._missing(also_late=True) and time.monotonic() < deadline:
            part._listen(0.05)
        part.member.absorb(part._talk.there(part.member.waiting))
        state = part.member.state
        applied = {j: edge.applied for j, edge in part.member.edges.items()}
        self.optimizer.close()
        return self.x.detach().clone(), state.v[0], state.old[0], applied


def check_settled(results: dict[int, Any]) -> None:
    """All are at the best model of those who are present, and the trackers' mean is the gradients' mean."""
    models, trackers, gradients, applied = zip(*results.values(), strict=True)
    for i, edges in zip(results, applied, strict=True):
        assert all(results[j][3][i] == many for j, many in edges.items()), "nothing is in flight"
    drift = torch.stack(trackers).mean(dim=0) - torch.stack(gradients).mean(dim=0)
    assert float(drift.abs().max()) < 1e-10
    best = TARGETS[list(results)].mean(dim=0)
    for model in models:
        assert float((model - best).square().mean()) < 1e-6


def network_of_digits() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)).double()


def problem() -> Any:
    model = network_of_digits()
    return gs.module_problem(model, "digits", clients=N, partition="sorted", gradients="loop", dtype="float64")


def digits(client: int, network: Network, method: Any, rounds: int, folder: Path) -> tuple[Tensor, int, Any, Any]:
    mine, model = problem().only(client), network_of_digits()
    heard: list[Event] = []
    optimizer = gs.DecentralizedOptimizer(
        model.parameters(), method, MIXING, transport=transport(client, network),
        history=folder / f"client{client}.history", trackers=[heard.append], track_every=10,
    )  # fmt: skip
    for t in range(rounds):
        rows = Streams([0], [client]).at(t, "batch").below(mine.rows_per_client, BATCH)[0]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(mine.rows.inputs(rows)), mine.rows.labels[rows]).backward()
        optimizer.step()
    assert optimizer.present == set(range(N))
    optimizer.close()
    part: Any = optimizer.client
    return nn.utils.parameters_to_vector(model.parameters()).detach(), part.participant.run, optimizer.traffic, heard


def test_without_losses_it_is_the_simulators_method(tmp_path: Path) -> None:
    """Top-k draws nothing at random, so all edges say the same; sums are added in another order only."""
    method, rounds = gs.BEER(lr=0.2, gamma=0.3, compressor=gs.top_k(60)), 25
    simulation = Simulation(method.with_minibatch_start(), problem(), MIXING, (0,), BATCH)
    with torch.no_grad():
        for _ in range(rounds):
            simulation.step()
    results = clients(N, digits, Network(tmp_path, N), method, rounds, tmp_path)
    models = torch.stack([result[0] for result in results])
    assert float((models - simulation.state.x).abs().max()) <= 1e-10


def test_a_history_gives_the_same_models_again(tmp_path: Path) -> None:
    """With random symbols, which each edge draws for itself; and what went over the links is counted."""
    rounds = 40
    results = clients(N, digits, Network(tmp_path, N), BEER, rounds, tmp_path)
    history = {i: read_history(tmp_path / f"client{i}.history") for i in range(N)}
    how: Any = {"batch_size": BATCH, "codec": "auto", "run": results[0][1]}
    members = replay(BEER.with_minibatch_start(), problem(), MIXING, history, **how)
    for i, (model, _, traffic, heard) in enumerate(results):
        assert float((model - members[i].state.x[0]).abs().max()) <= 1e-10
        assert traffic.packets_sent == 2 * rounds
        assert sorted(traffic.links) == sorted(MIXING.neighbors(i))
        for j, link in traffic.links.items():
            other = results[j][2].links[i]
            assert (link.packets_sent, link.packets_received) == (rounds, rounds)
            assert link.bytes_received == other.bytes_sent
        assert traffic.bytes_sent == members[i].bytes
        assert [event.round for event in heard] == [10, 20, 30, 40]
        assert 0 < heard[-1].values["compression_error"] < 1
        assert heard[-1].values["bytes_total"] == traffic.bytes_sent


def killed(number: int, network: Network, folder: Path, rounds: int) -> Any:
    """Process 4 is client 1 again."""
    client, gone, back = 1 if number == N else number, folder / "gone", folder / "back"
    if number == N:
        while not gone.exists():
            time.sleep(0.02)

    def at(t: int) -> None:
        if number == 1 and t == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 0 and 1 not in line.optimizer.present:
            gone.touch()
        if t == rounds - 150:  # nobody goes on to the end before it is back
            while number != N and not back.exists():
                line.optimizer.client.participant._listen(0.02)  # type: ignore[attr-defined]

    join = "peer0" if number == N else None
    line = Line(client, network, timeout=1.5, join=join)
    begun = line.optimizer.rounds
    if number == N:
        assert begun > 20
        assert float(line.x.detach().abs().max()) > 0, "a neighbour's model"
        back.touch()
    line.train(rounds, at)
    return *line.settled(), begun


def test_one_is_killed_and_comes_back(tmp_path: Path) -> None:
    results = dict(enumerate(clients(N + 1, killed, Network(tmp_path, N), tmp_path, 300)))
    assert results.pop(1) is None
    results[1] = results.pop(N)
    assert results[1][-1] > 20
    assert [results[i][-1] for i in (0, 2, 3)] == [0, 0, 0], "nobody else began again"
    check_settled({i: results[i][:4] for i in range(N)})


def left(client: int, network: Network, rounds: int) -> Any:
    line = Line(client, network)
    if client == 3:
        line.optimizer.ask_to_stop()
        while not line.optimizer.should_stop or line.optimizer.rounds < 30:
            line.step()
        line.optimizer.leave()
        with pytest.raises(gs.InputError, match="was closed after round 30"):
            line.step()
        return None
    line.train(rounds)
    assert line.optimizer.present == {0, 1, 2}
    return line.settled()


def test_one_leaves(tmp_path: Path) -> None:
    results = clients(N, left, Network(tmp_path, N), 300)
    assert results[3] is None
    check_settled({i: results[i] for i in range(3)})


def late(client: int, network: Network) -> float:
    """The longest step."""
    longest, line = 0.0, Line(client, network, patience=0.5)
    while line.optimizer.rounds < 40:
        if client == 2 and line.optimizer.rounds == 10:
            time.sleep(3.0)
        begin = time.monotonic()
        line.step()
        longest = max(longest, time.monotonic() - begin)
    line.optimizer.close()
    return longest


@pytest.mark.slow
def test_a_straggler_is_not_waited_for(tmp_path: Path) -> None:
    longest = clients(N, late, Network(tmp_path, N))
    assert max(longest) < 1.5
    assert min(longest[1], longest[3]) > 0.4, "its neighbours waited as long as they were told"


def tuned(client: int, network: Network, method: Any, is_open: bool) -> tuple[Tensor, int, int]:
    torch.manual_seed(0)
    model = nn.Linear(10, 2).double()
    torch.manual_seed(client + 1)
    inputs, weights = torch.randn(64, 10, dtype=torch.float64), torch.arange(20.0).view(10, 2).double() / 20
    inner = torch.optim.AdamW(model.parameters(), lr=0.03)
    how: Any = {"transport": transport(client, network), "patience": 20.0} if is_open else {}
    optimizer = gs.DecentralizedOptimizer(model.parameters(), method, MIXING, inner=inner, every=5, **how)
    for _ in range(100):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs @ weights).square().mean()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.1
    optimizer.close()
    return nn.utils.parameters_to_vector(model.parameters()).detach(), optimizer.rounds, optimizer.steps


@pytest.mark.parametrize(
    "method",
    [
        gs.CHOCOSGD(lr=1.0, gamma=0.5, compressor=gs.top_k(5), order="stale"),
        gs.BEER(lr=1.0, gamma=0.3, compressor=gs.top_k(5)),
    ],
    ids=lambda method: method.info.title,
)
def test_adamw_with_a_round_in_five_steps(method: Any, tmp_path: Path) -> None:
    """The same models as those of ranks in lockstep."""
    network = Network(tmp_path, N)
    ours, theirs = clients(N, tuned, network, method, True), spawn(N, tuned, network, method, False)
    for (mine, rounds, steps), (other, _, _) in zip(ours, theirs, strict=True):
        assert (rounds, steps) == (20, 100)
        assert float((mine - other).abs().max()) <= 1e-10


def patient(client: int, network: Network, until: Path) -> Any:
    """Clients whose rounds never end; client 1 joins in the middle of one."""
    x = nn.Parameter(torch.full((20,), float(client != 1), dtype=torch.float64))
    inner = torch.optim.SGD([x], lr=0.01)
    join = "peer0" if client == 1 else None
    time.sleep(1.0 if client == 1 else 0.0)
    optimizer: Any = gs.DecentralizedOptimizer(
        [x], BEER, MIXING, inner=inner, every=10**6, join=join, transport=transport(client, network, 0.5)
    )
    model = x.detach().clone()
    if client == 1:
        until.touch()
    while not until.exists():
        x.grad = torch.zeros_like(x)
        optimizer.step()
        time.sleep(0.01)
    optimizer.close()
    return model, optimizer.rounds


@pytest.mark.slow
def test_joining_needs_no_end_of_a_round(tmp_path: Path) -> None:
    results = clients(N, patient, Network(tmp_path, N), tmp_path / "joined")
    assert all(torch.equal(model, torch.ones(20, dtype=torch.float64)) for model, _ in results)
    assert [rounds for _, rounds in results] == [0] * N


def lonely(network: Network, client: int = 1, method: Any = BEER, mixing: Any = MIXING, **settings: Any) -> Any:
    settings = {"transport": transport(client, network, 1.0)} | settings
    return gs.DecentralizedOptimizer([nn.Parameter(torch.zeros(20))], method, mixing, **settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"join": "omega"}, "No peer has the name, address or number 'omega'; the peers file has peer0, peer1, .*"),
        ({"join": "peer3"}, r"Client 1 can join with the model of a neighbour only: one of \[0, 2\], got 3\."),
        ({"patience": -1}, "`patience` must be a number above 0, got -1."),
        ({"patience": 1.0, "open": Openness()}, "`patience` is part of `open`; leave out patience=1.0, or `open`."),
        ({"open": 3}, "`open` must be an Openness of gossamer.runtime.open.participant, got 3."),
        ({"initial": "broadcast"}, "initial='broadcast' needs all clients at once, and in an open run they come .*"),
        ({"method": gs.DSGD(lr=0.1)}, "Clients cannot come and go with DSGD, which has no rule for that; use BEER, .*"),
        (
            {"method": gs.CHOCOSGD(lr=0.1, gamma=0.3, compressor=gs.gsgd(4))},
            "Clients cannot come and go with CHOCO-SGD, which has no rule for that; set order='stale'.",
        ),
        (
            {"method": gs.algorithms.CompressedKGT(lr=0.1, gamma=0.3, compressor=gs.gsgd(4))},
            "Clients cannot come and go with Compressed K-GT, which has no rule for that; .*",
        ),
        ({"mixing": matchings(gs.ring(N))}, "`mixing` must be made by gossamer.mixing_matrix.*, got MixingSchedule."),
        ({"mixing": gs.mixing_matrix(gs.ring(3)), "client": 3}, "The graph has 3 clients, and the key is that of .*"),
        (
            {"transport": "gloo", "patience": 1.0},
            r"`patience` is for clients that come and go; pass transport=opened\(peers, key\) of .*, got .*'gloo'\.",
        ),
        ({"transport": "curve", "join": 0}, r"The transport 'curve' needs \$GOSSAMER_PEERS, .*"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_sentence(settings: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(gs.InputError, match=f"^{sentence}$"):
        lonely(Network(tmp_path, N), **settings)


def test_a_key_that_is_not_in_the_peers_file(tmp_path: Path) -> None:
    network = Network(tmp_path, N)
    write_peers(network.peers(1), {0: network.ports[0]}, network.keys)
    with pytest.raises(gs.InputError, match=r"^The public key '.*' of '.*' is not in the peers file '.*'\.$"):
        lonely(network)


def test_an_address_where_nobody_answers(tmp_path: Path) -> None:
    sentence = r"^Client 1 found no neighbour within 1 s \(client 0: nobody answers there; client 2: .*\)\.$"
    with pytest.raises(gs.errors.RunError, match=sentence):
        lonely(Network(tmp_path, N), join="peer0")


def refused(client: int, network: Network, settings: Any) -> str:
    """Client 1 is another one than its neighbours; those begin without it."""
    how = {name: values[client == 1] for name, values in settings.items()}
    first = how.pop("first", 0.0)
    line: Any = object.__new__(Line)
    line.x, line.target = nn.Parameter(torch.full((20,), first, dtype=torch.float64)), TARGETS[client]
    given: Any = {"transport": transport(client, network, 4.0), "mixing": MIXING, "method": BEER} | how
    line.optimizer = gs.DecentralizedOptimizer([line.x], **given)
    line.train(5)
    line.optimizer.close()
    return "ended"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"seed": (0, 1)}, "has other settings (method, data, seed, versions, ...); start all clients with the same"),
        ({"first": (0.0, 1.0)}, "begins with another model; make it after torch.manual_seed with the same seed on all"),
    ],
)
def test_clients_that_differ_are_refused(settings: Any, sentence: str, tmp_path: Path) -> None:
    results = clients(N, refused, Network(tmp_path, N), settings)
    assert results[1].startswith("Client 1 cannot take part: client ")
    assert sentence in results[1]
    assert [results[i] for i in (0, 2, 3)] == ["ended"] * 3


def asked(client: int, network: Network) -> list[str]:
    """What cannot be had in an open run."""
    line, said = Line(client, network), []
    line.train(3)
    module = nn.ParameterList([line.x])
    calls: Any = [
        lambda: line.optimizer.average_state_dict(module),
        lambda: line.optimizer.join().__enter__(),
        lambda: line.optimizer.resume("kept"),
        lambda: line.optimizer.save("kept"),
        line.optimizer.state_dict,
        lambda: line.optimizer.load_state_dict({}),
    ]
    for call in calls:
        with pytest.raises(gs.InputError) as found:
            call()
        said.append(str(found.value))
    line.train(5)
    line.optimizer.close()
    return said


def test_what_needs_everybody_says_what_to_do_instead(tmp_path: Path) -> None:
    for said in clients(N, asked, Network(tmp_path, N)):
        assert [sentence.split(" needs")[0] for sentence in said] == [
            "`average_model`", "`join()`", "`resume`", *[said[3]] * 2, "`load_state_dict`",
        ]  # fmt: skip
        assert said[0].endswith("come and go; evaluate the model of this client, which mixing keeps near the others.")
        assert said[1].endswith("come and go; call close() after the last round, and the others go on.")
        assert said[2].endswith("keep the model's own state_dict, and come back with a neighbour's model by `join`.")
        assert said[3].startswith("An open run has no checkpoints, because the edges of a client begin anew with its")


BROKEN = """
import sys, torch, gossamer as gs
from gossamer.runtime.transport.curve import opened
x = torch.nn.Parameter(torch.zeros(20, dtype=torch.float64))
method = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(4))
mixing = gs.mixing_matrix(gs.ring(4))
optimizer = gs.DecentralizedOptimizer([x], method, mixing, transport=opened(*sys.argv[1:]))
while True:
    optimizer.zero_grad()
    x.sum().backward()
    optimizer.step()
    if optimizer.rounds == 20:
        raise ValueError("a bad row")
"""


def unbroken(client: int, network: Network) -> Any:
    """Process 3 is none; its place has a program of its own."""
    if client == 3:
        command = [sys.executable, "-c", BROKEN, str(network.peers(3)), str(network.secret(3))]
        done = subprocess.run(command, cwd=network.folder, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stderr
    line, longest = Line(client, network), 0.0
    while line.optimizer.rounds < 300:
        begin = time.monotonic()
        line.step()
        if line.optimizer.rounds > 10:  # the program's first step imports much
            longest = max(longest, time.monotonic() - begin)
    assert line.optimizer.present == {0, 1, 2}
    return longest, line.settled()


@pytest.mark.slow
def test_a_program_that_fails_ends_and_the_others_go_on(no_process_left: None, tmp_path: Path) -> None:
    """It has no `close`, and they have a minute before a silent neighbour is gone: it tells them."""
    results = clients(N, unbroken, Network(tmp_path, N))
    code, err = results[3]
    assert code == 1
    assert err.strip().endswith("ValueError: a bad row")
    assert max(results[i][0] for i in range(3)) < 5
    check_settled({i: results[i][1] for i in range(3)})
