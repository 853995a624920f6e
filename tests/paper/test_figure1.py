"""Figure 1 on the real a9a: the paper's finding, at the values that its settings give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gossamer as gs
from gossamer.paper import shipped_spec
from gossamer.report import summarize
from gossamer.runtime.experiment import prepare
from gossamer.spec import load_spec


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_operator_ends_at_the_same_gradient_norm(data_dir: Path) -> None:
    spec = replace(load_spec(shipped_spec("operators")), seeds=[0], codec="fixed")
    rows = summarize([run.record for run in prepare(spec, data_dir=str(data_dir)).run()], 0.01)
    summary: dict[str, Any] = {row.method: row.numbers for row in rows}
    floor = summary["identity"]["grad_norm"]
    for label, row in summary.items():
        print(f"{label:28s} alpha {row['alpha']:.3f} norm {row['grad_norm']:.5f} bits {row['bits_to_target']}")
        assert abs(row["grad_norm"] / floor - 1) < 0.2, label
        assert row["bits_to_target"] is not None
    assert min(summary, key=lambda label: summary[label]["bits_to_target"]) == "sign"
    assert max(summary, key=lambda label: summary[label]["bits_to_target"]) == "identity"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("scale", "bound"), [(1.0, 0.006), ("published", 0.0035)], ids=["raw", "published"])
def test_figure_1(data_dir: Path, scale: float | str, bound: float) -> None:
    spec = load_spec(shipped_spec("figure1"))
    spec.problem["feature_scale"] = scale
    experiment = prepare(spec, data_dir=str(data_dir))
    norms = {}
    for label, (method, rounds) in experiment.methods.items():
        runs = gs.sweep(
            {label: method}, experiment.problem, experiment.mixing,
            rounds=rounds, batch_size=100, seeds=[0, 1, 2], x0="uniform", eval_every=5,
        )  # fmt: skip
        frame = runs.frame[runs.frame["round"] > rounds - 200]
        norms[label] = frame.groupby("seed").grad_norm.mean()
    print(
        f"\nfigure 1, features divided by {experiment.problem.describe()['feature_scale']}: mean gradient norm over the"
    )
    print("last 200 rounds, seeds 0 to 2:", {label: [round(x, 5) for x in norm] for label, norm in norms.items()})
    assert norms["BEER"].max() <= bound
    assert norms["D2"].max() <= bound
    assert (norms["CHOCO-SGD"] >= 10 * norms["BEER"]).all()
    assert (norms["DSGD"] >= 10 * norms["BEER"]).all()
