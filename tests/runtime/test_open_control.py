"""Control messages of open runs, and records of who is there."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import CodecError
from gossamer.runtime.open import control
from gossamer.runtime.open.view import Members

numbers = st.integers(0, 2**63)
small = st.integers(0, 2**32 - 1)
sentences = st.text(max_size=100).filter(str.isprintable)

messages = st.one_of(
    st.builds(
        control.Ask,
        status=st.sampled_from(control.Status),
        digest=st.binary(min_size=16, max_size=16),
        first=st.binary(min_size=16, max_size=16),
    ),
    st.builds(control.Start, edge=numbers, t=numbers, model=st.none() | st.binary(min_size=1, max_size=40)),
    st.builds(control.Term, edge=numbers, packet=st.binary(max_size=40)),
    st.builds(control.Closed, edge=numbers),
    st.builds(
        control.Handover,
        edge=numbers,
        debt=numbers,
        client=small,
        tracker=st.integers(0, 255),
        values=st.binary(max_size=40),
    ),
    st.builds(control.Left, edge=numbers, heir=small),
    st.builds(control.Done, edge=numbers),
    st.builds(control.View, records=st.binary(max_size=40)),
    st.builds(control.Refused, sentence=sentences),
)


@given(messages)
@settings(deadline=None, max_examples=200)
def test_messages_are_read_as_they_were_written(message: control.Said) -> None:
    assert control.read(control.write(message)) == message


@given(st.text(max_size=800))
@settings(deadline=None, max_examples=50)
def test_sentences_are_cut_and_printable(sentence: str) -> None:
    """A neighbour's sentence is shown on a terminal."""
    said = control.read(control.write(control.Refused(sentence)))
    assert isinstance(said, control.Refused)
    assert said.sentence.isprintable()
    assert len(said.sentence) <= min(500, len(sentence))


def test_every_message_has_a_number() -> None:
    kinds = set(control.Said.__args__)
    table = control.__doc__ or ""
    assert all(f"  {kind.__name__} " in table for kind in kinds)


@given(
    st.binary(max_size=60)
    | st.builds(lambda kind, rest: bytes([kind]) + rest, st.integers(0, 10), st.binary(max_size=60))
)
@settings(deadline=None, max_examples=300)
def test_random_bytes_are_no_message_or_one(data: bytes) -> None:
    try:
        message = control.read(data)
    except CodecError:
        return
    assert isinstance(message, control.Refused) or control.write(message) == data


# Records of members.


@given(st.binary(max_size=80))
@settings(deadline=None, max_examples=200)
def test_random_records(data: bytes) -> None:
    members = Members(0, 4)
    with suppress(CodecError):
        members.learn(data)
    assert 0 in members.reachable()
    assert members.records([0])


def line_of(clients: int) -> list[Members]:
    """Members on a line, each of whom knows its own edges."""
    line = [Members(i, clients) for i in range(clients)]
    for i, one in enumerate(line):
        one.state([j for j in (i - 1, i + 1) if 0 <= j < clients])
    return line


def spread(line: list[Members], edges: list[tuple[int, int]], news: list[tuple[int, bytes]]) -> int:
    """Pass on what is new over these edges, until nothing is; how many messages it takes."""
    count = 0
    while news:
        i, records = news.pop(0)
        for j in [b if a == i else a for a, b in edges if i in (a, b)]:
            fresh = line[j].learn(records)
            count += 1
            if fresh:
                news.append((j, fresh))
    return count


@given(st.integers(2, 9), st.randoms())
@settings(deadline=None, max_examples=20)
def test_records_converge_on_a_line(clients: int, random: Any) -> None:
    line, edges = line_of(clients), [(i, i + 1) for i in range(clients - 1)]
    news = [(i, one.records()) for i, one in enumerate(line)]
    random.shuffle(news)
    assert spread(line, edges, news) <= 2 * clients**2
    known = [one.records(range(clients)) for one in line]
    assert all(records == known[0] for records in known)
    assert all(one.reachable() == set(range(clients)) for one in line)

    cut = random.randrange(clients - 1)  # an edge closes: at first one end knows it, then all of each part
    news = []
    for i, other in ((cut, cut + 1), (cut + 1, cut)):
        fresh = line[i].state([j for j in (i - 1, i + 1) if 0 <= j < clients and j != other])
        assert fresh is not None
        news.append((i, fresh))
        assert other not in line[i].reachable()
    spread(line, [edge for edge in edges if edge != (cut, cut + 1)], news)
    for i, one in enumerate(line):
        assert one.reachable() == set(range(cut + 1) if i <= cut else range(cut + 1, clients))
        assert one.state([j for j in (i - 1, i + 1) if 0 <= j < clients and {i, j} != {cut, cut + 1}]) is None, "known"


