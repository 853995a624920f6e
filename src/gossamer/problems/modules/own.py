"""Problems from people's own modules and data."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from gossamer.errors import InputError, check_bool, check_choice, check_integer
from gossamer.problems.base import Facts, as_device, as_dtype
from gossamer.problems.data.datasets import Collate, Dataset, concatenated, load
from gossamer.problems.data.holdings import Rows
from gossamer.problems.data.lazy import lazy_rows
from gossamer.problems.data.partition import Partition, split
from gossamer.problems.modules.module import Gradients, ModuleProblem
from gossamer.problems.modules.trial import Loss, Metric, own_generator
from gossamer.registry import datasets, normal, objectives

Pixels = Literal["unit", "raw", "standard"]
_CLIENTS = 10


def module_problem(
    module: nn.Module,
    data: Any,
    *,
    loss: Loss | None = None,
    metric: Metric | Mapping[str, Metric] | None = None,
    clients: int | None = None,
    partition: str | Partition | None = None,
    equal: bool = True,
    pixels: Pixels = "unit",
    gradients: Gradients = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    test: Any = None,
    collate: Collate | None = None,
    lazy: bool | None = None,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    about: Facts | None = None,
) -> ModuleProblem:
    """Any `nn.Module` with any loss, and data divided among clients.

    `module` takes a batch of rows and returns one tensor; all clients start from its parameters, cast to `dtype`.
    `loss` takes (output, labels) and returns the mean over the rows; by default it is cross-entropy. `data` is a torch
    `Dataset` of (features, label) pairs, a pair of arrays or tensors, or the name of a data set; `test` likewise.
    `about` are more facts for the records. The other arguments are those of `logistic_regression`, and:

    - `data` may also be a list with one such data set or pair for each client. Each client then holds its own rows,
      all of them; `clients` and `partition` are not given.
    - `collate` makes (features, labels) out of a list with all items of a `Dataset`; by default they are stacked.
    - `lazy`: read the rows of a list of data sets when a minibatch or a measurement asks for them, and keep none. By
      default this is done where all rows would take more than a quarter of the free memory. `collate` then gets the
      items of some rows.
    - Integers stay integers, such as the tokens of a text; bytes are pixels. Labels may be one per token.
    - `metric`: a function of (output, labels) that returns the mean over the rows, measured on the test rows beside the
      loss, or a dict of such functions by name. The columns of the record have their names.
    - `pixels`: what to do with images of a named data set: divide by the largest value (`"unit"`), leave them as they
      are (`"raw"`), or bring them to mean 0 and deviation 1 over the training rows (`"standard"`).
    - `gradients`: `"auto"`, in `"closed"` form (layers of nn.Linear), for all clients at once by `"vmap"`, the same
      `"compiled"` by torch, or in a `"loop"` over clients.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"`module` must be an nn.Module, got {type(module).__name__}.")
    loss = nn.functional.cross_entropy if loss is None else loss
    if not callable(loss):
        raise InputError(f"`loss` must be a function of (output, labels), got {type(loss).__name__}.")
    check_choice("pixels", pixels, ("unit", "raw", "standard"))
    kind, where = as_dtype(dtype), as_device(device)
    is_list = _is_one_per_client(data)
    if is_list and (clients not in (None, len(data)) or partition is not None):
        what = f"`clients` = {clients}" if partition is None else f"`partition` = {partition!r}"
        raise InputError(f"`data` is a list of {len(data)} data sets, one per client; leave out {what}.")
    if lazy is not None:
        check_bool("lazy", lazy)
    if lazy and not is_list:
        raise InputError("`lazy` needs a list of data sets, one per client: a partition would have to read all labels.")
    found = lazy_rows(data, test, collate, kind, where, must=lazy is True) if is_list and lazy is not False else None
    if found is not None:
        if pixels == "standard":
            raise InputError("`pixels` = 'standard' needs all rows in memory; scale the rows in your data set.")
        held, tested = found
        facts: Facts = {"data": "data", "lazy": True}
        metrics = _metrics(metric, has_test=tested is not None)
        return ModuleProblem(module, loss, held, tested, gradients, facts | (about or {}), metrics)
    dataset, shares, known = _shared(data, test, data_dir, collate, clients, partition, seed, equal=equal)
    affine = _normalisation(dataset, pixels)
    rows = Rows.share(dataset.features, dataset.labels, shares, kind, where, affine, keeps_integers=True)
    test_rows = None
    if dataset.test_features is not None and dataset.test_labels is not None:
        every = [np.arange(len(dataset.test_labels))]
        given = dataset.test_features, dataset.test_labels, every, kind, where, affine
        test_rows = Rows.share(*given, keeps_integers=True)
    metrics = _metrics(metric, has_test=test_rows is not None)
    known |= {"pixels": pixels} if dataset.peak != 1 else {}
    return ModuleProblem(module, loss, rows, test_rows, gradients, known | (about or {}), metrics)


