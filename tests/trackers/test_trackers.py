"""What trackers hear of simulations: the rows of the record, whatever the trackers do."""

import math
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import gossamer as gs
from gossamer.errors import TrackerWarning
from gossamer.runtime.experiment import prepare
from gossamer.runtime.planning.jobs import run_over_cores
from gossamer.spec import load_spec
from gossamer.trackers import Event, Tracker

MIXING = gs.mixing_matrix(gs.ring(4), weights="fdla")
METHODS = {"BEER": gs.BEER(lr=0.1, gamma=0.5, compressor=gs.gsgd(5)), "DSGD": gs.DSGD(lr=0.1)}
SPEC = """
rounds = 30
seeds = [0, 1]
[problem]
objective = "quadratic"
clients = 4
[graph]
name = "ring"
[[methods]]
name = "dsgd"
lr = 0.1
[[methods]]
name = "beer"
lr = 0.1
gamma = 0.5
compressor = "gsgd:5"
"""


class Kept(Tracker):
    """Keeps all that it hears."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, int | None, Any]] = []
        self.events: list[Event] = []
        self.closed = 0

    def begin(self, label: str, seed: int, client: int | None, settings: Any) -> None:
        self.begun.append((label, seed, client, settings))

    def event(self, event: Event) -> None:
        assert (event.label, event.seed, event.client) in [one[:3] for one in self.begun]
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1


class Lines(Tracker):
    """Writes a line per event into a file: for processes, which share no memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def event(self, event: Event) -> None:
        with self.path.open("a") as file:
            file.write(f"{event.label} {event.seed} {event.round} {event.values['loss']!r}\n")


def same(one: float, two: float) -> bool:
    return one == two or (math.isnan(one) and math.isnan(two))


def check_equal(events: list[Event], runs: Any) -> None:
    """The events of a run are the rows of its record."""
    for run in runs:
        mine = [event for event in events if (event.label, event.seed) == (run.label, run.seed)]
        assert [event.round for event in mine] == [row.round for row in run.record.rows]
        for event, row in zip(mine, run.record.rows, strict=True):
            columns = row.columns()
            del columns["round"]
            assert event.values.keys() == columns.keys() | {"bytes"}
            assert all(same(event.values[name], value) for name, value in columns.items())
            assert event.values["bytes"] == row.bits / 8
            assert event.client is None


def test_events_are_the_rows_of_the_record() -> None:
    kept, heard = Kept(), list[Event]()
    runs = gs.sweep(
        METHODS, gs.quadratic(clients=4), MIXING, rounds=130, seeds=[0, 1], eval_every=1, trackers=[kept, heard.append]
    )
    check_equal(kept.events, runs)
    assert heard == kept.events
    assert [one[:3] for one in kept.begun] == [(label, seed, None) for label in METHODS for seed in (0, 1)]
    settings = kept.begun[1][3]
    assert (settings["seed"], settings["method"]["lr"], settings["rounds"]) == (1, 0.1, 130)
    assert kept.closed == 1


def test_metrics_are_among_the_values() -> None:
    heard: list[Event] = []
    problem = gs.module_problem(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        "digits",
        clients=4,
        metric={"share_of_zeros": lambda output, labels: (output.argmax(dim=1) == 0).double().mean()},
    )
    run = gs.simulate(METHODS["BEER"], problem, MIXING, rounds=4, batch_size=8, trackers=[heard.append])
    check_equal(heard, [run])
    assert any("share_of_zeros" in name for name in heard[-1].values)
    assert "accuracy" in heard[-1].values


def test_a_diverging_run_is_followed_to_its_end() -> None:
    heard: list[Event] = []
    run = gs.simulate(
        gs.DSGD(lr=1e30), gs.quadratic(clients=4), MIXING, rounds=50, eval_every=1, trackers=[heard.append]
    )
    assert run.diverged
    check_equal(heard, [run])


