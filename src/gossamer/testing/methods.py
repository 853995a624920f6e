"""What every method must do."""

import math
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from gossamer import registry
from gossamer.algorithms.base import Algorithm, map_state
from gossamer.errors import InputError
from gossamer.problems.quadratic import Quadratic, quadratic
from gossamer.runtime.simulation import Simulation
from gossamer.streams import Streams
from gossamer.testing.instances import COORDINATES, instances
from gossamer.testing.looped import loopback
from gossamer.topology import MixingMatrix, mixing_matrix

_MANY_COORDINATES = 6_000


def check_method(method: Algorithm | type[Algorithm]) -> None:
    """Purity, mean preservation, independence of seeds and of numbering, resuming, real packets, and progress."""
    for one in instances(method, registry.methods):
        mixing = mixing_matrix(nx.cycle_graph(6), "metropolis")
        problem = _problem(6)
        _check_network(one, problem, mixing)
        _check_seeds_do_not_meet(one, problem, mixing)
        _check_progress(one, problem, mixing)
        _check_threads(one, mixing)
        _check_packets(one)
        _check_bad_settings(one)


def check_method_on(method: Algorithm | type[Algorithm], mixing: MixingMatrix) -> None:
    """What may depend on the network: the mean is kept, clients have no numbers, and a saved run goes on."""
    for one in instances(method, registry.methods):
        _check_network(one, _problem(mixing.clients), mixing)


def _problem(clients: int) -> Quadratic:
    return quadratic(clients=clients, d=COORDINATES, condition=4.0, noise=0.5, dtype="float64")


def _check_network(method: Algorithm, problem: Quadratic, mixing: MixingMatrix) -> None:
    _check_mean_is_kept(method, problem, mixing)
    _check_state(method, problem, mixing)
    _check_numbering(method, problem, mixing)


class _NoGradient(Quadratic):
    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        return torch.zeros_like(x)


def _check_mean_is_kept(method: Algorithm, problem: Quadratic, mixing: MixingMatrix) -> None:
    still = _NoGradient(problem.curvature, problem.centres)
    sim = Simulation(method, still, mixing, x0=_start(method))
    before = sim.state.x.mean(dim=0)
    for _ in range(20):
        sim.step()
    moved = (sim.state.x.mean(dim=0) - before).abs().max().item()
    assert moved < 1e-10, f"{method}: without gradients the mean model moves, by {moved:.1e}; mixing must preserve it."


def _check_state(method: Algorithm, problem: Quadratic, mixing: MixingMatrix) -> None:
    sim = Simulation(method, problem, mixing, batch_size=4, x0=_start(method))
    for _ in range(3):
        sim.step()
    assert sim.traffic.packets > 0, f"{method} sends nothing."
    saved, used = map_state(sim.state, torch.clone), sim.state
    kept = {name: tensor.clone() for name, tensor in sim.session.save().items()}
    before = sim.t
    sim.step()
    first = sim.state.x
    assert first.shape == used.x.shape, f"{method}: step changes the shape of x."
    assert first.dtype == used.x.dtype, f"{method}: step changes the type of x."
    sim.session.restore(before, kept)
    for name, tensor in sim.session.save().items():
        assert torch.equal(tensor, kept[name]), f"{method}: `{name}` is not saved as it was."
    sim.state = used
    for name, tensor in sim.session.save().items():
        assert torch.equal(tensor, kept[name]), f"{method}: step changes `{name}` of the state it is given."
    sim.state = saved
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


def _check_packets(method: Algorithm) -> None:
    """Simulated equals real: the same models and bits with one thread per client and packets between them."""
    problem, mixing = _problem(4), mixing_matrix(nx.cycle_graph(4), "metropolis")
    sim = Simulation(method, problem, mixing, batch_size=4)
    rounds = 2 * method.rounds_between_exchanges + 3
    for _ in range(rounds):
        sim.step()
    real = loopback(method, problem, mixing, rounds=rounds, batch_size=4)
    gap = (real.x - sim.state.x).abs().max().item()
    assert gap == 0, f"{method}: with packets the models differ by {gap:.1e} from the simulation's."
    counted = sim.traffic.on_one_link(0)
    assert real.bits == counted, f"{method}: {real.bits} bits were sent, but the simulation counts {counted}."


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
    other.session.streams = Streams([0], order)  # every client draws the numbers that it drew under its old number
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


def _start(method: Algorithm) -> str:
    """Where clients start: apart, unless the method has them start from one model."""
    return "same_normal" if getattr(method, "h0", "zero") == "model" else "normal"
