"""Linear models on sparse rows: the same problem as on dense ones, in less memory."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

import gossamer as gs
from gossamer import kernels
from gossamer.kernels import reference
from gossamer.problems import Dataset, curvature, load
from gossamer.problems.linear import LinearModel
from gossamer.problems.regression import _Common

P = gs.problems
RNG = np.random.default_rng(0)
MATRIX = sparse.random_array((90, 30), density=0.1, rng=RNG, format="csr")
LABELS = {
    "logistic_regression": np.arange(90) % 2,
    "softmax_regression": np.arange(90) % 3,
    "least_squares": RNG.random(90),
}
OBJECTIVES = list(LABELS)
TEST = sparse.random_array((40, 30), density=0.1, rng=RNG, format="csr")


def pair(objective: str, **settings: Any) -> tuple[LinearModel, LinearModel]:
    """The same problem on sparse and on dense rows."""
    labels = LABELS[objective]
    common: dict[str, Any] = {"clients": 4, "partition": "iid", "dtype": "float64", **settings}
    made = [
        getattr(P, objective)(Dataset("x", rows, labels, test, labels[:40]), **common)
        for rows, test in ((MATRIX, TEST), (MATRIX.toarray(), TEST.toarray()))
    ]
    assert made[0].rows.sparse is not None
    assert made[1].rows.sparse is None
    return made[0], made[1]


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("has_numba", [True, False])
def test_sparse_and_dense_rows_are_one_problem(
    objective: str, equal: bool, has_numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_numba:
        monkeypatch.setattr(kernels, "backend", lambda device: reference)
    one, two = pair(objective, equal=equal, nonconvex=0.05, feature_scale=2.0)
    assert torch.equal(one.rows.features, two.rows.features)
    assert torch.equal(one.rows.inputs([3, 1]), two.rows.inputs([3, 1]))
    assert one.rows.label_counts(100) == two.rows.label_counts(100)
    x = torch.randn(8, one.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = torch.randint(0, one.rows_per_client, (8, 7), generator=torch.Generator().manual_seed(0))
    for rows in (batch, None):
        torch.testing.assert_close(one.gradient(x, rows), two.gradient(x, rows), rtol=1e-12, atol=1e-12)
    for measured in ("evaluate", "score"):
        here, there = getattr(one, measured)(x), getattr(two, measured)(x)
        assert list(here) == list(there)
        for column, values in here.items():
            torch.testing.assert_close(values, there[column], rtol=1e-12, atol=1e-12)
    alone = one.only(2)
    assert torch.equal(alone.gradient(x[2:3], batch[2:3]), one.gradient(x, batch)[2:3])
    torch.testing.assert_close(alone.evaluate(x)["loss"], two.only(2).evaluate(x)["loss"], rtol=1e-12, atol=1e-12)


BINARY = sparse.csr_array((RNG.random((90, 30)) < 0.1) * (1 + RNG.random(30)))  # all entries of a column are equal
MIXED = sparse.vstack([BINARY[:-1], 2 * BINARY[-1:]], format="csr")  # but for the last row
SIGNED = sparse.vstack([BINARY[:45], -BINARY[45:]], format="csr")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("rows", "has_columns"), [(BINARY, True), (MIXED, False), (SIGNED, None)])
def test_a_client_alone_computes_as_among_others(rows: Any, has_columns: bool | None, objective: str) -> None:
    """Bit by bit, though its own rows may have more in common than all rows have."""
    labels = np.sort(LABELS[objective])  # clients hold the rows in their order
    problem = getattr(P, objective)((rows, labels), clients=9, dtype="float64", intercept=False)
    assert problem._examples is not None
    expected = objective == "logistic_regression" if has_columns is None else has_columns
    assert (problem._examples.parts[-1] is not None) == expected
    random = torch.Generator().manual_seed(0)
    x = torch.randn(27, problem.d, dtype=torch.float64, generator=random)
    batch = torch.randint(0, 10, (27, 60), generator=random)
    for drawn in (batch, None):
        together = problem.gradient(x, drawn)
        for i in range(27):
            own, seed = slice(i, i + 1), slice(i // 9 * 9, i // 9 * 9 + 9)
            alone = problem.only(i % 9).gradient(x[own], None if drawn is None else drawn[own])
            assert torch.equal(alone, together[own])
            assert torch.equal(problem.gradient(x[seed], None if drawn is None else drawn[seed]), together[seed])


def are_close(one: float | None, two: float | None, rel: float) -> bool:
    return one is two if one is None or two is None else one == pytest.approx(two, rel=rel)


@pytest.mark.parametrize("side", [1024, 5], ids=["exact", "Lanczos"])
@pytest.mark.parametrize("clients", [4, 30, 90])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_sparse_rows_know(objective: str, clients: int, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smoothness, noise, mu and f* as of dense rows, by the methods for small and for large data."""
    monkeypatch.setattr(curvature, "_SMALL", side)
    for equal, l2 in ((True, 0.1), (False, 0.0)):
        one, two = pair(objective, clients=clients, nonconvex=0.0, l2=l2, equal=equal)
        assert are_close(one.smoothness(), two.smoothness(), 1e-9)
        assert are_close(one.noise_bound(), two.noise_bound(), 1e-12)
        if objective == "least_squares" and side == 5:
            assert one.pl_constant() == (l2 or None), "no bound but l2 is known of large data"
        else:
            assert are_close(one.pl_constant(), two.pl_constant(), 1e-7)
        if objective == "least_squares" or l2:
            assert are_close(one.minimum(), two.minimum(), 1e-8)
    one, two = pair(objective, feature_scale="published")
    assert one.describe() == two.describe()