def _shared(
    data: Any,
    test: Any,
    data_dir: str | os.PathLike[str] | None,
    collate: Collate | None,
    clients: int | None,
    partition: str | Partition | None,
    seed: int,
    *,
    equal: bool,
) -> tuple[Dataset, Sequence[Any], Facts]:
    """All rows, those of each client, and where they come from."""
    if _is_one_per_client(data):
        dataset, counts = concatenated(data, test, collate)
        ends = np.cumsum(counts)
        return dataset, [np.arange(end - n, end) for n, end in zip(counts, ends, strict=True)], {"data": dataset.name}
    dataset, rule = load(data, data_dir, test, collate).dense(), "sorted" if partition is None else partition
    shares = split(dataset.labels, _CLIENTS if clients is None else clients, rule, seed, equal=equal)
    return dataset, shares, {"data": dataset.name, "partition": str(rule)}


def _is_one_per_client(data: Any) -> bool:
    """A list of data sets, or of tuples (features, labels); a list of two arrays, or of lists, is one pair."""
    arrays = (np.ndarray, torch.Tensor, list, str)
    return isinstance(data, list) and all(
        isinstance(one, tuple)
        or (hasattr(one, "__getitem__") and hasattr(one, "__len__") and not isinstance(one, arrays))
        for one in data
    )


def _metrics(metric: Metric | Mapping[str, Metric] | None, *, has_test: bool) -> dict[str, Metric]:
    if metric is None:
        return {}
    named = metric if isinstance(metric, Mapping) else {getattr(metric, "__name__", type(metric).__name__): metric}
    for name, function in named.items():
        if not callable(function):
            kind = type(function).__name__
            raise InputError(f"The metric {name!r} must be a function of (output, labels), got {kind}.")
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(f"A metric needs a name, which its column gets, got {name!r}; pass a dict by name.")
    if not has_test:
        raise InputError("`metric` is measured on test rows, and there are none; pass `test`.")
    return dict(named)


def _normalisation(dataset: Dataset, pixels: Pixels) -> tuple[float, float]:
    if pixels == "raw" or (pixels == "unit" and dataset.peak == 1):
        return 0.0, 1.0
    if pixels == "unit":
        return 0.0, dataset.peak
    values = dataset.features
    return float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64)) or 1.0


@objectives.register("module")
def imported_module(
    module: str,
    data: str,
    *,
    loss: str | None = None,
    metric: str | None = None,
    test: str | None = None,
    init_seed: int = 0,
    clients: int | None = None,
    partition: str | None = None,
    equal: bool = True,
    pixels: Pixels = "unit",
    gradients: Gradients = "auto",
    data_dir: str | None = None,
    lazy: bool | None = None,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
) -> ModuleProblem:
    """A module of yours, for spec files: `module = "my_package:build"`, `data = "my_package:datasets"`.

    `module` names an `nn.Module`, or a function without arguments that returns one; `init_seed` seeds torch while it
    runs. `data` and `test` name data or a function that returns it, or are the name of a data set; `loss` and `metric`
    name functions. Packages are looked for in the working directory, too. The other arguments are those of
    `module_problem`.
    """
    return module_problem(
        built_module(module, init_seed),
        _data("data", data),
        loss=None if loss is None else _imported("loss", loss),
        metric=None if metric is None else _imported("metric", metric),
        test=None if test is None else _data("test", test),
        clients=clients,
        partition=partition,
        equal=equal,
        pixels=pixels,
        gradients=gradients,
        data_dir=data_dir,
        lazy=lazy,
        seed=seed,
        dtype=dtype,
        device=device,
        about={"module": module, "data": data},
    )


def built_module(name: str, init_seed: int = 0) -> nn.Module:
    """The module that "my_package:build" names, or that the function of this name returns."""
    with own_generator(torch.device("cpu")):
        torch.manual_seed(check_integer("init_seed", init_seed, 0, 2**63 - 1))
        built = _imported("module", name)
        made: nn.Module = built if isinstance(built, nn.Module) else _called("module", name, built)
    return made


def _data(what: str, name: str) -> Any:
    if ":" not in name or normal(name.partition(":")[0]) in datasets.names():
        return name
    found = _imported(what, name)
    return _called(what, name, found) if callable(found) and not hasattr(found, "__getitem__") else found


def _imported(what: str, name: str) -> Any:
    """What "package.module:attribute" names."""
    package, _, attribute = name.partition(":")
    if not package or not attribute:
        raise InputError(f'`{what}` must be like "my_package:build", got {name!r}.')
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(package)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a user's file may raise anything
        reason = (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
        raise InputError(f"`{what}` = {name!r} cannot be imported: {reason}.") from None
    finally:
        if sys.path and sys.path[0] == here:
            del sys.path[0]
    return found


def _called(what: str, name: str, function: Callable[[], Any]) -> Any:
    if not callable(function):
        raise InputError(f"`{what}` = {name!r} must be a function without arguments, got {type(function).__name__}.")
    try:
        return function()
    except Exception as error:  # a user's code may raise anything
        reason = (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
        raise InputError(f"`{what}` = {name!r} failed: {type(error).__name__}: {reason}.") from None
