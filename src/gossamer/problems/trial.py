"""A module, its loss and its data, tried out on a few rows before anything runs."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.problems.rows import Rows

Loss = Callable[[Tensor, Tensor], Tensor]


def own_generator(device: torch.device, enabled: bool = True) -> AbstractContextManager[None]:
    """What is drawn inside leaves torch's own generators as they were."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=enabled)


def try_out(module: nn.Module, loss: Loss, rows: Rows, test: Rows | None) -> bool:
    """Whether the module has randomness of its own; a sentence if it does not fit its data or its loss."""
    inputs, labels = rows.inputs(slice(0, min(4, rows.least))), rows.labels[: min(4, rows.least)]
    outputs = []
    with own_generator(rows.features.device):
        for seed in (0, 1):
            torch.manual_seed(seed)
            fresh = copy.deepcopy(module)
            try:
                with torch.no_grad():
                    outputs.append(fresh(inputs))
            except Exception as error:  # a user's own code may raise anything
                raise InputError(
                    f"The module does not take rows of shape {tuple(inputs.shape[1:])}: {_first(error)}."
                ) from None
    output = outputs[0]
    if not isinstance(output, Tensor):
        raise InputError(f"The module must return one tensor, got {type(output).__name__}.")
    _check_classes(loss, output, rows, "")
    if test is not None:
        _check_classes(loss, output, test, "test ")
    try:
        value = loss(output, labels)
    except Exception as error:
        raise InputError(
            f"The loss {_name(loss)} does not fit the module's output of shape {tuple(output.shape)} and labels of "
            f"shape {tuple(labels.shape)} ({str(labels.dtype)[6:]}): {_first(error)}."
        ) from None
    if not isinstance(value, Tensor) or value.ndim != 0:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"The loss {_name(loss)} must be one number, the mean over its rows, got {shape}.")
    return not torch.equal(output.nan_to_num(), outputs[1].nan_to_num())


def _check_classes(loss: Loss, output: Tensor, rows: Rows, which: str) -> None:
    is_entropy = isinstance(loss, nn.CrossEntropyLoss) or loss is nn.functional.cross_entropy
    if not is_entropy or output.ndim != 2 or rows.labels.is_floating_point() or rows.labels.ndim != 1:
        return
    bad = ((rows.labels < 0) | (rows.labels >= output.shape[1])) & (rows.labels != getattr(loss, "ignore_index", -100))
    if bad.any():
        row = int(bad.nonzero()[0])
        client = int((rows.first <= row).sum()) - 1
        where = f"{which}row {row}" if which else f"row {row - int(rows.first[client])} of client {client}"
        raise InputError(
            f"The label {int(rows.labels[row])} of {where} is out of range: the module has {output.shape[1]} outputs."
        )


def _first(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")


def _name(loss: Loss) -> str:
    return getattr(loss, "__name__", type(loss).__name__)
