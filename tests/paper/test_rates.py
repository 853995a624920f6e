"""The studies of rates: slopes are recovered from known laws, verdicts follow them, and every study runs."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from gossamer import algorithms as al
from gossamer.compression.sparse import rand_k, top_k
from gossamer.errors import StoppedError
from gossamer.paper.rates.fit import Fit, fit_line, fit_power, means
from gossamer.paper.rates.studies import Study, studies
from gossamer.paper.rates.sweep import (
    Disagreement,
    SharedRandK,
    StudyProgress,
    World,
    edges,
    grid,
    round_the_ring,
    scattered,
    sweep,
)
from gossamer.problems.quadratic import Quadratic
from gossamer.runtime.tuning.candidates import Candidates, gradient_norms
from gossamer.streams import Streams
from gossamer.topology import mixing_matrix, ring


def _fit(low: float, high: float, theory: float, *, is_bound: bool) -> Fit:
    return Fit("s", "w", "BEER", "x", "y", (low + high) / 2, low, high, theory, is_bound, ((1.0, 1.0),))


def _silent() -> StudyProgress:
    return StudyProgress(None, None)


# ------------------------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize("power", [-1.0, -2 / 3, 0.0, 3.0])
@pytest.mark.parametrize("seeds", [1, 3])
def test_an_exact_power_law_is_recovered(power: float, seeds: int) -> None:
    x = [10.0, 30.0, 100.0, 300.0]
    line = fit_power(x, [[(seed + 2) * one**power for one in x] for seed in range(seeds)])
    assert line.slope == pytest.approx(power, abs=1e-12)
    assert line.low <= line.slope <= line.high
    assert line.high - line.low < 1e-9
    assert line.straightness == pytest.approx(1.0)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(seeds: int) -> None:
    random, x = np.random.default_rng(0), np.geomspace(10, 1000, 8)
    covered = 0
    for _ in range(400):
        ys = x**-0.5 * np.exp(0.1 * random.standard_normal((seeds, len(x))))
        line = fit_power(x.tolist(), ys.tolist())
        covered += line.low <= -0.5 <= line.high
    assert covered >= 0.93 * 400, "with several seeds more often, since two intervals are joined"


def test_seeds_that_differ_in_slope_widen_the_interval() -> None:
    x = [1.0, 10.0, 100.0]
    alike, apart = ([[one**power for one in x] for power in powers] for powers in ([-1, -1, -1], [-0.8, -1, -1.2]))
    assert fit_power(x, apart).high - fit_power(x, apart).low > 0.5
    assert fit_power(x, alike).high - fit_power(x, alike).low < 1e-9


def test_a_bend_that_all_seeds_share_widens_the_interval() -> None:
    x = [0.0, 1.0, 2.0, 3.0]
    line = fit_line(x, [[0.0, 0.0, 0.0, 1.0]] * 3)
    assert line.high - line.low > 0.5
    assert line.straightness < 0.9


def test_places_that_a_seed_did_not_reach_are_left_out() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    ys = [[1.0, 2.0, 4.0, math.inf], [1.0, 2.0, 4.0, 8.0]]
    assert fit_power(x, ys).slope == pytest.approx(1.0)
    np.testing.assert_allclose(means(x, ys), [(1, 1), (2, 2), (4, 4)])
    nothing = fit_power(x, [[1.0, 2.0, math.inf, math.inf]])
    assert math.isnan(nothing.slope)
    assert (nothing.low, nothing.high) == (-math.inf, math.inf)


# ---------------------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("low", "high", "theory", "is_bound", "verdict"),
    [
        (-1.05, -0.95, -1.0, False, "holds"),
        (-1.05, -0.85, -1.0, False, "inconclusive"),
        (-1.3, -1.2, -1.0, False, "does not hold"),  # too fast
        (-1.3, -1.2, -1.0, True, "holds"),  # faster than a bound
        (-0.8, -0.7, -1.0, True, "does not hold"),
        (-1.5, -0.5, -1.0, True, "inconclusive"),
        (-0.1, 0.05, 0.0, True, "holds"),  # flat
        (0.2, 0.3, 0.0, True, "does not hold"),
        (0.05, 0.3, 0.0, True, "inconclusive"),
        (-0.08, -0.06, -0.0003, True, "holds"),
        (-0.0001, 0.0, -0.0003, True, "does not hold"),  # the tolerance is theory's tenth, however small that is
        (-math.inf, math.inf, 1.0, True, "inconclusive"),
    ],
)
def test_the_verdict_follows_the_interval(low: float, high: float, theory: float, is_bound: bool, verdict: str) -> None:
    assert _fit(low, high, theory, is_bound=is_bound).agrees == verdict


def test_a_bound_may_be_tight_or_not() -> None:
    assert _fit(2.9, 3.1, 3.0, is_bound=True).is_reached
    assert not _fit(0.9, 1.1, 3.0, is_bound=True).is_reached


# ---------------------------------------------------------------------------------------------------------- problems


@pytest.mark.parametrize("make", [scattered, round_the_ring])
def test_f_does_not_depend_on_how_much_the_clients_disagree(make: object) -> None:
    world: Disagreement = make(8, 6, 4.0, 3)  # type: ignore[operator]
    for G in (0.0, 0.5, 20.0):
        problem = Quadratic(world.curvature, world.centres(G)[:, None])
        torch.testing.assert_close(problem.minimizer(), world.minimizer)
        assert float(problem.evaluate(problem.x0()[None])["grad_norm"]) == pytest.approx(1.0)
        assert problem.heterogeneity(world.minimizer) == pytest.approx(G**2)
        assert problem.smoothness() <= 1


def test_lanes_are_what_candidates_are() -> None:
    """Every lane goes the way of a simulation of its own."""
    mixing, settings = mixing_matrix(ring(6)), grid([0.1, 0.2], [0.3, 0.6])
    for method in (al.BEER(0.1, 0.1, top_k(2)), al.CHOCOSGD(0.1, 0.1, SharedRandK(2))):
        worlds = [World(scattered(6, 5, 4.0, seed), G, seed, settings) for seed, G in ((0, 1.0), (7, 3.0))]
        tuned = sweep(method, worlds, mixing, 40, _silent())
        for row, world in enumerate(worlds):
            problem = Quadratic(world.problem.curvature, world.problem.centres(world.G)[:, None])
            compressor = rand_k(2) if isinstance(method.compressor, SharedRandK) else method.compressor
            alone = Candidates(type(method)(0.1, 0.1, compressor), problem, mixing, settings, world.seed)
            total = torch.zeros(4, dtype=torch.float64)
            for t in range(40):
                total += gradient_norms(alone).square()
                assert tuned.averages[row, t] == pytest.approx(float(total.min()) / (t + 1), rel=1e-9)
                alone.step()


def test_shared_rand_k_is_rand_k() -> None:
    draw = Streams([3, 3, 5], range(2)).at(4, "h")
    x = torch.randn(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(SharedRandK(3)(x, draw).dense(), rand_k(3)(x, draw).dense())
    assert SharedRandK(3).alpha(7) == rand_k(3).alpha(7)
    assert not SharedRandK(3).is_deterministic


def test_a_group_is_done_when_its_best_is_there_and_the_diverged_do_not_count() -> None:
    settings = grid([0.5, 50.0], [0.5])
    worlds = [World(scattered(6, 5, 2.0, 0), G, 0, settings) for G in (0.0, 2.0)]
    tuned = sweep(al.BEER(0.1, 0.1, top_k(3)), worlds, mixing_matrix(ring(6)), 3000, _silent(), until=0.01)
    first, second = tuned.rounds_to([0.01, 0.01])
    assert first < second < 3000
    assert tuned.best[1, int(second) - 1] == 0
    assert math.isnan(tuned.averages[0, int(first)])
    assert tuned.rounds_to([1e-9, 0.01]) == [math.inf, second]


def test_what_is_on_the_edge_is_said() -> None:
    assert edges([4], [1.0, 2.0, 3.0], [0.1, 0.2, 0.3]) == "No best was on the edge."
    said = edges([1, 5, -1], [1.0, 2.0, 3.0], [0.1, 0.2, 0.3])
    assert said == "Of 2 tunings, the best was at the smallest lr in 1 and at the largest gamma in 1."


# ----------------------------------------------------------------------------------------------------------- studies


def _by_name(name: str) -> Study:
    return next(study for study in studies(quick=True) if study.name == name)


@pytest.mark.parametrize("name", [study.name for study in studies()])
def test_quick_studies_run(name: str) -> None:
    said: list[float] = []
    fits = _by_name(name).run([0, 1], said.append)
    assert fits
    for fit in fits:
        assert all(map(math.isfinite, (fit.slope, fit.low, fit.high, fit.theory))), fit
        assert fit.low <= fit.slope <= fit.high
        assert len(fit.points) >= 3
        assert all(y > 0 for _, y in fit.points)
        assert fit.agrees in ("holds", "does not hold", "inconclusive")
    assert said == sorted(said)
    assert (said[0], said[-1]) == (0.0, 1.0)


@pytest.mark.parametrize("seeds", [[5], [0, 1]])
def test_the_same_seeds_give_the_same_fits(seeds: Sequence[int]) -> None:
    study = _by_name("linear")
    assert study.run(seeds) == study.run(seeds)


@pytest.mark.parametrize("name", [study.name for study in studies()])
def test_a_study_can_be_stopped(name: str) -> None:
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    with pytest.raises(StoppedError):
        _by_name(name).run([0], should_stop=should_stop)
    assert len(asked) == 4


def test_settings_are_a_key() -> None:
    full, quick = studies(), studies(quick=True)
    assert [one.name for one in full] == [one.name for one in quick]
    assert len({one.name for one in full}) == len(full)
    for one, other in zip(full, quick, strict=True):
        assert json.loads(json.dumps(one.settings)) == one.settings
        assert one.settings != other.settings


@pytest.mark.slow
def test_linear_convergence_and_neighbourhood_are_as_the_theorems_say() -> None:
    chosen = [study for study in studies() if study.name in ("linear", "neighbourhood")]
    fits = [fit for study in chosen for fit in study.run(range(6))]  # as many as `gossamer reproduce rates` takes
    assert len(fits) == 5
    assert all(fit.agrees == "holds" for fit in fits), fits
