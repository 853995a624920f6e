import bz2
import gzip
import lzma
import os
import struct
from pathlib import Path

import numpy as np
import pytest

import gossamer as gs
from gossamer.problems import Dataset, load
from gossamer.problems.data.partition import split
from gossamer.problems.data.readers import read_idx


def test_a9a(data_dir: Path) -> None:
    data = load("a9a", data_dir)
    assert data.features.shape == (32_561, 123)
    assert data.test_features is not None
    assert data.test_labels is not None
    assert data.test_features.shape == (16_281, 123)
    assert (int((data.labels > 0).sum()), int((data.test_labels > 0).sum())) == (7_841, 3_846)
    problem = gs.logistic_regression("a9a", clients=10, data_dir=data_dir)
    assert (problem.d, problem.rows_per_client) == (124, 3_256)
    assert (problem.rows.features[:, -1].abs() == 1).all(), "the intercept, times the label"
    assert gs.logistic_regression("a9a", clients=40, data_dir=data_dir).rows_per_client == 814


def test_mnist(data_dir: Path) -> None:
    data = load("mnist", data_dir)
    assert data.features.shape == (60_000, 1, 28, 28)
    assert data.test_features is not None
    assert data.test_features.shape == (10_000, 1, 28, 28)
    assert np.bincount(data.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.features.mean() / 255 == pytest.approx(0.13066, abs=1e-5)
    shares = split(data.labels, 10)
    for client, share in enumerate(shares):
        assert len(share) == 6_000
        held = np.bincount(data.labels[share], minlength=10)
        assert held[client] > 5_000, "client i holds digit i"
        assert held.sum() - held[max(0, client - 1) : client + 2].sum() == 0, "but for the borders"
    standard = gs.problems.cnn("mnist", data_dir=data_dir)
    assert standard.d == 29_034
    mean, deviation = data.features.mean() / 255, data.features.std() / 255
    assert (round(mean, 4), round(deviation, 4)) == (0.1307, 0.3081)
    assert gs.problems.one_hidden_layer("mnist", data_dir=data_dir).d == 25_450


def test_embedded() -> None:
    digits, cancer = load("digits"), load("breast_cancer")
    assert digits.features.shape == (1438, 1, 8, 8)
    assert digits.features.max() == digits.peak == 16
    assert cancer.features.shape == (456, 30)
    assert load("Breast-Cancer").name == "breast_cancer"


def test_gaussian_mixture() -> None:
    data = load("gaussian_mixture:rows=300,features=5,classes=3,separation=50,seed=1")
    assert data.features.shape == (300, 5)
    assert set(data.labels.tolist()) == {0, 1, 2}
    assert (data.features == load("gaussian_mixture:300,5,3,50,1").features).all()
    problem = gs.problems.softmax_regression(data, clients=3, partition="iid")
    run = gs.simulate(gs.DSGD(lr=0.05), problem, gs.mixing_matrix(gs.ring(3)), rounds=100)
    assert run.final.accuracy > 0.99, "far apart, they are told apart"
    with pytest.raises(gs.InputError, match="`classes` must be an integer from 1 to 10, got 11"):
        load("gaussian_mixture:rows=10,classes=11")
    with pytest.raises(gs.InputError, match="Data set 'gaussian_mixture' has no setting 'colour'"):
        load("gaussian_mixture:colour=3")


def idx(magic: int, *shape: int, body: bytes = b"") -> bytes:
    return struct.pack(f">{1 + len(shape)}I", magic, *shape) + body


def test_idx(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(2051, 2, 3, 4, body=bytes(range(24)))))
    assert read_idx(path).shape == (2, 1, 3, 4)
    for content, said in (
        (idx(2051, 2, 3, 4, body=bytes(23)), "cut off: it announces 24 bytes and holds 23"),
        (idx(2051, 2**32 - 1, 2**32 - 1, 2**32 - 1), "cut off"),
        (idx(2049, 30, body=bytes(31)), "announces 30 bytes and holds 31"),
        (b"<html>not found</html>", "is not an idx file"),
        (b"", "is not an idx file"),
    ):
        path.write_bytes(gzip.compress(content))
        with pytest.raises(gs.DataError, match=said):
            read_idx(path)
    path.write_bytes(gzip.compress(idx(2049, 3, body=b"abc"))[:-5])
    with pytest.raises(gs.DataError, match="is damaged"):
        read_idx(path)


