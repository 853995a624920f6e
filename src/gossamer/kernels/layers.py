"""Networks of linear layers as kernels take them: all models, all rows of data, and what lies between.

The reference is torch's closed form (`problems/modules/closed.py`). Both agree to rounding: to 1e-4 (float32) or 1e-11
(float64) where outputs reach some dozens.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from scipy import sparse
from torch import Tensor

from gossamer.errors import InputError

Array = npt.NDArray[Any]
SPARSE_SHARE = 1 / 4  # of bytes that are not zero, up to which rows are stored as their entries
LINEAR, SIGMOID, TANH, RELU = range(4)


@dataclass(frozen=True)
class Layers:
    """Linear layers with bias and activations, ending in a linear one; the mean cross-entropy of each client's rows.

    A model is a row of all weights and biases, layer after layer.
    """

    kinds: tuple[int, ...]
    """LINEAR or an activation, for each layer."""
    widths: tuple[int, ...]
    """The inputs of the network, and the outputs of each layer."""
    features: Array
    """(rows, inputs), one client's after another's: bytes, or numbers in the type of the models."""
    shift: float
    scale: float
    """Bytes stand for (byte - shift) / scale."""
    labels: Array
    """(rows,): classes."""
    counts: Array
    """The number of rows of each client."""
    weights: Array | None
    """(rows,): of each row in measurements, if these differ."""
    dtype: npt.DTypeLike
    mostly_zero: bool | None = None
    """Whether bytes are stored as those that are not zero; None lets the features decide."""

    @property
    def d(self) -> int:
        """The number of parameters."""
        sizes = zip(self.kinds, self.widths, self.widths[1:], strict=False)
        return sum((n + 1) * m for kind, n, m in sizes if kind == LINEAR)

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        """As compiled loops take them."""
        first = np.cumsum(self.counts) - self.counts
        numbers = np.array([self.shift, 1 / self.scale], self.dtype)
        kinds, widths = np.array(self.kinds, np.int64), np.array(self.widths, np.int64)
        return first, self.counts, self.features, numbers, *self._entries, self.labels, kinds, widths

    @cached_property
    def _entries(self) -> tuple[Any, ...]:
        """Where each row begins, columns, and bytes of those that are not zero, and the numbers that bytes stand for.

        Empty where rows are not mostly zero, as images are, or no linear layer comes first.
        """
        table = (np.arange(256) / self.scale).astype(self.dtype)
        none = np.empty(0, np.uint64), np.empty(0, np.uint16), np.empty(0, np.uint8), table
        fits = self.features.dtype == np.uint8 and self.shift == 0 and self.kinds[0] == LINEAR
        if not fits or self.widths[0] > 1 << 16:
            return none
        mostly = self.mostly_zero
        if mostly is None:
            mostly = bool(np.count_nonzero(self.features) <= SPARSE_SHARE * self.features.size)
        if not mostly:
            return none
        rows = sparse.csr_array(self.features)
        return rows.indptr.astype(np.uint64), rows.indices.astype(np.uint16), rows.data, table

    def arrays(self, x: Tensor, batch: Tensor) -> tuple[Array, Array]:
        """Models and minibatches as contiguous arrays. Compiled loops read memory unchecked, so shapes must fit."""
        models, drawn = x.contiguous().numpy(), batch.contiguous().numpy()
        if models.ndim != 2 or models.shape[1] != self.d or len(models) % len(self.counts):
            raise InputError(
                f"Models must be (seeds * {len(self.counts)}, {self.d}), one row per client, got {models.shape}."
            )
        if drawn.ndim != 2 or len(drawn) != len(models) or not drawn.shape[1]:
            raise InputError(f"A minibatch must be ({len(models)}, rows per client), got shape {drawn.shape}.")
        return models, drawn

    def points(self, models: Tensor) -> Array:
        """Models to be measured, as a contiguous array."""
        array = models.contiguous().numpy()
        if array.ndim != 2 or array.shape[1] != self.d or array.dtype != self.dtype:
            raise InputError(f"Models must be (k, {self.d}) in {np.dtype(self.dtype)}, got {array.shape}.")
        return array

    def refuse(self, model: int, batch: Array) -> NoReturn:
        """Raise an error for the minibatch of a model, which has a row that its client does not have."""
        client = model % len(self.counts)
        refuse_row(client, int(self.counts[client]), batch)


def refuse_row(client: int, most: int, batch: Array) -> NoReturn:
    """Raise an error for a minibatch with a row that a client with `most` rows does not have."""
    row = int(batch[(batch < 0) | (batch >= most)][0])
    raise InputError(f"The minibatch of client {client} has row {row}, but the client has rows 0 to {most - 1}.")
