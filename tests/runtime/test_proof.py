"""Omega_1 to Omega_5 and Phi in records, against Algorithm 1 written down once more."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from commands import forked

import gossamer as gs
from gossamer.errors import DataError, InputError
from gossamer.paper.omegas import OMEGAS, Omegas, check_records
from gossamer.problems import sine_pl, softmax_regression
from gossamer.records.schema import COLUMNS, End
from gossamer.runtime.experiment import prepare
from gossamer.spec import parse_spec
from gossamer.theory import certify, lyapunov

Array = npt.NDArray[np.float64]
PROBLEM = gs.quadratic(clients=5, d=6, dtype="float64")
MIXING = gs.mixing_matrix(gs.ring(5))
OMEGA = [Omegas()]
METHOD = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.top_k(2))


def top_2(z: Array) -> Array:
    kept = np.zeros_like(z)
    for row, values in enumerate(z):
        largest = np.argsort(-np.abs(values))[:2]
        kept[row, largest] = values[largest]
    return kept


def algorithm_1(rounds: int) -> Array:
    """Omega_1^t to Omega_5^t for t = 0, ..., rounds: every line as the paper numbers it, rows as clients."""
    curvature, centre = PROBLEM.curvature.numpy(), PROBLEM.centres.mean(dim=1).numpy()
    W, eta, gamma = MIXING.matrix, 0.1, 0.3

    def F(X: Array) -> Array:
        product: Array = curvature * (X - centre)
        return product

    X = np.zeros((5, 6))
    H, G, V = np.zeros((5, 6)), np.zeros((5, 6)), F(X)
    omegas = []
    for _ in range(rounds + 1):
        x_bar, v_bar = X.mean(axis=0), V.mean(axis=0)
        omegas.append([((H - X) ** 2).sum(), ((G - V) ** 2).sum(), ((X - x_bar) ** 2).sum()])
        omegas[-1] += [((V - v_bar) ** 2).sum(), (v_bar**2).sum()]
        X_next = X + gamma * (W - np.eye(5)) @ H - eta * V  # line 3
        H = H + top_2(X_next - H)  # lines 4 and 5
        V = V + gamma * (W - np.eye(5)) @ G + F(X_next) - F(X)  # line 6
        G = G + top_2(V - G)  # lines 7 and 8
        X = X_next
    return np.array(omegas)


def recorded(run: gs.Run) -> Array:
    return np.array([[row.extra[name] for name in OMEGAS] for row in run.record.rows])


def test_omegas_are_those_of_algorithm_1() -> None:
    run = gs.simulate(METHOD, PROBLEM, MIXING, rounds=60, eval_every=1, measures=OMEGA)
    np.testing.assert_allclose(recorded(run), algorithm_1(60), rtol=1e-9, atol=1e-18)


def test_nothing_else_changes(tmp_path: Path) -> None:
    """Not a model, not a bit, and neither where rounds lie between evaluations nor where a run goes on."""
    kwargs: dict[str, Any] = {"rounds": 20, "eval_every": 3, "seeds": (0, 1)}
    noisy = gs.quadratic(clients=5, d=6, noise=1.0, dtype="float64")
    method = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.gsgd(3))
    plain = gs.sweep(method, noisy, MIXING, batch_size=4, **kwargs)
    watched = gs.sweep(method, noisy, MIXING, batch_size=4, measures=OMEGA, **kwargs)
    stops = iter([False] * 10 + [True])
    with pytest.raises(gs.errors.StoppedError):
        gs.sweep(
            method,
            noisy,
            MIXING,
            batch_size=4,
            measures=OMEGA,
            record_dir=tmp_path,
            should_stop=lambda: next(stops),
            **kwargs,
        )
    resumed = gs.sweep(method, noisy, MIXING, batch_size=4, measures=OMEGA, record_dir=tmp_path, resume=True, **kwargs)
    alone = gs.sweep(method, noisy, MIXING, batch_size=4, measures=OMEGA, **kwargs | {"seeds": [1]})
    for one, other, again in zip(plain, watched, resumed, strict=True):
        assert one.x.equal(other.x)
        assert other.x.equal(again.x)
        for before, after, later in zip(one.record.rows, other.record.rows, again.record.rows, strict=True):
            assert {name: value for name, value in after.columns().items() if name not in (*OMEGAS, "seconds")} == {
                name: value for name, value in before.columns().items() if name != "seconds"
            }
            assert replace(after, seconds=0) == replace(later, seconds=0)
    assert (recorded(alone[0]) == recorded(watched[1])).all()


@pytest.mark.parametrize("problem", [PROBLEM, sine_pl(clients=5, dtype="float64")])
def test_phi_has_the_certificates_weights(problem: gs.Problem) -> None:
    found = certify(1 / 3, MIXING.rho, MIXING.C, float(problem.smoothness() or 0), problem.pl_constant())
    method = gs.BEER(lr=found.lr, gamma=found.gamma, compressor=gs.top_k(fraction=1 / 3))
    found = certify(
        method.compressor.alpha(problem.d), found.rho, found.C, found.L, found.mu, gamma=found.gamma, lr=found.lr / 2
    )
    method = gs.BEER(lr=found.lr, gamma=found.gamma, compressor=method.compressor)
    run = gs.simulate(method, problem, MIXING, rounds=5, eval_every=1, measures=OMEGA)
    minimum = problem.minimum()
    assert minimum is not None
    for row in run.record.rows:
        gap, errors = (row.loss or 0.0) - minimum, [row.extra[name] for name in OMEGAS[:4]]
        assert row.extra["phi"] == pytest.approx(lyapunov(gap, errors, found.weights_for(5)))
    assert np.isfinite(run.frame["phi"]).all()
    plain = gs.simulate(gs.DSGD(lr=0.01), problem, MIXING, rounds=1)
    frame = gs.records.Runs([plain, run]).frame
    assert list(frame.columns) == ["method", "seed", *COLUMNS, *Omegas.columns]
    assert frame["phi"].isna().sum() == len(plain.frame)
    assert "phi" not in plain.frame


def test_without_a_certificate_there_is_no_phi() -> None:
    for method, problem in ((METHOD, PROBLEM), (METHOD, network())):
        run = gs.simulate(method, problem, MIXING, rounds=2, measures=OMEGA)
        assert "phi" not in run.record.rows[-1].extra
        assert run.record.rows[-1].extra["omega_5"] > 0
    with pytest.raises(InputError, match="L of its problem is not known"):
        check_records([run.record])


def network() -> gs.Problem:
    data = torch.utils.data.TensorDataset(torch.randn(50, 3), torch.arange(50) % 2)
    return gs.module_problem(torch.nn.Linear(3, 2), data, clients=5)


def test_a_run_that_diverges_keeps_its_omegas() -> None:
    method = gs.BEER(lr=1e10, gamma=1.0, compressor=gs.top_k(2))
    run = gs.simulate(method, PROBLEM, MIXING, rounds=50, eval_every=1, measures=OMEGA)
    assert run.diverged
    assert run.record.rows[0].extra["omega_2"] > 0
    finding = check_records([run.record]).findings[-1]
    assert (finding.name, finding.verdict) == ("Finite", "inconclusive")  # who knows with such steps
    assert "diverged in round" in finding.why


def test_a_certified_run_that_diverges_breaks_the_proof() -> None:
    found = certify(1 / 3, MIXING.rho, MIXING.C, PROBLEM.smoothness(), PROBLEM.pl_constant())
    method = gs.BEER(lr=found.lr, gamma=found.gamma, compressor=gs.top_k(2))
    runs = gs.sweep([method], PROBLEM, MIXING, rounds=5, eval_every=1, measures=OMEGA, seeds=(0, 1), x0="normal")
    assert check_records([run.record for run in runs]).verdict == "holds"
    runs[1].record.end = End("diverged", 4, "It diverged.")
    assert check_records([run.record for run in runs]).verdict == "does not hold"


def test_what_has_no_omegas() -> None:
    with pytest.raises(InputError, match="those of BEER's proof; CHOCO-SGD has none"):
        gs.simulate(gs.CHOCOSGD(lr=0.1, gamma=0.3, compressor=gs.top_k(2)), PROBLEM, MIXING, rounds=2, measures=OMEGA)
    other = gs.BEER(lr=0.1, gamma=0.3, compressor=gs.top_k(2), tracker="reevaluated")
    with pytest.raises(InputError, match="'reevaluated' is another algorithm"):
        gs.simulate(other, PROBLEM, MIXING, rounds=2, measures=OMEGA)
    run = gs.simulate(METHOD, PROBLEM, MIXING, rounds=2)
    with pytest.raises(DataError, match="says nothing of the proof"):
        check_records([run.record])


def table(**method: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "problem": {"objective": "quadratic", "clients": 5, "dtype": "float64"},
        "graph": {"name": "ring"},
        "methods": [{"name": "beer", "lr": "certified", "gamma": "certified", "compressor": "top_k:0.5"} | method],
    }


def test_certified_steps_in_a_spec() -> None:
    problem = gs.quadratic(clients=5, dtype="float64")
    found = certify(0.5, MIXING.rho, MIXING.C, problem.smoothness(), problem.pl_constant())
    method, _ = prepare(parse_spec(table())).methods["BEER"]
    assert (method.lr, method.gamma) == (found.lr, found.gamma)  # type: ignore[attr-defined]
    method, _ = prepare(parse_spec(table(gamma=0.001))).methods["BEER"]
    kept = certify(0.5, MIXING.rho, MIXING.C, problem.smoothness(), problem.pl_constant(), gamma=0.001)
    assert (method.lr, method.gamma) == (kept.lr, 0.001)  # type: ignore[attr-defined]
    method, _ = prepare(parse_spec(table(lr="certified:0.5"))).methods["BEER"]
    assert (method.lr, method.gamma) == (found.lr / 2, found.gamma)  # type: ignore[attr-defined]
    for wrong, sentence in (
        ({"lr": "certified:2"}, "or 'certified:0.5' for half the largest; got 'certified:2'"),
        ({"lr": "certified:x"}, "got 'certified:x'"),
        ({"gamma": "certified:0.5"}, "without a share; got 'certified:0.5'"),
        ({"lr": 0.1}, "does not close at lr = 0.1"),
        ({"lr": "cosine:0.1,3"}, "one lr for all rounds"),
        ({"tracker": "reevaluated"}, "another algorithm"),
        ({"name": "choco_sgd"}, "certified for BEER alone"),
        ({"gamma": "auto"}, "both 'auto' or both 'certified'"),
        ({"gamma": 1.0}, "does not close at gamma = 1.0"),
    ):
        with pytest.raises(InputError, match=sentence):
            prepare(parse_spec(table(**wrong)))
    network = table() | {"problem": {"objective": "one_hidden_layer", "data": "digits", "clients": 5}}
    with pytest.raises(InputError, match="where L is not known"):
        prepare(parse_spec(network))


def test_omegas_in_a_spec(tmp_path: Path) -> None:
    (run,) = prepare(parse_spec(table() | {"measures": ["omegas"], "eval_every": 1})).run()
    assert run.record.header.measures == ("omegas",)
    assert run.record.rows[0].extra["phi"] > run.record.rows[-1].extra["phi"]
    for wrong, sentence in (
        ({"measures": 1}, "`measures` must be a list of names"),
        ({"measures": [1]}, "`measures` must be a list of names"),
        ({"omegas": True}, 'write `measures = \\["omegas"\\]`'),
        ({"rounds": True}, "an integer"),
    ):
        with pytest.raises(InputError, match=sentence):
            parse_spec(table() | wrong)
    with pytest.raises(InputError, match="DSGD has none"):
        prepare(parse_spec(table() | {"measures": ["omegas"], "methods": [{"name": "dsgd", "lr": 0.1}]}))
    (tmp_path / "my.toml").write_text(
        'rounds = 2\nmeasures = ["omegas"]\n[problem]\nobjective = "quadratic"\nclients = 4\n[graph]\nname = "ring"\n'
        '[[methods]]\nname = "beer"\nlr = 0.1\ngamma = 0.1\ncompressor = "top_k:0.5"\n'
    )
    done = forked("launch", "my.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "`measures` need all clients in one process" in done.stderr


def test_seeds_are_checked_together_and_strangers_are_not() -> None:
    runs = gs.sweep(METHOD, PROBLEM, MIXING, rounds=10, eval_every=1, measures=OMEGA, seeds=(0, 1), x0="normal")
    checked = check_records([run.record for run in runs])
    assert [finding.verdict for finding in checked.findings[:5]] == ["holds"] * 5
    assert checked.certificate is None
    assert checked.verdict == "inconclusive"
    other = gs.simulate(
        gs.BEER(lr=0.2, gamma=0.3, compressor=gs.top_k(2)),
        PROBLEM,
        MIXING,
        rounds=10,
        eval_every=1,
        measures=OMEGA,
    )
    with pytest.raises(InputError, match="one record or more"):
        check_records([])
    with pytest.raises(InputError, match="differ in more than their seed"):
        check_records([runs[0].record, other.record])


@pytest.mark.parametrize("proof", [{}, {"L": 1}, {"alpha": 0.5}, {"alpha": "much"}])
def test_damaged_headers_get_a_sentence(proof: dict[str, object]) -> None:
    run = gs.simulate(METHOD, PROBLEM, MIXING, rounds=2, eval_every=1, measures=OMEGA)
    run.record.header = replace(run.record.header, facts={"omegas": proof})
    with pytest.raises(DataError, match="says nothing of the proof"):
        check_records([run.record])


@pytest.mark.parametrize(("name", "value"), [("alpha", 0.0), ("L", -1.0), ("gamma", 2.0), ("mu", 1e9), ("lr", -1)])
def test_absurd_constants_get_a_sentence(name: str, value: object) -> None:
    run = gs.simulate(METHOD, PROBLEM, MIXING, rounds=2, eval_every=1, measures=OMEGA)
    facts = {**run.record.header.facts["omegas"], name: value}
    run.record.header = replace(run.record.header, facts={"omegas": facts})
    with pytest.raises(InputError, match=f"`{name}` must be"):
        check_records([run.record])


@pytest.mark.parametrize(
    "problem",
    [
        gs.quadratic(clients=3, noise=2.0, dtype="float64"),
        sine_pl(clients=3, noise=2.0, dtype="float64"),
        gs.logistic_regression(clients=3, dtype="float64"),
        gs.logistic_regression(clients=3, partition="dirichlet:0.5", equal=False, dtype="float64"),
        softmax_regression(clients=3, dtype="float64"),
    ],
)
def test_noise_is_bounded_everywhere(problem: gs.Problem) -> None:
    bound = problem.noise_bound()
    assert bound is not None
    for client in range(3):
        one = problem.only(client)
        for scale in (0.0, 0.1, 3.0):
            x = scale * torch.randn(problem.d, dtype=torch.float64, generator=torch.Generator().manual_seed(client))
            assert one.gradient_noise(x, samples=1000) <= bound * (1 + 1e-9)


def test_least_squares_have_no_bound() -> None:
    data = (np.ones((30, 2)), np.arange(30.0))
    assert gs.problems.least_squares(data, clients=3).noise_bound() is None
