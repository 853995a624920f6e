"""Which methods find the exact minimiser, and how the floors of the others fall with the step size.

A strongly convex finite sum of least squares: 8 clients on a ring with weights 1/3, 10 coordinates, 6 rows per client,
sorted so that clients differ; in float64, with top_3 of 10 or 3-bit dithering. The error is the root mean square
distance of the clients' models to the minimiser.

PORTER with clipping has another fixed point, where the clipped gradients sum to zero. It is shown on three clients with
f_i = (x - a_i)^2 / 2 and a = (0, 0, D), clipped to tau = 1: two clients outvote the third at any distance, so
the norm of grad f there grows with D.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer import algorithms as al
from gossamer.algorithms.base import Algorithm
from gossamer.compression.dense import identity
from gossamer.compression.dithering import qsgd
from gossamer.compression.sparse import top_k
from gossamer.problems.linear import LinearModel
from gossamer.problems.regression import least_squares
from gossamer.runtime.tuning.candidates import Candidates, gradient_norms
from gossamer.topology import MixingMatrix, mixing_matrix, ring

CLIENTS, ROWS, COORDINATES = 8, 6, 10
EXACT = 1e-8  # what an exact method must reach
_LOOK_EVERY = 50  # rounds
_DONE = 1e-12  # an exact method stops here


@dataclass(frozen=True)
class Entry:
    """A method in the table, with what theory expects of it."""

    label: str
    method: Algorithm
    power: float | None = None
    """The floor falls as lr^power; None for a method that is exact."""
    batch_size: int | None = None
    """Data rows per gradient; None for full gradients."""
    why: str = ""
    """What the floor comes from."""
    gamma_power: float = 0.0
    """gamma is lowered with lr, as lr^gamma_power."""
    apart: float | None = None
    """D, for PORTER with clipping: its error is the distance to where the clipped gradients sum to zero."""


def entries() -> list[Entry]:
    """The methods of the library, each in its usual form; the compressed ones compressed."""
    top, dither = top_k(3), qsgd(4)
    full: Any = {"lr": 0.05, "gamma": 0.2, "compressor": top}
    unbiased: Any = {"lr": 0.1, "gamma": 0.3, "compressor": dither}
    floor: Any = {"lr": 0.01, "gamma": 0.2, "compressor": top}
    differ, noise = "the clients differ", "single rows are noisy"
    both = f"compressed models, and {differ}"
    clipped = al.PORTER(lr=0.2, gamma=0.5, compressor=identity(), clip=1.0, start="full")
    return [
        Entry("BEER, top_3", al.BEER(**full)),
        Entry("MoTEF, top_3", al.MoTEF(**full, lam=0.3)),
        Entry("MoTEF-VR, top_3", al.MoTEFVR(**full, lam=0.3)),
        Entry("DoCoM, top_3", al.DoCoM(**full, beta=0.3)),
        Entry("PORTER without clipping, top_3", al.PORTER(**full, clip=None)),
        Entry("C-GT, top_3", al.CGT(**full)),
        Entry("C-GT, qsgd_4", al.CGT(**full | {"compressor": dither}, a=0.5)),
        Entry("LEAD, qsgd_4", al.LEAD(**unbiased)),
        Entry("CEDAS, qsgd_4", al.CEDAS(**unbiased)),
        Entry("Compressed K-GT, top_3", al.CompressedKGT(**full)),
        Entry("Compressed K-GT, fresh, top_3", al.CompressedKGT(**full, order="fresh")),
        Entry("K-GT", al.KGT(lr=0.05)),
        Entry("All-reduce Adam", al.AllReduceAdamW(lr=0.02, weight_decay=0.0)),
        Entry("DiLoCo", al.DiLoCo(lr=0.05, momentum=0.5)),
        Entry("D2", al.D2(lr=0.1)),
        Entry("EXTRA", al.EXTRA(lr=0.1)),
        Entry("NIDS", al.NIDS(lr=0.1)),
        Entry("Gradient tracking", al.GradientTracking(lr=0.05)),
        Entry("Gradient tracking, adapt-then-combine", al.GradientTracking(lr=0.05, order="adapt-then-combine")),
        Entry("GT-SAGA, single rows", al.GTSAGA(lr=0.02), batch_size=1),
        Entry("GT-SAGA, combine-then-adapt, single rows", al.GTSAGA(lr=0.02, order="combine-then-adapt"), batch_size=1),
        Entry("GT-SARAH, single rows", al.GTSARAH(lr=0.02), batch_size=1),
        Entry("D-GET, single rows", al.DGET(lr=0.02), batch_size=1),
        Entry("DESTRESS, single rows", al.DESTRESS(lr=0.02), batch_size=1),
        Entry("Gradient descent", al.CentralizedSGD(lr=0.1, batch="full")),
        Entry("DSGD", al.DSGD(lr=0.02), 1.0, why=differ),
        Entry("DSGD, adapt-then-combine", al.DSGD(lr=0.02, order="adapt-then-combine"), 1.0, why=differ),
        Entry("CHOCO-SGD, top_3", al.CHOCOSGD(**floor), 1.0, why=differ),
        Entry("CHOCO-SGD, stale, top_3", al.CHOCOSGD(**floor, order="stale"), 1.0, why=differ),
        Entry("SQuARM-SGD, top_3", al.SQuARMSGD(**floor | {"lr": 0.001}), 1.0, why=differ),
        # What compression leaves out of whole models counts gamma times, gossip removes differences of lr / gamma: the
        # sum is least, and falls as lr^(1/2), where gamma does too.
        Entry("DeepSqueeze, top_3, gamma as lr^0.5", al.DeepSqueeze(**floor), 0.5, None, both, gamma_power=0.5),
        Entry("Centralized SGD, single rows", al.CentralizedSGD(lr=0.02), 0.5, 1, noise),
        Entry("D2, single rows", al.D2(lr=0.02), 0.5, 1, noise),
        # Strong compression adds a part that falls as lr; with top_6 that is small against the noise.
        Entry("BEER, top_6, single rows", al.BEER(lr=0.01, gamma=0.4, compressor=top_k(6)), 0.5, 1, noise),
        Entry("DoCoM, top_3, single rows", al.DoCoM(**floor | {"lr": 0.01}), 0.5, 1, noise),
        *(Entry(f"PORTER, clipped to 1, D = {apart:g}", clipped, apart=apart) for apart in (10.0, 100.0, 1000.0)),
    ]


@dataclass(frozen=True)
class Exactness:
    """What a method reached."""

    entry: Entry
    rounds: int
    errors: dict[float, float]
    """By step size."""
    grad_norm: float | None = None
    """||grad f|| at the average model, of an entry with clipping."""

    @property
    def expected_grad_norm(self) -> float | None:
        """||grad f|| where the clipped gradients sum to zero."""
        apart = self.entry.apart
        return None if apart is None else abs(clipped_fixed_point(apart) - apart / 3)

    @property
    def power(self) -> float | None:
        """With which the floor falls, from the largest to the smallest step size."""
        if self.entry.power is None:
            return None
        (high, above), *_, (low, below) = sorted(self.errors.items(), reverse=True)
        return math.log(above / below) / math.log(high / low)

    @property
    def holds(self) -> bool:
        """Exact methods reach 1e-8; floors are above that, and fall with the power that theory says, to a third.

        With clipping, the method reaches the clipped fixed point, and the gradient norm there is as predicted, to 2%.
        """
        if self.entry.power is None:
            norm, expected = self.grad_norm, self.expected_grad_norm
            is_as_predicted = norm is None or expected is None or abs(norm / expected - 1) <= 0.02
            return is_as_predicted and max(self.errors.values()) <= EXACT
        assert self.power is not None
        return min(self.errors.values()) > EXACT and abs(self.power - self.entry.power) <= self.entry.power / 3


def clipped_fixed_point(apart: float) -> float:
    """Where clip(x) + clip(x) + clip(x - apart) = 0 with clip(z) = z / (1 + |z|), by bisection."""
    low, high = 0.0, apart
    for _ in range(200):
        x = (low + high) / 2
        total = sum(z / (1 + abs(z)) for z in (x, x, x - apart))
        low, high = (x, high) if total < 0 else (low, x)
    return (low + high) / 2


def clipping_world(apart: float) -> tuple[LinearModel, MixingMatrix, Tensor]:
    """f_i = (x - a_i)^2 / 2 with a = (0, 0, apart); the network; and where the clipped gradients sum to zero."""
    data = (np.ones((3, 1)), np.array([0.0, 0.0, apart]))
    problem = least_squares(data, clients=3, l2=0.0, intercept=False, dtype="float64")
    point = torch.tensor([clipped_fixed_point(apart)], dtype=torch.float64)
    return problem, mixing_matrix(ring(3), "metropolis"), point


def world() -> tuple[LinearModel, MixingMatrix, Tensor]:
    """The problem, the network, and the minimiser."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((CLIENTS * ROWS, COORDINATES))
    targets = features @ generator.standard_normal(COORDINATES) + generator.standard_normal(CLIENTS * ROWS)
    problem = least_squares((features, targets), clients=CLIENTS, l2=0.1, intercept=False, dtype="float64")
    a, y = problem.rows.features, problem.rows.labels
    curvature = a.T @ a / len(a) + 0.1 * torch.eye(COORDINATES, dtype=torch.float64)
    return problem, mixing_matrix(ring(CLIENTS), "metropolis"), torch.linalg.solve(curvature, a.T @ y / len(a))


