"""What clients in processes of their own tell: the traffic and events of an optimiser, and the loss in `launch`."""

import math
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # which the first step of any optimiser imports: once here, not in every rank
from commands import forked
from launching import finish, spec, start
from processes import spawn
from torch import Tensor, nn

import gossamer as gs
from gossamer.cli.launching.events import Event, Kind, Losses
from gossamer.cli.output import launch_progress
from gossamer.errors import TrackerWarning
from gossamer.runtime.experiment import prepare
from gossamer.spec import load_spec
from gossamer.testing import loopback
from gossamer.trackers import Tracker

N, ROUNDS = 3, 12
MIXING = gs.mixing_matrix(gs.ring(N), weights="fdla")
METHOD = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(4))


class Kept(Tracker):
    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.events: list[Any] = []
        self.closed = 0

    def begin(self, *about: Any) -> None:
        self.begun.append(about)

    def event(self, event: Any) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1


def rows(rank: int, t: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(100 * rank + t)
    x = torch.randn(20, 5)
    return x, x.sum(dim=1, keepdim=True)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 1)


def plain_loop(rank: int) -> Any:
    net, kept = model(), Kept()
    optimizer = gs.DecentralizedOptimizer(net.parameters(), METHOD, MIXING, seed=3, trackers=[kept], track_every=4)
    losses = []
    for t in range(ROUNDS):
        x, y = rows(rank, t)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.track(batch_loss=loss, size=len(x))
        optimizer.step()
        losses.append(loss.item())
    optimizer.close()
    traffic, accounts = optimizer.traffic, optimizer.client.accounts()
    return traffic, accounts, optimizer.client.sent.bytes, kept.begun, kept.events, kept.closed, losses


def test_the_optimisers_traffic_and_events() -> None:
    results = spawn(N, plain_loop)
    simulated = gs.simulate(METHOD, gs.quadratic(clients=N, d=6), MIXING, rounds=ROUNDS, codec="fixed")
    assert simulated.final.packets == ROUNDS
    for rank, result in enumerate(results):
        assert not isinstance(result, Exception), f"{result!r} {getattr(result, '__notes__', '')}"
        traffic, accounts, sent, begun, events, closed, losses = result
        assert sorted(traffic.links) == sorted(set(range(N)) - {rank})
        assert [one.neighbor for one in traffic.links.values()] == [account["neighbor"] for account in accounts]
        for name in ("packets_sent", "bytes_sent", "packets_received", "bytes_received"):
            assert getattr(traffic, name) == sum(account[name] for account in accounts)
            for account in accounts:
                assert getattr(traffic.links[account["neighbor"]], name) == account[name]
        assert traffic.bytes_sent == (N - 1) * sent  # the packets' bytes, to each neighbour
        assert traffic.packets_sent == traffic.packets_received == (N - 1) * ROUNDS
        assert traffic.waiting == pytest.approx(sum(account["waiting"] for account in accounts), abs=1e-5)
        assert f"{traffic.bytes_sent:,} bytes sent" in repr(traffic)
        assert [event.round for event in events] == [4, 8, 12]
        ((label, seed, client, settings),) = begun
        assert (label, seed, client) == ("BEER", 3, rank)
        assert (settings["method"]["lr"], settings["mixing"]["clients"]) == (0.1, N)
        for event in events:
            assert (event.label, event.seed, event.client) == ("BEER", 3, rank)
            assert event.values["batch_loss"] == losses[event.round - 1]
            assert event.values["size"] == 20
            assert 0 < event.values["compression_error"] < 1
            assert event.values["packets"] == event.round
            assert event.values["seconds"] > 0
        assert events[-1].values["bytes"] == sent
        assert events[-1].values["bits"] == 8 * sent
        assert closed == 1
    for rank, (traffic, *_) in enumerate(results):  # what one sent is what the other received
        for j, link in traffic.links.items():
            assert link.bytes_received == results[j][0].links[rank].bytes_sent


def closure_loop(rank: int) -> Any:
    net, kept = model(), Kept()

    def broken(event: Any) -> None:
        raise OSError("the server is away")

    optimizer = gs.DecentralizedOptimizer(net.parameters(), METHOD, MIXING, trackers=[broken, kept])

    def step(t: int) -> float:
        x, y = rows(rank, t)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            return loss

        return float(optimizer.step(closure).detach())

    with pytest.warns(TrackerWarning, match=r"The tracker broken failed.*OSError: the server is away"):
        returned = [step(0)]
    returned += [step(t) for t in range(1, 4)]  # it hears no more, and warns no more
    messages = []
    for bad in ([1.0, 2.0], torch.zeros(2), "x"):
        try:
            optimizer.track(batch_loss=bad)
        except gs.InputError as error:
            messages.append(str(error))
    optimizer.close()
    return returned, [event.values["batch_loss"] for event in kept.events], messages


