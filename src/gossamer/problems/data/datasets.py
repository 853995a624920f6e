"""Data sets: real ones from files, downloaded if missing; small embedded ones; synthetic ones."""

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gossamer.errors import DataError, InputError, check_integer, check_nonnegative, check_path, settle
from gossamer.problems.data.download import fetch
from gossamer.problems.data.readers import PACKINGS, check_dense, packing_of, read_bytes, read_idx, read_libsvm
from gossamer.problems.data.sources import FILES, File
from gossamer.registry import datasets, normal

Array = npt.NDArray[Any]
Features = Any
"""An array, or a SciPy matrix in compressed rows, as LIBSVM files give it where this is smaller."""
Folder = str | os.PathLike[str] | None
Collate = Callable[[list[Any]], tuple[Any, Any]]
"""Makes features and labels of all rows out of the items of a torch `Dataset`."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of features with a label each, and optional test rows."""

    name: str
    features: Features
    """(rows, ...): numbers, or images as (rows, channels, height, width). SciPy's sparse matrices stay sparse."""
    labels: Array
    """(rows,): a class or a number each; (rows, ...) for a module with its own loss."""
    test_features: Features | None = None
    test_labels: Array | None = None
    peak: float = 1.0
    """The largest possible value of a feature, if known: 255 for bytes."""

    def __post_init__(self) -> None:
        for name in ("features", "labels", "test_features", "test_labels"):
            value = getattr(self, name)
            settle(self, **{name: value if value is None else as_array(value)})
        for features, labels, which in (
            (self.features, self.labels, self.name),
            (self.test_features, self.test_labels, f"the test rows of {self.name}"),
        ):
            if features is None or labels is None:
                continue
            if features.ndim < 2 or features.shape[0] == 0:
                raise InputError(f"{which} must have rows of features, got features of shape {features.shape}.")
            if math.prod(features.shape[1:]) == 0:
                raise InputError(f"{which} must have at least one feature per row, got shape {features.shape}.")
            if labels.ndim == 0 or features.shape[0] != len(labels):
                count = features.shape[0]
                raise InputError(f"{which} has {count} rows of features, but labels of shape {labels.shape}.")
            for values, what in ((features, "a feature"), (labels, "a label")):
                if values.dtype.kind not in "biuf":
                    raise InputError(f"{which} must hold numbers, got {values.dtype}.")
                row = _first_infinite(values)
                if row is not None:
                    raise InputError(f"Row {row} of {which} has {what} that is NaN or Inf.")

    def dense(self) -> "Dataset":
        """The same with arrays in place of sparse matrices."""
        made: dict[str, Array] = {}
        for name in ("features", "test_features"):
            value = getattr(self, name)
            if sparse.issparse(value):
                check_dense(f"'{self.name}'", value.shape, value.dtype.itemsize)
                made[name] = value.toarray()
        return dataclasses.replace(self, **made) if made else self  # type: ignore[arg-type]

    def classes(self, what: str) -> Array:
        """The different labels, which `what` uses as classes 0, 1, ...; a test label that does not occur is refused."""
        if self.labels.ndim != 1:
            shape = self.labels.shape
            raise InputError(f"{what} needs one label per row, but the labels of {self.name!r} have the shape {shape}.")
        found = np.unique(self.labels)
        if len(found) > 10_000 or len(found) == len(self.labels) > 100 or not (found == np.round(found)).all():
            raise InputError(f"{what} needs classes for labels, but {self.name!r} has {len(found):,} different ones.")
        if self.test_labels is not None and not np.isin(self.test_labels, found).all():
            row = int(np.flatnonzero(~np.isin(self.test_labels, found))[0])
            raise InputError(
                f"Row {row} of the test rows of {self.name} has the label {self.test_labels[row]:g}, which no training "
                f"row has (they have {', '.join(f'{value:g}' for value in found[:10])})."
            )
        return found


