"""Rows that are read when they are asked for, for data that does not fit in memory."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.errors import DataError, GossamerError, InputError
from gossamer.kernels.layers import SPARSE_SHARE, refuse_row
from gossamer.problems.data.datasets import Collate, stacked
from gossamer.problems.data.holdings import Rows, stored_features, stored_labels
from gossamer.resources import free_memory, in_words

logger = logging.getLogger(__name__)

_SHARE = 1 / 4  # of the free memory, above which rows are not kept: reading makes copies
_SAMPLE = 16  # rows of each client that a fingerprint covers

Read = tuple[Tensor, Tensor]
"""Features as they are stored, and labels."""


@dataclass(frozen=True, eq=False)
class Source:
    """A map-style `Dataset`, or a pair (features, labels) of arrays, such as memory-mapped ones."""

    data: Any
    name: str
    """Whose it is, for errors: "client 3"."""
    collate: Collate | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.data, tuple) or (hasattr(self.data, "__getitem__") and hasattr(self.data, "__len__"))
        if not known or (isinstance(self.data, tuple) and len(self.data) != 2):
            raise InputError(f"The data of {self.name} must be a map-style Dataset or a pair (features, labels).")
        if isinstance(self.data, tuple) and len(self.data[0]) != len(self.data[1]):
            raise InputError(f"{self.name} has {len(self.data[0])} rows of features, but {len(self.data[1])} labels.")
        if len(self) == 0:
            raise InputError(f"The data of {self.name} has no rows.")

    def __len__(self) -> int:
        return len(self.data[1] if isinstance(self.data, tuple) else self.data)

    def read(self, rows: Sequence[int], dtype: torch.dtype, device: torch.device) -> Read:
        """Some rows, as `Rows` stores them."""
        try:
            features, labels = (np.asarray(part) for part in self._raw(rows))
        except (TypeError, ValueError, RuntimeError) as error:
            where = f"Rows {rows[0]} to {rows[-1]} of {self.name}"
            raise DataError(f"{where} must be pairs (features, label) of one shape: {_first(error)}.") from None
        if features.dtype.kind not in "biuf" or labels.dtype.kind not in "biuf" or len(features) != len(rows):
            raise DataError(
                f"{len(rows)} rows of {self.name} must give as many features and labels that are numbers, got features "
                f"of shape {features.shape} ({features.dtype}) and labels of shape {labels.shape} ({labels.dtype})."
            )
        x, bad = stored_features(features, dtype, device, (0.0, 1.0), keeps_integers=True)
        y = stored_labels(labels, dtype, device)
        if bad is None and y.is_floating_point() and not torch.isfinite(y).all():
            bad = int((~torch.isfinite(y.reshape(len(y), -1)).all(dim=1)).nonzero()[0])
        if bad is not None:
            raise DataError(f"Row {rows[bad]} of {self.name} has a number that is NaN, Inf or too large.")
        return x, y

    def _raw(self, rows: Sequence[int]) -> Any:
        if isinstance(self.data, tuple):
            return [part[list(rows)] for part in self.data]
        items = []
        for row in rows:
            try:
                items.append(self.data[row])
            except Exception as error:  # a user's data set may raise anything
                raise DataError(
                    f"Row {row} of {self.name} cannot be read: {type(error).__name__}: {_first(error)}."
                ) from None
        return stacked(items) if self.collate is None else self.collate(items)


class LazyRows(Rows):
    """As `Rows`, but nothing is kept: a minibatch, or some hundred rows of a measurement, are read when they are used.

    A row that occurs several times in what is asked for is read once.
    """

    is_lazy: ClassVar[bool] = True

    def __init__(self, sources: Sequence[Source], dtype: torch.dtype, device: torch.device) -> None:
        self._sources = list(sources)
        firsts = [source.read([0], dtype, device) for source in self._sources]
        for part, what in ((0, "features"), (1, "labels")):
            kinds = [(tuple(first[part].shape[1:]), str(first[part].dtype)[6:]) for first in firsts]
            odd = next((at for at, kind in enumerate(kinds) if kind != kinds[0]), None)
            if odd is not None:
                (one, type_one), (other, type_other) = kinds[0], kinds[odd]
                raise InputError(
                    f"The {what} of {self._sources[odd].name} have rows of shape {other} ({type_other}), but those of "
                    f"{self._sources[0].name} {one} ({type_one})."
                )
        features, labels = firsts[0]
        if features.ndim < 2 or not features.numel():
            raise InputError(f"{self._sources[0].name} must have rows of features, got shape {tuple(features.shape)}.")
        super().__init__(features[:0], labels[:0], [len(source) for source in self._sources], dtype)
        self.row_bytes = sum(one.nbytes for one in firsts[0])
        self._classes: tuple[int, int | None] | None = None

    def limit(self, classes: int, ignored: int | None = None) -> None:
        """From now on, refuse labels that are not below `classes`, but for one that the loss ignores."""
        self._classes = classes, ignored

    @property
    def are_classes(self) -> bool:
        """Whether a label is one integer; that it is 0 or more is checked when it is read."""
        return self.labels.ndim == 1 and not self.labels.is_floating_point()

    def gather(self, flat: npt.NDArray[np.int64]) -> Read:
        """The rows at these positions, read client by client."""
        wanted, back = np.unique(flat, return_inverse=True)
        ends = np.cumsum(self.counts)
        owners = np.searchsorted(ends, wanted, side="right")
        parts = [
            self._read(int(client), wanted[owners == client] - ends[client] + self.counts[client])
            for client in np.unique(owners)
        ]
        order = torch.from_numpy(back.reshape(-1)).to(self.device)
        x, y = (torch.cat(tensors).index_select(0, order) for tensors in zip(*parts, strict=True))
        return x, y

    def _read(self, client: int, rows: npt.NDArray[np.int64]) -> Read:
        source = self._sources[client]
        x, y = source.read(rows.tolist(), self.dtype, self.device)
        shapes = (x.shape[1:], x.dtype), (y.shape[1:], y.dtype)
        if shapes != ((self._dense.shape[1:], self._dense.dtype), (self.labels.shape[1:], self.labels.dtype)):
            raise DataError(
                f"Rows {rows[0]} to {rows[-1]} of {source.name} have features of shape {tuple(x.shape[1:])} and labels "
                f"of shape {tuple(y.shape[1:])}, but the first row of the data {tuple(self._dense.shape[1:])} and "
                f"{tuple(self.labels.shape[1:])}; all rows must have one shape and type."
            )
        if self._classes is not None:
            outputs, ignored = self._classes
            bad = ((y < 0) | (y >= outputs)) & (True if ignored is None else y != ignored)
            if bad.any():
                at = int(bad.nonzero()[0, 0])
                raise DataError(
                    f"The label {int(y[at])} of row {rows[at]} of {source.name} is out of range: the module has "
                    f"{outputs} outputs."
                )
        return x, y

    def gathered(self, batch: Tensor) -> tuple[Rows, Tensor]:
        """The rows of a minibatch, (seeds * clients, b), as rows of that many clients; and the minibatch among them."""
        drawn = batch.cpu().numpy()
        most = np.resize(self.counts, len(drawn))[:, None]
        wrong = ((drawn < 0) | (drawn >= most)).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            refuse_row(row % self.clients, int(most[row, 0]), drawn[row])
        x, y = self.gather(self.index(batch).cpu().numpy().reshape(-1))
        some = Rows(x, y, [batch.shape[1]] * len(batch), self.dtype, (self._shift, self._scale))
        some.mostly_zero = self._is_mostly_zero if x.dtype == torch.uint8 else None
        return some, torch.arange(batch.shape[1], device=self.device).expand(batch.shape).contiguous()

    def inputs(self, which: Tensor | slice | list[int]) -> Tensor:
        """The features of some rows, as numbers."""
        return self._numbers(self.gather(self._positions(which))[0])

    def read(self, which: slice) -> Read:
        """The features and labels of some rows."""
        x, y = self.gather(self._positions(which))
        return self._numbers(x), y

    def batch(self, flat: Tensor) -> Read:
        """The features and labels of the rows of a minibatch."""
        x, y = self.gather(flat.cpu().numpy())
        return self._numbers(x), y

    def take(self, flat: Tensor) -> Tensor:
        """As `inputs`."""
        return self.inputs(flat)

    def _positions(self, which: Tensor | slice | list[int]) -> npt.NDArray[np.int64]:
        if isinstance(which, slice):
            return np.arange(*which.indices(self.total))
        return which.cpu().numpy() if isinstance(which, Tensor) else np.array(which, np.int64)

    def only(self, client: int) -> "LazyRows":
        """One client's rows."""
        one = LazyRows([self._sources[client]], self.dtype, self.device)
        one._classes = self._classes
        if self._dense.dtype == torch.uint8:
            one.__dict__["_is_mostly_zero"] = self._is_mostly_zero
        return one

    @cached_property
    def _sampled(self) -> list[Read]:
        """Rows of each client from the first to the last, evenly spaced."""
        rows = [np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)) for count in self.counts]
        return [self._read(client, some) for client, some in enumerate(rows)]

    @cached_property
    def _is_mostly_zero(self) -> bool:
        return sum(int(x.count_nonzero()) for x, _ in self._sampled) <= SPARSE_SHARE * sum(
            x.numel() for x, _ in self._sampled
        )

    def content(self) -> list[Any]:
        """What a fingerprint covers: how many rows each client has, their shape and type, and 16 rows of each."""
        return ["lazy", [list(pair) for pair in self._sampled], self.counts, str(self.dtype)]

    def label_counts(self, most: int) -> None:
        """Unknown: labels are not read ahead."""


def lazy_rows(
    parts: Sequence[Any], test: Any, collate: Collate | None, dtype: torch.dtype, device: torch.device, *, must: bool
) -> tuple[LazyRows, LazyRows | None] | None:
    """The rows of one data set per client, and test rows; None if they fit in memory, unless they `must` be lazy."""
    is_file = [not isinstance(part, tuple) or isinstance(part[0], np.memmap) for part in parts]
    if not must and not any(is_file):
        return None
    try:
        rows = LazyRows([Source(part, f"client {at}", collate) for at, part in enumerate(parts)], dtype, device)
        tested = None if test is None else LazyRows([Source(test, "the test rows", collate)], dtype, device)
    except GossamerError:
        if must:
            raise
        return None  # reading everything says what is wrong
    free = min((found for found in map(free_memory, {device, torch.device("cpu")}) if found is not None), default=None)
    size = sum(one.total * one.row_bytes for one in (rows, tested) if one is not None)
    if not must and (free is None or size <= _SHARE * free):
        return None
    if not must:
        logger.info("The data takes %s, and %s are free: rows are read as needed.", in_words(size), in_words(free or 0))
    return rows, tested


def _first(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
