"""Compiled kernels against the reference, bit by bit."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import Tensor

import gossamer as gs
from gossamer import kernels, registry
from gossamer.kernels import Blocks, Keys, Line, Stream, buffers, cpu, pool, reference, subtract, tensors
from gossamer.kernels.cpu import expression
from gossamer.kernels.cpu import vectors as vectors_of_llvm
from gossamer.runtime.simulation import Simulation
from gossamer.topology.graphs import build_graph

CPU = torch.device("cpu")
KINDS = {16: torch.int8, 1 << 13: torch.int16, 1 << 19: torch.int32}
NUMBERS: list[Callable[[Any], Any]] = [
    lambda width: st.floats(-10, 10, width=width),
    lambda width: st.floats(allow_nan=False, allow_infinity=False, width=width),  # huge values and denormals
    lambda width: st.sampled_from([0.0, -0.0, 1.0, -1.0]),
]


def stream(rows: int, t: int = 3) -> Stream:
    return Stream(Keys.of([2**63 + 5] * rows, range(rows)), 12345, t)


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Equal, NaN included."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Tensor, Tensor | None, Blocks, torch.dtype]:
    """Rows of a type, a surrogate or none, and blocks."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    rows, d, width = draw(st.integers(1, 4)), sum(lengths), draw(st.sampled_from([32, 64]))
    elements = draw(st.sampled_from(NUMBERS))(width)
    x = torch.from_numpy(draw(hnp.arrays(f"float{width}", (rows, d), elements=elements)))
    own = None
    if draw(st.booleans()):
        shift = draw(hnp.arrays("float64", (rows, d), elements=st.floats(-10, 10)))
        own = torch.from_numpy(shift).to(torch.float64)
    return x, own, Blocks(tuple(lengths)), x.dtype


@given(vectors(), st.sampled_from(sorted(KINDS)), st.floats(1, 100))
@settings(deadline=None, max_examples=60)
def test_dithering(given: Any, highest: int, tau: float) -> None:
    x, own, blocks, dtype = given
    with np.errstate(all="ignore"):
        expected = reference.dither(x, own, stream(len(x)), blocks, highest, tau, dtype, KINDS[highest])
    found = cpu.dither(x, own, stream(len(x)), blocks, highest, tau, dtype, KINDS[highest])
    assert same(found.norm, expected.norm)
    assert same(found.scale, expected.scale)
    reach = expected.norm + expected.scale * (1.001 * highest)
    assert found.is_finite == bool(torch.isfinite(reach).all())
    if found.is_finite:
        assert same(found.levels, expected.levels)
        assert same(found.moved, expected.moved)