def test_damaged_mnist_is_noticed(data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for path in (data_dir / "mnist").glob("*.gz"):
        (folder / path.name).write_bytes(path.read_bytes())
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(b"\0" * 100))
    with pytest.raises(gs.DataError, match=r"t10k-labels.*damaged: the SHA-256 of its content is not the original's"):
        load("mnist", tmp_path)
    labels.write_bytes((data_dir / "mnist" / labels.name).read_bytes())
    assert len(load("mnist", folder).labels) == 60_000, "the folder itself will do"


@pytest.mark.slow
@pytest.mark.parametrize("packing", [".gz", pytest.param(".xz", marks=pytest.mark.long), ".bz2", ""])
def test_content_counts_and_not_how_a_file_is_packed(packing: str, data_dir: Path, tmp_path: Path) -> None:
    pack = {".gz": lambda data: gzip.compress(data, 1, mtime=5), ".xz": lzma.compress, ".bz2": bz2.compress}
    folder = tmp_path / "mnist"
    folder.mkdir()
    (tmp_path / "a9a").mkdir()
    for path in (data_dir / "mnist").glob("*.gz"):
        content = gzip.decompress(path.read_bytes())
        (folder / (path.stem + packing)).write_bytes(pack.get(packing, bytes)(content))
    for path in (data_dir / "a9a").glob("*.xz"):
        content = lzma.decompress(path.read_bytes())
        (tmp_path / "a9a" / (path.stem + packing)).write_bytes(pack.get(packing, bytes)(content))
    assert len(load("mnist", tmp_path).labels) == 60_000
    assert len(load("a9a", tmp_path).labels) == 32_561
    labels = folder / f"t10k-labels-idx1-ubyte{packing}"
    other = idx(2049, 10_000, body=bytes(10_000))
    labels.write_bytes(pack.get(packing, bytes)(other))
    with pytest.raises(gs.DataError, match=r"t10k-labels.*SHA-256 of its content is not the original's"):
        load("mnist", tmp_path)


def test_fashion_mnist() -> None:
    """As in Debian's package dataset-fashion-mnist, whose gzip headers differ from the published files'."""
    places = [os.environ.get("GOSSAMER_DATA") or "/usr/share/datasets", "/usr/share/datasets"]
    folder = next((place for place in places if (Path(place) / "fashion-mnist").is_dir()), None)
    if folder is None:
        pytest.skip("Fashion-MNIST is not in $GOSSAMER_DATA or /usr/share/datasets")
    data = load("fashion_mnist", folder)
    assert data.features.shape == (60_000, 1, 28, 28)
    assert np.bincount(data.labels).tolist() == [6000] * 10


@pytest.mark.parametrize("shape", [(40, 0), (40, 1, 0, 5)])
def test_rows_without_features_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    labels = np.arange(40) % 2
    for make in (gs.logistic_regression, gs.problems.softmax_regression, gs.problems.one_hidden_layer):
        with pytest.raises(gs.InputError, match="data must have at least one feature per row, got shape"):
            make((np.zeros(shape), labels), clients=4)
    (tmp_path / "empty.txt").write_text("+1\n-1\n" * 20)
    with pytest.raises(gs.DataError, match="holds no features"):
        gs.logistic_regression(tmp_path / "empty.txt", clients=4)


def test_labels_that_do_not_fit() -> None:
    features = np.eye(6)
    with pytest.raises(gs.InputError, match="needs two classes, but 'x' has 3: 0, 1, 2"):
        gs.logistic_regression(Dataset("x", features, np.arange(6) % 3), clients=2)
    with pytest.raises(gs.InputError, match="Row 1 of the test rows of x has the label 7, which no training row has"):
        gs.problems.softmax_regression(
            Dataset("x", features, np.arange(6) % 3, features[:2], np.array([0, 7])), clients=2
        )
    with pytest.raises(gs.InputError, match="needs classes for labels, but 'x' has 6 different ones"):
        gs.problems.softmax_regression(Dataset("x", features, np.linspace(0, 1, 6)), clients=2)
    with pytest.raises(gs.InputError, match=r"The network needs classes 0, 1, ..., but 'x' has -1, 1"):
        gs.problems.one_hidden_layer(Dataset("x", features, np.array([1, -1] * 3)), clients=2)
    with pytest.raises(
        gs.InputError, match=r"needs images of at least 4 x 4, \(channels, height, width\), got rows of shape \(6,\)"
    ):
        gs.problems.cnn(Dataset("x", features, np.arange(6) % 3), clients=2)
    with pytest.raises(gs.InputError, match=r"test rows of x have the shape \(5,\), those of training \(6,\)"):
        gs.logistic_regression(Dataset("x", features, np.arange(6) % 2, features[:2, :5], np.array([0, 1])), clients=2)