def test_pl_constant_with_more_features_than_rows() -> None:
    for l2 in (0.0, 0.3):
        one, two = (
            P.least_squares((rows, LABELS["least_squares"][:20]), clients=2, l2=l2, dtype="float64")
            for rows in (MATRIX[:20], MATRIX[:20].toarray())
        )
        assert one.rows.sparse is not None
        assert are_close(one.pl_constant(), two.pl_constant(), 1e-7)


def test_any_sparse_matrix_gives_the_same_problem() -> None:
    labels = LABELS["logistic_regression"]
    twice = sparse.coo_array(
        (np.concatenate([MATRIX.data / 2] * 2), [np.concatenate([c, c[::-1]]) for c in MATRIX.tocoo().coords]),
        shape=MATRIX.shape,
    )
    twice.data[MATRIX.nnz :] = MATRIX.data[::-1] / 2  # every entry in two halves, out of order
    before = twice.data.copy()
    made = [
        P.logistic_regression((rows, labels), clients=3)
        for rows in (MATRIX, MATRIX.tocsc(), sparse.csr_matrix(MATRIX), twice, twice.tocsr())
    ]
    assert len({problem.fingerprint() for problem in made}) == 1
    assert (twice.data == before).all(), "the user's matrix is left as it is"
    other = MATRIX.copy()
    other.data[5] += 1
    assert P.logistic_regression((other, labels), clients=3).fingerprint() != made[0].fingerprint()
    assert P.logistic_regression((MATRIX, labels), clients=3, partition="iid").fingerprint() != made[0].fingerprint()


def test_sparse_data_that_is_wrong() -> None:
    labels = LABELS["logistic_regression"]

    def refused(said: str, rows: Any, y: Any = labels) -> None:
        with pytest.raises(gs.InputError, match=said):
            P.logistic_regression((rows, y), clients=3)

    bad = MATRIX.copy()
    bad.data[bad.indptr[7] :][:1] = np.nan
    row = int(np.searchsorted(bad.indptr, bad.indptr[7], "right")) - 1
    refused(f"Row {row} of data has a feature that is NaN or Inf", bad)
    refused("data has 90 rows of features, but labels of shape", MATRIX, labels[:5])
    refused("data must hold numbers, got complex128", MATRIX.astype(complex))
    refused("at least one feature per row", sparse.csr_array((90, 0)))
    refused("must hold rows of features", sparse.csr_array((0, 3)))
    broken = MATRIX.copy()
    broken.indices[3] = 30
    refused(r"The sparse matrix of shape \(90, 30\) is not valid", broken)
    refused("at most 2,147,483,647 features, got 3,000,000,000", sparse.csr_array((90, 3_000_000_000)))
    with pytest.raises(gs.InputError, match="do not fit into float32"):
        P.logistic_regression((MATRIX * 1e300, labels), clients=3)
    with pytest.raises(gs.InputError, match="test rows of x have the shape"):
        P.logistic_regression(Dataset("x", MATRIX, labels, TEST[:, :5], labels[:40]), clients=3)


def test_dense_data_stays_dense() -> None:
    full = sparse.csr_array(np.ones((20, 4)))
    assert P.logistic_regression((full, np.arange(20) % 2), clients=2).rows.sparse is None, "smaller when dense"
    assert P.softmax_regression("digits").rows.sparse is None
    assert P.logistic_regression("breast_cancer").rows.sparse is None


def test_a_gpu_gets_dense_rows_if_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset("x", MATRIX, LABELS["least_squares"])
    common = _Common(data, 3, "iid", True, 1.0, True, 0, "float32", "cpu")
    common.device = torch.device("cuda")
    free = 90 * 31 * 4
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    assert (common._matrix(MATRIX)[:, :-1] == MATRIX.toarray().astype(np.float32)).all()
    free -= 1
    with pytest.raises(
        gs.InputError, match=r"'x' has 90 rows of 31 features, 0\.0 GiB \(11,160 bytes\) when stored densely"
    ):
        common._matrix(MATRIX)


