"""The rows of all clients in one tensor, and which client holds which."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from gossamer.errors import InputError
from gossamer.kernels import Csr
from gossamer.problems.data.readers import check_dense

Affine = tuple[float, float]
"""Shift and scale of the features."""
_PLAIN: Affine = (0.0, 1.0)


class Rows:
    """Features and labels of all clients, one client's rows after another's.

    Pixels are stored as bytes, and converted to (byte - shift) / scale when used. This takes a quarter of the
    memory, and of the random reads for a minibatch. Rows of a linear model may be `sparse`.
    """

    is_lazy: ClassVar[bool] = False
    """Whether rows are read when they are asked for; `features` and `labels` are then empty."""

    def __init__(
        self, features: Tensor | Csr, labels: Tensor, counts: Sequence[int], dtype: torch.dtype, affine: Affine = _PLAIN
    ) -> None:
        self.labels, self.device = labels, labels.device  # (rows, ...)
        self.sparse: Csr | None = None
        if isinstance(features, Csr):
            self.sparse, features = features, labels.new_empty(0, features.width, dtype=dtype)
        self._dense = features  # (rows, ...), or nothing
        self.named: Tensor | None = None  # the data set's labels, if the objective transforms them
        self.dtype, (self._shift, self._scale) = dtype, affine
        self._is_plain = features.dtype in (dtype, torch.int64)
        self.affine = _PLAIN if self._is_plain else affine
        self.mostly_zero: bool | None = None  # of bytes that are part of larger data, whether those are
        self.prepared: Any = None  # what kernels take in their place, once that was looked for
        self._taken, self._scaled = features[:0], features[:0].to(self.dtype)
        self.counts = list(counts)
        self.clients, self.total = len(counts), sum(counts)
        self.least = min(counts)
        self.are_equal = self.least == max(counts)
        self.per_client = torch.tensor(self.counts, device=self.device)
        self.first = torch.cumsum(self.per_client, 0) - self.per_client
        self._first_column = self.first[:, None]
        self.width = features.shape[1:].numel()

    @cached_property
    def weights(self) -> Tensor | None:
        """(rows,): f is the mean over clients, so a row of a client with few rows weighs more; None if all weigh 1."""
        share = self.total / (self.clients * self.per_client.double())
        return None if self.are_equal else torch.repeat_interleave(share, self.per_client)

    @property
    def features(self) -> Tensor:
        """(rows, ...): the features as they are stored; sparse rows are made dense, so this is for small data."""
        if self.sparse is None:
            return self._dense
        check_dense("The data", (self.total, self.width), self.dtype.itemsize)
        return self.sparse.dense(slice(None))

    @classmethod
    def share(
        cls,
        features: Any,
        labels: Any,
        shares: Sequence[Any],
        dtype: torch.dtype,
        device: torch.device,
        affine: Affine = _PLAIN,
        *,
        keeps_integers: bool = False,
    ) -> "Rows":
        """Give client i the rows with numbers `shares[i]`; class labels stay integers, and a SciPy matrix sparse.

        With `keeps_integers`, features that are integers stay so, but for bytes, which are pixels.
        """
        order, counts = np.concatenate(shares), [len(share) for share in shares]
        if issparse(features):
            return cls(Csr.of(features[order], dtype), stored_labels(labels[order], dtype, device), counts, dtype)
        x, bad = stored_features(features[order], dtype, device, affine, keeps_integers=keeps_integers)
        if bad is not None:
            raise InputError(f"Row {int(order[bad])} has a feature too large for {str(dtype)[6:]}.")
        kept = affine if x.dtype == torch.uint8 else _PLAIN
        return cls(x, stored_labels(labels[order], dtype, device), counts, dtype, kept)

    def only(self, client: int) -> "Rows":
        """A copy of one client's rows."""
        first, counts = int(self.first[client]), [self.counts[client]]
        mine = slice(first, first + counts[0])
        features = self._dense[mine].clone() if self.sparse is None else self.sparse.part(mine)
        return Rows(features, self.labels[mine].clone(), counts, self.dtype, (self._shift, self._scale))

    def content(self) -> list[Any]:
        """What a fingerprint covers: all rows, and which client holds which."""
        a = self.sparse
        features = (
            self._dense if a is None else [a.indptr.astype(np.int64), a.indices.astype(np.int32), a.values, a.width]
        )
        return [features, self.labels, self.counts, str(self.dtype), self._shift, self._scale]

    def inputs(self, which: Tensor | slice | list[int]) -> Tensor:
        """The features of some rows, as numbers."""
        if self.sparse is not None:
            return self.sparse.dense(which)
        rows = self._dense[which]
        # A module may change its input in place, so it gets a copy.
        return rows.clone() if self._is_plain and isinstance(which, slice) else self._numbers(rows)

    def read(self, which: slice) -> tuple[Tensor, Tensor]:
        """The features and labels of some rows."""
        return self.inputs(which), self.labels[which]

    def batch(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The features and labels of the rows of a minibatch; see `take`."""
        return self.take(flat), self.labels.index_select(0, flat)

    @property
    def are_classes(self) -> bool:
        """Whether a label is one integer of 0 or more."""
        return self.labels.ndim == 1 and not self.labels.is_floating_point() and bool(self.labels.min() >= 0)

    def take(self, flat: Tensor) -> Tensor:
        """As `inputs`, for the row numbers of a minibatch, in memory that the next call reuses.

        (Allocating fresh memory would cost more than reading the rows. Not so on a GPU, where recorded rounds need
        memory that nobody replaces.)
        """
        if flat.is_cuda:
            return self._numbers(torch.index_select(self.features, 0, flat))
        count = len(flat)
        if len(self._taken) < count:
            self._taken = self._dense.new_empty(count, *self._dense.shape[1:])
            self._scaled = self._taken if self._is_plain else self._taken.to(self.dtype)
        taken = torch.index_select(self._dense, 0, flat, out=self._taken[:count])
        return taken if self._is_plain else self._numbers(taken, self._scaled[:count])

    def _numbers(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        if self._is_plain:
            return rows
        numbers = rows.to(self.dtype) if out is None else out.copy_(rows)
        return (numbers.sub_(self._shift) if self._shift else numbers).mul_(1 / self._scale)

    def index(self, batch: Tensor) -> Tensor:
        """Convert row numbers within each client, `batch` (seeds * clients, b), to positions in the whole tensor."""
        if len(batch) == self.clients:
            return batch + self._first_column
        return (batch.view(-1, self.clients, batch.shape[1]) + self._first_column).view(batch.shape)

    def label_counts(self, most: int) -> tuple[list[str], list[list[int]]] | None:
        """The labels, and the number of rows per client and label; None if there are more than `most` labels."""
        labels = self.labels if self.named is None else self.named
        if labels.ndim != 1:
            return None
        values, which = torch.unique(labels, return_inverse=True)
        if len(values) > most:
            return None
        client = torch.repeat_interleave(
            torch.arange(self.clients, device=labels.device), self.per_client.to(labels.device)
        )
        counts = torch.bincount(client * len(values) + which, minlength=self.clients * len(values))
        return [f"{value:g}" for value in values.tolist()], counts.view(self.clients, len(values)).tolist()

    def by_client(self) -> Iterator[slice]:
        """Each client's rows."""
        begin = 0
        for count in self.counts:
            yield slice(begin, begin + count)
            begin += count


def stored_labels(labels: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The labels as they are stored: classes stay integers."""
    y = torch.from_numpy(np.ascontiguousarray(_native(labels)))
    return y.to(device, dtype if y.is_floating_point() else torch.int64)


def stored_features(
    features: Any, dtype: torch.dtype, device: torch.device, affine: Affine, *, keeps_integers: bool
) -> tuple[Tensor, int | None]:
    """The features as they are stored, and the first row that is not finite."""
    x = torch.from_numpy(np.ascontiguousarray(_native(features)))
    if x.dtype == torch.uint8:
        return x.to(device), None
    if keeps_integers and affine == _PLAIN and not x.is_floating_point() and x.dtype != torch.bool:
        return x.to(device, torch.int64), None
    x = x.to(device, dtype)
    bad = None if torch.isfinite(x).all() else int((~torch.isfinite(x.reshape(len(x), -1)).all(dim=1)).nonzero()[0])
    return x.sub_(affine[0]).div_(affine[1]) if affine != _PLAIN else x, bad


def _native(values: Any) -> Any:
    """Convert to a dtype that torch supports: native byte order, at most 64 bits."""
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        return values.astype(np.float64)
    if values.dtype.kind == "u" and values.dtype.itemsize > 1:
        return values.astype(np.int64)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
