"""Events and histories of open runs, as they are written down and read back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.errors import DataError
from gossamer.runtime.open import history
from gossamer.runtime.open.history import Begin, Open, Step, read_history, write_history
from gossamer.runtime.open.replaying import Replay, replay
from gossamer.runtime.open.simulated.events import (
    Down,
    Frozen,
    Happens,
    Joins,
    Leaves,
    Lost,
    check_events,
    draw_events,
)
from gossamer.runtime.open.simulated.events_file import read_events
from gossamer.runtime.open.simulated.timetable import timetable

RING = gs.mixing_matrix(gs.ring(6))
BEER = gs.BEER(lr=0.05, gamma=0.4, compressor=gs.gsgd(5))
numbers = st.integers(0, 2**63)
small = st.integers(0, 2**32 - 1)


def quadratic(clients: int) -> Any:
    return gs.quadratic(clients=clients, d=4, condition=10.0, dtype="float64")


# Events.


@given(
    st.integers(0, 2**64 - 1),
    st.tuples(*[st.integers(0, 6)] * 4),
    st.sampled_from([None, 0.5, 5.0, 100.0]),
    st.sampled_from([(), (2,), (0, 1, 2, 3, 4)]),
)
@settings(deadline=None, max_examples=30)
def test_drawn_events(seed: int, many: tuple[int, ...], away: float | None, absent: tuple[int, ...]) -> None:
    lost, leaves, frozen, down = many
    how: Any = {"rounds": 50, "seed": seed, "away": away, "absent": absent, "length": 3.0}
    counts: dict[str, Any] = {"lost": lost, "leaves": leaves, "frozen": frozen, "down": down}
    events = draw_events(RING, **counts, **how)
    assert events == draw_events(RING, **counts, **how), "the seed decides"
    check_events(RING, events, absent)
    kinds = [type(event) for event in events]
    assert (kinds.count(Frozen), kinds.count(Down)) == (frozen, down)
    assert kinds.count(Lost) <= lost
    assert kinds.count(Leaves) <= leaves
    if away is None:
        assert Joins not in kinds
        assert kinds.count(Lost) + kinds.count(Leaves) == min(lost + leaves, 5 - len(absent)), "the last one stays"
    for event in events:
        if isinstance(event, Joins):
            before = max(one.at for one in events if isinstance(one, Lost | Leaves) and one.at < event.at)
            assert event.at < 50
            assert before <= event.at
    times = [event.at for event in events if isinstance(event, Lost)]
    more = draw_events(RING, **counts | {"leaves": 0, "frozen": 9}, **how | {"away": None, "absent": ()})
    if away is None and not leaves and not absent:
        assert times == [event.at for event in more if isinstance(event, Lost)], "others do not change them"


def test_other_seeds_draw_other_events() -> None:
    drawn = [draw_events(RING, rounds=50, seed=seed, lost=2, down=1) for seed in range(20)]
    assert all(drawn[0] != other for other in drawn[1:])
    assert len(draw_events(gs.mixing_matrix(gs.topology.path(2)), rounds=9, lost=3)) == 1, "the last one stays"


@pytest.mark.parametrize(
    ("events", "absent", "message"),
    [
        ([Lost(2, 5.0), Lost(2, 9.0)], (), "Event 2, Lost(client=2, at=9.0), is not possible: client 2 is not there"),
        ([Lost(2, 5.0), Leaves(2, 9.0)], (), "client 2 is not there at that time; let it join before."),
        ([Joins(2, 5.0)], (), "Event 1, Joins(client=2, at=5.0), is not possible: client 2 is there already"),
        ([Joins(2, 9.0), Lost(2, 5.0), Joins(2, 9.5)], (), "Event 3, Joins(client=2, at=9.5), is not possible"),
        ([Lost(1, 1.0), Lost(2, 2.0), Lost(3, 3.0), Joins(2, 4.0)], (), "none of the neighbours [1, 3] of client 2"),
        ([Lost(6, 5.0)], (), "must have clients from 0 to 5, got 6."),
        ([Frozen(-1, 5.0, 6.0)], (), "must have clients from 0 to 5, got -1."),
        ([Lost(True, 5.0)], (), "must have clients from 0 to 5, got True."),
        ([Lost("2", 5.0)], (), "must have clients from 0 to 5, got '2'."),  # type: ignore[arg-type]
        ([Lost(2, -1.0)], (), "must have a number of 0 or more as `at`, got -1.0."),
        ([Lost(2, float("nan"))], (), "must have a number of 0 or more as `at`, got nan."),
        ([Joins(2, float("inf"))], (), "must have a number of 0 or more as `at`, got inf."),
        ([Lost(2, "soon")], (), "must have a number of 0 or more as `at`, got 'soon'."),  # type: ignore[arg-type]
        ([Frozen(2, 5.0, 5.0)], (), "must end after it begins."),
        ([Down((0, 1), 5.0, 4.0)], (), "must end after it begins."),
        ([Down((0, 2), 1.0, 4.0)], (), "must have an edge of the graph; the neighbours of client 0 are [1, 5]."),
        ([Down((0, 0), 1.0, 4.0)], (), "must have an edge of the graph"),
        ([Down((0, 7), 1.0, 4.0)], (), "must have clients from 0 to 5, got 7."),
        ([Down((0, 1, 2), 1.0, 4.0)], (), "must have an edge of the graph"),  # type: ignore[arg-type]
        ([], (9,), "`absent` must have clients from 0 to 5, got 9."),
        ([], range(6), "All 6 clients are absent at the start"),
        ([Lost(2, 5.0)], (2,), "client 2 is not there at that time"),
    ],
)
def test_events_that_cannot_happen(events: list[Happens], absent: Any, message: str) -> None:
    for refuses in (
        lambda: check_events(RING, events, absent),
        lambda: timetable(RING, rounds=20, events=events, absent=absent),
    ):
        with pytest.raises(gs.InputError) as refused:
            refuses()
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rounds": 0}, "`rounds` must be an integer of 1 or more, got 0"),
        ({"patience": 0}, "`patience` must be a number above 0, got 0"),
        ({"gone_after": -1}, "`gone_after` must be a number of 0 or more, got -1"),
        ({"delay": "x"}, "`delay` must be a number of 0 or more, got 'x'"),
        ({"jitter": float("nan")}, "`jitter` must be"),
        ({"seed": -1}, "`seed` must be an integer from 0"),
    ],
)
def test_settings_of_a_timetable(how: dict[str, Any], message: str) -> None:
    with pytest.raises(gs.InputError, match=message):
        timetable(RING, **{"rounds": 5} | how)


def test_packets_do_not_overtake_one_another() -> None:
    """Each is applied in the round in which the timetable had it arrive, so replay and timetable agree on rounds."""
    for seed in range(5):
        made = timetable(RING, rounds=30, jitter=6.0, seed=seed, patience=1.0)
        members = replay(BEER, quadratic(6), RING, made)
        assert {member.t for member in members.values()} == {30}


TOML = """
patience = 2
gone_after = 3.0
jitter = 0.5
seed = 4
absent = [5]