@given(st.integers(1, 9), st.integers(1, 3000), st.sampled_from([torch.float32, torch.float64]))
@settings(deadline=None, max_examples=30)
def test_results_past_the_caches(rows: int, d: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(rows * d)
    x, own = (torch.randn(rows, d, generator=random, dtype=torch.float64) for _ in range(2))
    x, blocks, given = x.to(dtype), Blocks((d,)), (16, 1.5, dtype, torch.int8)
    w = sparse.random_array((rows, rows), density=0.6, rng=np.random.default_rng(d), format="csr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors_of_llvm, "LARGE", 0)
        found = cpu.dither(x, own, stream(rows), blocks, *given)
        mixed = cpu.Mixer(w, CPU).add_levels(own, found.scale, found.levels, blocks, 0.7)
    expected = reference.dither(x, own, stream(rows), blocks, *given)
    assert same(found.moved, expected.moved)
    assert same(mixed, reference.Mixer(w, CPU).add_levels(own, expected.scale, expected.levels, blocks, 0.7))


@given(vectors())
@settings(deadline=None, max_examples=40)
def test_signs_and_powers(given: Any) -> None:
    x, own, blocks, dtype = given
    for expected, found in (
        (reference.signs(x, own, blocks, dtype), cpu.signs(x, own, blocks, dtype)),
        (reference.powers(x, own, stream(len(x)), dtype), cpu.powers(x, own, stream(len(x)), dtype)),
    ):
        assert all(same(a, b) for a, b in zip(found[:3], expected[:3], strict=True))


@given(vectors(), st.integers(1, 50))
@settings(deadline=None, max_examples=40)
def test_the_largest_and_ties(given: Any, k: int) -> None:
    x, _, blocks, _ = given
    assert torch.equal(cpu.largest(x.abs(), blocks, k), reference.largest(x.abs(), blocks, k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(rows=st.integers(1, 5), width=st.integers(0, 200), t=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=25)
def test_uniform_numbers(dtype: torch.dtype, rows: int, width: int, t: int) -> None:
    assert torch.equal(cpu.uniform(stream(rows, t), width, dtype), reference.uniform(stream(rows, t), width, dtype))


@pytest.mark.parametrize("graph", ["ring:10", "erdos_renyi:40,0.3", "complete:5", "star:12"])
@pytest.mark.parametrize("a", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixing(graph: str, a: float, dtype: torch.dtype) -> None:
    mixing = gs.mixing_matrix(build_graph(graph)).sparse
    plain, fast = reference.Mixer(mixing, CPU), cpu.Mixer(mixing, CPU)
    rows, blocks = 2 * mixing.shape[0], Blocks((7, 3000, 1, 93))
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(rows, 3101, generator=generator, dtype=torch.float64)
    q, scale = (
        torch.randn(rows, 3101, generator=generator).to(dtype),
        torch.rand(rows, 4, generator=generator).to(dtype),
    )
    assert same(fast(q), plain(q))
    assert same(fast.add(mixed, q, a), plain.add(mixed, q, a))
    for kind, highest in ((torch.int8, 16), (torch.int16, 1 << 13), (torch.int32, 1 << 24)):
        levels = torch.randint(-highest, highest + 1, q.shape, generator=generator, dtype=torch.int64).to(kind)
        assert same(fast.add_levels(mixed, scale, levels, blocks, a), plain.add_levels(mixed, scale, levels, blocks, a))


@given(width=st.integers(1, 63), count=st.integers(0, 70), data=st.data())
@settings(deadline=None, max_examples=40)
def test_packing(width: int, count: int, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays("int64", (2, count), elements=st.integers(0, 2**width - 1)))
    packed = cpu.pack(values, width)
    assert np.array_equal(packed, reference.pack(values, width))
    for row, payload in zip(values, packed, strict=True):
        found = cpu.unpack(payload.tobytes(), count, width)
        assert np.array_equal(found, row)
        assert found.dtype == reference.unpack(payload.tobytes(), count, width).dtype


# Many rows, long rows, threads


@pytest.mark.parametrize(("rows", "d"), [(10_000, 30), (3, 70_001), (257, 2049)])
def test_large_inputs_whatever_the_number_of_threads(rows: int, d: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, d, generator=generator)
    own = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    blocks, how = Blocks((d,)), (16, 1.5, torch.float32, torch.int8)
    expected = reference.dither(x, own, stream(rows), blocks, *how)
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found = cpu.dither(x, own, stream(rows), blocks, *how)
            assert all(same(a, b) for a, b in zip(found[:4], expected[:4], strict=True))
            alone = cpu.dither(x[1:2], own[1:2], Stream(Keys.of([2**63 + 5], [1]), 12345, 3), blocks, *how)
            assert same(alone.levels, expected.levels[1:2])
    finally:
        torch.set_num_threads(before)


def test_the_pool_survives_a_fork() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    script = """
import os, torch
from gossamer.kernels import pool
torch.set_num_threads(2)
done = []
pool.split(10, 1 << 30, lambda begin, end: done.append((begin, end)))
child = os.fork()
if child == 0:
    more = []
    pool.split(10, 1 << 30, lambda begin, end: more.append((begin, end)))
    os._exit(0 if sorted(more) == [(0, 5), (5, 10)] else 1)
assert sorted(done) == [(0, 5), (5, 10)]
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_an_error_in_a_thread_is_raised() -> None:
    def fail(begin: int, end: int) -> None:
        raise ValueError(f"{begin} {end}")

    with pytest.raises(ValueError, match="0"):
        pool.split(4, 1 << 30, fail)


@pytest.mark.parametrize("writable", [True, False])
def test_compiled_code_is_kept_where_it_can_be(writable: bool, tmp_path: Path) -> None:
    """In the user's cache folder, or nowhere, without an error."""
    place = tmp_path / "cache" if writable else Path("/proc/nothing")
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    script = """
import torch
from gossamer.streams import Streams
print(Streams([0], [0]).uniform("x", 0, 5000, torch.float32).sum() > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"XDG_CACHE_HOME": str(place), "HOME": str(place)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == "tensor(True)"
    if sys.platform == "linux":
        assert bool(list(tmp_path.rglob("*.nbi"))) == writable


# Lines


def eager(a: Tensor, b: Tensor) -> Tensor:
    return a - b


@pytest.mark.parametrize("large", [None, 0], ids=["cached", "past"])
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64), "column", "coordinate"], ids=str)
def test_lines_are_what_torch_computes(lr: Any, large: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if large is not None:
        monkeypatch.setattr(expression, "LARGE", large)
    generator = torch.Generator().manual_seed(0)
    n, d = 9, 4001 if large is None else 40001

    def random(dtype: torch.dtype) -> Tensor:
        return torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)

    v, mixed_g, g, mixed_h, h = (random(torch.float64) for _ in range(5))
    gradient, old, x = (random(torch.float32) for _ in range(3))
    if isinstance(lr, str):
        lr = torch.rand((n, 1) if lr == "column" else (d,), generator=generator, dtype=torch.float64)

    def step(minus: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
        after = v + 0.3 * minus(mixed_g, g) + gradient - old
        new = x + (0.3 * minus(mixed_h, h) - lr * after).to(x)
        return new, after, 2 - minus(h, g) / 3.7, -minus(v, h) * minus(v, h)

    expected = step(eager)
    lines = step(subtract)
    assert isinstance(lines[1], Line)
    assert all(same(a, b) for a, b in zip(tensors(*lines), expected, strict=True))


def test_a_line_is_used_like_a_tensor() -> None:
    a, b = torch.randn(200, 400, dtype=torch.float64), torch.randn(200, 400, dtype=torch.float64)
    line, plain = subtract(a, b), a - b
    assert isinstance(line, Line)
    assert line.shape == plain.shape
    assert len(line) == 200
    assert torch.equal(torch.where(line > 0, line, 0), torch.where(plain > 0, plain, 0))
    assert torch.equal(line.norm(dim=1), plain.norm(dim=1))
    assert torch.equal(line[3], plain[3])
    assert torch.equal(abs(line) ** 2, abs(plain) ** 2)
    assert torch.equal(torch.stack([line, line]), torch.stack([plain, plain]))
    long = line
    for _ in range(100):
        long, plain = long + a, plain + a
    assert torch.equal(tensors(long)[0], plain)


@pytest.mark.parametrize("name", registry.methods.names())
def test_every_method_has_the_same_models_with_and_without_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls: Any = registry.methods.get(name)
    problem, mixing = gs.quadratic(clients=6, d=40, noise=0.1), gs.mixing_matrix(gs.ring(6))
    for example in cls.examples:
        has_compressor = any(field.name == "compressor" for field in fields(cls))
        method = cls(**({"compressor": gs.qsgd(16)} if has_compressor else {}) | dict(example))
        models = []
        for least in (1 << 15, 1):
            monkeypatch.setattr(kernels, "_LINES_FROM", least)
            models.append(_models(method, problem, mixing))
        with kernels.only_reference():
            models.append(_models(method, problem, mixing))
        assert torch.equal(models[0], models[1]), "with and without lines"
        assert torch.equal(models[0], models[2]), "with and without kernels"


def _models(method: gs.Algorithm, problem: gs.Problem, mixing: gs.MixingMatrix) -> Tensor:
    sim = Simulation(method, problem, mixing, [0, 1], 4)
    for _ in range(6):
        sim.step()
    return sim.models().clone()


# Memory


def test_memory_is_used_again_once_nothing_refers_to_it() -> None:
    buffers.clear()
    one, _ = buffers.empty((1 << 20,), torch.float32)
    place = one.data_ptr()
    view = one.view(2, -1)[1]
    del one
    other, _ = buffers.empty((1 << 20,), torch.float32)
    assert other.data_ptr() != place, "a view still uses it"
    del view
    third, _ = buffers.empty((1 << 19,), torch.float64)
    assert third.data_ptr() == place


def test_without_numba_the_reference_runs() -> None:
    script = """
import sys, logging
sys.modules["numba"] = None
logging.basicConfig(level=logging.INFO, format="%(message)s")
import torch, gossamer as gs
from gossamer import kernels
assert kernels.backend(torch.device("cpu")) is kernels.reference
method, problem = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(5)), gs.quadratic(clients=4, d=2000)
run = gs.simulate(method, problem, gs.mixing_matrix(gs.ring(4)), rounds=5)
print(float(run.x.sum()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr.count("numba cannot be used") == 1
    run = gs.simulate(
        gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(5)),
        gs.quadratic(clients=4, d=2000),
        gs.mixing_matrix(gs.ring(4)),
        rounds=5,
    )
    assert float(done.stdout) == float(run.x.sum())
