"""The networks of the BEER paper, and a small ResNet."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer.errors import InputError, check_choice, check_integer
from gossamer.problems.datasets import Dataset, load
from gossamer.problems.module import Gradients, ModuleProblem, Pixels, module_problem
from gossamer.problems.partition import Partition
from gossamer.registry import objectives

Norm = Literal["batch", "group"]


def _images(dataset: Dataset, what: str) -> tuple[int, int, int]:
    if dataset.features.ndim != 4:
        raise InputError(f"{what} needs images, but the rows of {dataset.name!r} are {dataset.features.shape[1:]}.")
    channels, height, width = dataset.features.shape[1:]
    return channels, height, width


@objectives.register("one_hidden_layer")
def one_hidden_layer(
    data: Any = "mnist",
    *,
    hidden: int = 32,
    init_seed: int = 0,
    clients: int = 10,
    partition: str | Partition = "sorted",
    equal: bool = True,
    pixels: Pixels = "unit",
    gradients: Gradients = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    test: Any = None,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> ModuleProblem:
    """The network of the paper's figure 2: one hidden layer of sigmoid units, softmax, cross-entropy.

    Args:
        data: `"mnist"`, `"fashion_mnist"`, `"digits"` (embedded), or any other with classes.
        hidden: Units (the paper's text says 32 and 64; its published run has 32, 25,450 parameters on MNIST).
        init_seed: Of the starting weights, which are torch's own.
        clients: How many share the rows.
        partition: As for `module_problem`.
        equal: As for `module_problem`.
        pixels: As for `module_problem`; the paper's published run took raw ones.
        gradients: As for `module_problem`.
        data_dir: Where data files lie.
        test: Test rows, where `data` is not a named data set.
        seed: Of a random partition.
        dtype: float32 or float64.
        device: Where the tensors live.
    """
    hidden = check_integer("hidden", hidden, 1)
    dataset = load(data, data_dir, test)
    classes = len(_numbered(dataset, "The network"))
    inputs = int(dataset.features[0].size)
    with _seeded(init_seed):
        module = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.Sigmoid(), nn.Linear(hidden, classes))
    problem = module_problem(
        module, dataset, clients=clients, partition=partition, equal=equal, pixels=pixels, gradients=gradients,
        seed=seed, dtype=dtype, device=device,
    )  # fmt: skip
    problem._about |= {"hidden": hidden, "module": "one_hidden_layer"}
    return problem


@objectives.register("cnn")
def cnn(
    data: Any = "mnist",
    *,
    running_stats: bool = True,
    init_seed: int = 0,
    clients: int = 10,
    partition: str | Partition = "by_label",
    equal: bool = True,
    pixels: Pixels = "standard",
    gradients: Gradients = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    test: Any = None,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> ModuleProblem:
    """The network of the paper's section 5.3: two convolutions of 5 x 5 with batch norm, ReLU and pooling, and a layer.

    16 and 32 channels; 29,034 parameters on MNIST.

    Args:
        data: Images with classes.
        running_stats: Whether batch norm keeps running means for evaluation; else it uses each batch's own.
        init_seed: Of the starting weights, which are torch's own.
        clients: How many share the rows.
        partition: As for `module_problem`; the paper gives client i digit i.
        equal: As for `module_problem`.
        pixels: As for `module_problem`.
        gradients: As for `module_problem`.
        data_dir: Where data files lie.
        test: Test rows, where `data` is not a named data set.
        seed: Of a random partition.
        dtype: float32 or float64.
        device: Where the tensors live.
    """
    dataset = load(data, data_dir, test)
    classes = len(_numbered(dataset, "The network"))
    channels, height, width = _images(dataset, "A convolutional network")

    def stage(before: int, after: int) -> list[nn.Module]:
        norm = nn.BatchNorm2d(after, track_running_stats=running_stats)
        return [nn.Conv2d(before, after, 5, padding=2), norm, nn.ReLU(), nn.MaxPool2d(2)]

    with _seeded(init_seed):
        last = nn.Linear(32 * (height // 4) * (width // 4), classes)
        module = nn.Sequential(*stage(channels, 16), *stage(16, 32), nn.Flatten(), last)
    problem = module_problem(
        module, dataset, clients=clients, partition=partition, equal=equal, pixels=pixels, gradients=gradients,
        seed=seed, dtype=dtype, device=device,
    )  # fmt: skip
    problem._about |= {"module": "cnn"}
    return problem


class _Block(nn.Module):
    """Two convolutions of 3 x 3 and a way around them."""

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
        """ReLU of the sum of both ways."""
        return torch.relu(self.path(x) + self.around(x))


def _norm(channels: int, norm: Norm) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(8, channels)


@objectives.register("resnet")
def resnet(
    data: Any,
    *,
    blocks: int = 3,
    norm: Norm = "batch",
    init_seed: int = 0,
    clients: int = 10,
    partition: str | Partition = "sorted",
    equal: bool = True,
    pixels: Pixels = "standard",
    gradients: Gradients = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    test: Any = None,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> ModuleProblem:
    """A small residual network for images of about 32 x 32: three stages of 16, 32 and 64 channels (He et al., 2016).

    Args:
        data: Images with classes.
        blocks: A stage; 3 makes a ResNet-20.
        norm: `"batch"`, whose running means belong to a client, or `"group"`, which has none.
        init_seed: Of the starting weights, which are torch's own.
        clients: How many share the rows.
        partition: As for `module_problem`.
        equal: As for `module_problem`.
        pixels: As for `module_problem`.
        gradients: As for `module_problem`.
        data_dir: Where data files lie.
        test: Test rows, where `data` is not a named data set.
        seed: Of a random partition.
        dtype: float32 or float64.
        device: Where the tensors live.
    """
    blocks = check_integer("blocks", blocks, 1)
    check_choice("norm", norm, ("batch", "group"))
    dataset = load(data, data_dir, test)
    classes = len(_numbered(dataset, "The network"))
    channels, _, _ = _images(dataset, "A residual network")
    with _seeded(init_seed):
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False), _norm(16, norm), nn.ReLU()]
        for before, after in ((16, 16), (16, 32), (32, 64)):
            layers.append(_Block(before, after, 1 if before == after else 2, norm))
            layers += [_Block(after, after, 1, norm) for _ in range(blocks - 1)]
        module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    problem = module_problem(
        module, dataset, clients=clients, partition=partition, equal=equal, pixels=pixels, gradients=gradients,
        seed=seed, dtype=dtype, device=device,
    )  # fmt: skip
    problem._about |= {"module": "resnet", "blocks": blocks, "norm": norm}
    return problem


def _numbered(dataset: Dataset, what: str) -> Any:
    """The classes of a data set, which must be 0, 1, ..."""
    classes = dataset.classes(what)
    if classes.tolist() != list(range(len(classes))):
        shown = ", ".join(f"{value:g}" for value in classes[:5])
        raise InputError(f"{what} needs classes 0, 1, ..., but {dataset.name!r} has {shown}.")
    return classes


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Weights drawn inside depend on the seed alone, and nothing outside notices."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(check_integer("init_seed", seed, 0))
        yield
