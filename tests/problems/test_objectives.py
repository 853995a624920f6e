"""Every objective from a spec file."""

from pathlib import Path

import numpy as np
import pytest

import gossamer as gs
from gossamer.registry import objectives
from gossamer.runtime.experiment import prepare
from gossamer.spec import load_spec

SPEC = """
rounds = 3
seeds = [0, 1]
batch_size = 4
[problem]
objective = "{objective}"
clients = 4
{more}
[graph]
name = "erdos_renyi"
p = 0.7
weights = "lazy:metropolis"
[[methods]]
name = "beer"
lr = 0.01
gamma = 0.5
compressor = "gsgd:5"
"""
SETTINGS = {
    "logistic_regression": 'data = "breast_cancer"\npartition = "dirichlet:0.5"\nl2 = 0.1',
    "softmax_regression": 'data = "digits"\npartition = "shards:2"\nequal = false',
    "least_squares": 'data = "numbers.txt"\npartition = "iid"',
    "quadratic": "noise = 0.1",
    "sine_pl": "noise = 0.1\nheterogeneity = 2.0",
    "one_hidden_layer": 'data = "digits"\nhidden = 5\npixels = "raw"',
    "cnn": 'data = "digits"\nrunning_stats = false',
    "resnet": 'data = "digits"\nblocks = 1\nnorm = "group"\npartition = "by_label"',
    "language_model": "layers = 1\nwidth = 16\ncontext = 8\nevaluated = 16",
    "module": 'data = "digits"\nmodule = "gossamer_tests_own_module:build"\npixels = "raw"',
}
OWN = "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"


@pytest.mark.parametrize("objective", objectives.names())
def test_spec(objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("numbers.txt").write_text("".join(f"{np.sin(i)} 1:{i} 3:{i * i}\n" for i in range(40)))
    Path("gossamer_tests_own_module.py").write_text(OWN)
    Path("my.toml").write_text(SPEC.format(objective=objective, more=SETTINGS[objective]))
    experiment = prepare(load_spec(Path("my.toml")))
    runs = experiment.run()
    assert len(runs) == 2
    assert all(np.isfinite(run.frame.loss).all() for run in runs)
    assert runs[0].record.header.problem["clients"] == 4
    again = prepare(load_spec(Path("my.toml"))).run()
    assert all((one.x == two.x).all() for one, two in zip(runs, again, strict=True)), "bit for bit"


def test_a_setting_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(SPEC.format(objective="one_hidden_layer", more='data = "digits"\nhiden = 5'))
    with pytest.raises(gs.InputError, match=r"Objective 'one_hidden_layer' has no setting 'hiden'.*'hidden'"):
        prepare(load_spec(path))


@pytest.mark.parametrize(
    ("objective", "more", "said"),
    [
        ("one_hidden_layer", 'data = "digits"\ninit_seed = 99999999999999999999999', "`init_seed` must be an integer"),
        ("one_hidden_layer", 'data = "digits"\nhidden = 100000000000', "`hidden` must be an integer from 1 to 1000000"),
        ("sine_pl", "d = 10000000000000000000000", "`d` must be an integer from 1 to 1000000000"),
        ("sine_pl", "heterogeneity = 1e300", "`heterogeneity` or `noise` is too large for float32"),
        ("cnn", 'data = "digits"\nrunning_stats = "no"', "`running_stats` must be true or false, got 'no'"),
        ("logistic_regression", 'data = "digits"', r"has 10: 0, 1, 2, 3, 4, ...; softmax_regression takes any number"),
    ],
)
def test_bad_settings(tmp_path: Path, objective: str, more: str, said: str) -> None:
    path = tmp_path / "my.toml"
    path.write_text(SPEC.format(objective=objective, more=more))
    with pytest.raises(gs.InputError, match=said):
        prepare(load_spec(path))


def test_a_network_on_a_libsvm_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("classes.txt").write_text("".join(f"{i % 3} 1:{i} 3:{i * i}\n" for i in range(40)))
    assert gs.problems.one_hidden_layer("./classes.txt", hidden=3, clients=4).d == 3 * 3 + 3 + 3 * 3 + 3


@pytest.mark.parametrize("rows", [None, "equal = false"])
@pytest.mark.parametrize("objective", ["logistic_regression", "softmax_regression", "least_squares"])
def test_a_seed_gives_the_same_bits_alone_and_beside_others(objective: str, rows: str | None) -> None:
    """With full gradients too."""
    random = np.random.default_rng(0)
    labels = np.arange(397) % (2 if objective == "logistic_regression" else 3)
    make = getattr(gs.problems, objective)
    problem = make((random.standard_normal((397, 6)), labels), clients=4, partition="iid", equal=rows is None)
    mixing = gs.mixing_matrix(gs.ring(4))
    together = gs.sweep(gs.DSGD(lr=0.1), problem, mixing, rounds=20, seeds=[1, 2, 3], x0="normal")
    alone = gs.simulate(gs.DSGD(lr=0.1), problem, mixing, rounds=20, seed=2, x0="normal")
    assert (together[1].x == alone.x).all()
