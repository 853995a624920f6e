"""How many rounds a contender needs to its target: all hosts simulated on one machine, round by round."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

import gossamer as gs
from benchmarks.links.contenders import OPTIMIZERS, Contender, Setting, local, method
from benchmarks.links.tasks import TASKS, problem
from gossamer.errors import NonFiniteError
from gossamer.problems import ModuleProblem
from gossamer.runtime.simulation import Simulation
from gossamer.streams import Streams

_SOME = 5  # of so many test rows, one says whether the others need to be looked at
_AT_ONCE = 1000  # test rows
_NEAR = 0.02  # below the target: all test rows are looked at


class Point(NamedTuple):
    """An evaluated round: the accuracies of the mean model, and of the worst client's once the mean is at the target.

    Far from the target, the mean model's is that of a fifth of the test rows.
    """

    round: int
    mean: float
    worst: float


VANILLA = 2
"""PowerSGD begins after so many steps, as early as torch allows it."""


def mixing_of(graph: str, hosts: int) -> gs.MixingMatrix:
    """The weights that Gossamer's methods use."""
    made = gs.ring(hosts) if graph == "ring" else gs.topology.erdos_renyi(hosts, 0.5, seed=1)
    return gs.mixing_matrix(made, weights="metropolis")


def curve(
    task: str,
    split: str,
    hosts: int,
    contender: Contender,
    setting: Setting,
    seed: int,
    *,
    rounds: int,
    target: float = 2.0,
    graph: str = "ring",
    device: str = "cpu",
) -> list[Point]:
    """The accuracies of a run, until the mean model has reached the target, or for so many rounds."""
    found, following = problem(task, split, hosts, device), 1
    points: list[Point] = []
    with torch.no_grad():
        for t, models in enumerate(rounds_of(task, split, hosts, contender, setting, seed, graph, device), 1):
            if t >= following or t == rounds:
                following = t + max(2 if contender.steps == 1 else 1, t // 32)
                average, worst = models.mean(dim=0), math.nan
                mean = accuracy(found, average, _SOME)
                if mean >= target - _NEAR:
                    mean = accuracy(found, average)
                if mean >= target:
                    worst = min(accuracy(found, model) for model in models)
                points.append(Point(t, mean, worst))
                if mean >= target:
                    return points
            if t == rounds:
                return points
    return points  # it diverged


def rounds_of(
    task: str,
    split: str,
    hosts: int,
    contender: Contender,
    setting: Setting,
    seed: int,
    graph: str = "ring",
    device: str = "cpu",
) -> Iterator[Tensor]:
    """The models after each round: one row per host, or one row if they are the same; ends where a run diverges."""
    trained = _ddp if contender.kind == "ddp" else functools.partial(_simulated, graph=graph)
    return trained(problem(task, split, hosts, device), contender, setting, seed, TASKS[task].batch)


def accuracy(found: ModuleProblem, model: Tensor, every: int = 1) -> float:
    """Of a model on every so many-th test row."""
    if "accuracy" in found.metrics:  # of a language model, whose few rows are all needed
        return float(found.score(model[None])["accuracy"][0])
    test = found.test
    assert test is not None
    inputs, labels = test.batch(torch.arange(0, test.total, every, device=found.device))
    module = found.as_module(model)
    pieces = zip(torch.split(inputs, _AT_ONCE), torch.split(labels, _AT_ONCE), strict=True)
    right = sum(int((module(some).argmax(dim=1) == theirs).sum()) for some, theirs in pieces)
    return right / len(labels)


def _simulated(
    found: ModuleProblem, contender: Contender, setting: Setting, seed: int, batch: int, *, graph: str
) -> Iterator[Tensor]:
    """The clients' models after each round."""
    steps = local(contender, setting)
    mixing, made = mixing_of(graph, found.clients), method(contender, setting)
    simulation = Simulation(made, found, mixing, (seed,), batch, counts=False, local=steps)
    while True:
        try:
            simulation.step()
        except NonFiniteError:
            return
        yield simulation.state.x


def _ddp(found: ModuleProblem, contender: Contender, setting: Setting, seed: int, batch: int) -> Iterator[Tensor]:
    """The one model of DistributedDataParallel after each step."""
    kind, more = OPTIMIZERS[setting["inner"]]
    x = nn.Parameter(found.x0()[None].clone())
    optimizer = kind([x], lr=setting["lr"], **more)  # type: ignore[call-arg]
    streams = Streams([seed], range(found.clients), found.device)
    hook = hook_of(contender, list(found.named_shapes.values()))
    for t in range(10**9):
        rows = found.rows_per_client if found.row_counts is None else found.row_counts
        gradients = found.gradient(x.detach().expand(found.clients, -1), streams.at(t, "batch").below(rows, batch))
        x.grad = hook(gradients, t)[None]
        optimizer.step()
        if not torch.isfinite(x).all():
            return
        yield x.detach()


def hook_of(contender: Contender, shapes: list[torch.Size]) -> Callable[[Tensor, int], Tensor]:
    """From the clients' gradients, (n, d), and the step to the gradient (d,) that DDP hands to the optimiser."""
    if contender.hook == "fp16":
        return lambda gradients, t: (gradients / len(gradients)).half().sum(dim=0).float()
    return PowerSGD(contender.powersgd, shapes) if contender.powersgd else lambda gradients, t: gradients.mean(dim=0)


class PowerSGD:
    """Vogels, Karimireddy, Jaggi, 2019 (arXiv 1905.13727), as torch's hook does it with warm start and error feedback.

    All that it does to the gradients is linear in them until they are averaged, so the mean gradient and the mean
    error say it all.
    """

    def __init__(self, rank: int, shapes: list[torch.Size]) -> None:
        self.rank, self._shapes = rank, shapes
        self._q: list[Tensor | None] = [None] * len(shapes)
        self._error: Tensor | None = None

    def __call__(self, gradients: Tensor, t: int) -> Tensor:
        """The gradient that the optimiser gets, from all hosts' gradients (n, d)."""
        mean = gradients.mean(dim=0)
        if t < VANILLA:
            return mean
        mean = mean if self._error is None else mean + self._error
        parts = torch.split(mean, [shape.numel() for shape in self._shapes])
        out = torch.cat([self._approximated(i, part).reshape(-1) for i, part in enumerate(parts)])
        self._error = mean - out
        return out

    def _approximated(self, i: int, part: Tensor) -> Tensor:
        if len(self._shapes[i]) < 2:
            return part
        m = part.view(self._shapes[i][0], -1)
        rank = min(self.rank, *m.shape)
        if sum(m.shape) * rank * 2 >= m.numel():  # torch's min_compression_rate
            return part
        q = self._q[i]
        if q is None:
            q = torch.linalg.qr(torch.randn(m.shape[1], rank, generator=torch.Generator().manual_seed(i)).to(m))[0]
        p = torch.linalg.qr(m @ q)[0]
        self._q[i] = q = m.T @ p
        low: Tensor = p @ q.T
        return low
