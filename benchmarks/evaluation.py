"""Evaluation on a9a: batched in Gossamer, against plain NumPy with one model at a time.

    python benchmarks/evaluation.py [--data-dir ../shared/data]

Both compute loss, gradient norm and test accuracy of the same 192 models on one thread, in turns within one run. The
baseline is a straightforward implementation: dense float64, three matrix-vector products per model. Prints the ratio.
"""

import argparse
import json
import os
import time

# NumPy and torch read these variables when they are imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np
import numpy.typing as npt
import torch

import gossamer as gs
from gossamer.problems.regression import LogisticRegression

MODELS, TOGETHER, REPEATS, NONCONVEX = 192, 64, 3, 0.05


def by_hand(
    x: npt.NDArray[np.float64],
    signed: npt.NDArray[np.float64],
    test: npt.NDArray[np.float64],
    test_positive: npt.NDArray[np.bool_],
) -> tuple[float, float, float]:
    """Loss, gradient norm and accuracy of one model."""
    margin = signed @ x
    pull = 1 / (1 + np.exp(margin))
    square = x * x
    loss = np.logaddexp(0, -margin).mean() + NONCONVEX * (square / (1 + square)).sum()
    gradient = -(signed.T @ pull) / len(signed) + NONCONVEX * 2 * x / (1 + square) ** 2
    return float(loss), float(np.linalg.norm(gradient)), float(((test @ x > 0) == test_positive).mean())


def batched(problem: LogisticRegression, models: torch.Tensor) -> npt.NDArray[np.float64]:
    """The same for all models, 64 at a time, as in the simulator."""
    parts = []
    for chunk in torch.split(models, TOGETHER):
        measured = problem.evaluate(chunk)
        accuracy = problem.score(chunk)["accuracy"]
        parts.append(torch.stack([measured["loss"], measured["grad_norm"], accuracy], dim=1))
    return torch.cat(parts).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("GOSSAMER_DATA"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    problem = gs.logistic_regression("a9a", clients=10, nonconvex=NONCONVEX, data_dir=options.data_dir)
    assert problem.test is not None
    signed = problem.signed.reshape(-1, problem.d).double().numpy()
    test, positive = problem.test.features.double().numpy(), problem.test.labels.numpy() > 0
    models = torch.from_numpy(np.random.default_rng(0).standard_normal((MODELS, problem.d)) / 10).to(problem.dtype)
    plain = models.double().numpy()

    slow, fast = [], []
    batched(problem, models[:TOGETHER])  # warm up
    for _ in range(REPEATS):
        begin = time.perf_counter()
        expected = np.array([by_hand(x, signed, test, positive) for x in plain])
        slow.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        measured = batched(problem, models)
        fast.append(time.perf_counter() - begin)
        np.testing.assert_allclose(measured, expected, rtol=1e-4, atol=1e-4)
    result = {
        "models": MODELS,
        "numpy_ms_per_model": 1e3 * min(slow) / MODELS,
        "gossamer_ms_per_model": 1e3 * min(fast) / MODELS,
        "ratio": min(slow) / min(fast),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
