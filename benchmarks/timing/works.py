"""The work of both sides of a case: rounds of Gossamer, and the same in NumPy."""

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

import gossamer as gs
from benchmarks.timing.numpy_beer import (
    Array,
    Beer,
    ColumnBeer,
    Evaluation,
    HiddenLayer,
    HiddenLayerByClient,
    Logistic,
    gsgd_levels,
    packed,
    unpacked,
)
from gossamer.runtime.simulation import Simulation

EVALUATED = 192  # models, 64 at a time
TOGETHER = 64


class Work(NamedTuple):
    """One side of a case."""

    run: Callable[[int], object]
    """Does so many rounds."""
    runs: int = 1
    """Runs (or models) that go on side by side; a time is that of one."""
    least: int = 1
    """The fewest rounds worth a turn."""


@dataclass(frozen=True)
class Setting:
    """Where the data is, and how large the cases are."""

    data_dir: str | None = None
    tiny: bool = False
    """Embedded data and small sizes, to see that everything works."""
    device: str = "cpu"

    def size(self, whole: int, tiny: int) -> int:
        """A size, or its small replacement."""
        return tiny if self.tiny else whole

    @property
    def table(self) -> str:
        """The data of logistic regression."""
        return "breast_cancer" if self.tiny else "a9a"

    @property
    def images(self) -> str:
        """The data of the hidden layer."""
        return "digits" if self.tiny else "mnist"


@cache
def load(setting: Setting, name: str) -> Any:
    """A data set, read once."""
    return gs.problems.load(name, setting.data_dir)


def tiled(data: Any, rows: int) -> Any:
    """The data set with its rows repeated."""
    index = np.arange(rows) % len(data.labels)
    return replace(data, features=data.features[index], labels=data.labels[index])


def dense(features: Any) -> Array:
    """Rows as float64, whatever they are stored in."""
    whole = features.toarray() if hasattr(features, "toarray") else np.asarray(features)
    return whole.reshape(len(whole), -1).astype(np.float64)


def rounds(simulation: Simulation, runs: int = 1) -> Work:
    """Rounds of a simulation, in a tight loop."""
    if hasattr(simulation, "replayed"):  # as in `simulate`; an older commit has no such thing
        simulation.replayed.is_allowed = True

    def run(count: int) -> None:
        for _ in range(count):
            simulation.step()
        _ = simulation.state  # rounds that are replayed later are done now

    return Work(run, runs)


def numpy_rounds(gradient: Logistic | HiddenLayer, x: Array, mixing: Any, method: gs.BEER) -> Beer:
    """The NumPy side of a run of BEER with gsgd."""
    w = mixing.sparse if len(x) > 100 else mixing.sparse.toarray()
    identity = np.eye(len(x)) if len(x) <= 100 else _identity(len(x))
    compressor, lr = method.compressor, method.lr
    assert isinstance(compressor, gs.gsgd)
    assert isinstance(lr, float)
    kind = ColumnBeer if isinstance(gradient, HiddenLayerByClient) else Beer
    return kind(gradient, x, w - identity, lr, method.gamma, compressor.bits)


def _identity(n: int) -> Any:
    from scipy.sparse import eye_array

    return eye_array(n, format="csr")


def in_numpy(beer: Beer) -> Work:
    """Rounds of the transcription."""

    def run(count: int) -> None:
        for _ in range(count):
            beer.step()

    return Work(run)


def with_fewer_threads(work: Work) -> Work:
    """The work with NumPy's matrix products on one thread, if that is faster.

    On a busy machine, threads that wait for each other can take ten times as long: no fair baseline.
    """
    limits = ThreadpoolController().select(user_api="blas")

    def alone(count: int) -> None:
        with limits.limit(limits=1):
            work.run(count)

    def seconds(run: Callable[[int], object]) -> float:
        run(2)
        began = time.perf_counter()
        run(5)
        return time.perf_counter() - began

    return work._replace(run=min((work.run, alone), key=seconds))


# Figure 1: nonconvex logistic regression, 10 clients on a ring.

FIGURE_1 = gs.BEER(lr=0.1, gamma=0.7, compressor=gs.gsgd(5))


