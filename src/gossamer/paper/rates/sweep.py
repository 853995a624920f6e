"""Many problems and many steps at once, for the studies of rates.

A lane is one problem with one setting of (lr, gamma); the lanes of one problem form a group, and the best of a group is
what tuning finds. All problems are quadratics with the same f whatever the clients' disagreement.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Compressor
from gossamer.compression.layout import Layout
from gossamer.compression.sparse import Sparse, rand_k, seeded_places
from gossamer.errors import StoppedError
from gossamer.problems.base import Problem
from gossamer.runtime.tuning.candidates import Candidates
from gossamer.streams import Draw
from gossamer.topology import MixingMatrix

T = TypeVar("T")
Steps = Mapping[str, float]
_LOST = 1e8  # a squared gradient norm this many times the first has diverged
_LOOK_EVERY = 25  # rounds between looks for what has diverged, and for a wish to stop


class StudyProgress:
    """Reports the share of a study that is done, which never falls, and stops the study on request."""

    def __init__(self, progress: Callable[[float], None] | None, should_stop: Callable[[], bool] | None) -> None:
        self._progress, self._should_stop = progress, should_stop
        self._low, self._high, self._said = 0.0, 1.0, -1.0

    def parts(self, parts: Collection[T]) -> Iterator[T]:
        """Give the parts of a study, each of which then says `at` of itself alone."""
        for number, part in enumerate(parts):
            self._low, self._high = number / len(parts), (number + 1) / len(parts)
            self.at(0.0)
            yield part
            self.at(1.0)

    def at(self, share: float) -> None:
        """This share of the part is done."""
        if self._should_stop is not None and self._should_stop():
            raise StoppedError("The study was stopped before its end; nothing of it is kept.")
        now = self._low + (self._high - self._low) * min(1.0, share)
        if self._progress is not None and now > self._said:
            self._said = now
            self._progress(now)


@dataclass(frozen=True)
class Disagreement:
    """Quadratics f_i(x) = 1/2 (x - c_i)' D_i (x - c_i) with c_i = x* - G g_i / D_i, where the g_i add up to 0.

    So grad f(x) = D (x - x*) with the mean D, whatever G is: f, its minimiser and the start at 0 stay the same (up to a
    constant in f) while mean_i ||grad f_i - grad f||^2 at x* is G^2. As the D_i differ, methods that do not track the
    gradient end away from x*.
    """

    curvature: Tensor
    """(clients, d): the diagonals D_i."""
    pulls: Tensor
    """(clients, d): the g_i, with mean_i ||g_i||^2 = 1."""
    minimizer: Tensor
    """(d,): x*, at distance such that ||grad f(0)|| = 1."""

    def centres(self, G: float) -> Tensor:
        """(clients, d): the c_i."""
        return self.minimizer - G * self.pulls / self.curvature


def scattered(clients: int, d: int, condition: float, seed: int) -> Disagreement:
    """Curvatures, pulls and minimiser at random."""
    random = np.random.default_rng(seed)
    return _normalised(
        condition ** -random.random((clients, d)), random.standard_normal((clients, d)), random.standard_normal(d)
    )


def round_the_ring(clients: int, d: int, condition: float, seed: int) -> Disagreement:
    """The same functions of the angle, for any number of clients around the ring.

    In each coordinate log D_i and g_i are one wave around the ring, so that f hardly depends on the number of clients,
    and what the clients disagree on is what the ring takes longest to mix: the case that rho describes.
    """
    random = np.random.default_rng(seed)
    angle = 2 * math.pi * np.arange(clients)[:, None] / clients
    curvature_phase, pull_phase = 2 * math.pi * random.random((2, d))
    wave = (1 + np.cos(angle + curvature_phase)) / 2
    return _normalised(condition**-wave, np.cos(angle + pull_phase), random.standard_normal(d))


def _normalised(curvature: Any, pulls: Any, minimizer: Any) -> Disagreement:
    pulls = pulls - pulls.mean(axis=0)
    pulls = pulls / np.sqrt((pulls**2).sum(axis=1).mean())
    minimizer = minimizer / np.linalg.norm(curvature.mean(axis=0) * minimizer)
    return Disagreement(*map(torch.from_numpy, (curvature, pulls, minimizer)))


class _Quadratics(Problem):
    """One quadratic per lane, in float64 and without rows of data."""

    def __init__(self, curvature: Tensor, centres: Tensor) -> None:
        self.curvature, self.centres = curvature, centres  # (lanes, clients, d)
        _, self.clients, self.d = curvature.shape
        self.rows_per_client = 1
        self.dtype, self.device = curvature.dtype, curvature.device
        self._a, self._b = curvature.mean(dim=1), (curvature * centres).mean(dim=1)

    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """D_i (x_i - c_i) in every lane."""
        return (self.curvature * (x.view(self.curvature.shape) - self.centres)).view(x.shape)

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        """The gradient norm of each lane's f at its own model."""
        return {"grad_norm": (self._a * models - self._b).norm(dim=1)}

    def lanes(self, places: Sequence[int]) -> "_Quadratics":
        """These lanes alone."""
        return _Quadratics(self.curvature[places], self.centres[places])


