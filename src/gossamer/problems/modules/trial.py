"""Checks of a module, its loss and its data on a few rows before a run."""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.problems.data.holdings import Rows
from gossamer.problems.data.lazy import LazyRows

Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], Tensor | float]
"""Of the module's output and the labels of some rows: a number, the mean over these rows."""


def own_generator(device: torch.device, enabled: bool = True) -> AbstractContextManager[None]:
    """Restore the state of torch's generators on exit."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=enabled)


def try_out(
    module: nn.Module, loss: Loss, rows: Rows, test: Rows | None, metrics: Mapping[str, Metric]
) -> tuple[bool, int]:
    """Whether the module draws random numbers, and its smallest batch; an error if module and data do not match."""
    device = rows.features.device
    inputs, labels = rows.read(slice(0, min(4, rows.least)))
    with own_generator(device), torch.no_grad():
        before = _generators(device)
        output = _outputs(copy.deepcopy(module), inputs)
        _check_classes(loss, output, rows, "")
        _value(loss, output, labels)
        is_random = any(not torch.equal(one, two) for one, two in zip(before, _generators(device), strict=True))
        if test is not None:
            _check_classes(loss, output, test, "test ")
            some, chosen = test.read(slice(0, 4))
            judged = _outputs(copy.deepcopy(module).eval(), some)
            _value(loss, judged, chosen)
            for name, metric in metrics.items():
                _value(metric, judged, chosen, f"metric {name!r}")
        least = 1
        try:
            copy.deepcopy(module)(inputs[:1])
        except Exception:  # batch norm needs at least two rows
            least = 2
    return is_random, least


def module_content(module: nn.Module, loss: Loss, rows: Rows) -> list[Any]:
    """What a fingerprint covers: the module's repr, parameters, buffers and plain attributes, and its loss on a few
    rows.

    The loss, to six digits, represents the code of `forward` and of the loss, which a digest cannot cover.
    """
    few = slice(0, min(4, rows.least))
    with own_generator(rows.features.device), torch.no_grad():
        inputs, labels = rows.read(few)
        value = float(loss(_outputs(module, inputs), labels))
    plain = {
        f"{name}.{key}": part
        for name, one in module.named_modules()
        for key, part in vars(one).items()
        if key != "training" and isinstance(part, bool | int | float | str | tuple)
    }
    return [repr(module), dict(module.named_parameters()), dict(module.named_buffers()), repr(plain), f"{value:.6g}"]


def _generators(device: torch.device) -> list[Tensor]:
    return [torch.random.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _outputs(module: nn.Module, inputs: Tensor) -> Tensor:
    shape = tuple(inputs.shape[1:])
    try:
        output = module(inputs)
    except Exception as error:  # user code may raise anything
        flat = "; begin with nn.Flatten() if it takes flat rows" if len(shape) > 1 else ""
        raise InputError(f"The module does not take rows of shape {shape}: {_first(error)}{flat}.") from None
    if not isinstance(output, Tensor):
        raise InputError(f"The module must return one tensor, got {type(output).__name__}.")
    return output


def _value(function: Metric, output: Tensor, labels: Tensor, what: str = "") -> None:
    """Try a loss, or a metric by its name."""
    what = what or f"loss {_name(function)}"
    try:
        value: Any = function(output, labels)
    except Exception as error:
        raise InputError(
            f"The {what} does not fit the module's output of shape {tuple(output.shape)} and labels of "
            f"shape {tuple(labels.shape)} ({str(labels.dtype)[6:]}): {_first(error)}."
        ) from None
    is_number = isinstance(value, Tensor) and value.ndim == 0
    if not is_number and (what.startswith("loss") or not isinstance(value, int | float)):
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"The {what} must be one number, the mean over its rows, got {shape}.")


def _check_classes(loss: Loss, output: Tensor, rows: Rows, which: str) -> None:
    takes_classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    takes_classes |= loss in (nn.functional.cross_entropy, nn.functional.nll_loss)
    if not takes_classes or output.ndim != 2 or rows.labels.is_floating_point() or rows.labels.ndim != 1:
        return
    ignored = int(getattr(loss, "ignore_index", -100))
    if isinstance(rows, LazyRows):
        rows.limit(output.shape[1], ignored)
        return
    bad = ((rows.labels < 0) | (rows.labels >= output.shape[1])) & (rows.labels != ignored)
    if bad.any():
        row = int(bad.nonzero()[0])
        client = int((rows.first <= row).sum()) - 1
        where = f"{which}row {row}" if which else f"row {row - int(rows.first[client])} of client {client}"
        raise InputError(
            f"The label {int(rows.labels[row])} of {where} is out of range: the module has {output.shape[1]} outputs."
        )


def _first(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")


def _name(function: Metric) -> str:
    return getattr(function, "__name__", type(function).__name__)