[[event]]
lost = 1
at = 4.5

[[event]]
leaves = 3
at = 6

[[event]]
joins = 5
at = 7

[[event]]
frozen = 0
begin = 8
end = 9.5

[[event]]
down = [0, 5]
begin = 9
end = 12
"""


def test_events_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "events.toml").write_text(TOML)
    read = read_events(tmp_path / "events.toml", RING, 20)
    events = [Lost(1, 4.5), Leaves(3, 6.0), Joins(5, 7.0), Frozen(0, 8.0, 9.5), Down((0, 5), 9.0, 12.0)]
    assert read == {"patience": 2, "gone_after": 3.0, "jitter": 0.5, "seed": 4, "absent": [5], "events": events}
    assert timetable(RING, rounds=20, **read)[5][0].kind == "begin"
    (tmp_path / "drawn.toml").write_text("[random]\nseed = 7\nlost = 2\ndown = 3\naway = 5\n")
    expected = draw_events(RING, rounds=20, seed=7, lost=2, down=3, away=5.0)
    assert read_events(tmp_path / "drawn.toml", RING, 20) == {"events": expected}
    (tmp_path / "empty.toml").write_text("")
    assert read_events(tmp_path / "empty.toml", RING, 20) == {"events": []}


BAD_FILES = {
    "= 3": "is not TOML",
    "patience = 'x'\n": "`patience` must be a number above 0, got 'x'",
    "patient = 3\n": "has no setting 'patient'",
    "absent = 3\n": "must be a list of clients such as [2, 5], got 3",
    "event = 3\n": "must be tables [[event]], got 3",
    "[event]\nlost = 1\nat = 3\n": "must be tables [[event]]",
    "[[event]]\nat = 3\n": "must have one of lost, leaves, joins, frozen, down, got at",
    "[[event]]\nlost = 1\n": "must have lost, at, got lost",
    "[[event]]\nlost = 1\nleaves = 1\nat = 3\n": "must have one of",
    "[[event]]\nlost = 1\nat = 3\nend = 4\n": "must have lost, at, got lost, at, end",
    "[[event]]\nlost = [1, 2]\nat = 3\n": "must have a client such as 3 as `lost`, got [1, 2]",
    "[[event]]\ndown = 1\nbegin = 3\nend = 4\n": "must have an edge such as [0, 1] as `down`, got 1",
    "[[event]]\ndown = [1]\nbegin = 3\nend = 4\n": "must have an edge such as [0, 1]",
    "[[event]]\nlost = 'a'\nat = 3\n": "must have clients from 0 to 5, got 'a'",
    "[[event]]\nlost = 1\nat = 'soon'\n": "must have a number of 0 or more as `at`, got 'soon'",
    "[[event]]\nlost = 1\nat = true\n": "must have a number of 0 or more as `at`, got True",
    "[[event]]\nlost = 1\nat = 3\n[[event]]\nlost = 1\nat = 4\n": "client 1 is not there at that time",
    "[[event]]\ndown = [0, 3]\nbegin = 3\nend = 4\n": "must have an edge of the graph",
    "random = 3\n": "must be a table [random], got 3",
    "[random]\nloss = 3\n": "has no setting 'loss'",
    "[random]\nlost = -3\n": "`lost` must be an integer of 0 or more, got -3",
    "[random]\naway = 'x'\n": "`away` must be a number above 0, got 'x'",
    "[random]\nlost = 1\n[[event]]\nlost = 1\nat = 3\n": "has [[event]] and [random]",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_files_of_events(tmp_path: Path, text: str) -> None:
    (tmp_path / "events.toml").write_text(text)
    with pytest.raises(gs.InputError) as refused:
        timetable(RING, rounds=20, **read_events(tmp_path / "events.toml", RING, 20))
    assert BAD_FILES[text] in str(refused.value)
    assert "\n" not in str(refused.value)


# Histories.

events_of_histories = st.one_of(
    st.builds(Begin, t=numbers, via=st.none() | small, number=numbers),
    st.builds(Open, neighbor=small, number=numbers, start=st.sampled_from(["start", "own", "theirs"])),
    st.builds(Step, neighbors=st.lists(small, max_size=4).map(tuple)),
    st.builds(history.Close, neighbor=small),
    st.builds(history.Gone),
    st.builds(history.Leave, heir=st.none() | small, neighbors=st.lists(small, max_size=4).map(tuple)),
    st.builds(history.Release, neighbor=small, heir=small, has_packet=st.booleans()),
    st.builds(history.Inherit, neighbor=small, has_packet=st.booleans()),
    st.builds(history.Forget, number=numbers),
)


@given(st.lists(events_of_histories, max_size=8), st.integers(0, 40))
@settings(deadline=None, max_examples=40)
def test_histories_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], cut: int
) -> None:
    path = tmp_path_factory.mktemp("history") / "client0.history"
    write_history(path, events)
    assert read_history(path) == events
    data = path.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1  # where the last line begins
    torn = data[: max(len(data) - 1 - cut, last)]
    path.write_bytes(torn)
    assert read_history(path) == events[:-1], "a line that was cut off is left out"
    path.write_bytes(torn + b"\xff\xfe")
    assert read_history(path) == events[:-1]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "{}",
        "3",
        "not JSON",
        "\xff",
        '{"event": "vanish"}',
        '{"event": "step"}',
        '{"event": "step", "neighbors": 5}',
        '{"event": "step", "neighbors": ["1"]}',
        '{"event": "step", "neighbors": [1], "more": 2}',
        '{"event": "close", "neighbor": -1}',
        '{"event": "close", "neighbor": true}',
        '{"event": "inherit", "neighbor": 1, "has_packet": 1}',
        '{"event": "begin", "t": 1.5, "via": null, "number": 0}',
        '{"event": "begin", "t": null, "via": null, "number": 0}',
    ],
)
def test_bad_lines_are_named(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "client0.history"
    path.write_bytes(f"{history.line(Begin())}\n{bad}\n{history.line(Step(()))}\n".encode("latin-1"))
    with pytest.raises(DataError, match="has no event in line 2: ") as refused:
        read_history(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match=r"cannot be read: No such file or directory\."):
        read_history(tmp_path / "missing")


@pytest.mark.parametrize(
    ("number", "event", "message"),
    [
        (0, None, "before it begins"),
        (1, Open(3, 1, "start"), "has Open(neighbor=3, number=1, start='start'), which is not possible there"),
        (1, Open(1, 99, "theirs"), "needs what nobody sent"),
        (3, Step((1,)), "has Step(neighbors=(1,)), which is not possible there"),
        (4, Step((3,)), "which is not possible there"),
        (4, history.Close(3), "which is not possible there"),
        (4, history.Leave(3), "which is not possible there"),
        (4, history.Leave(1), "which is not possible there"),
        (4, history.Leave(4, (1, 5)), "which is not possible there"),
        (4, history.Inherit(1, False), "needs what nobody sent"),
        (4, history.Release(1, 9, True), "has Step(neighbors=(1, 5)), which is not possible there"),
        (4, Begin(3, 1, 77), "needs what nobody sent"),
    ],
)
def test_histories_that_are_not_possible(number: int, event: Any, message: str) -> None:
    """One event of client 0 is another one."""
    made = timetable(RING, rounds=6)
    made[0][number : number + 1] = [] if event is None else [event]
    with pytest.raises(DataError) as refused:
        replay(BEER, quadratic(6), RING, made)
    assert message in str(refused.value)


def test_clients_that_are_not_there() -> None:
    with pytest.raises(DataError, match=r"has client 6, but the problem has clients 0 to 5\."):
        Replay(BEER, quadratic(6), RING, {6: [Begin()]})
    with pytest.raises(DataError, match="The history has no clients"):
        Replay(BEER, quadratic(6), RING, {})


def test_mistakes_of_the_method_are_not_taken_for_those_of_the_history() -> None:
    method = replace(BEER, start="full")
    local = gs.LocalSteps("SGD", steps=2, lr=0.01)
    with pytest.raises(gs.InputError, match="the method asks for full gradients"):
        replay(method, quadratic(6), RING, timetable(RING, rounds=3), local=local)
    with pytest.raises(gs.InputError, match="`h0` = 'model' is for clients that all start from one model"):
        replay(replace(BEER, h0="model"), quadratic(6), RING, timetable(RING, rounds=3), x0="normal")
