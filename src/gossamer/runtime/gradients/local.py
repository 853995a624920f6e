"""Several steps of an optimiser in place of one gradient."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from gossamer.algorithms.base import Algorithm
from gossamer.errors import InputError, check_integer, unknown

_ELEMENTWISE = ["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Rprop"]
"""Optimisers of torch that treat every coordinate alike, so that all clients are one tensor."""
_OUTER = "outer"


class LocalSteps:
    """Steps of an optimiser that each client takes on its own between two exchanges.

    Their sum, the model before minus the model after them, takes the place of the gradient ("pseudo-gradient"). A
    method that takes one minibatch gradient per round works with it; its `lr` is usually 1. Each client keeps the
    moments of its optimiser. With `outer_momentum`, the sums themselves get Nesterov momentum, as in DiLoCo (Douillard
    et al., 2023, arXiv 2311.08105).

    >>> import gossamer as gs
    >>> gs.LocalSteps(torch.optim.AdamW, steps=20, lr=1e-3, weight_decay=0.1)
    LocalSteps(AdamW, steps=20, lr=0.001, weight_decay=0.1)

    Args:
        optimizer: A class of `torch.optim`, or its name; or your own, which is then run client by client.
        steps: How many steps per round, each on a minibatch of its own.
        outer_momentum: The momentum of the sums, in [0, 1).
        settings: Of the optimiser.
    """

    def __init__(
        self, optimizer: type[torch.optim.Optimizer] | str, steps: int = 1, outer_momentum: float = 0.0, **settings: Any
    ) -> None:
        if isinstance(optimizer, str):
            known = {name: one for name, one in vars(torch.optim).items() if inspect.isclass(one) and name[0].isupper()}
            if optimizer not in known or optimizer == "Optimizer":
                raise unknown("optimizer", optimizer, sorted(known.keys() - {"Optimizer"}))
            optimizer = cast(type[torch.optim.Optimizer], known[optimizer])
        if not inspect.isclass(optimizer) or not issubclass(optimizer, torch.optim.Optimizer):
            raise InputError(f"`optimizer` must be a class such as torch.optim.AdamW, got {optimizer!r}.")
        self.optimizer, self.steps, self.settings = optimizer, check_integer("steps", steps, 1), settings
        if not isinstance(outer_momentum, int | float) or not 0 <= outer_momentum < 1:
            raise InputError(f"`outer_momentum` must be in [0, 1), got {outer_momentum!r}.")
        self.outer_momentum = float(outer_momentum)
        try:
            optimizer([nn.Parameter(torch.zeros(2, 2))], **settings)
        except (TypeError, ValueError) as error:
            reason = str(error).split("\n")[0].removeprefix(f"{optimizer.__name__}.__init__() ").rstrip(".")
            raise InputError(f"{optimizer.__name__} does not take these settings: {reason}.") from None

    @property
    def is_elementwise(self) -> bool:
        """Whether all clients can be one tensor."""
        return self.optimizer is getattr(torch.optim, self.optimizer.__name__, None) and (
            self.optimizer.__name__ in _ELEMENTWISE
        )

    def __repr__(self) -> str:
        outer = {"outer_momentum": self.outer_momentum} if self.outer_momentum else {}
        told = "".join(f", {name}={value!r}" for name, value in (outer | self.settings).items())
        return f"LocalSteps({self.optimizer.__name__}, steps={self.steps}{told})"


def check_local(local: object) -> LocalSteps | None:
    """The local steps, or None; an InputError for anything else."""
    if local is None or isinstance(local, LocalSteps):
        return local
    raise InputError(f"`local` must be gossamer.LocalSteps(torch.optim.AdamW, ...), got {type(local).__name__}.")


def for_local_steps(method: Algorithm) -> Algorithm:
    """The method as local steps can serve it: beginning with what they lead to, and not with full gradients."""
    if method.needs is not None:
        raise InputError(
            f"{method.info.title} needs {method.needs.value}, which local steps do not give; use BEER, say."
        )
    return method.with_minibatch_start()


class Steps:
    """The local steps of one round from models x, (rows, d), with the moments that the round before left."""

    def __init__(self, local: LocalSteps, x: Tensor, shapes: Sequence[torch.Size], kept: Mapping[str, Tensor]) -> None:
        self._local, self._x, self._kept = local, x, kept
        self._sizes = [shape.numel() for shape in shapes]
        if local.is_elementwise:
            self._leaves = [[nn.Parameter(x.detach().clone())]]
        else:
            pieces = [torch.split(row, self._sizes) for row in x.detach().clone()]
            self._leaves = [
                [nn.Parameter(piece.view(shape)) for piece, shape in zip(row, shapes, strict=True)] for row in pieces
            ]
        self._optimizers = [local.optimizer(leaves, **local.settings) for leaves in self._leaves]
        for optimizer, leaves, rows in zip(self._optimizers, self._leaves, self._rows(), strict=True):
            for number, leaf in enumerate(leaves):
                optimizer.state[leaf] |= self._restored(number, rows)
        self.moments: dict[str, Tensor] = {}

    def taken(self, gradient: Callable[[Tensor, int], Tensor]) -> Tensor:
        """x minus the models after all steps; `gradient` gives that of step k."""
        for k in range(self._local.steps):
            self._step(gradient(self._point(), k))
        self.moments = self._left()
        change = self._x - self._point()
        if self._local.outer_momentum:
            mu = self._local.outer_momentum
            momentum = change + mu * self._kept.get(_OUTER, torch.zeros_like(change))
            self.moments[_OUTER] = momentum
            change = change + mu * momentum
        return change

    def _rows(self) -> Iterator[slice]:
        """The rows that each optimiser has."""
        many = len(self._x) if self._local.is_elementwise else 1
        return (slice(begin, begin + many) for begin in range(0, len(self._x), many))

    def _point(self) -> Tensor:
        if self._local.is_elementwise:
            return self._leaves[0][0].detach()
        return torch.stack([torch.cat([leaf.detach().flatten() for leaf in leaves]) for leaves in self._leaves])

    def _step(self, gradient: Tensor) -> None:
        for optimizer, leaves, rows in zip(self._optimizers, self._leaves, self._rows(), strict=True):
            pieces = [gradient] if self._local.is_elementwise else torch.split(gradient[rows.start], self._sizes)
            for leaf, piece in zip(leaves, pieces, strict=True):
                leaf.grad = piece.view(leaf.shape)
            with torch.enable_grad():  # as in a training loop
                optimizer.step()

    def _restored(self, number: int, rows: slice) -> dict[str, Any]:
        """What an optimiser knows of a parameter; a number that all rows share has one entry per row."""
        found = {}
        for name, tensor in self._kept.items():
            which, _, key = name.partition(".")
            if which == str(number):
                mine = tensor[rows]
                is_number = tensor.dim() == 1
                found[key] = mine[0].clone() if is_number or not self._local.is_elementwise else mine.clone()
        return found

    def _left(self) -> dict[str, Tensor]:
        """What the optimisers know, with one entry per row."""
        left: dict[str, list[Tensor]] = {}
        for optimizer, leaves in zip(self._optimizers, self._leaves, strict=True):
            for number, leaf in enumerate(leaves):
                for key, value in optimizer.state[leaf].items():
                    if value is None:
                        continue
                    one = torch.as_tensor(value).detach()
                    if self._local.is_elementwise:
                        one = one.expand(len(self._x)) if one.dim() == 0 else one
                    else:
                        one = one[None]
                    left.setdefault(f"{number}.{key}", []).append(one)
        return {name: torch.cat(parts) if len(parts) > 1 else parts[0].contiguous() for name, parts in left.items()}