def test_a_resumed_run_tells_what_is_new(tmp_path: Path) -> None:
    def run(**how: Any) -> Any:
        return gs.simulate(
            METHODS["BEER"], gs.quadratic(clients=4), MIXING, rounds=40, eval_every=5, record_dir=tmp_path, **how
        )

    kept, rounds = Kept(), iter(range(100))
    with pytest.raises(gs.StoppedError):
        run(trackers=[kept], should_stop=lambda: next(rounds) == 22)
    assert [event.round for event in kept.events] == [0, 5, 10, 15, 20]
    assert kept.closed == 1
    again = Kept()
    whole = run(trackers=[again], resume=True)
    assert [event.round for event in again.events] == [25, 30, 35, 40]
    assert [one[:3] for one in again.begun] == [("BEER", 0, None)]
    check_equal(kept.events + again.events, [whole])
    over = Kept()
    run(trackers=[over], resume=True)
    assert over.events == []


class Fails(Kept):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def begin(self, *about: Any) -> None:
        if self.where == "begin":
            raise OSError("no network")
        super().begin(*about)

    def event(self, event: Event) -> None:
        if self.where == "event" and event.round >= 3:
            raise KeyError("odd")
        super().event(event)

    def close(self) -> None:
        super().close()
        if self.where == "close":
            raise RuntimeError("too late\nand more")


@pytest.mark.parametrize(
    ("where", "reason", "heard"),
    [("begin", "OSError: no network", 0), ("event", "KeyError: 'odd'", 3), ("close", "RuntimeError: too late", 11)],
)
def test_a_tracker_that_fails_loses_nothing(where: str, reason: str, heard: int, tmp_path: Path) -> None:
    bad, good = Fails(where), Kept()
    with pytest.warns(TrackerWarning, match=f"The tracker Fails failed.*{reason}.$") as warned:
        run = gs.simulate(
            METHODS["BEER"], gs.quadratic(clients=4), MIXING, rounds=10, record_dir=tmp_path, trackers=[bad, good]
        )
    assert len(warned) == 1
    assert (len(bad.events), bad.closed) == (heard, 1)
    check_equal(good.events, [run])
    record = gs.read_record(tmp_path / "BEER-seed0.jsonl")
    assert [row.round for row in record.rows] == list(range(11))
    assert record.end is not None


def test_a_tracker_changes_no_number() -> None:
    def run(**how: Any) -> Any:
        return gs.simulate(METHODS["BEER"], gs.quadratic(clients=4, noise=1.0), MIXING, rounds=60, batch_size=2, **how)

    followed, alone = run(trackers=[Kept()]), run()
    assert followed.x.equal(alone.x)
    assert followed.frame.bits.equals(alone.frame.bits)


@pytest.mark.parametrize("bad", [3, "folder", Tracker, None])
def test_what_is_no_tracker_is_refused(bad: Any, tmp_path: Path) -> None:
    with pytest.raises(gs.InputError, match=r"A tracker is an object such as .* takes an Event; got"):
        gs.simulate(
            METHODS["DSGD"], gs.quadratic(clients=4), MIXING, rounds=2, trackers=[bad], record_dir=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bad", [3, "folder", Tracker(), None])
def test_trackers_come_in_a_list(bad: Any) -> None:
    with pytest.raises(gs.InputError, match="`trackers` must be a list of trackers or functions, got"):
        gs.simulate(METHODS["DSGD"], gs.quadratic(clients=4), MIXING, rounds=2, trackers=bad)


def experiment(folder: Path) -> Any:
    (folder / "my.toml").write_text(SPEC)
    return prepare(load_spec(folder / "my.toml"))


def test_experiments_have_trackers(tmp_path: Path) -> None:
    kept = Kept()
    runs = experiment(tmp_path).run(trackers=[kept])
    check_equal(kept.events, runs)
    assert kept.closed == 2  # one call of `sweep` per method


@pytest.mark.slow
def test_processes_have_their_own_trackers(tmp_path: Path) -> None:
    tracker = Lines(tmp_path / "lines.txt")
    runs = run_over_cores(experiment(tmp_path), 2, record_dir=tmp_path / "out", trackers=[tracker])
    expected = [f"{run.label} {run.seed} {row.round} {row.loss!r}" for run in runs for row in run.record.rows]
    assert sorted(tracker.path.read_text().splitlines()) == sorted(expected)


def test_processes_need_trackers_that_travel(tmp_path: Path) -> None:
    with pytest.raises(gs.InputError, match=r"cannot be pickled, .*; leave out `jobs`"):
        run_over_cores(experiment(tmp_path), 2, record_dir=tmp_path / "out", trackers=[lambda event: None])
