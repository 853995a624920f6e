"""The conformance suite: what every method and every compressor must do, for other people's components too.

    from gossamer.testing import check_compressor, check_method

    def test_mine():
        check_compressor(my_compressor(bits=3))
        check_method(MyMethod(lr=0.1))

Each check raises an AssertionError that says what does not hold. A class is tried with each of its `examples`.
"""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, cast

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from gossamer import registry
from gossamer.algorithms.base import Algorithm, map_state
from gossamer.compression import packet
from gossamer.compression.base import CODECS, Compressor, Message
from gossamer.errors import InputError
from gossamer.problems.quadratic import Quadratic, quadratic
from gossamer.runtime.simulator import Simulation
from gossamer.streams import Streams
from gossamer.topology import MixingMatrix, mixing_matrix

_DIMENSIONS = (1, 2, 7, 124)
_SAMPLES = 400
_COORDINATES = 9
_MANY_COORDINATES = 6_000
_DEVIATIONS = 5.0  # a mean over samples may miss its bound by this many standard errors: one chance in three million


def check_compressor(compressor: Compressor | type[Compressor]) -> None:
    """Contraction with its stated alpha, purity, independence of rows, and an exact codec of the stated length."""
    for one in _instances(compressor, registry.compressors):
        for d in _DIMENSIONS:
            for dtype in (torch.float32, torch.float64):
                x = _adversarial(d, dtype)
                _check_message(one, x)
                if dtype == torch.float64 or d == _DIMENSIONS[-1]:
                    _check_contraction(one, x)


def check_method(method: Algorithm | type[Algorithm]) -> None:
    """Purity, mean preservation, independence of seeds and of numbering, resuming, and progress on a quadratic."""
    for one in _instances(method, registry.methods):
        mixing = mixing_matrix(nx.cycle_graph(6), "metropolis")
        problem = _problem(6)
        _check_network(one, problem, mixing)
        _check_seeds_do_not_meet(one, problem, mixing)
        _check_progress(one, problem, mixing)
        _check_threads(one, mixing)
        _check_bad_settings(one)


def check_method_on(method: Algorithm | type[Algorithm], mixing: MixingMatrix) -> None:
    """What may depend on the network: the mean is kept, clients have no numbers, and a saved run goes on."""
    for one in _instances(method, registry.methods):
        _check_network(one, _problem(mixing.clients), mixing)


def _problem(clients: int) -> Quadratic:
    return quadratic(clients=clients, d=_COORDINATES, condition=4.0, noise=0.5, dtype="float64")


def _check_network(method: Algorithm, problem: Quadratic, mixing: MixingMatrix) -> None:
    _check_mean_is_kept(method, problem, mixing)
    _check_state(method, problem, mixing)
    _check_numbering(method, problem, mixing)


def _instances(thing: Any, known: registry.Registry) -> Iterator[Any]:
    """The instance itself, or an instance of the class for each of its examples, crossed with the compressors."""
    if not isinstance(thing, type):
        yield thing
        return
    thing = cast(Any, thing)
    assert thing.examples, f"{thing.__name__} needs `examples`, settings with which it can be tried."
    assert registry.normal(known.name_of(thing)) in known.names(), f"{thing.__name__} is not registered."
    if "compressor" not in {field.name for field in fields(thing)}:
        yield from (thing(**settings) for settings in thing.examples)
        return
    # The first settings with every compressor, the others with the first compressor that is random.
    factories: list[Any] = [registry.compressors.get(name) for name in registry.compressors]
    every = [factory(**factory.examples[0]) for factory in factories]
    some = [next(compressor for compressor in every if not compressor.is_deterministic)]
    for number, settings in enumerate(thing.examples):
        for compressor in every if number == 0 else some:
            made = _admitted(thing, compressor, settings)
            if made is not None:
                yield made


def _admitted(thing: Any, compressor: Compressor, settings: Any) -> Any:
    """The method with this compressor; None if it cannot use it, which it must then say, with the reason."""
    omega = compressor.omega(_COORDINATES)
    contracts, unbiased = omega is None or omega < 1, omega is not None
    fits = {"contractive": contracts, "unbiased": unbiased, "any": contracts or unbiased}[thing.compressors]
    refusal = None
    try:
        made = thing(**{"compressor": compressor} | dict(settings))
        made.check_dimension(_COORDINATES)
    except InputError as error:
        refusal = str(error)
    if refusal is None:
        assert fits, f"{thing.__name__} takes {compressor}, which is not {thing.compressors}."
        return made
    assert not fits, f"{thing.__name__} takes {thing.compressors} compressors, but refuses {compressor}: {refusal}"
    reason = "unbiased" if thing.compressors == "unbiased" else "contraction"
    assert reason in refusal, f"{thing.__name__} refuses {compressor} without the reason: {refusal}"
    return None


