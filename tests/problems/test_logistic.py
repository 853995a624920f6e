import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import LogisticClients
from scipy import sparse

import gossamer as gs
from gossamer.problems.data import readers
from gossamer.problems.data.datasets import load
from gossamer.problems.regression import LogisticRegression


def test_a9a_is_the_papers(data_dir: Path) -> None:
    data = load("a9a", data_dir)
    assert data.features.shape == (32561, 123)
    assert (data.labels > 0).sum() == 7841
    assert data.test_features is not None
    assert data.test_features.shape == (16281, 123)
    problem = gs.logistic_regression("a9a", clients=10, data_dir=data_dir)
    assert (problem.clients, problem.rows_per_client, problem.d) == (10, 3256, 124)
    assert gs.logistic_regression("a9a", clients=40, data_dir=data_dir).rows_per_client == 814


def test_published_scale(data_dir: Path) -> None:
    problem = gs.logistic_regression("a9a", clients=10, data_dir=data_dir, feature_scale="published")
    assert problem.describe()["feature_scale"] == pytest.approx(1.349, abs=5e-4)
    largest = torch.linalg.matrix_norm(problem.signed.reshape(-1, 124).double(), 2) ** 2 / 32560 / 4
    assert largest.item() == pytest.approx(1, abs=1e-3), "the logistic part has L = 1"


def clients_of(problem: LogisticRegression) -> LogisticClients:
    signed = problem.signed.double().numpy()
    return LogisticClients(signed, np.ones(signed.shape[:2]), problem.nonconvex)


@pytest.mark.parametrize("batch", [None, 7], ids=["full", "minibatch"])
def test_gradients_of_several_seeds(batch: int | None) -> None:
    problem = gs.logistic_regression("breast_cancer", clients=5, nonconvex=0.3, dtype="float64")
    reference = clients_of(problem)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3 * 5, problem.d, dtype=torch.float64, generator=generator)
    rows = None if batch is None else torch.randint(0, problem.rows_per_client, (15, batch), generator=generator)
    ours = problem.gradient(x, rows).numpy()
    for seed in range(3):
        part = slice(5 * seed, 5 * seed + 5)
        expected = reference.gradient(x[part].numpy().T, None if rows is None else rows[part].numpy())
        np.testing.assert_allclose(ours[part].T, expected, rtol=1e-10, atol=1e-12)


def test_gradient_against_finite_differences() -> None:
    problem = gs.logistic_regression("breast_cancer", clients=3, nonconvex=0.3, dtype="float64")
    x = torch.randn(problem.d, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 3
    mean = problem.gradient(x.expand(3, -1)).mean(dim=0)
    step = 1e-6
    eye = torch.eye(problem.d, dtype=torch.float64)
    ahead, behind = (problem.evaluate(x + sign * step * eye)["loss"] for sign in (1, -1))
    torch.testing.assert_close((ahead - behind) / (2 * step), mean, rtol=1e-6, atol=1e-8)
    assert problem.evaluate(x[None])["grad_norm"].item() == pytest.approx(mean.norm().item(), rel=1e-10)
    assert problem.evaluate(x[None])["loss"].item() == pytest.approx(clients_of(problem).loss(x.numpy()), rel=1e-12)


def test_partitions() -> None:
    by_label = gs.logistic_regression("breast_cancer", clients=10, partition="sorted")
    mixed = gs.logistic_regression("breast_cancer", clients=10, partition="iid", seed=1)
    # The intercept column of signed = b a is the label itself.
    share = [(problem.signed[:, :, -1] > 0).double().mean(dim=1) for problem in (by_label, mixed)]
    assert ((share[0] == 0) | (share[0] == 1)).sum() >= 9, "all but one client hold one label alone"
    assert share[1].min() > 0.3
    again = gs.logistic_regression("breast_cancer", clients=10, partition="iid", seed=1)
    assert torch.equal(mixed.signed, again.signed)


ROWS = b"+1 1:0.5 3:2\n-1 2:1\n+1 \n-1 1:-7 2:0.25 # a comment\n"


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".xz", lzma.compress), (".bz2", bz2.compress), (".gz", gzip.compress)]
)
@pytest.mark.parametrize("labels", [(b"+1", b"-1"), (b"1", b"0"), (b"2", b"1")])
def test_any_libsvm_file(tmp_path, suffix, pack, labels):  # type: ignore[no-untyped-def]
    content = ROWS.replace(b"+1", b"P").replace(b"-1 ", b"N ").replace(b"P", labels[0]).replace(b"N", labels[1])
    path = tmp_path / f"mine{suffix}"
    path.write_bytes(pack(content))
    (tmp_path / f"mine.t{suffix}").write_bytes(pack(content[: content.index(b"\n") + 1]))
    problem = gs.logistic_regression(path, clients=2, feature_scale=2.0, dtype="float64")
    assert problem.signed.shape == (2, 2, 4), "a row without features is kept, and an intercept appended"
    expected = torch.tensor([[[0, -1, 0, -1], [7, -0.25, 0, -1]], [[0.5, 0, 2, 1], [0, 0, 0, 1]]], dtype=torch.float64)
    assert torch.equal(problem.signed, expected / 2)
    assert problem.test is not None
    assert problem.test.features.tolist() == [[0.25, 0, 1, 0.5]]


