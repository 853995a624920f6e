"""Data sets: real ones from files, small ones that come with scikit-learn."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gossamer.errors import DataError, InputError, check_path

Array = npt.NDArray[np.float64]
_READERS: dict[str, Callable[[bytes], bytes]] = {
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
    ".gz": gzip.decompress,
    "": bytes,
}
_MOST_DENSE_BYTES = 8 << 30
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"

# SHA-256 of the uncompressed text, so that it does not matter how a file is packed.
_KNOWN = {
    "a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
}
_EMBEDDED = ("breast_cancer",)
DATASETS = ("a9a", *_EMBEDDED)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of features with a label each, and the rows that are kept for testing, if there are any."""

    name: str
    features: Array
    labels: Array
    test_features: Array | None = None
    test_labels: Array | None = None


def load(data: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """A data set by name, or any LIBSVM file by path (plain, .xz, .bz2 or .gz; its test rows in `NAME.t` beside it).

    A name is looked up in `data_dir`, then in $GOSSAMER_DATA, then in the user's cache.
    """
    check_path("data", data)
    if data_dir is not None:
        check_path("data_dir", data_dir)
    name = os.fspath(data)
    if name == "breast_cancer":
        return _breast_cancer()
    if name == "a9a":
        return _libsvm("a9a", _find("a9a", data_dir), _find("a9a.t", data_dir), known=True)
    path = _user_path(name)
    if not path.exists():
        if path.suffix or len(path.parts) > 1:
            raise DataError(f"The data file {name!r} does not exist.")
        known = ", ".join(map(repr, DATASETS))
        raise InputError(f"`data` must be one of {known}, or the path of a LIBSVM file; got {name!r}.")
    packing = path.suffix if path.suffix in _READERS else ""
    companion = path.with_name(path.name.removesuffix(packing) + ".t" + packing)
    return _libsvm(path.name, path, companion if companion.exists() else None)


def _find(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """Where the file `name` lies, packed or not, in a folder of its own or not."""
    import platformdirs

    asked = [data_dir, os.environ.get("GOSSAMER_DATA"), platformdirs.user_cache_dir("gossamer")]
    folders = [_user_path(os.fspath(folder)) for folder in asked if folder]
    for folder in folders:
        for place in (folder / name.split(".", maxsplit=1)[0], folder):
            for packing in _READERS:
                if (place / (name + packing)).is_file():
                    return place / (name + packing)
    looked = ", ".join(f"'{folder}'" for folder in folders)
    raise DataError(
        f"The data file {name!r} was not found in {looked}; point `data_dir` (--data-dir) or $GOSSAMER_DATA at the "
        f"folder that holds it (a9a and a9a.t come from {_LIBSVM})."
    )


def _user_path(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise DataError(f"There is no home folder for {path!r}.") from None


def _read(path: Path, known: bool) -> bytes:
    """The uncompressed bytes of a file; those of a known one are checked against its checksum."""
    packing = path.suffix if path.suffix in _READERS else ""
    try:
        content = _READERS[packing](path.read_bytes())
    except (lzma.LZMAError, EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise DataError(f"The data file '{path}' is damaged: {str(error).rstrip('.')}; fetch it again.") from None
    except OSError as error:
        raise DataError(f"The data file '{path}' cannot be read: {error.strerror or error}.") from None
    expected = _KNOWN[path.name.removesuffix(packing)] if known else None
    if expected is not None and hashlib.sha256(content).hexdigest() != expected:
        raise DataError(f"The data file '{path}' is damaged: its SHA-256 is not that of the original; fetch it again.")
    return content


def _libsvm(name: str, train: Path, test: Path | None, known: bool = False) -> Dataset:
    x, y = _parse(train, known)
    if test is None:
        return Dataset(name, x, y)
    test_x, test_y = _parse(test, known)
    # Each file counts its features up to the largest index in it; the model needs those of both.
    width = max(x.shape[1], test_x.shape[1])
    x, test_x = (np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in (x, test_x))
    return Dataset(name, x, y, test_x, test_y)


def _parse(path: Path, known: bool) -> tuple[Array, Array]:
    from sklearn.datasets import load_svmlight_file

    content = _read(path, known)
    try:
        # An explicit `zero_based` keeps column j where the file says it is; LIBSVM counts from 1.
        sparse, labels = load_svmlight_file(io.BytesIO(content), zero_based=False)
    except (ValueError, OverflowError, IndexError) as error:
        raise DataError(f"'{path}' is not a LIBSVM file{_bad_line(content)}: {str(error).rstrip('.')}.") from None
    if sparse.shape[0] == 0:
        raise DataError(f"'{path}' holds no rows.")
    size = 8 * sparse.shape[0] * sparse.shape[1]
    if size > _MOST_DENSE_BYTES:
        raise DataError(
            f"'{path}' has {sparse.shape[0]:,} rows of {sparse.shape[1]:,} features, {size / 2**30:.0f} GiB when "
            f"stored densely; the limit is {_MOST_DENSE_BYTES >> 30} GiB, so take fewer rows or features."
        )
    dense = sparse.toarray()
    if not np.isfinite(dense).all():
        row, column = np.argwhere(~np.isfinite(dense))[0]
        raise DataError(f"'{path}' holds {dense[row, column]} in row {row + 1}, feature {column + 1}.")
    return dense, labels


def _bad_line(content: bytes) -> str:
    """Where a LIBSVM reader stumbles; only looked for once it has."""
    for number, line in enumerate(content.splitlines(), 1):
        words = line.split(b"#")[0].split()
        try:
            _ = [float(word) for word in words[:1]]
            _ = [(int(index), float(value)) for index, value in (word.split(b":") for word in words[1:])]
        except ValueError:
            return f" (line {number}: {line[:40].decode(errors='replace')!r})"
    return ""


def _breast_cancer() -> Dataset:
    """569 real tumours, 30 features brought to mean 0 and deviation 1; every fifth row is kept for testing."""
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    is_test = np.arange(len(labels)) % 5 == 4
    train = features[~is_test]
    features = (features - train.mean(axis=0)) / train.std(axis=0)
    return Dataset("breast_cancer", features[~is_test], labels[~is_test], features[is_test], labels[is_test])
