"""Per-client gradients of the paper's networks on MNIST, against straightforward implementations.

    python benchmarks/gradients.py [--data-dir ../shared/data] [--device cpu] [--threads 2]

The one-hidden-layer network (10 clients, batches of 100) against a loop of NumPy float64 forward and backward passes;
the CNN against a plain loop of autograd calls; and 1,000 clients with batches of 20 against 100 times 10 clients. They
are measured in turns within one run, and each includes gathering the rows of the batch. Prints the ratios as JSON.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.func import functional_call

import gossamer as gs
from gossamer.problems import ModuleProblem

Array = npt.NDArray[Any]


def by_numpy(x: Array, images: Array, labels: Array, batch: Array, hidden: int = 32) -> Array:
    """A loop over clients: forward, backward, float64."""
    out = np.empty_like(x)
    cuts = np.cumsum([784 * hidden, hidden, 10 * hidden])
    for i, model in enumerate(x):
        w1, b1, w2, b2 = np.split(model, cuts)
        w1, w2 = w1.reshape(hidden, 784), w2.reshape(10, hidden)
        a, y = images[i, batch[i]], labels[i, batch[i]]
        h = 1 / (1 + np.exp(-(a @ w1.T + b1)))
        z = h @ w2.T + b2
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(p)), y] -= 1
        p /= len(p)
        back = (p @ w2) * h * (1 - h)
        out[i] = np.concatenate([(back.T @ a).ravel(), back.sum(axis=0), (p.T @ h).ravel(), p.sum(axis=0)])
    return out


def by_autograd(problem: ModuleProblem, module: nn.Module, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """A plain loop of autograd calls over the same rows."""
    shapes = {name: p.shape for name, p in module.named_parameters()}
    rows = []
    for i, index in enumerate(problem.rows.index(batch)):
        leaf = x[i].detach().requires_grad_()
        parts = torch.split(leaf, [shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        output = functional_call(module, named, (problem.rows.inputs(index),))
        loss = nn.functional.cross_entropy(output, problem.rows.labels[index])
        rows.append(torch.autograd.grad(loss, leaf)[0])
    return torch.stack(rows)


def in_turns(repeats: int, device: str, **work: Callable[[], Any]) -> dict[str, float]:
    """The shortest time of each, in milliseconds.

    A turn is several calls, because the threads of another library keep spinning after its last call and slow down the
    first call of the next.
    """
    best = dict.fromkeys(work, float("inf"))
    for _ in range(4):
        for name, call in work.items():
            for repeat in range(repeats + 1):
                began = time.perf_counter()
                call()
                if device != "cpu":
                    torch.cuda.synchronize()
                if repeat:  # the first call warms up
                    best[name] = min(best[name], (time.perf_counter() - began) * 1e3)
    return best


def setting(problem: ModuleProblem, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = problem.x0() + 0.01 * torch.randn(problem.clients, problem.d, device=problem.device)
    return x, torch.randint(0, problem.rows_per_client, (problem.clients, size), device=problem.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("GOSSAMER_DATA"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = gs.problems.load("mnist", options.data_dir)
    where = {"device": options.device}
    result: dict[str, object] = {"device": options.device, "threads": torch.get_num_threads()}

    small = gs.problems.one_hidden_layer(data, clients=10, **where)
    x, batch = setting(small, 100)
    images = small.rows.inputs(slice(None)).double().cpu().numpy().reshape(10, -1, 784)
    labels, wide, which = small.rows.labels.cpu().numpy().reshape(10, -1), x.double().cpu().numpy(), batch.cpu().numpy()
    apart = np.abs(by_numpy(wide, images, labels, which) - small.gradient(x, batch).cpu().numpy()).max()
    assert apart < 1e-6, apart
    # A new minibatch in every call, as in training, so that rows come from memory and not from the cache.
    drawn = [torch.randint(0, small.rows_per_client, (10, 100), device=small.device) for _ in range(64)]
    for_numpy, for_us = itertools.cycle([one.cpu().numpy() for one in drawn]), itertools.cycle(drawn)
    times = in_turns(
        20,
        options.device,
        numpy=lambda: by_numpy(wide, images, labels, next(for_numpy)),
        gossamer=lambda: small.gradient(x, next(for_us)),
    )
    result["one hidden layer, 10 clients, batch 100"] = _rounded(times) | {"ratio": _ratio(times, "numpy")}

    convolutional = gs.problems.cnn(data, clients=10, running_stats=False, **where)
    x, batch = setting(convolutional, 100)
    module = convolutional.module
    times = in_turns(
        2,
        options.device,
        autograd_loop=lambda: by_autograd(convolutional, module, x, batch),
        gossamer=lambda: convolutional.gradient(x, batch),
    )
    about = {"gradients": convolutional.gradients, "ratio": _ratio(times, "autograd_loop")}
    result["CNN, 10 clients, batch 100"] = _rounded(times) | about

    many = gs.problems.one_hidden_layer(data, clients=1000, **where)
    (few_x, few_batch), (many_x, many_batch) = setting(small, 20), setting(many, 20)

    def hundred_times() -> None:
        for _ in range(100):
            small.gradient(few_x, few_batch)

    times = in_turns(
        3, options.device, hundred_times_10=hundred_times, gossamer=lambda: many.gradient(many_x, many_batch)
    )
    share = round(times["gossamer"] / times["hundred_times_10"], 3)
    result["one hidden layer, 1,000 clients, batch 20"] = _rounded(times) | {"over 100 times 10 clients": share}
    print(json.dumps(result, indent=2))


def _rounded(times: dict[str, float]) -> dict[str, float | str]:
    return {f"{name}, ms": round(value, 2) for name, value in times.items()}


def _ratio(times: dict[str, float], baseline: str) -> float:
    return round(times[baseline] / times["gossamer"], 2)


if __name__ == "__main__":
    main()