def logistic(setting: Setting, clients: int = 10) -> Any:
    """The problem of figure 1."""
    return gs.logistic_regression(load(setting, setting.table), clients=clients, device=setting.device)


def _batch(setting: Setting) -> int:
    return setting.size(100, 20)


def _ring(clients: int) -> gs.MixingMatrix:
    return gs.mixing_matrix(gs.ring(clients), "fdla")


def figure_1(setting: Setting, seeds: int = 1, clients: int = 10, method: gs.Algorithm = FIGURE_1) -> Work:
    """Rounds as in figure 1."""
    problem = logistic(setting, clients)
    batch = min(_batch(setting), problem.rows_per_client)
    return rounds(Simulation(method, problem, _ring(clients), range(seeds), batch, "same_uniform"), seeds)


def signed_rows(setting: Setting, clients: int = 10, data: Any = None) -> Array:
    """(clients, rows, d): the rows with an intercept, times their labels."""
    data = load(setting, setting.table) if data is None else data
    rows = np.hstack([dense(data.features), np.ones((len(data.labels), 1))])
    rows *= np.where(data.labels == data.labels.max(), 1.0, -1.0)[:, None]
    shares = gs.problems.split(data.labels, clients, "sorted")
    return np.ascontiguousarray(rows[np.stack(shares)])


def _numpy_figure_1(setting: Setting) -> tuple[Beer, Array]:
    signed = signed_rows(setting)
    start = np.tile(np.random.default_rng(0).random(signed.shape[2]), (10, 1))
    return numpy_rounds(Logistic(signed, _batch(setting)), start, _ring(10), FIGURE_1), signed


def numpy_figure_1(setting: Setting) -> Work:
    """The same in NumPy."""
    return in_numpy(_numpy_figure_1(setting)[0])


def figure_1_measured(setting: Setting) -> Work:
    """Rounds as in figure 1, with an evaluation after each."""
    problem, mixing = logistic(setting), _ring(10)

    def run(count: int) -> None:
        gs.simulate(
            FIGURE_1, problem, mixing, rounds=count, batch_size=_batch(setting), eval_every=1, x0="same_uniform"
        )

    return Work(run, least=setting.size(128, 8))


def _numpy_evaluation(setting: Setting, signed: Array) -> Evaluation:
    data = load(setting, setting.table)
    features, labels = data.test_features, data.test_labels
    if features is None:  # breast_cancer has no test rows
        features, labels = data.features, data.labels
    test = np.hstack([dense(features), np.ones((len(labels), 1))])
    return Evaluation(signed, test, labels == labels.max())


def numpy_figure_1_measured(setting: Setting) -> Work:
    """The same in NumPy, one model at a time."""
    beer, signed = _numpy_figure_1(setting)
    evaluate = _numpy_evaluation(setting, signed)

    def run(count: int) -> None:
        for _ in range(count):
            beer.step()
            evaluate(beer.x)

    return Work(run)


def _models(setting: Setting, d: int) -> Array:
    return np.random.default_rng(0).standard_normal((EVALUATED, d)) / 10


def evaluation(setting: Setting) -> Work:
    """Loss, gradient norm and test accuracy of many models."""
    problem = logistic(setting)
    models = torch.from_numpy(_models(setting, problem.d)).to(problem.dtype)

    def run(count: int) -> None:
        for _ in range(count):
            for chunk in torch.split(models, TOGETHER):
                problem.evaluate(chunk)
                problem.score(chunk)

    return Work(run, runs=EVALUATED)


def numpy_evaluation(setting: Setting) -> Work:
    """The same in NumPy, one model at a time."""
    signed = signed_rows(setting)
    evaluate, models = _numpy_evaluation(setting, signed), _models(setting, signed.shape[2])

    def run(count: int) -> None:
        for number in range(count):
            x = models[number % EVALUATED]
            evaluate.loss_and_gradient_norm(x)
            evaluate.accuracy(x)

    return Work(run)


# One row of a9a per client.


def one_row_each(setting: Setting) -> Work:
    """Full gradients of very many clients on a ring."""
    clients = setting.size(100_000, 200)
    data = tiled(load(setting, setting.table), clients)
    return rounds(Simulation(FIGURE_1, gs.logistic_regression(data, clients=clients), _ring(clients), [0], None))