@given(st.text("01 2:3.5-e\n", max_size=40))
@example("1 1:2 3\n4:5\n")
@example("1 1:2:3 4\n")
@example("1: 2 3\n")
@example("1 1:2 \n\n-1 2:3 5:0")
@settings(deadline=None, max_examples=300)
def test_plain_libsvm_files_are_read_as_scikit_learn_reads_them(text: str) -> None:
    found = readers._plain_libsvm(text.encode())
    if found is not None:
        features, labels = readers._any_libsvm(text.encode())
        assert found[0].nnz == features.nnz
        assert np.array_equal(found[0].toarray(), features.toarray()[:, : found[0].shape[1]])
        assert np.array_equal(found[1], labels)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.xz", lzma.compress(ROWS)[:-9], "is damaged"),
        ("a.gz", gzip.compress(ROWS, mtime=0)[:-9], "is damaged"),
        ("a.gz", b"not gzip", "is damaged"),
        ("a.gz", gzip.compress(ROWS, mtime=0)[:12] + b"\xff" * 30, "is damaged"),
        ("a", b"+1 1:2\n-1 banana\n", r"not a LIBSVM file \(line 2: '-1 banana'\)"),
        ("a", b"", "holds no rows"),
        ("a", b"+1 1:nan\n-1 1:1\n", "holds nan in row 1, feature 1"),
        ("a", b"1 1:1\n2 1:1\n3 1:1\n", "two classes, but 'a' has 3: 1, 2, 3"),
        ("a", b"1 1:1\n0 1:1\n", "5 clients cannot share 2 rows"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    with pytest.raises(gs.GossamerError, match=said):
        gs.logistic_regression(write(tmp_path / name, content), clients=5)


def test_damaged_a9a_is_noticed_by_its_checksum(tmp_path: Path) -> None:
    for name in ("a9a", "a9a.t"):
        write(tmp_path / name, ROWS)
    with pytest.raises(gs.DataError, match="SHA-256"):
        gs.logistic_regression("a9a", data_dir=tmp_path)


def test_missing_data_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(gs.DataError, match=r"'a9a' was not found in .*elsewhere.*data_dir"):
        gs.logistic_regression("a9a", data_dir=tmp_path)
    with pytest.raises(gs.DataError, match=r"'no/such.xz' does not exist"):
        gs.logistic_regression("no/such.xz")
    with pytest.raises(gs.InputError, match=r"one of 'a9a', 'breast_cancer', 'digits', .*or the path.*got 'a9b'"):
        gs.logistic_regression("a9b")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nonconvex": -1.0}, "`nonconvex` must be a number of 0 or more, got -1.0"),
        ({"feature_scale": 0}, "`feature_scale` must be a number above 0, got 0"),
        ({"feature_scale": "big"}, "one of 'published'; got 'big'"),
        ({"partition": "random"}, "Unknown partition 'random'; valid partitions: 'by_label', 'dirichlet',"),
        ({"dtype": "float16"}, "one of 'float32', 'float64'; got 'float16'"),
        ({"device": "abacus"}, "The device 'abacus' cannot be used"),
        ({"device": None}, "`device` must be a name"),
        ({"device": "meta"}, "`device` must be a name"),
        ({"data": ""}, "`data` must be a string or a path"),
        ({"data": "~nobody-of-that-name/x"}, "no home folder"),
        ({"feature_scale": 1e-300}, "do not fit into float32"),
        ({"seed": "x"}, "`seed`"),
        ({"clients": 0}, "`clients` must be an integer of 1 or more, got 0"),
        ({"data": 5}, "got int"),
        ({"intercept": "yes"}, "`intercept` must be true or false, got 'yes'"),
        ({"data_dir": 5}, "`data_dir`"),
        ({"seed": -1, "partition": "iid"}, "`seed`"),
    ],
)
def test_bad_settings(settings, said):  # type: ignore[no-untyped-def]
    with pytest.raises(gs.GossamerError, match=said):
        gs.logistic_regression(**{"data": "breast_cancer"} | settings)