def load(data: Any, data_dir: Folder = None, test: Any = None, collate: Collate | None = None) -> Dataset:
    """Load a data set.

    Args:
        data: A name (`"a9a"`, `"mnist"`, `"fashion_mnist"`, `"digits"`, `"breast_cancer"`, `"gaussian_mixture:..."`),
            the path of a LIBSVM file (plain, .xz, .bz2 or .gz; its test rows in `NAME.t` beside it), a `Dataset`, a
            torch `Dataset` of (features, label) pairs, or a pair of arrays or tensors; features may be a SciPy sparse
            matrix.
        data_dir: The folder searched first; then $GOSSAMER_DATA and the user's cache. Missing files are downloaded into
            the cache, unless $GOSSAMER_OFFLINE is set.
        test: The test rows, if `data` is a torch `Dataset` or a pair.
        collate: Makes (features, labels) out of a list of the items of a torch `Dataset`; by default, items are pairs,
            which are stacked.
    """
    if isinstance(data, Dataset):
        return data
    if not isinstance(data, str | os.PathLike):
        name = "data" if isinstance(data, tuple | list) else type(data).__name__
        rows = _arrays(data, "data", collate)
        return Dataset(name, *rows, *(() if test is None else _arrays(test, "test", collate)))
    if test is not None:
        raise InputError("`test` is for a torch Dataset or a pair of arrays; a named data set has its own test rows.")
    check_path("data", data)
    if data_dir is not None:
        check_path("data_dir", data_dir)
    name = os.fspath(data)
    if (bare := normal(name.partition(":")[0])) in datasets.names():
        dataset: Dataset = datasets.build(name, **({"data_dir": data_dir} if bare in FILES else {}))
        return dataset
    path = user_path(name)
    if not path.exists():
        if path.suffix or len(path.parts) > 1:
            raise DataError(f"The data file {name!r} does not exist.")
        known = ", ".join(map(repr, datasets))
        raise InputError(f"`data` must be one of {known}, or the path of a LIBSVM file; got {name!r}.")
    packing = packing_of(path)
    companion = path.with_name(path.name.removesuffix(packing) + ".t" + packing)
    return _libsvm(path.name, [path, companion] if companion.exists() else [path])


def concatenated(parts: Sequence[Any], test: Any = None, collate: Collate | None = None) -> tuple[Dataset, list[int]]:
    """One data set out of one per client, each a torch `Dataset` or a pair of arrays, and how many rows each has."""
    pairs = [_arrays(part, f"data[{client}]", collate) for client, part in enumerate(parts)]
    for part, what in ((0, "features"), (1, "labels")):
        shapes = [(pair[part].shape[1:], pair[part].dtype.kind in "f") for pair in pairs]
        odd = next((client for client, shape in enumerate(shapes) if shape != shapes[0]), None)
        if odd is not None:
            first, other = (f"{pairs[k][part].shape[1:]} ({pairs[k][part].dtype})" for k in (0, odd))
            raise InputError(f"The {what} of client {odd} have rows of shape {other}, but those of client 0 {first}.")
        if any(sparse.issparse(pair[part]) for pair in pairs):
            raise InputError(f"The {what} of a list of data sets must be arrays or tensors, not sparse matrices.")
    features, labels = (np.concatenate([pair[part] for pair in pairs]) for part in (0, 1))
    whole = Dataset("data", features, labels, *(() if test is None else _arrays(test, "test", collate)))
    return whole, [len(pair[1]) for pair in pairs]


def folders(data_dir: Folder = None) -> list[Path]:
    """The folders to search for data files, the user's cache last."""
    import platformdirs

    asked = [data_dir, os.environ.get("GOSSAMER_DATA"), platformdirs.user_cache_dir("gossamer")]
    return [user_path(os.fspath(folder)) for folder in asked if folder]


def find(name: str, file: File, data_dir: Folder = None) -> Path | None:
    """The path of a file of the data set `name`, plain or compressed, in a subfolder or not; None if missing."""
    return next((found for folder in folders(data_dir) if (found := find_in(folder, name, file))), None)


def find_in(folder: Path, name: str, file: File) -> Path | None:
    """As `find`, in one folder; the file may be compressed in another way than as downloaded."""
    bare = file.name.removesuffix(packing_of(Path(file.name)))
    names = dict.fromkeys([file.name, *(bare + packing for packing in PACKINGS)])
    several = sum(file.name == other.name for files in FILES.values() for other in files) > 1
    for place in (folder / name, folder / name.replace("_", "-"), folder):
        for one in names:
            # MNIST and Fashion-MNIST use the same file names: outside their subfolders, checksums distinguish them.
            if (place / one).is_file() and not (several and place == folder and not fits(place / one, file)):
                return place / one
    return None


