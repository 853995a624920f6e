"""Readers of data files: LIBSVM text and idx images, plain or compressed."""

import bz2
import gzip
import hashlib
import io
import lzma
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gossamer.errors import DataError, InputError

Array = npt.NDArray[Any]
PACKINGS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".gz": gzip.open,  # type: ignore[dict-item]
    "": lambda packed: packed,
}
_MOST_BYTES = 4 << 30  # uncompressed
_MOST_DENSE_BYTES = 8 << 30  # of sparse rows that are stored densely
_IDX_LABELS, _IDX_IMAGES = 2049, 2051  # the magic numbers of the format


def packing_of(path: Path) -> str:
    """The suffix of a compressed file; empty for a plain one."""
    return path.suffix if path.suffix in PACKINGS else ""


def read_bytes(path: Path, sha256: str | None = None) -> bytes:
    """The uncompressed bytes of a file; `sha256` is their checksum."""
    try:
        with path.open("rb") as packed, PACKINGS[packing_of(path)](packed) as unpacked:
            content = unpacked.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES >> 30} GiB")
    except (lzma.LZMAError, EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise DataError(f"The data file '{path}' is damaged: {str(error).rstrip('.')}; fetch it again.") from None
    except OSError as error:
        raise DataError(f"The data file '{path}' cannot be read: {error.strerror or error}.") from None
    if sha256 is not None and sha256 != hashlib.sha256(content).hexdigest():
        raise DataError(
            f"The data file '{path}' is damaged: the SHA-256 of its content is not the original's; fetch it again."
        )
    return content


def read_idx(path: Path, sha256: str | None = None) -> Array:
    """The bytes of an idx file: labels (rows,), or images (rows, 1, height, width)."""
    content = read_bytes(path, sha256)
    header = np.frombuffer(content[:16], ">u4").tolist() if len(content) >= 16 else [0]
    if header[0] not in (_IDX_LABELS, _IDX_IMAGES):
        raise DataError(f"'{path}' is not an idx file of images or labels.")
    shape, start = (header[1:2], 8) if header[0] == _IDX_LABELS else ([header[1], 1, *header[2:]], 16)
    size = int(np.prod(shape, dtype=object))
    if len(content) != start + size:
        raise DataError(f"'{path}' is cut off: it announces {size:,} bytes and holds {len(content) - start:,}.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_libsvm(path: Path, sha256: str | None = None) -> tuple[Any, Array]:
    """Features, as a SciPy matrix in compressed rows, and labels of a LIBSVM file."""
    content = read_bytes(path, sha256)
    try:
        features, labels = _plain_libsvm(content) or _any_libsvm(content)
    except (ValueError, OverflowError, IndexError) as error:
        raise DataError(f"'{path}' is not a LIBSVM file{_bad_line(content)}: {str(error).rstrip('.')}.") from None
    if features.shape[0] == 0 or features.nnz == 0:
        raise DataError(f"'{path}' holds no {'features' if features.shape[0] else 'rows'}.")
    bad = np.flatnonzero(~np.isfinite(features.data))
    if len(bad):
        row, column = np.searchsorted(features.indptr, bad[0], "right"), features.indices[bad[0]] + 1
        raise DataError(f"'{path}' holds {features.data[bad[0]]} in row {row}, feature {column}.")
    return features, labels


def _plain_libsvm(content: bytes) -> tuple[Any, Array] | None:
    """A file of nothing but `label index:value ...` lines with increasing indices, by NumPy; None for any other.

    scikit-learn reads such a file, too, but it takes a second and a half to import.
    """
    from scipy.sparse import csr_array

    signs = np.frombuffer(content, np.uint8)
    if not np.isin(signs, np.frombuffer(b"0123456789+-.eE: \n", np.uint8)).all():
        return None
    is_word = np.concatenate([[False], (signs != ord(" ")) & (signs != ord("\n"))])
    words = np.flatnonzero(is_word[1:] & ~is_word[:-1])
    lines = np.searchsorted(np.flatnonzero(signs == ord("\n")), words)
    are_labels = np.diff(lines, prepend=-1) != 0
    colons = np.searchsorted(np.flatnonzero(signs == ord(":")), np.append(words, len(signs)))
    if not np.array_equal(np.diff(colons), ~are_labels):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy warns of text that it cannot read
        try:
            numbers = np.fromstring(content.replace(b":", b" "), sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    if not len(words) or len(numbers) != len(words) + colons[-1]:
        return None
    in_labels = np.repeat(are_labels, 1 + np.diff(colons))
    labels, pairs = numbers[in_labels], numbers[~in_labels].reshape(-1, 2)
    indptr, indices = np.append(colons[:-1][are_labels], colons[-1]), pairs[:, 0].astype(np.int64) - 1
    rises = np.diff(indices, prepend=-1) > 0
    rises[indptr[:-1][np.diff(indptr) > 0]] = True  # the first of a row
    if (indices + 1 != pairs[:, 0]).any() or (indices < 0).any() or not rises.all():
        return None
    shape = len(labels), int(indices.max(initial=-1)) + 1
    return csr_array((pairs[:, 1].copy(), indices, indptr), shape=shape), labels


def _any_libsvm(content: bytes) -> tuple[Any, Array]:
    from scipy.sparse import csr_array
    from sklearn.datasets import load_svmlight_file

    # An explicit `zero_based` keeps column j where the file says it is; LIBSVM counts from 1.
    found, labels = load_svmlight_file(io.BytesIO(content), zero_based=False)
    return csr_array(found), labels


def check_dense(what: str, shape: tuple[int, int], itemsize: int, most: int = _MOST_DENSE_BYTES) -> None:
    """Refuse to store sparse rows densely if they take more than `most` bytes."""
    rows, features = shape
    size = rows * features * itemsize
    if size > most:
        raise InputError(
            f"{what} has {rows:,} rows of {features:,} features, {size / 2**30:.1f} GiB ({size:,} bytes) when stored "
            f"densely; the limit is {most / 2**30:.1f} GiB, so use fewer rows or features, or a linear objective on a "
            "CPU, which keeps them sparse."
        )


def _bad_line(content: bytes) -> str:
    """The first invalid line of a LIBSVM file, for the error message."""
    for number, line in enumerate(content.splitlines(), 1):
        words = line.split(b"#")[0].split()
        try:
            _ = [float(word) for word in words[:1]]
            _ = [(int(index), float(value)) for index, value in (word.split(b":") for word in words[1:])]
        except ValueError:
            return f" (line {number}: {line[:40].decode(errors='replace')!r})"
    return ""
