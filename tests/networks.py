"""The paper's two networks on MNIST sorted by label, by a plain loop of autograd calls: a source of real messages."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

import gossamer as gs


class Network(gs.Problem):
    """Any module with cross-entropy loss, its parameters as one vector."""

    def __init__(self, module: nn.Module, images: Tensor, labels: Tensor) -> None:
        self.module, self.images, self.labels = module, images, labels  # (clients, rows, ...), (clients, rows)
        self.parts = {name: p.shape for name, p in module.named_parameters()}
        self.clients, self.rows_per_client = labels.shape
        self.d = sum(shape.numel() for shape in self.parts.values())
        self.dtype, self.device = torch.float32, torch.device("cpu")

    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        rows = []
        with torch.enable_grad():
            for i, flat in enumerate(x):
                chosen = slice(None) if batch is None else batch[i]
                leaf = flat.detach().requires_grad_()
                pieces = torch.split(leaf, [shape.numel() for shape in self.parts.values()])
                named = {n: p.view(s) for (n, s), p in zip(self.parts.items(), pieces, strict=True)}
                output = functional_call(self.module, named, (self.images[i][chosen],))
                loss = nn.functional.cross_entropy(output, self.labels[i][chosen])
                rows.append(torch.autograd.grad(loss, leaf)[0])
        return torch.stack(rows)

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def x0(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.module.parameters()])


def _mnist(data_dir: Path, rows: int) -> tuple[Tensor, Tensor]:
    """`rows` images of each digit, one digit a client."""
    folder = data_dir / "mnist"
    raw = gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes())
    images = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    labels = np.frombuffer(gzip.decompress((folder / "train-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    chosen = np.stack([np.flatnonzero(labels == digit)[:rows] for digit in range(10)])
    return torch.from_numpy(images[chosen]).float(), torch.from_numpy(labels[chosen]).long()


def convolutional(data_dir: Path) -> Network:
    """The CNN of section 5.3: 29,034 parameters."""
    torch.manual_seed(0)

    def stage(before: int, after: int) -> list[nn.Module]:
        return [
            nn.Conv2d(before, after, 5, padding=2),
            nn.BatchNorm2d(after, track_running_stats=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    module = nn.Sequential(*stage(1, 16), *stage(16, 32), nn.Flatten(), nn.Linear(1568, 10))
    images, labels = _mnist(data_dir, 200)
    return Network(module, (images / 255 - 0.1307) / 0.3081, labels)


def one_hidden_layer(data_dir: Path) -> Network:
    """The network of figure 2: 32 sigmoid units, 25,450 parameters."""
    torch.manual_seed(0)
    module: Any = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Sigmoid(), nn.Linear(32, 10))
    images, labels = _mnist(data_dir, 1000)
    return Network(module, images, labels)
