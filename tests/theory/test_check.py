"""A check can fail: each inequality is broken on purpose, and found."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gossamer as gs
from gossamer.errors import InputError
from gossamer.paper.omegas import Omegas, measured_of
from gossamer.records.schema import Row
from gossamer.theory import Checked, Measured, certify, check_run

PROBLEM = gs.quadratic(clients=6, d=8, dtype="float64")
MIXING = gs.mixing_matrix(gs.topology.complete(6))
FOUND = certify(0.5, MIXING.rho, MIXING.C, PROBLEM.smoothness(), PROBLEM.pl_constant())
CONSTANTS: dict[str, Any] = {
    "alpha": 0.5,
    "rho": MIXING.rho,
    "C": MIXING.C,
    "L": FOUND.L,
    "n": 6,
    "gamma": FOUND.gamma,
    "lr": FOUND.lr,
    "mu": FOUND.mu,
    "minimum": PROBLEM.minimum(),
}
OMEGAS = [Omegas()]
METHOD = gs.BEER(lr=FOUND.lr, gamma=FOUND.gamma, compressor=gs.top_k(4))
RUN = measured_of([gs.simulate(METHOD, PROBLEM, MIXING, rounds=80, eval_every=1, measures=OMEGAS).record.rows])


def verdicts(checked: Checked) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in checked.findings}


def test_a_run_with_certified_steps_obeys() -> None:
    checked = check_run(RUN, **CONSTANTS)
    assert set(verdicts(checked).values()) == {"holds"}
    assert list(verdicts(checked)) == [
        *("Omega_1", "Omega_2", "Omega_3", "Omega_4", "f", "Phi", "Theorem 4.1, 4.2", "Theorem 4.3, 4.4")
    ]
    assert checked.certificate is not None
    assert checked.certificate.check()
    assert checked.phi is not None
    assert (np.diff(checked.phi) < 0).all()
    for finding in checked.findings:
        assert finding.tightest is not None
        assert 0 < finding.tightest <= 1
        assert finding.above == 0
    plain = check_run(RUN, **CONSTANTS | {"mu": None})
    assert plain.findings[-1].name == "Phi_t"
    assert plain.verdict == "holds"


@pytest.mark.parametrize("which", range(4))
def test_a_broken_recursion_is_found(which: int) -> None:
    omegas = RUN.omegas.copy()
    bound = check_run(RUN, **CONSTANTS).findings[which].right
    assert bound is not None
    omegas[0, 40, which] = bound[39] * 1.001  # findings begin after the first round
    checked = check_run(replace(RUN, omegas=omegas), **CONSTANTS)
    finding = checked.findings[which]
    assert finding.verdict == checked.verdict == "does not hold"
    assert finding.why == "Broken in 1 of 80 rounds, first in 40."
    assert finding.above == 1


def test_a_rise_of_f_and_phi_is_found() -> None:
    loss = RUN.loss.copy()
    loss[0, 40] = loss[0, 39] * (1 + 1e-9)
    assert verdicts(check_run(replace(RUN, loss=loss), **CONSTANTS))["f"] == "does not hold"
    loss[0, 40] *= 1.05  # Phi has more to fall by: the clients draw together
    assert verdicts(check_run(replace(RUN, loss=loss), **CONSTANTS))["Phi"] == "does not hold"


def test_a_broken_theorem_is_found() -> None:
    found = verdicts(check_run(replace(RUN, grad_norm=1000 * RUN.grad_norm), **CONSTANTS))
    assert found["Theorem 4.1, 4.2"] == "does not hold"
    slow = replace(RUN, loss=np.maximum(RUN.loss, 200.0))
    assert verdicts(check_run(slow, **CONSTANTS))["Theorem 4.3, 4.4"] == "does not hold"


def test_a_wrong_smoothness_is_found() -> None:
    """With a tenth of L, the trackers move more than the lemma allows."""
    fast = gs.BEER(lr=1.0, gamma=0.01, compressor=gs.top_k(8))
    rows = gs.simulate(fast, PROBLEM, MIXING, rounds=5, eval_every=1, measures=OMEGAS, x0="normal").record.rows
    constants = CONSTANTS | {"alpha": 1.0, "gamma": 0.01, "lr": 1.0, "mu": None}
    assert verdicts(check_run(measured_of([rows]), **constants))["f"] == "holds"
    found = verdicts(check_run(measured_of([rows]), **constants | {"L": FOUND.L / 10}))
    assert "does not hold" in found.values()


def test_steps_that_are_not_certified() -> None:
    faster = gs.BEER(lr=1.1 * FOUND.lr, gamma=FOUND.gamma, compressor=gs.top_k(4))
    rows = gs.simulate(faster, PROBLEM, MIXING, rounds=20, eval_every=1, measures=OMEGAS).record.rows
    checked = check_run(measured_of([rows]), **CONSTANTS | {"lr": 1.1 * FOUND.lr})
    assert checked.certificate is None
    assert checked.verdict == "inconclusive"
    assert "not certified" in checked.findings[-1].why


def test_steps_that_are_certified_for_one_theorem() -> None:
    """Between the edge under PL and the edge without."""
    lr = certify(0.5, MIXING.rho, MIXING.C, FOUND.L, gamma=FOUND.gamma).lr
    assert lr > FOUND.lr
    method = gs.BEER(lr=lr, gamma=FOUND.gamma, compressor=gs.top_k(4))
    rows = gs.simulate(method, PROBLEM, MIXING, rounds=20, eval_every=1, measures=OMEGAS).record.rows
    checked = check_run(measured_of([rows]), **CONSTANTS | {"lr": lr})
    found = verdicts(checked)
    assert found.pop("Theorem 4.3, 4.4") == "inconclusive"
    assert set(found.values()) == {"holds"}
    assert "Theorem 4.1 alone" in checked.findings[-1].why


def test_an_expectation_is_judged_by_its_confidence_interval() -> None:
    rng = np.random.default_rng(0)
    many = Measured(RUN.rounds, *(np.repeat(part, 30, axis=0) for part in (RUN.omegas, RUN.loss, RUN.grad_norm)))
    bound = check_run(RUN, **CONSTANTS).findings[2].right
    assert bound is not None
    near = many.omegas.copy()
    near[:, 40, 2] = bound[39] * (1 + 0.3 * rng.standard_normal(30))
    near[:, 40, 2] *= 1.05 * bound[39] / near[:, 40, 2].mean()  # the mean is above, its interval is not
    finding = check_run(replace(many, omegas=near), **CONSTANTS, is_random=True).findings[2]
    assert (finding.verdict, finding.above) == ("holds", 1)
    far = near.copy()
    far[:, 40, 2] *= 2
    assert check_run(replace(many, omegas=far), **CONSTANTS, is_random=True).findings[2].verdict == "does not hold"
    one = Measured(RUN.rounds, far[:1], RUN.loss, RUN.grad_norm)
    finding = check_run(one, **CONSTANTS, is_random=True).findings[2]
    assert finding.verdict == "inconclusive"
    assert "take several seeds" in finding.why
    assert check_run(replace(many, omegas=near), **CONSTANTS).findings[2].verdict == "does not hold"


@pytest.mark.parametrize("n", [2, 4])
def test_a_tight_expectation_raises_no_alarm(n: int) -> None:
    """With noise the descent of f is nearly an equality: of hundreds of rounds, some are above by chance."""
    problem, mixing = (
        gs.quadratic(n, 3, condition=1.0, noise=5.0, dtype="float64"),
        gs.mixing_matrix(gs.topology.complete(n)),
    )
    method = gs.BEER(lr=1e-4, gamma=0.1, compressor=gs.top_k(2))
    constants = {"alpha": 2 / 3, "rho": mixing.rho, "C": mixing.C, "L": 1.0, "n": n, "gamma": 0.1, "lr": 1e-4}
    for group in range(4):
        seeds = range(10 * group, 10 * group + 10)
        runs = gs.sweep([method], problem, mixing, rounds=150, eval_every=1, batch_size=1, measures=OMEGAS, seeds=seeds)
        measured, sigma = measured_of([run.record.rows for run in runs]), problem.noise_bound() ** 0.5
        checked = check_run(measured, **constants, sigma=sigma, is_random=True)  # type: ignore[arg-type]
        assert [finding.verdict for finding in checked.findings[:5]] == ["holds"] * 5
        assert checked.findings[4].above > 0
        tenth = check_run(measured, **constants, sigma=sigma / 10, is_random=True)  # type: ignore[arg-type]
        assert tenth.findings[4].verdict == "does not hold"


def test_float32_breaks_nothing() -> None:
    """Rounding alone can: that is said, and not held against the proof."""
    rough = replace(RUN, loss=RUN.loss.astype(np.float16).astype(np.float64))
    assert verdicts(check_run(rough, **CONSTANTS))["f"] == "does not hold"
    finding = check_run(rough, **CONSTANTS, is_float64=False).findings[4]
    assert finding.verdict == "inconclusive"
    assert "run it in float64" in finding.why


@pytest.mark.parametrize("name", ["omegas", "loss", "grad_norm"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e150])
def test_what_is_not_finite_is_refused(name: str, value: float) -> None:
    part = getattr(RUN, name).copy()
    part[0, 7] = value
    with pytest.raises(InputError, match="must be finite"):
        check_run(replace(RUN, **{name: part}), **CONSTANTS)


def test_gaps_between_the_rounds() -> None:
    every_fifth = Measured(*(part[..., ::5] if part.ndim < 3 else part[:, ::5] for part in vars(RUN).values()))
    without_one = Measured(*(np.delete(part, 10, axis=0 if part.ndim == 1 else 1) for part in vars(RUN).values()))
    for sparse in (every_fifth, without_one):
        found = check_run(sparse, **CONSTANTS)
        assert verdicts(found)["Omega_1"] == verdicts(found)["Theorem 4.1, 4.2"] == "inconclusive"
        assert "eval_every = 1" in found.findings[0].why
        assert verdicts(found)["Theorem 4.3, 4.4"] == "holds"
    assert check_run(every_fifth, **CONSTANTS).findings[0].rounds is None
    assert check_run(without_one, **CONSTANTS).findings[0].tightest is not None
    assert set(verdicts(check_run(RUN, **CONSTANTS | {"sigma": None})).values()) == {"inconclusive"}


def test_impossible_inputs() -> None:
    for name, value in (("alpha", 0.0), ("rho", 0), ("C", 5.0), ("L", -1), ("mu", 1e9), ("gamma", 2.0), ("lr", 0.0)):
        with pytest.raises(InputError, match=f"`{name}`"):
            check_run(RUN, **CONSTANTS | {name: value})
    for name, wrong in (("minimum", "x"), ("minimum", float("nan")), ("is_random", "no")):
        with pytest.raises(InputError, match=f"`{name}` must be"):
            check_run(RUN, **CONSTANTS | {name: wrong})
    with pytest.raises(InputError, match="two rounds or more"):
        check_run(Measured(RUN.rounds[:1], RUN.omegas[:, :1], RUN.loss[:, :1], RUN.grad_norm[:, :1]), **CONSTANTS)
    with pytest.raises(InputError, match="A check takes"):
        check_run(replace(RUN, loss=RUN.loss[:, 1:]), **CONSTANTS)
    with pytest.raises(InputError, match="No round has Omega_1 to Omega_5"):
        measured_of([[Row(round=0, loss=1.0)]])
