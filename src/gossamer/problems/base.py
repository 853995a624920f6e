"""The contract of a problem: what gives a client its gradients, and what a model is judged by."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InputError, check_choice

_TOGETHER = 64


class Problem(ABC):
    """min f(x) = mean over clients of f_i(x), each f_i a mean over the client's own rows of data.

    Tensors of models are (S * clients, d), the clients of one seed after those of another.
    """

    clients: int
    d: int
    rows_per_client: int
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """Row i: client i's gradient at row i of x, over its data rows `batch[i]`, or over all of them."""

    @abstractmethod
    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        """`loss` and `grad_norm` of f at each of the (k, d) models, in float64."""

    def accuracy(self, models: Tensor) -> Tensor | None:
        """The share of the test rows that each of the (k, d) models gets right; None where there is no test set."""
        return None

    def x0(self) -> Tensor:
        """The point from which all clients start unless told otherwise: zero."""
        return torch.zeros(self.d, dtype=self.dtype, device=self.device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.describe().items() if k != 'problem')})"

    def describe(self) -> dict[str, Any]:
        """What a record says of the problem."""
        return {"problem": type(self).__name__, "clients": self.clients, "d": self.d, "dtype": str(self.dtype)[6:]}


def in_groups(models: Tensor) -> Iterator[Tensor]:
    """The (k, d) models, 64 at a time, the last group filled up with zeros.

    Products with 64 models cost a fraction of 64 products with one; and with products of one size alone, what is
    measured of a model does not depend on the models that happen to be measured beside it.
    """
    short = -len(models) % _TOGETHER
    yield from torch.split(torch.cat([models, models.new_zeros(short, models.shape[1])]), _TOGETHER)


def as_device(device: str | torch.device) -> torch.device:
    """The device, or a sentence if torch does not have it."""
    if not isinstance(device, str | torch.device) or str(device) == "meta":
        raise InputError(f"`device` must be a name such as 'cpu' or 'cuda', got {device!r}.")
    try:
        made = torch.device(device)
        torch.empty(0, device=made)
    except (RuntimeError, AssertionError):
        cuda = f"{torch.cuda.device_count()} CUDA devices are" if torch.cuda.is_available() else "no CUDA device is"
        raise InputError(f"The device {str(device)!r} cannot be used: {cuda} here; 'cpu' always works.") from None
    return made


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """float32 or float64, by name or as torch's own."""
    names = {"float32": torch.float32, "float64": torch.float64}
    check_choice("dtype", str(dtype).removeprefix("torch."), names)
    return names[str(dtype).removeprefix("torch.")]
