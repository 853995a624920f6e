"""The average of all clients' models, with the buffers of the modules that hold the parameters."""

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.runtime.processes.ranks import Ranks


def modules_of(parameters: Iterable[Tensor]) -> list[nn.Module]:
    """The outermost modules that hold any of these parameters, in the order of the parameters.

    An optimiser is handed parameters alone, and parameters do not know their module; the garbage collector does.
    """
    every = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    holders: dict[int, list[nn.Module]] = {}
    for module in every:
        for part in (*module.__dict__.get("_parameters", {}).values(), *module.__dict__.get("_modules", {}).values()):
            holders.setdefault(id(part), []).append(module)
    found: dict[int, nn.Module] = {}
    for parameter in parameters:
        reached, seen = holders.get(id(parameter), []), set[int]()
        while reached:
            above: list[nn.Module] = []
            for module in reached:
                if id(module) not in seen:
                    seen.add(id(module))
                    above += holders.get(id(module), [])
                    if id(module) not in holders:
                        found[id(module)] = module
            reached = above
    return list(found.values())


class Average:
    """What `average_model` lends: the average of `own` (1, d) and of some buffers over all ranks.

    Args:
        ranks: Who takes part; all of them call this at the same time.
        own: This client's model.
        modules: Whose buffers are averaged with it.
        mean: How: from (1, k) numbers of this client to their average over all.
    """

    def __init__(
        self, ranks: Ranks, own: Tensor, modules: Sequence[nn.Module], mean: Callable[[Tensor], Tensor]
    ) -> None:
        named = [(f"{place}.{name}", b) for place, one in enumerate(modules) for name, b in one.named_buffers()]
        self.buffers = {name: buffer for name, buffer in named if buffer.dtype != torch.bool}  # flags have no average
        shapes: dict[str, Any] = {name: list(buffer.shape) for name, buffer in self.buffers.items()}
        ranks.agree({"the buffers of the model": shapes}, "pass the model, as average_model(model), on every rank")
        together = torch.cat([own[0], *(buffer.detach().reshape(-1).to(own) for buffer in self.buffers.values())])
        average = mean(together[None])[0]
        sizes = [own.shape[1], *(buffer.numel() for buffer in self.buffers.values())]
        self.model, *values = torch.split(average, sizes)
        self.values = {
            name: (value if buffer.is_floating_point() else value.round()).view(buffer.shape).to(buffer.dtype)
            for (name, buffer), value in zip(self.buffers.items(), values, strict=True)
        }

    @torch.no_grad()
    def exchange_buffers(self) -> None:
        """Swap the values of the buffers with those kept here: lent the first time, given back the second."""
        for name, buffer in self.buffers.items():
            kept = buffer.clone()
            buffer.copy_(self.values[name])
            self.values[name] = kept
