"""The networks of the BEER paper and a small ResNet, sized for a data set."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.errors import InputError, check_bool, check_choice, check_integer
from gossamer.problems.data.datasets import Dataset, load
from gossamer.problems.modules.module import ModuleProblem
from gossamer.problems.modules.own import module_problem
from gossamer.problems.modules.trial import own_generator
from gossamer.registry import objectives

Norm = Literal["batch", "group"]
Shape = tuple[int, ...]


def network(name: str, **defaults: Any) -> Callable[[Callable[..., nn.Module]], Callable[..., ModuleProblem]]:
    """Turn a function that builds a module for a row shape and a number of classes into an objective.

    The objective takes the function's settings, `init_seed` for the initial weights (torch's default ones), and all
    arguments of `module_problem` except the module and the loss, with `defaults` for some of them.
    """

    def make(build: Callable[..., nn.Module]) -> Callable[..., ModuleProblem]:
        _, _, *own = inspect.signature(build).parameters.values()
        taken = inspect.signature(module_problem).parameters
        shared = [
            p.replace(default=defaults.get(p.name, p.default))
            for k, p in taken.items()
            if k not in ("module", "loss", "metric", "collate", "about")
        ]
        seed = inspect.Parameter("init_seed", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=int)
        signature = inspect.Signature([shared[0], *own, seed, *shared[1:]], return_annotation=ModuleProblem)

        @functools.wraps(build)
        def objective(*positional: Any, **named: Any) -> ModuleProblem:
            bound = signature.bind(*positional, **named)
            bound.apply_defaults()
            settings = bound.arguments
            dataset = load(settings.pop("data"), settings.pop("data_dir"), settings.pop("test")).dense()
            mine = {p.name: settings.pop(p.name) for p in own}
            classes = _classes(dataset)
            whole = {k: v.astype(np.int64) for k in ("labels", "test_labels") if (v := getattr(dataset, k)) is not None}
            dataset = dataclasses.replace(dataset, **whole)  # LIBSVM's labels are floats
            with own_generator(torch.device("cpu")):
                torch.manual_seed(check_integer("init_seed", settings.pop("init_seed"), 0, 2**63 - 1))
                module = build(dataset.features.shape[1:], classes, **mine)
            return module_problem(module, dataset, **settings, about={"module": name} | mine)

        objective.__signature__ = signature  # type: ignore[attr-defined]
        objective.__annotations__ = {}
        registered: Callable[..., ModuleProblem] = objectives.register(name)(objective)
        return registered

    return make


@network("one_hidden_layer", data="mnist")
def one_hidden_layer(shape: Shape, classes: int, *, hidden: int = 32) -> nn.Module:
    """The network of the paper's figure 2: one hidden layer of sigmoid units, softmax, cross-entropy.

    `hidden` is the number of units (the paper's text says 32 and 64; its published run has 32, 25,450 parameters on
    MNIST, and takes `pixels="raw"`), and `init_seed` the seed of the initial weights (torch's default initialisation).
    The other arguments are those of `module_problem`.
    """
    hidden = check_integer("hidden", hidden, 1, 10**6)
    inputs = torch.Size(shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.Sigmoid(), nn.Linear(hidden, classes))


@network("cnn", data="mnist", partition="by_label", pixels="standard")
def cnn(shape: Shape, classes: int, *, running_stats: bool = True) -> nn.Module:
    """The network of the paper's section 5.3: two 5 x 5 convolutions with batch norm, ReLU, pooling; one linear layer.

    16 and 32 channels; 29,034 parameters on MNIST. With `running_stats`, batch norm keeps running means for evaluation;
    else it uses the statistics of each batch. The other arguments are those of `one_hidden_layer`; `data` has images.
    """
    check_bool("running_stats", running_stats)
    channels, height, width = _image(shape, "A convolutional network")

    def stage(before: int, after: int) -> list[nn.Module]:
        norm = nn.BatchNorm2d(after, track_running_stats=running_stats)
        return [nn.Conv2d(before, after, 5, padding=2), norm, nn.ReLU(), nn.MaxPool2d(2)]

    stages = [*stage(channels, 16), *stage(16, 32)]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), classes))


@network("resnet", pixels="standard")
def resnet(shape: Shape, classes: int, *, blocks: int = 3, norm: Norm = "batch") -> nn.Module:
    """A small residual network for images of about 32 x 32: three stages of 16, 32 and 64 channels (He et al., 2016).

    `blocks` are per stage; 3 makes a ResNet-20. `norm` is `"batch"`, whose running means belong to a client, or
    `"group"`, which has none. The other arguments are those of `one_hidden_layer`; `data` has images.
    """
    blocks = check_integer("blocks", blocks, 1)
    check_choice("norm", norm, ("batch", "group"))
    channels, _, _ = _image(shape, "A residual network")
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False), _norm(16, norm), nn.ReLU()]
    for before, after in ((16, 16), (16, 32), (32, 64)):
        layers.append(_Block(before, after, 1 if before == after else 2, norm))
        layers += [_Block(after, after, 1, norm) for _ in range(blocks - 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a skip connection."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            _norm(after, norm),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            _norm(after, norm),
        )
        self.around: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(after, norm))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum of both paths."""
        return torch.relu(self.path(x) + self.around(x))


def _norm(channels: int, norm: Norm) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(8, channels)


def _image(shape: Shape, what: str) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InputError(
            f"{what} needs images of at least 4 x 4, (channels, height, width), got rows of shape {shape}."
        )
    channels, height, width = shape
    return channels, height, width


def _classes(dataset: Dataset) -> int:
    """The number of classes of a data set, which must be 0, 1, ..."""
    classes = dataset.classes("The network")
    if classes.tolist() != list(range(len(classes))):
        shown = ", ".join(f"{value:g}" for value in classes[:5])
        raise InputError(f"The network needs classes 0, 1, ..., but {dataset.name!r} has {shown}.")
    return len(classes)
