"""The contract of a problem: what gives a client its gradients, and what a model is judged by."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InputError, check_choice


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

    def describe(self) -> dict[str, Any]:
        """What a record says of the problem."""
        return {"problem": type(self).__name__, "clients": self.clients, "d": self.d, "dtype": str(self.dtype)[6:]}


def as_device(device: str | torch.device) -> torch.device:
    """The device, or a sentence if torch does not have it."""
    try:
        made = torch.device(device)
        torch.empty(0, device=made)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(f"The device {str(device)!r} cannot be used: {reason}.") from None
    return made


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """float32 or float64, by name or as torch's own."""
    names = {"float32": torch.float32, "float64": torch.float64}
    check_choice("dtype", str(dtype).removeprefix("torch."), names)
    return names[str(dtype).removeprefix("torch.")]