def fits(path: Path, file: File) -> bool:
    """Whether the content of a file has the expected checksum."""
    try:
        read_bytes(path, file.content_sha256)
    except DataError:
        return False
    return True


def obtain(name: str, data_dir: Folder = None) -> list[Path]:
    """The files of a known data set, downloaded into the user's cache if missing."""
    if data_dir is not None and not user_path(os.fspath(data_dir)).is_dir():
        folder = os.fspath(data_dir)
        raise DataError(f"The data folder '{folder}' does not exist; give an existing folder, or leave it out.")
    paths = []
    for file in FILES[name]:
        path = find(name, file, data_dir)
        if path is None:
            looked = folders(data_dir)
            try:
                path = fetch(file, looked[-1] / name)
            except DataError as error:
                shown, reason = ", ".join(f"'{folder}'" for folder in looked), str(error)
                raise DataError(
                    f"The data file {file.name!r} was not found in {shown}, and {reason[:1].lower()}{reason[1:]} Point "
                    "`data_dir` (--data-dir) or $GOSSAMER_DATA at the folder that holds it."
                ) from None
        paths.append(path)
    return paths


def user_path(path: str) -> Path:
    """Expand ~ in a path."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise DataError(f"There is no home folder for {path!r}.") from None


@datasets.register("a9a")
def a9a(data_dir: Folder = None) -> Dataset:
    """Census income, 32,561 rows of 123 binary features, two classes (UCI Adult in LIBSVM's encoding)."""
    return _libsvm("a9a", obtain("a9a", data_dir), [file.content_sha256 for file in FILES["a9a"]])


@datasets.register("mnist")
def mnist(data_dir: Folder = None) -> Dataset:
    """Handwritten digits, 60,000 images of 28 x 28 bytes, ten classes (LeCun et al., 1998)."""
    return _idx("mnist", data_dir)


@datasets.register("fashion_mnist")
def fashion_mnist(data_dir: Folder = None) -> Dataset:
    """Clothes, 60,000 images of 28 x 28 bytes, ten classes (Xiao, Rasul and Vollgraf, 2017)."""
    return _idx("fashion_mnist", data_dir)


@datasets.register("breast_cancer")
def breast_cancer() -> Dataset:
    """569 real tumours, 30 features normalised to mean 0 and deviation 1; every fifth row is a test row."""
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    train = features[np.arange(len(labels)) % 5 != 4]
    return _every_fifth("breast_cancer", (features - train.mean(axis=0)) / train.std(axis=0), labels)


@datasets.register("digits")
def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels from 0 to 16; every fifth row is a test row."""
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    return _every_fifth("digits", features.reshape(-1, 1, 8, 8).astype(np.uint8), labels, peak=16.0)


def _every_fifth(name: str, features: Array, labels: Array, peak: float = 1.0) -> Dataset:
    """A data set with every fifth row as a test row."""
    test = np.arange(len(labels)) % 5 == 4
    return Dataset(name, features[~test], labels[~test], features[test], labels[test], peak)


@datasets.register("gaussian_mixture")
def gaussian_mixture(
    rows: int = 2000, features: int = 20, classes: int = 10, separation: float = 3.0, seed: int = 0
) -> Dataset:
    """Synthetic classes: each a Gaussian of deviation 1 around its centre; half as many test rows as training rows.

    `rows` counts training rows. Classes have nearly equal sizes, and `separation` is the deviation of their centres.
    """
    rows, features = check_integer("rows", rows, 1, 10**8), check_integer("features", features, 1, 10**6)
    classes = check_integer("classes", classes, 1, rows)
    separation, seed = check_nonnegative("separation", separation), check_integer("seed", seed, 0)
    random = np.random.default_rng(seed)
    centres = separation * random.standard_normal((classes, features)) / np.sqrt(features)
    total = rows + rows // 2
    labels = random.permutation(np.arange(total) % classes)
    labels[:classes] = np.arange(classes)  # every class has a training row
    points = centres[labels] + random.standard_normal((total, features))
    test = (points[rows:], labels[rows:]) if total > rows else ()
    return Dataset("gaussian_mixture", points[:rows], labels[:rows], *test)


def _libsvm(name: str, paths: Sequence[Path], checksums: Sequence[str | None] = (None, None)) -> Dataset:
    parts = [read_libsvm(path, checksum) for path, checksum in zip(paths, checksums, strict=False)]
    # The width of a file is its largest index; training and test rows need the same width.
    width = max(features.shape[1] for features, _ in parts)
    padded: list[tuple[Features, Array]] = []
    for features, labels in parts:
        rows = sparse.csr_array((features.data, features.indices, features.indptr), shape=(len(labels), width))
        is_smaller = rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes < 8 * len(labels) * width
        padded.append((rows if is_smaller else rows.toarray(), labels))
    return Dataset(name, *padded[0], *(padded[1] if len(padded) > 1 else ()))


def as_array(value: Any) -> Any:
    """A NumPy array, or a SciPy matrix in compressed rows: sorted, no entry twice, no feature from 2^31 on."""
    if not sparse.issparse(value):
        return np.asarray(value)
    try:
        found = sparse.csr_array(value)
        found.check_format(full_check=True)
    except ValueError as error:
        raise InputError(f"The sparse matrix of shape {value.shape} is not valid: {str(error).rstrip('.')}.") from None
    if found.ndim == 2 and found.shape[1] > np.iinfo(np.int32).max:
        raise InputError(f"Sparse rows can have at most 2,147,483,647 features, got {found.shape[1]:,}.")
    if not found.has_canonical_format:
        found = found.copy()  # not to change what the caller holds
        found.sum_duplicates()
    return found


def _first_infinite(values: Any) -> int | None:
    """The first row with a number that is NaN or Inf; None if there is none."""
    numbers = values.data if sparse.issparse(values) else values
    if numbers.dtype.kind != "f" or np.isfinite(numbers).all():
        return None
    if sparse.issparse(values):
        return int(np.searchsorted(values.indptr, np.flatnonzero(~np.isfinite(numbers))[0], "right")) - 1
    return int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0])


def _idx(name: str, data_dir: Folder) -> Dataset:
    paths = obtain(name, data_dir)
    x, y, test_x, test_y = (read_idx(path, file.content_sha256) for path, file in zip(paths, FILES[name], strict=True))
    return Dataset(name, x, y, test_x, test_y, peak=255.0)


def stacked(items: list[Any]) -> tuple[Any, Any]:
    """Features and labels of items that are pairs."""
    import torch

    features, labels = (torch.stack([torch.as_tensor(item[part]) for item in items]) for part in (0, 1))
    return features, labels


def _arrays(data: Any, what: str, collate: Collate | None = None) -> tuple[Features, Array]:
    """Features and labels of a pair, or of a torch Dataset."""
    import torch

    if not isinstance(data, tuple | list):
        has_items = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        if not has_items or isinstance(data, np.ndarray | torch.Tensor):
            kinds = "a name, a path, a torch Dataset or a pair (features, labels)"
            raise InputError(f"`{what}` must be {kinds}, got {type(data).__name__}.")
        try:
            items = [data[i] for i in range(len(data))]
            data = collate(items) if collate is not None else stacked(items)
        except (TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
            reason = str(error).rstrip(".")
            raise InputError(f"`{what}` must give pairs (features, label) of one shape: {reason}.") from None
    if len(data) != 2:
        raise InputError(f"`{what}` must be a pair (features, labels), got {len(data)} parts.")
    try:
        features, labels = (
            part.detach().cpu().numpy()
            if isinstance(part, torch.Tensor)
            else part
            if sparse.issparse(part)
            else np.asarray(part)
            for part in data
        )
    except (TypeError, ValueError):
        raise InputError(f"`{what}` must be a pair (features, labels) of arrays or tensors.") from None
    if features.ndim < 2 or features.shape[0] == 0:
        raise InputError(f"`{what}` must hold rows of features, got features of shape {features.shape}.")
    return features, labels
