"""Plans: numbers with units, seconds from parts, rounds from the fitted model, and what is printed to paste."""

import math
import re
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.runtime.experiment import prepare
from gossamer.runtime.planning.plan import Plan
from gossamer.runtime.planning.progress import fitted, rounds_ratio, terms
from gossamer.runtime.planning.quantities import bits_of, count_of, seconds_of
from gossamer.runtime.planning.recipe import code, steps_of
from gossamer.runtime.planning.seconds import Network, cost, packet_bytes, square_matrices
from gossamer.runtime.planning.software import software
from gossamer.runtime.planning.ways import BLOCKS, LARGE, METHODS, TOP, WHOLE, Way, ways
from gossamer.spec import parse_spec

SLOW = Network(hosts=8, neighbors=2, rho=0.2, bandwidth=1e7, delay=0.01)
MILLION = square_matrices(1_000_000)
CHOCO = Way("gossip", 20, method="CHOCO-SGD", compressor=BLOCKS)


@pytest.fixture(scope="module")
def small() -> Plan:
    return gs.plan("1M", "10Mbit", "10ms", 8, compute=0.01)


def test_units() -> None:
    assert [count_of("n", one) for one in (1000, "10M", "1.5B", "25k", "1_000", "2,000")] == [
        *(1000, 10_000_000, 1_500_000_000, 25_000, 1000, 2000)
    ]
    assert [bits_of("b", one) for one in (2e7, "20Mbit", "1Gbit", "56kbit/s", "1e6")] == [2e7, 2e7, 1e9, 56e3, 1e6]
    assert bits_of("b", None) == math.inf
    assert [seconds_of("t", one) for one in (0.5, "10ms", "2s", "30us", "0")] == [
        0.5,
        0.01,
        2.0,
        pytest.approx(3e-5),
        0,
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"parameters": "10X"}, "`parameters` must be a number such as"),
        ({"parameters": 0}, "`parameters` must be a number above 0, got 0"),
        ({"parameters": nn.ReLU()}, "without parameters to train"),
        ({"bandwidth": "20Mb"}, "`bandwidth` must be a number such as \"20Mbit\", got '20Mb'"),
        ({"bandwidth": 0}, "`bandwidth` must be a number above 0, got 0"),
        ({"delay": "-1"}, "`delay` must be a number such as"),
        ({"hosts": 1}, "`hosts` must be an integer of 2 or more, got 1"),
        ({"graph": 3}, "`graph` must be a name such as 'ring' or a mixing matrix, got int"),
        ({"differing": "some"}, "`differing` must be one of 'little', 'much'; got 'some'"),
        ({"local": ()}, "`local` must list numbers"),
        ({"local": (0,)}, "`local` must be an integer from 1 to 50, got 0"),
        ({"methods": ["SGD"]}, "Unknown method 'SGD'; valid methods: 'DDP'"),
        ({"methods": ["K-GT"], "local": (1,)}, "Nothing is left to compare"),
        ({"reduction": 1}, "`reduction` must be above 1, got 1"),
        ({"cores": 0}, "`cores` must be a number above 0, got 0"),
    ],
)
def test_refused(given: dict[str, Any], sentence: str) -> None:
    usual: dict[str, Any] = {"parameters": "1M", "bandwidth": "10Mbit", "compute": 0.01}
    with pytest.raises(gs.InputError, match=re.escape(sentence)):
        gs.plan(**usual | given)


def test_the_bytes_are_those_of_real_packets() -> None:
    z = torch.randn(1, 50_000, generator=torch.Generator().manual_seed(1))
    for compressor in (BLOCKS, LARGE, WHOLE, TOP):
        for codec in ("fixed", "auto"):
            way = Way("gossip", method="CHOCO-SGD", compressor=compressor, codec=codec)
            message = way.operator()(z, seed=0)
            (data,) = gs.compression.packet.encode([message], clients=[0], codec=codec)
            assert packet_bytes(way, 50_000) == pytest.approx(len(data), rel=0.05)


def test_all_reduce_sends_what_a_ring_does() -> None:
    assert cost(Way("ddp"), MILLION, SLOW, 0.01).sent == 2 * 7 * 4 * 1_000_000 / 8
    assert cost(Way("ddp", hook="fp16"), MILLION, SLOW, 0.01).sent == 7 * 4 * 1_000_000 / 8
    assert cost(Way("ddp", hook="4"), MILLION, SLOW, 0.01).sent == 2 * 7 * 4 * 4 * 2000 / 8
    late, early = (cost(Way("ddp"), MILLION, Network(8, 2, 0.2, 1e7, delay), 0.01).link for delay in (0.01, 0.0))
    assert late - early == pytest.approx(2 * 14 * 0.01)


def test_messages_travel_during_the_gradients_where_a_method_allows_it() -> None:
    fresh, beer = (
        cost(Way("gossip", 20, method=one, compressor=BLOCKS), MILLION, SLOW, 0.01) for one in ("CHOCO-SGD", "BEER")
    )
    assert fresh.seconds == pytest.approx(fresh.compute + fresh.software + fresh.link)
    assert beer.seconds == pytest.approx(beer.software + max(beer.compute, beer.link))
    assert 1.9 < beer.sent / fresh.sent < 2.1, "two messages"