@dataclass(frozen=True)
class SharedRandK(Compressor):
    """rand_k with its very draws, made once for all lanes of a seed: rand_k itself makes them row by row."""

    k: int

    def alpha(self, d: int) -> float:
        """k / d."""
        return rand_k(self.k).alpha(d)

    @property
    def is_deterministic(self) -> bool:
        """No."""
        return False

    def compress(self, x: Tensor, draw: Draw, layout: Layout) -> Sparse:
        """Keep the places that the rows' seeds give."""
        seeds, which = torch.unique(draw.seeds(), return_inverse=True)
        places = seeded_places(seeds, self.k, layout)[which]
        return Sparse(places, x.gather(1, places), layout.d)


class _Lanes(Candidates):
    """Candidates of which each has its own problem and its own seed."""

    def keep(self, places: Sequence[int]) -> None:
        """Go on with the lanes at these places alone."""
        super().keep(places)
        assert isinstance(self.problem, _Quadratics)
        self.problem = self.problem.lanes(places)

    def squared_norms(self) -> Tensor:
        """(lanes,): ||grad f||^2 at each lane's average model."""
        return self.problem.evaluate(self.models().mean(dim=1))["grad_norm"].square()


@dataclass(frozen=True)
class World:
    """A group of lanes: one problem, and the steps to be tried on it."""

    problem: Disagreement
    G: float
    seed: int
    """Of the compressor's draws."""
    settings: Sequence[Steps]


@dataclass(frozen=True)
class BestLanes:
    """What the best lanes of the groups reached."""

    averages: Any
    """(groups, rounds): the least mean over t < T of ||grad f||^2, for T = 1, 2, ...; NaN once a group is done."""
    best: Any
    """(groups, rounds): which of the group's settings gives it; -1 once a group is done."""

    def rounds_to(self, squares: Sequence[float]) -> list[float]:
        """For each group, the first T whose tuned average is at most its square; inf where it was not reached."""
        there = self.averages <= np.array(squares)[:, None]
        return [float(row.argmax() + 1) if row.any() else math.inf for row in there]


def sweep(
    method: Algorithm,
    worlds: Sequence[World],
    mixing: MixingMatrix,
    rounds: int,
    watch: StudyProgress,
    until: float = 0.0,
) -> BestLanes:
    """Run every world with all its settings, with the averages of squared gradient norms from t = 0 on.

    The settings, as many in each world, replace the method's steps. A group is done when its best average is at most
    `until`; at 0 all continue to the last round.
    """
    groups, many = len(worlds), len(worlds[0].settings)
    lanes = [world for world in worlds for _ in world.settings]
    problem = _Quadratics(
        torch.stack([lane.problem.curvature for lane in lanes]),
        torch.stack([lane.problem.centres(lane.G) for lane in lanes]),
    )
    settings = [steps for world in worlds for steps in world.settings]
    sim = _Lanes(method, problem, mixing, settings, [lane.seed for lane in lanes])
    sums = torch.zeros(len(lanes), dtype=torch.float64)
    lost = torch.zeros(len(lanes), dtype=torch.bool)
    worst = _LOST * sim.squared_norms().max()
    averages, best = np.full((groups, rounds), np.nan), np.full((groups, rounds), -1)
    done = np.zeros(groups, bool)
    with torch.no_grad():
        while sim.t < rounds and sim.alive:
            alive = torch.tensor(sim.alive)
            squared = sim.squared_norms()
            sums[alive] += squared
            least, which = torch.where(lost, math.inf, sums).view(groups, many).min(dim=1)
            now = (least / (sim.t + 1)).numpy()
            averages[~done, sim.t], best[~done, sim.t] = now[~done], which.numpy()[~done]
            met = ~done & (now <= until)
            if met.any() or sim.t % _LOOK_EVERY == 0:
                done |= met
                lost[alive[~(squared <= worst)]] = True
                staying = ~lost[alive] & ~torch.from_numpy(done)[alive // many]
                if not bool(staying.all()):
                    sim.keep(staying.nonzero()[:, 0].tolist())
                watch.at(max(sim.t / rounds, done.mean()))
            before = set(sim.alive)
            sim.step()
            lost[list(before - set(sim.alive))] = True
    return BestLanes(averages, best)


def grid(lrs: Sequence[float], gammas: Sequence[float]) -> list[dict[str, float]]:
    """Every lr with every gamma."""
    return [{"lr": lr, "gamma": gamma} for lr in lrs for gamma in gammas]


def edges(chosen: Sequence[int], lrs: Sequence[float], gammas: Sequence[float]) -> str:
    """A sentence on how often the best of a `grid` lay on its edge, and on which."""
    lr, gamma = np.divmod([one for one in chosen if one >= 0], len(gammas))
    places = []
    for name, at, values in (("lr", lr, lrs), ("gamma", gamma, gammas)):
        ends = {"smallest": (at == np.argmin(values)).sum(), "largest": (at == np.argmax(values)).sum()}
        places += [f"the {end} {name} in {count}" for end, count in ends.items() if count]
    return f"Of {len(lr)} tunings, the best was at {' and at '.join(places)}." if places else "No best was on the edge."