def test_a_client_that_was_started_again() -> None:
    """The later stamp counts, whatever the versions; and a clock that was set back does no harm."""
    line, edges = line_of(3), [(0, 1), (1, 2)]
    spread(line, edges, [(i, one.records()) for i, one in enumerate(line)])
    line[2].state([])
    line[2].state([1])  # version 3
    spread(line, edges, [(2, line[2].records([2]))])
    old = line[2].records([2])
    line[2] = Members(2, 3)
    fresh = line[2].state([])
    assert fresh is None
    fresh = line[2].state([1])  # version 1 of a later stamp
    assert fresh is not None
    assert fresh not in (old, b"")
    spread(line, edges, [(2, fresh)])
    assert line[0].records([2]) == line[1].records([2]) == fresh
    assert line[0].learn(old) == b"", "the earlier one is not believed again"

    back = Members(2, 3)
    back._known[2] = replace(back._known[2], stamp=1)
    news = back.learn(line[1].records())
    assert back.records([2]) in news, "what others believe of it is later than its own stamp"
    fresh = back.state([1])
    assert fresh is not None
    assert line[1].learn(fresh) == fresh


def test_the_latest_stamp_of_all() -> None:
    members = Members(0, 2)
    other = Members(0, 2)
    other._known[0] = replace(other._known[0], stamp=2**64 - 1, version=2**32 - 1)
    members.learn(other.records([0]))
    assert members.state([1]) is not None
    assert json.dumps(sorted(members.reachable())) == "[0]"


def test_both_ends_keep_a_debt_or_neither() -> None:
    """Clients 0 and 2 share debt 7. Whoever takes it out, the other one follows; also where it was not cut off."""
    edges = [(0, 1), (1, 2)]

    def shared(ends: dict[int, list[int]]) -> list[Members]:
        line = line_of(3)
        news = [(i, line[i].state([j for j in (i - 1, i + 1) if 0 <= j < 3], debts)) for i, debts in ends.items()]
        spread(line, edges, [(i, new) for i, new in news if new])
        spread(line, edges, [(i, one.records()) for i, one in enumerate(line)])
        return line

    line = shared({0: [7], 2: [7]})
    assert line[0].overdue({7: 2}, 1e9) == line[2].overdue({7: 0}, 1e9) == []
    taken_out = line[2].state([1], [])  # client 2 believed for a moment that client 0 was cut off
    assert taken_out is not None
    spread(line, edges, [(2, taken_out)])
    assert line[0].overdue({7: 2}, 1e9) == [7]

    line = shared({0: [7], 2: []})  # client 2 has not heard of it yet, or never will
    assert line[0].overdue({7: 2}, 1e9) == []
    assert line[0].overdue({7: 2}, -1) == []  # by then
    line = shared({0: [7], 2: []})
    assert line[0].overdue({7: 2}, -1) == [7]

    line = shared({0: [7], 2: [7]})
    assert line[0].overdue({7: 2}, 1e9) == []
    gone = line[1].state([0])
    assert gone is not None
    spread(line, edges[:1], [(1, gone)])
    assert line[0].overdue({7: 2}, 1e9) == [7], "out of reach"

    line = shared({0: [7], 2: [7]})
    assert line[0].overdue({7: 2}, 1e9) == []
    line[2] = Members(2, 3)
    started_again = line[2].state([1])
    assert started_again is not None
    spread(line, edges, [(2, started_again)])
    assert line[0].overdue({7: 2}, 1e9) == [7], "another process of client 2 has no debts"