def test_a_closures_loss_is_tracked_whatever_other_trackers_do() -> None:
    for result in spawn(N, closure_loop):
        assert not isinstance(result, Exception), f"{result!r} {getattr(result, '__notes__', '')}"
        returned, tracked, messages = result
        assert tracked == returned
        assert len(messages) == 3
        assert all(message.startswith("`batch_loss` must be one number, got ") for message in messages)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"trackers": [3]}, "A tracker is an object"),
        ({"trackers": Tracker()}, "`trackers` must be a list"),
        ({"track_every": 0}, "`track_every` must be an integer of 1 or more, got 0"),
    ],
)
def test_bad_trackers_of_an_optimiser_are_refused(how: Any, reason: str) -> None:
    with pytest.raises(gs.InputError, match=reason):
        gs.DecentralizedOptimizer(model().parameters(), METHOD, MIXING, **how)


def test_links_of_looped_clients_add_up() -> None:
    from gossamer.runtime.processes.reporting import LinkTraffic

    problem = gs.quadratic(clients=N)
    looped = loopback(METHOD, problem, MIXING, rounds=7)
    run = gs.simulate(METHOD, problem, MIXING, rounds=7)
    sent = [LinkTraffic.of(client).bytes_sent for client in looped.clients]
    assert 8 * sum(sent) == run.final.bits_total


def test_the_launcher_averages_what_ranks_tell() -> None:
    losses = Losses()
    assert losses.mean() is None
    for event in (
        Event(Kind.PROGRESS, 0, label="a", done=1),
        Event(Kind.LOSS, 1, label="a", loss=2.0),
        Event(Kind.PROGRESS, 0, label="a", loss=4.0, done=5),
        Event(Kind.LOSS, 1, label="a", loss=3.0),
    ):
        read = Event.read(event.line())
        assert read == event
        losses.note(read)
    assert losses.mean() == 3.5
    losses.note(Event(Kind.PROGRESS, 0, label="b"))
    assert losses.mean() is None


def test_a_pipe_gets_a_line_with_the_loss_from_time_to_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = prepare(load_spec(spec(tmp_path)))
    with launch_progress(experiment, quiet=False, seconds=0.0) as show:
        show("BEER", 0, 1, None)
        show("BEER", 0, 20, 0.43125)
    with launch_progress(experiment, quiet=False) as show:  # ten seconds have not passed
        show("BEER", 0, 1, None)
        show("BEER", 0, 20, 0.43125)
    first = "BEER: 60 rounds, 4 processes"
    assert capsys.readouterr().err.splitlines() == [first, "BEER: round 20 of 60, loss 0.4313", first]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {name: [(one.step, one.value) for one in read.Scalars(name)] for name in read.Tags()["scalars"]}


@pytest.mark.slow
def test_launch_reports_the_loss_of_each_rank(tmp_path: Path) -> None:
    spec(tmp_path, rounds=30)
    code, err = finish(start(tmp_path, "-o", "out", "-q", "--tensorboard", "events"))
    assert code == 0, err
    record = gs.read_record(tmp_path / "out" / "BEER-seed0.jsonl")
    found = [scalars(tmp_path / "events" / "BEER-seed0" / f"client{rank}") for rank in range(4)]
    for own in found:
        rounds = [step for step, _ in own["batch_loss"]]
        assert rounds == [row.round for row in record.rows[1:]]  # a minibatch is first drawn in round 1
        assert all(math.isfinite(value) for _, value in own["batch_loss"])
        assert "neighbour 1/bytes_sent" in own or "neighbour 0/bytes_sent" in own
    means = [sum(own["batch_loss"][k][1] for own in found) / 4 for k in (0, -1)]
    assert means[1] < 0.8 * means[0]
    for at, row in enumerate(record.rows):
        assert sum(own["bytes"][at][1] for own in found) / 4 * 8 == pytest.approx(row.bits)


@pytest.mark.long
def test_the_loss_stands_beside_the_bar_on_a_terminal(tmp_path: Path) -> None:
    spec(tmp_path, rounds=300)
    ours, theirs = pty.openpty()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "launch", "my.toml", "-o", "out"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := _read(ours):
            shown += piece
    finally:
        process.kill()
        os.close(ours)
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+)", shown.decode(errors="replace"))]
    assert process.wait() == 0, shown.decode(errors="replace")[-300:]
    assert losses
    assert losses[-1] < 0.5


def _read(stream: int) -> bytes:
    try:
        return os.read(stream, 4096)
    except OSError:  # the other end is closed
        return b""


def test_run_writes_tensorboard_events(tmp_path: Path) -> None:
    spec(tmp_path, rounds=20, seeds="[0, 1]")
    done = forked("run", "my.toml", "-o", "out", "-q", "--tensorboard", "events", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for seed in (0, 1):
        record = gs.read_record(tmp_path / "out" / f"BEER-seed{seed}.jsonl")
        found = scalars(tmp_path / "events" / f"BEER-seed{seed}")
        assert [step for step, _ in found["loss"]] == [row.round for row in record.rows]
        assert [value for _, value in found["loss"]] == pytest.approx([row.loss for row in record.rows], rel=1e-6)