def test_a_test_file_may_have_more_features(tmp_path: Path) -> None:
    write(tmp_path / "a9a", b"+1 1:1\n-1 2:1\n")  # a name is only a name: no checksum is held against it
    write(tmp_path / "a9a.t", b"+1 4:1\n")
    problem = gs.logistic_regression(tmp_path / "a9a", clients=2)
    assert problem.d == 5
    write(tmp_path / "a9a.t", b"0 4:1\n")
    with pytest.raises(
        gs.InputError,
        match=r"Row 0 of the test rows of a9a has the label 0, which no training row has \(they have -1, 1\)",
    ):
        gs.logistic_regression(tmp_path / "a9a", clients=2)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_what_is_measured_does_not_depend_on_the_company(is_sparse: bool) -> None:
    rows = sparse.random_array((123, 31), density=0.2, rng=np.random.default_rng(0), format="csr")
    data = (rows, np.arange(123) % 2) if is_sparse else "breast_cancer"
    problem = gs.logistic_regression(data, clients=3)
    assert (problem.rows.sparse is not None) == is_sparse
    models = torch.randn(70, problem.d)
    together = problem.evaluate(models)
    for i in (0, 33, 69):
        alone = problem.evaluate(models[i : i + 1])
        assert torch.equal(alone["grad_norm"], together["grad_norm"][i : i + 1])
        assert torch.equal(alone["loss"], together["loss"][i : i + 1])


def test_quadratic_settings() -> None:
    with pytest.raises(gs.InputError, match=r"`condition` must be 1 or more, got 0\.01"):
        gs.quadratic(condition=0.01)


def test_quadratic_in_closed_form() -> None:
    problem = gs.quadratic(clients=4, d=6, noise=1.0, dtype="float64")
    best = problem.minimizer()
    assert problem.evaluate(best[None])["grad_norm"].item() < 1e-12
    assert problem.gradient(best.expand(4, 6)).mean(dim=0).abs().max() < 1e-12
    x = torch.randn(6, dtype=torch.float64)
    by_row = 0.5 * (problem.curvature[:, None] * (x - problem.centres) ** 2).sum(dim=2).mean()
    assert problem.evaluate(x[None])["loss"].item() == pytest.approx(by_row.item(), rel=1e-12)
    batch = torch.arange(16).expand(4, 16)
    torch.testing.assert_close(problem.gradient(x.expand(4, 6), batch), problem.gradient(x.expand(4, 6)))
