"""What is trained: networks on MNIST, divided by digit or by Dirichlet(0.3), and a small language model."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import gossamer as gs
from gossamer.problems import ModuleProblem
from gossamer.problems.modules.trial import own_generator

SPLITS = {"dirichlet": "dirichlet:0.3", "digit": "by_label"}


@dataclass(frozen=True)
class Task:
    """A model, its minibatch, and what counts as trained: a test accuracy, by split."""

    widths: tuple[int, ...] = ()
    """Of the layers of a ReLU network on MNIST; empty for the other models."""
    batch: int = 32
    targets: Mapping[str, float] = field(default_factory=dict)
    """The accuracy to be reached, by split, where time to it is measured."""


TASKS = {
    "hidden": Task(targets={"dirichlet": 0.90, "digit": 0.85}),
    "cnn": Task(targets={"dirichlet": 0.95, "digit": 0.90}),
    "million": Task((1024, 192), targets={"dirichlet": 0.95, "digit": 0.90}),
    "ten million": Task((3000, 2500)),
    "language": Task(batch=8, targets={"iid": 0.27}),
}


def layers(widths: tuple[int, ...]) -> nn.Module:
    """784 pixels, ReLU layers of these widths, ten digits; (1024, 192) has 1,002,570 parameters."""
    sizes = [784, *widths]
    parts: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(sizes[-1], 10))


@functools.cache
def problem(name: str, split: str, hosts: int, device: str = "cpu") -> ModuleProblem:
    """The task divided among hosts; all hosts build the same initial model."""
    if name == "language":
        sizes: dict[str, Any] = {"layers": 4, "width": 128, "context": 64, "evaluated": 64}
        return gs.problems.language_model("topics", clients=hosts, device=device, **sizes)
    # All rows are kept: with equal shares, "by digit" would leave out the digits of those who have three.
    data: dict[str, Any] = {"clients": hosts, "partition": SPLITS[split], "equal": False, "device": device}
    data["pixels"] = "standard"
    if name == "hidden":
        return gs.problems.one_hidden_layer("mnist", **data)
    if name == "cnn":
        return gs.problems.cnn("mnist", running_stats=False, **data)
    with own_generator(torch.device("cpu")):
        torch.manual_seed(0)
        module = layers(TASKS[name].widths)
    return gs.module_problem(module, "mnist", **data)
