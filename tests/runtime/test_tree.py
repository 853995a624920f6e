"""Collectives along a tree: the same answers on every graph, and one sentence when something is wrong."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from curve_network import Network
from processes import spawn

import gossamer as gs
from gossamer.errors import InputError, RunError
from gossamer.runtime.processes.client import Client
from gossamer.runtime.processes.tree import Branches, TreeRanks, branches
from gossamer.runtime.transport.curve import opened
from gossamer.runtime.transport.frames import Kind

Do = Callable[[TreeRanks], Any]
GRAPHS = {
    "one": nx.empty_graph(1),
    "two": nx.path_graph(2),
    "ring": nx.cycle_graph(5),
    "star": nx.star_graph(4),
    "path": nx.path_graph(5),
}


def with_ranks(rank: int, network: Network, graph: Any, do: Do, *settings: float) -> Any:
    """What a function returns, or the sentence of its error."""
    ranks = TreeRanks(opened(network.peers(rank), network.secret(rank)), graph, *(settings or (20.0, 30.0)))
    try:
        result = do(ranks)
    except (InputError, RunError) as error:
        ranks.give_up(error)
        result = str(error)
    ranks.leave()
    assert not [thread for thread in threading.enumerate() if thread.name == "gossamer-curve"]
    return result


def on_all(graph: Any, folder: Path, do: Do, *settings: float, seconds: float = 60) -> list[Any]:
    results = spawn(len(graph), with_ranks, Network(folder, len(graph)), graph, do, *settings, seconds=seconds)
    for result in results:
        assert not isinstance(result, Exception), getattr(result, "__notes__", result)
    return results


@pytest.mark.parametrize("graph", [*GRAPHS.values(), nx.gnp_random_graph(30, 0.2, seed=1)], ids=str)
def test_a_tree_has_every_rank_once_and_the_shortest_ways(graph: Any) -> None:
    for root in graph:
        places = [branches(graph, root, rank) for rank in range(len(graph))]
        assert places[root].parent is None
        assert sorted(rank for below in places[root].below.values() for rank in below) == sorted(set(graph) - {root})
        depths = nx.single_source_shortest_path_length(graph, root)
        for rank, place in enumerate(places):
            if place.parent is not None:
                assert depths[place.parent] == depths[rank] - 1
                below = places[place.parent].below[rank]
                assert below == [rank, *(one for ranks in place.below.values() for one in ranks)]


def test_neighbours_are_visited_by_number() -> None:
    graph = nx.Graph([(2, 3), (3, 1), (0, 2), (1, 0)])
    assert branches(graph, 0, 0) == Branches(None, {1: [1, 3], 2: [2]})


def everything(ranks: TreeRanks) -> Any:
    """All operations, with tensors of several types and sizes, one larger than all that may be under way."""
    facts = ranks.share({"rank": ranks.rank, "text": "ä" * 1000 * ranks.rank})
    found: list[Any] = []
    tensors = [
        torch.full((2, 3), ranks.rank + 0.5, dtype=torch.float64),
        torch.tensor(ranks.rank, dtype=torch.int32),
        torch.zeros(0),
        torch.full((5,), ranks.rank, dtype=torch.bfloat16),
        torch.arange(6_000_000, dtype=torch.uint8).roll(ranks.rank),
    ]
    for number, tensor in enumerate(tensors):
        collector = number % ranks.size
        got = ranks.collect(tensor, collector)
        assert (got is None) == (ranks.rank != collector)
        if got is not None:
            assert all(one.shape == tensor.shape and one.dtype == tensor.dtype for one in got)
            found.append([float(one.double().sum()) if one.numel() < 9 else one[:4].tolist() for one in got])
    for one in range(ranks.size):
        ranks.wait_for(one)
    return facts, found, ranks.share_or_refuse(lambda: ranks.rank**2)


@pytest.mark.parametrize("name", GRAPHS)
def test_all_operations(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]
    n = len(graph)
    results = on_all(graph, tmp_path, everything)
    facts = [{"rank": rank, "text": "ä" * 1000 * rank} for rank in range(n)]
    assert all(result[0] == facts for result in results)
    assert all(result[2] == [rank**2 for rank in range(n)] for result in results)
    last = torch.arange(6_000_000, dtype=torch.uint8)
    collected = [
        [6 * (rank + 0.5) for rank in range(n)],
        [float(rank) for rank in range(n)],
        [0.0] * n,
        [5.0 * rank for rank in range(n)],
        [last.roll(rank)[:4].tolist() for rank in range(n)],
    ]
    for number, expected in enumerate(collected):
        assert results[number % n][1][number // n] == expected


def later(ranks: TreeRanks) -> list[float]:
    """Rank 1 comes to every operation long after the others, though not as long as the timeout."""
    seconds = []
    for one in (ranks.share, ranks.wait_for):
        begun = time.monotonic()
        if ranks.rank == 1:
            time.sleep(3.0)
        one(1)
        seconds.append(time.monotonic() - begun)
    return seconds


@pytest.mark.slow
def test_who_is_busy_is_waited_for_longer_than_the_timeout(tmp_path: Path) -> None:
    results = on_all(nx.path_graph(3), tmp_path, later, 1.5)
    assert all(seconds > 2 for result in results for seconds in result), results


def ahead(ranks: TreeRanks) -> int:
    """Ranks but the collector do many operations at once; no more parts wait than there may."""
    most = 0
    for number in range(100):
        if ranks.rank == 0 and number == 0:
            time.sleep(1.0)
            most = max(len(line.arrived) for line in ranks._lines.values())
        ranks.collect(torch.zeros(100_000), 0)
    return most


def test_who_is_ahead_waits(tmp_path: Path) -> None:
    assert on_all(nx.path_graph(3), tmp_path, ahead)[0] == 32


def refusing(ranks: TreeRanks) -> None:
    def find() -> int:
        if ranks.rank == 2:
            raise InputError("Rank 2 has no checkpoint.")
        return 0

    ranks.share_or_refuse(find)


def differing(ranks: TreeRanks) -> None:
    ranks.agree({"torch": "2.0", "the spec": ranks.rank // 4})


@pytest.mark.parametrize(
    ("do", "sentence"),
    [
        (refusing, "Rank 2 has no checkpoint."),
        (differing, "The ranks do not agree: the spec is 1 on rank 4, but 0 on rank 0; start every rank with the same"),
    ],
    ids=["refusing", "differing"],
)
def test_all_ranks_hear_of_a_refusal(do: Do, sentence: str, tmp_path: Path) -> None:
    results = on_all(GRAPHS["path"], tmp_path, do)
    assert all(result.startswith(sentence) for result in results), results


def failing(ranks: TreeRanks) -> None:
    ranks.share(0)
    if ranks.rank == 4:
        raise RunError("The disk of rank 4 is full.")
    ranks.share(1)


def dying(ranks: TreeRanks) -> None:
    ranks.share(0)
    if ranks.rank == 2:
        raise OSError  # ends the process without a word
    ranks.share(1)


def leaving(ranks: TreeRanks) -> None:
    ranks.share(0)
    if ranks.rank != 2:
        ranks.share(1)


def frame(body: bytes, kind: Kind = Kind.PACKET) -> Do:
    """Rank 2 sends this to its neighbours, which take part in the next operation."""

    def do(ranks: TreeRanks) -> None:
        ranks.share(0)
        if ranks.rank != 2:
            ranks.share(1)
            return
        for link in ranks.links.values():
            link.waiting_frames.append((kind, body))
        ranks._endpoint.wake()
        time.sleep(2.0)

    return do


def head(what: int, operation: int, origin: int, length: int, begin: int, more: bytes = b"") -> bytes:
    numbers = [(what, 1), (operation, 4), (origin, 4), (length, 8), (begin, 8)]
    return b"".join(number.to_bytes(size, "little") for number, size in numbers) + more


WRONG = r"Rank [13] ended: its neighbour 2 sent a message of \d+ bytes that is not the fact of rank \d in operation 2\."


@pytest.mark.parametrize(
    ("do", "sentence"),
    [
        (failing, r"The disk of rank 4 is full\."),
        (dying, r"Rank [13] lost its neighbour 2 \('peer2' at 127.0.0.1:\d+\) for 2 s: "),
        (leaving, r"Rank [13] waits for its neighbour 2, which has ended its run\."),
        (frame(b"\x01 hello"), WRONG),
        (frame(b"\x80\x04\x95 a pickle, which nobody reads"), WRONG),
        (frame(head(2, 2, 2, 4, 0, b"0000")), WRONG),
        (frame(head(1, 3, 2, 1, 0, b"0")), WRONG),
        (frame(head(1, 2, 2, 2**40, 0, bytes(1 << 17))), WRONG),
        (frame(head(1, 2, 2, 10, 5, b"00000")), WRONG),
        (frame(head(1, 2, 2, 2, 0, b"0")), WRONG),
        (
            frame(b"\x04\x01\x00\x00\x00" + b"\x00"),
            r"Rank [13] ended: its neighbour 2 sent a receipt for parts that it",
        ),
        (frame(b"\x04\x64\x00\x00\x00"), r"Rank [13] ended: its neighbour 2 sent a receipt for parts that it did not "),
        (frame(b"hello", Kind.NOTICE), r"Rank [13] ended: its neighbour 2 sent bytes that are no notice of this run\."),
    ],
    ids=lambda case: case.__name__ if callable(case) and case.__name__ != "do" else "",
)
def test_everyone_learns_what_happened(do: Do, sentence: str, tmp_path: Path) -> None:
    results = spawn(5, with_ranks, Network(tmp_path, 5), GRAPHS["ring"], do, 2.0, 5.0, seconds=30)
    others = [result for rank, result in enumerate(results) if rank != 2]
    assert all(isinstance(result, str) and re.match(sentence, result) for result in others), results


def flooding(ranks: TreeRanks) -> None:
    if ranks.rank == 1:
        for _ in range(40):
            ranks._put(0, head(1, 1, 1, 1, 0, b"0"))
    time.sleep(1.0)
    ranks.share(0)


def test_no_neighbour_fills_the_memory(tmp_path: Path) -> None:
    results = on_all(GRAPHS["two"], tmp_path, flooding)
    assert all(re.match(r"Rank 0 ended: its neighbour 1 sent more than it may \(", result) for result in results)


def not_json(ranks: TreeRanks) -> None:
    if ranks.rank == 0:
        ranks.share(0)
        return
    ranks._operation = 1
    ranks._send(0, 1, 1, b"[" * 100_000)  # type: ignore[arg-type]
    time.sleep(2.0)


def test_facts_that_are_not_json(tmp_path: Path) -> None:
    results = on_all(GRAPHS["two"], tmp_path, not_json)
    assert re.match(r"Rank 0 was sent facts that are not JSON", results[0])


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    network = Network(tmp_path, 2)
    begun = time.monotonic()
    sentence = with_ranks(1, network, GRAPHS["two"], lambda ranks: ranks.share(0), 0.5, 1.0)
    assert time.monotonic() - begun < 5
    expected = r"Rank 1 could not reach its neighbour 0 \('peer0' at 127.0.0.1:\d+\) for 1 s: nobody answers there\."
    assert re.fullmatch(expected, sentence)
    sentence = with_ranks(0, network, GRAPHS["two"], lambda ranks: ranks.share(0), 0.5, 1.0)
    assert sentence.endswith("for 1 s: it has not connected.")


def test_a_graph_of_another_size(tmp_path: Path) -> None:
    network = Network(tmp_path, 2)
    with pytest.raises(InputError, match="The graph has 5 clients, and the peers file has 2 peers"):
        TreeRanks(opened(network.peers(0), network.secret(0)), GRAPHS["ring"])
    with pytest.raises(InputError, match=r"cannot listen at 192\.0\.2\.1:5555"):
        TreeRanks(opened(network.peers(0), network.secret(0), listen="192.0.2.1:5555"), GRAPHS["two"])
    assert "gossamer-curve" not in {thread.name for thread in threading.enumerate()}


def settled(ranks: TreeRanks) -> Any:
    """A client beside the collectives, whose packets are larger than their parts."""
    mixing = gs.mixing_matrix(GRAPHS["ring"])
    x = torch.full((1, 50_000), float(ranks.rank), dtype=torch.float64)
    client = Client(gs.DSGD(lr=1e-9), mixing, ranks.rank, x, ranks=ranks, run=3, transport=ranks._opener)
    ranks.share("ready")
    with torch.no_grad():
        for _ in range(3):
            client.step(lambda *_: torch.zeros_like(x), 1e-9)  # type: ignore[arg-type]
    client.close()
    return ranks.share(float(client.state.x[0, 0]))


def test_a_client_shares_the_endpoint(tmp_path: Path) -> None:
    results = on_all(GRAPHS["ring"], tmp_path, settled)
    assert results == [results[0]] * 5
    assert sum(results[0]) == pytest.approx(10)