def numpy_one_row_each(setting: Setting) -> Work:
    """The same in NumPy, with a sparse W."""
    clients = setting.size(100_000, 200)
    signed = signed_rows(setting, clients, tiled(load(setting, setting.table), clients))
    return in_numpy(
        numpy_rounds(Logistic(signed, None), np.zeros((clients, signed.shape[2])), _ring(clients), FIGURE_1)
    )


# The hidden layer.

FIGURE_2 = gs.BEER(lr=0.1, gamma=0.6, compressor=gs.gsgd(20))
MANY = gs.BEER(lr=0.02, gamma=0.1, compressor=gs.gsgd(5))


def hidden_layer(
    setting: Setting,
    clients: int = 10,
    hidden: int = 32,
    batch: int = 100,
    method: gs.Algorithm = FIGURE_2,
    mixing: gs.MixingMatrix | None = None,
) -> Work:
    """Rounds on MNIST."""
    data = load(setting, setting.images)
    problem = gs.problems.one_hidden_layer(data, clients=clients, hidden=hidden, device=setting.device)
    mixing = _ring(clients) if mixing is None else mixing
    return rounds(Simulation(method, problem, mixing, [0], min(batch, problem.rows_per_client)))


def numpy_hidden_layer(setting: Setting, kind: type[HiddenLayer] = HiddenLayer) -> Work:
    """Figure 2 in NumPy."""
    data, classes = load(setting, setting.images), 10
    shares = np.stack(gs.problems.split(data.labels, 10, "sorted"))
    images, labels = dense(data.features)[shares] / data.peak, data.labels[shares].astype(np.int64)
    layer = kind(images, labels, 32, classes, _batch(setting))
    start = np.tile(np.random.default_rng(0).normal(0, 0.05, layer.d), (10, 1))
    return with_fewer_threads(in_numpy(numpy_rounds(layer, start, _ring(10), FIGURE_2)))


def numpy_hidden_layer_by_client(setting: Setting) -> Work:
    """The same in the layout of the published code."""
    return numpy_hidden_layer(setting, HiddenLayerByClient)


# Messages and packets.


def _gaussian(setting: Setting, rows: int) -> torch.Tensor:
    return torch.randn(rows, setting.size(1_000_000, 1_000), generator=torch.Generator().manual_seed(0))


def compress(setting: Setting) -> Work:
    """Ten long vectors by gsgd_5."""
    x, compressor = _gaussian(setting, 10), gs.gsgd(5)

    def run(count: int) -> None:
        for number in range(count):
            compressor(x, seed=number)

    return Work(run)


def numpy_compress(setting: Setting) -> Work:
    """The same in NumPy."""
    x, random = _gaussian(setting, 10).numpy(), np.random.default_rng(0)

    def run(count: int) -> None:
        for _ in range(count):
            gsgd_levels(x, 5, random)

    return Work(run)


def packets(setting: Setting, codec: Any, d: int | None = None) -> Work:
    """A message to a packet and back."""
    x = _gaussian(setting, 1)
    message = gs.gsgd(5)(x if d is None else x[:, :d].contiguous(), seed=0)

    def run(count: int) -> None:
        for _ in range(count):
            (packet,) = message.encode(codec)
            gs.compression.decode(packet)

    return Work(run)


def numpy_packets(setting: Setting) -> Work:
    """The levels alone, by NumPy's packbits."""
    levels = (gsgd_levels(_gaussian(setting, 1).numpy(), 5, np.random.default_rng(0))[0] + 16).astype(np.uint8)

    def run(count: int) -> None:
        for _ in range(count):
            unpacked(packed(levels, 6), len(levels), 6)

    return Work(run)


def zlib_packets(setting: Setting, d: int | None = None) -> Work:
    """The levels alone, by zlib at its fastest."""
    levels = gsgd_levels(_gaussian(setting, 1).numpy()[:, :d], 5, np.random.default_rng(0)).tobytes()

    def run(count: int) -> None:
        for _ in range(count):
            zlib.decompress(zlib.compress(levels, 1))

    return Work(run)