def _adversarial(d: int, dtype: torch.dtype) -> Tensor:
    """One row for each way to be difficult."""
    generator = torch.Generator().manual_seed(d)
    one_hot = torch.zeros(d, dtype=torch.float64)
    one_hot[d // 2] = -3.0
    heavy = torch.randn(d, generator=generator, dtype=torch.float64) ** 5
    rows = [
        torch.randn(d, generator=generator, dtype=torch.float64),
        one_hot,
        torch.full((d,), -0.7, dtype=torch.float64),
        heavy,
        torch.zeros(d, dtype=torch.float64),
        1e-30 * torch.randn(d, generator=generator, dtype=torch.float64),
        1e20 * torch.randn(d, generator=generator, dtype=torch.float64),
        torch.arange(d, dtype=torch.float64) % 2 * 2 - 1,
    ]
    far = 30.0 if dtype == torch.float32 else 290.0
    rows += [10.0**power * torch.randn(d, generator=generator, dtype=torch.float64) for power in (-far, far)]
    return torch.stack(rows).to(dtype)


def _check_message(compressor: Compressor, x: Tensor) -> None:
    before = x.clone()
    message = compressor(x, seed=3)
    dense = message.dense()
    assert torch.equal(x, before), f"{compressor} changes its input."
    assert isinstance(message, Message), f"{compressor} must yield a Message, got {type(message).__name__}."
    assert message.shape == x.shape, f"{compressor} changes the shape {tuple(x.shape)} to {message.shape}."
    assert dense.shape == x.shape, f"{compressor} changes the shape {tuple(x.shape)} to {tuple(dense.shape)}."
    assert dense.dtype == message.dtype == x.dtype, f"{compressor} changes the type {x.dtype} to {dense.dtype}."
    assert torch.isfinite(dense).all(), f"{compressor} yields NaN or Inf for d = {x.shape[1]}."
    assert not dense[(x == 0).all(dim=1)].any(), f"{compressor} does not keep a zero vector zero."
    assert torch.equal(compressor(x, seed=3).dense(), dense), f"{compressor} differs for the same seed."
    assert torch.equal(compressor(x[:3], seed=3).dense(), dense[:3]), f"{compressor} lets rows depend on other rows."

    clients = [7 * row for row in range(len(x))]
    for codec in CODECS:
        packets = packet.encode([message, message], run=9, round=300, clients=clients, codec=codec)
        assert [len(p) for p in packets] == packet.sizes([message, message], 300, clients, codec).tolist(), (
            f"{compressor}: the size of a packet ({codec}) is not what it was said to be."
        )
        for row, buffer in enumerate(packets):
            read = packet.decode(buffer, d=x.shape[1], dtype=x.dtype)
            assert (read.run, read.round, read.client) == (9, 300, clients[row])
            for part in read.messages:
                same = torch.equal(part.dense()[0].signbit(), dense[row].signbit())
                same &= torch.equal(part.dense()[0], dense[row])
                assert same, f"{compressor}: decoding row {row} ({codec}) does not give it back bit for bit."


def _check_contraction(compressor: Compressor, x: Tensor) -> None:
    d = x.shape[1]
    omega = compressor.omega(d)
    bound = 1 - compressor.alpha(d) if omega is None or omega < 1 else omega
    assert omega is not None or 0 <= bound < 1, f"{compressor} states alpha = {1 - bound}, which is not in (0, 1]."
    seeds = 1 if compressor.is_deterministic else math.isqrt(_SAMPLES)
    samples = seeds**2  # of each seed as many rows
    largest = x.double().abs().amax(dim=1, keepdim=True)
    wide = x.double() / largest.where(largest > 0, 1)
    size = wide.norm(dim=1, keepdim=True).where(largest > 0, 1) * largest.where(largest > 0, 1)
    scaled = x.double() / size
    many = [compressor(x.repeat(seeds, 1), seed=seed).dense().double() for seed in range(seeds)]
    drawn = torch.cat(many).view(samples, *x.shape) / size
    errors = (drawn - scaled).square().sum(dim=2)
    rounding = 1e-6 if x.dtype == torch.float32 else 1e-12
    chance = _DEVIATIONS * errors.std(dim=0, correction=0) / math.sqrt(samples)
    worst = (errors.mean(dim=0) - chance - rounding).amax().item()
    assert worst <= bound, (
        f"{compressor} promises to lose at most {bound:.4f} of ||x||^2 for d = {d} (alpha = {1 - bound:.4f}), "
        f"but loses {worst:.4f}."
    )
    if omega is not None:
        # Of the mean of N samples: E||mean - x||^2 <= omega ||x||^2 / N; and along x itself, its own standard error.
        off = drawn.mean(dim=0) - scaled
        distance = off.norm(dim=1).amax().item() - _DEVIATIONS * math.sqrt(omega / samples)
        along = ((drawn - scaled) * scaled).sum(dim=2)
        lean = (
            (along.mean(dim=0).abs() - _DEVIATIONS * along.std(dim=0, correction=0) / math.sqrt(samples)).amax().item()
        )
        assert max(distance, lean) <= 1e-3, f"{compressor} states an omega for d = {d}, but its mean is not x."


class _NoGradient(Quadratic):
    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        return torch.zeros_like(x)


def _check_mean_is_kept(method: Algorithm, problem: Quadratic, mixing: MixingMatrix) -> None:
    still = _NoGradient(problem.curvature, problem.centres)
    sim = Simulation(method, still, mixing, x0="normal")
    before = sim.state.x.mean(dim=0)
    for _ in range(20):
        sim.step()
    moved = (sim.state.x.mean(dim=0) - before).abs().max().item()
    assert moved < 1e-10, f"{method}: without gradients the mean model moves, by {moved:.1e}; mixing must preserve it."


def _check_state(method: Algorithm, problem: Quadratic, mixing: MixingMatrix) -> None:
    sim = Simulation(method, problem, mixing, batch_size=4, x0="normal")
    for _ in range(3):
        sim.step()
    assert sim.traffic.packets > 0, f"{method} sends nothing."
    saved = map_state(sim.state, torch.clone)
    used = sim.state
    sim.step()
    first = sim.state.x
    for name, tensor in vars(saved).items():
        if isinstance(tensor, Tensor):
            assert torch.equal(getattr(used, name), tensor), (
                f"{method}: step changes `{name}` of the state it is given."
            )
    assert first.shape == used.x.shape, f"{method}: step changes the shape of x."
    assert first.dtype == used.x.dtype, f"{method}: step changes the type of x."
    sim.state, sim.t = saved, sim.t - 1
    sim.step()
    assert torch.equal(sim.state.x, first), f"{method}: a run that goes on from a saved state takes another course."


def _check_seeds_do_not_meet(method: Algorithm, problem: Quadratic, mixing: MixingMatrix) -> None:
    together = Simulation(method, problem, mixing, seeds=(5, 8), batch_size=4)
    alone = Simulation(method, problem, mixing, seeds=(8,), batch_size=4)
    for _ in range(10):
        together.step()
        alone.step()
    gap = (together.models()[1] - alone.models()[0]).abs().max().item()
    assert gap < 1e-9, f"{method}: a seed run beside another differs by {gap:.1e} from the same seed alone."


def _check_threads(method: Algorithm, mixing: MixingMatrix) -> None:
    """Large enough for torch to share the work out among threads."""
    problem = quadratic(clients=6, d=_MANY_COORDINATES, condition=4.0, rows=4)
    try:
        method.check_dimension(_MANY_COORDINATES)
    except InputError:
        return  # no contraction for so many
    before, models = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            sim = Simulation(method, problem, mixing, batch_size=2)
            for _ in range(2):
                sim.step()
            models.append(sim.state.x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*models), f"{method}: one thread and two give different models."


def _check_progress(method: Algorithm, problem: Quadratic, mixing: MixingMatrix) -> None:
    sim = Simulation(method, problem, mixing)
    start = problem.evaluate(sim.state.x.mean(dim=0)[None])["grad_norm"].item()
    for _ in range(300):
        sim.step()
    end = problem.evaluate(sim.state.x.mean(dim=0)[None])["grad_norm"].item()
    assert end < 0.99 * start, (
        f"{method}: 300 rounds on a quadratic take the gradient norm from {start:.2e} to {end:.2e}."
    )


def _check_numbering(method: Algorithm, problem: Quadratic, mixing: MixingMatrix) -> None:
    order = np.random.default_rng(0).permutation(mixing.clients).tolist()
    renamed = Quadratic(problem.curvature[order], problem.centres[order])
    graph = nx.relabel_nodes(mixing.graph, {old: new for new, old in enumerate(order)})
    one = Simulation(method, problem, mixing, batch_size=4)
    other = Simulation(method, renamed, MixingMatrix(mixing.matrix[np.ix_(order, order)], graph), batch_size=4)
    other.streams = Streams([0], order)  # every client draws the numbers that it drew under its old number
    for _ in range(20):
        one.step()
        other.step()
    gap = (one.state.x[order] - other.state.x).abs().max().item()
    assert gap < 1e-9, f"{method}: numbering the clients differently changes their models by {gap:.1e}."


def _check_bad_settings(method: Algorithm) -> None:
    for name, values in {"lr": (0.0, -0.1, math.nan), "gamma": (0.0, -0.5, 1.5, math.nan)}.items():
        if not hasattr(method, name):
            continue
        for value in values:
            message = _refusal(method, **{name: value})
            assert message is not None, f"{method}: {name}={value} is accepted."
            assert str(value) in message, f"{method}: the error for {name}={value} does not show the value: {message}"


def _refusal(method: Any, **settings: Any) -> str | None:
    try:
        replace(method, **settings)
    except InputError as error:
        return str(error)
    return None