def run(entry: Entry, rounds: int, progress: Callable[[int], None] | None = None) -> Exactness:
    """Run an entry: an exact method until it is there, another at three step sizes side by side to the end."""
    problem, mixing, point = world() if entry.apart is None else clipping_world(entry.apart)
    lr = entry.method.lr_at(0)
    steps = [lr] if entry.power is None else [lr, lr / 2, lr / 4]
    settings = [{"lr": one} for one in steps]
    if entry.gamma_power:
        gamma: float = entry.method.gamma  # type: ignore[attr-defined]
        settings = [{"lr": one, "gamma": gamma * (one / lr) ** entry.gamma_power} for one in steps]
    sim = Candidates(entry.method, problem, mixing, settings, batch_size=entry.batch_size)
    late: list[list[float]] = []
    with torch.no_grad():
        while sim.t < rounds and sim.alive:
            sim.step()
            if sim.t % _LOOK_EVERY:
                continue
            if progress is not None:
                progress(sim.t)
            errors = (sim.models() - point).square().sum(dim=2).mean(dim=1).sqrt().tolist()
            if entry.power is None:
                late = [errors]
                if errors and errors[0] < _DONE:
                    break
            elif sim.t > rounds // 2:
                late.append(errors)
    if len(sim.alive) < len(steps):
        return Exactness(entry, sim.t, dict.fromkeys(steps, math.inf), None if entry.apart is None else math.inf)
    means = [math.sqrt(sum(row[place] ** 2 for row in late) / len(late)) for place in range(len(steps))]
    norm = None if entry.apart is None else float(gradient_norms(sim)[0])
    return Exactness(entry, sim.t, dict(zip(steps, means, strict=True)), norm)