def test_hosts_that_share_a_core_take_longer_and_local_steps_cost_gradients() -> None:
    alone, shared = (cost(CHOCO, MILLION, SLOW, 0.01, cores) for cores in (1.0, 0.25))
    assert shared.software == pytest.approx(4 * alone.software)
    assert alone.compute == pytest.approx(0.2)
    assert cost(CHOCO, MILLION, SLOW, 0.01, 8.0) == alone


def test_software_is_timed_and_the_entropy_coder_costs_more() -> None:
    fixed, coded = (software(Way("gossip", method="BEER", compressor=BLOCKS, codec=one)) for one in ("fixed", "auto"))
    assert 1e-4 < fixed.exchange.at(1_000_000) < 5
    assert coded.exchange.at(1_000_000) > 0.8 * fixed.exchange.at(1_000_000)


def test_the_model_of_progress() -> None:
    model = fitted()
    assert all(x >= 0 for x in model.coefficients.values())
    assert 1 < model.error < 3
    assert set(terms(CHOCO, 1000, 0.5, "much")) == set(model.coefficients)
    assert rounds_ratio(Way("ddp"), 10**6, 0.2, "little") == 1
    assert (
        rounds_ratio(Way("all-reduce", 20), 10**6, 0.2, "little")
        < rounds_ratio(Way("all-reduce", 20), 10**6, 0.2, "much")
        < 1
    )
    assert rounds_ratio(CHOCO, 10**6, 0.2, "much") > rounds_ratio(CHOCO, 10**6, 0.2, "little")
    slower = Way("gossip", 20, method="CHOCO-SGD", compressor=WHOLE)
    assert rounds_ratio(slower, 10**6, 0.2, "much") > 3 * rounds_ratio(CHOCO, 10**6, 0.2, "much")
    assert rounds_ratio(CHOCO, 10**6, 0.01, "little") >= rounds_ratio(CHOCO, 10**6, 0.2, "little")


def test_a_plan(small: Plan) -> None:
    times = [row.time for row in small.rows]
    assert times == sorted(times)
    assert len(small.rows) == len(list(ways((1, 5, 10, 20, 50), METHODS)))
    assert list(small.frame["time"]) == times
    assert small.best.way.kind == "gossip", "slow links"
    text = str(small)
    for said in (
        "1M parameters, 8 hosts (ring), 10 Mbit/s, delay 10 ms",
        "Best: ",
        "DistributedDataParallel",
        small.code,
    ):
        assert said in text
    assert "outside of what was measured" not in text


def test_fast_links_need_no_compression() -> None:
    found = gs.plan("10M", None, 0, 4, compute=0.2)
    assert found.best.way.kind != "gossip"
    assert "does not need Gossamer" in str(found)
    assert gs.plan("10M", None, 0, 4, compute=0.2, methods=["DDP"]).best.way.kind == "ddp"
    with pytest.raises(gs.InputError, match="No method that spec files know"):
        gs.plan("10M", None, 0, 4, compute=0.2, methods=["DDP"]).spec()


def test_a_thousand_hosts_and_a_billion_parameters(small: Plan) -> None:
    began = time.perf_counter()
    found = gs.plan("1B", "1Gbit", "20ms", 1000, graph="exponential")
    assert time.perf_counter() - began < 10
    assert "outside of what was measured" in str(found)
    assert found.network.hosts == 1000
    slow = gs.plan("1M", "1Gbit", "20ms", 1000, compute=1.0)
    assert "mixes slowly" in str(slow)


def test_modules_and_networks() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 10))
    mixing = gs.mixing_matrix(gs.topology.complete(5))
    found = gs.plan(module, "10Mbit", graph=mixing, compute=0.01)
    assert (found.parameters, found.network.hosts, found.network.neighbors) == (22_210, 5, 4)
    assert "a network of your own" in str(found)
    assert gs.plan(module, "10Mbit", compute=None, batch=8).gradient > 0


@pytest.mark.parametrize("way", [*ways((1, 20), METHODS)], ids=lambda way: way.name)
def test_the_code_is_python_that_builds_what_was_planned(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(gs, "DecentralizedOptimizer", lambda *given, **more: made.append((given, more)))
    text = code(way, steps_of(way, "much", 0.1), "ring", 8)
    compile(text, "planned", "exec")
    if way.kind != "gossip":
        return
    exec(text, {"model": nn.Linear(30, 10)})
    ((_, method, mixing), more) = made[0]
    assert mixing.clients == 8
    assert method.compressor == way.operator()
    assert more["codec"] == way.codec
    assert more.get("every", 1) == way.steps


@pytest.mark.parametrize("differing", ["little", "much"])
@pytest.mark.parametrize("method", ["all-reduce", "CHOCO-SGD", "BEER", "MoTEF", "K-GT"])
def test_the_spec_loads(method: str, differing: Any, tmp_path: Path) -> None:
    found = gs.plan("25k", "10Mbit", "1ms", 4, compute=0.01, methods=[method], differing=differing, local=(1, 5))
    text = found.spec()
    experiment = prepare(parse_spec(tomllib.loads(text)))
    assert experiment.problem.clients == 4
    assert len(experiment.methods) == 1
    assert 'module = "my:build"' in found.spec("my:build")