def test_a_module_gets_dense_rows() -> None:
    problem = P.one_hidden_layer(Dataset("x", MATRIX, LABELS["softmax_regression"]), hidden=3, clients=3)
    assert problem.rows.features.shape == (90, 30)


def test_a_file_with_many_features(tmp_path: Path) -> None:
    path = tmp_path / "wide.txt"
    path.write_bytes(b"1 1:1\n0 1:1\n" * 3 + b"1 900000000:1\n")
    assert P.logistic_regression(path, clients=5).d == 900_000_001
    with pytest.raises(gs.InputError, match=r"'wide.txt' has 7 rows of 900,000,000 features, 46.9 GiB .* when stored"):
        P.one_hidden_layer(path, clients=5, hidden=3)
    with pytest.raises(gs.InputError, match=r"The data has 5 rows of 900,000,001 features, 16\.8 GiB"):
        _ = P.logistic_regression(path, clients=5).rows.features


def test_a9a_is_sparse_and_its_gradients_are_as_before(data_dir: Path) -> None:
    """Within 1e-5 of the norm, by kernel and reference, of the dense rows' gradients."""
    data = load("a9a", data_dir)
    one = gs.logistic_regression(data, clients=10)
    two = gs.logistic_regression(data.dense(), clients=10)
    assert one.rows.sparse is not None
    assert one.test is not None
    assert one.test.sparse is not None
    assert two.rows.sparse is None
    x = 0.3 * torch.randn(10, 124, generator=torch.Generator().manual_seed(0))
    batch = torch.randint(0, 3256, (10, 100), generator=torch.Generator().manual_seed(1))
    for rows in (batch, None):
        here, there = one.gradient(x, rows), two.gradient(x, rows)
        assert ((here - there).norm(dim=1) <= 1e-5 * there.norm(dim=1)).all()
        with kernels.only_reference():
            assert ((one.gradient(x, rows) - here).norm(dim=1) <= 1e-5 * here.norm(dim=1)).all()
    for measured in ("evaluate", "score"):
        here_, there_ = getattr(one, measured)(x), getattr(two, measured)(x)
        assert all(torch.allclose(here_[name], there_[name], rtol=1e-6) for name in there_)


def test_a_hundred_thousand_clients_with_a_row_each(data_dir: Path) -> None:
    """`benchmarks/speed.py` has the time."""
    data = load("a9a", data_dir)
    which = np.arange(100_000) % 32_561
    problem = gs.logistic_regression((data.features[which], data.labels[which]), clients=100_000)
    x, batch = torch.randn(100_000, 124), torch.zeros(100_000, 1, dtype=torch.int64)
    gradient = problem.gradient(x, batch)
    for client in (0, 99_999):
        own = slice(client, client + 1)
        assert torch.equal(problem.only(client).gradient(x[own], batch[own]), gradient[own])
    assert problem.smoothness() == pytest.approx(0.25 * 15 + 0.1)


SCRIPT = """
import sys
import numpy as np
import gossamer as gs
if sys.argv[2] == "without numba":
    sys.modules["numba"] = None
problem = gs.logistic_regression(sys.argv[1], clients=10, partition="iid", l2=1e-3)
assert problem.d == 100_001 and problem.rows.sparse is not None and problem.test.sparse is not None
method = gs.BEER(lr=0.5, gamma=0.05, compressor=gs.top_k(0.01))
run = gs.simulate(method, problem, gs.mixing_matrix(gs.ring(10)), rounds=5, batch_size=20, eval_every=5)
assert run.diverged is None and run.frame.loss.iloc[-1] < run.frame.loss.iloc[0]
problem.smoothness(), problem.noise_bound(), problem.fingerprint()
# ru_maxrss would count the memory of the process that started this one.
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 2**20)
"""


@pytest.mark.parametrize("how", ["with numba", "without numba"])
def test_a_large_sparse_file_trains_in_little_memory(how: str, tmp_path: Path) -> None:
    """2,000 x 100,000 features take 1.5 GiB when read densely; sparse, the whole program takes less than 1.2 GiB."""
    random = np.random.default_rng(0)
    for name, rows in (("wide", 2000), ("wide.t", 200)):
        lines = []
        for i in range(rows):  # each class has its own half of the features
            columns = np.unique(random.integers(1, 50_001, 50)) + 50_000 * (i % 2)
            lines.append(f"{2 * (i % 2) - 1} " + " ".join(f"{column}:0.1" for column in columns) + "\n")
        lines.append("1 100000:1\n")
        (tmp_path / name).write_text("".join(lines))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "wide"), how]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.2, f"{float(done.stdout):.2f} GiB"
