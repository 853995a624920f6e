"""Several steps of an optimiser in place of one gradient."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.round import Taken
from gossamer.algorithms.schedules import Schedule, check_lr
from gossamer.errors import InputError, check_integer, check_positive, unknown

_ELEMENTWISE = ["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Rprop"]
"""Optimisers of torch that treat every coordinate alike, so that all clients are one tensor."""
_OUTER = "outer"


class LocalSteps:
    """Steps of an optimiser that each client takes on its own between two exchanges.

    Their sum, the model before minus the model after them, takes the place of the gradient ("pseudo-gradient"). A
    method that takes one minibatch gradient per round works with it; its `lr` is usually 1. K-GT and its compressed
    form correct each step. Each client keeps the moments of its optimiser. With `outer_momentum`, the sums themselves
    get Nesterov momentum, as in DiLoCo (Douillard et al., 2023, arXiv 2311.08105).

    >>> import gossamer as gs
    >>> gs.LocalSteps(torch.optim.AdamW, steps=20, lr=1e-3, weight_decay=0.1)
    LocalSteps(AdamW, steps=20, lr=0.001, weight_decay=0.1)

    Args:
        optimizer: A class of `torch.optim`, or its name; or your own, which is then run client by client.
        steps: How many steps per round, each on a minibatch of its own.
        outer_momentum: The momentum of the sums, in [0, 1).
        clip: The largest norm of a client's gradient, as in `torch.nn.utils.clip_grad_norm_`.
        groups: Settings of some parameters of a module, by the pattern of their names: `{"*.bias": {"weight_decay":
            0.0}}`. The first pattern that fits counts. Under a schedule, a group with its own `lr` keeps its ratio.
        settings: Of the optimiser. `lr` may be a schedule over all local steps, such as `schedules.cosine(1e-3, 2000)`.
    """

    def __init__(
        self,
        optimizer: type[torch.optim.Optimizer] | str,
        steps: int = 1,
        outer_momentum: float = 0.0,
        clip: float | None = None,
        groups: Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(optimizer, str):
            known = {name: one for name, one in vars(torch.optim).items() if inspect.isclass(one) and name[0].isupper()}
            if optimizer not in known or optimizer == "Optimizer":
                raise unknown("optimizer", optimizer, sorted(known.keys() - {"Optimizer"}))
            optimizer = cast(type[torch.optim.Optimizer], known[optimizer])
        if not inspect.isclass(optimizer) or not issubclass(optimizer, torch.optim.Optimizer):
            raise InputError(f"`optimizer` must be a class such as torch.optim.AdamW, got {optimizer!r}.")
        self.optimizer, self.steps = optimizer, check_integer("steps", steps, 1)
        if isinstance(settings.get("lr"), str | dict):
            settings["lr"] = check_lr(settings["lr"])
        self.schedule = settings["lr"] if isinstance(settings.get("lr"), Schedule) else None
        self.settings = settings
        self.outer_momentum = check_momentum(outer_momentum)
        self.clip = None if clip is None else check_positive("clip", clip)
        groups = {} if groups is None else groups
        if not isinstance(groups, Mapping) or not all(isinstance(one, Mapping) for one in groups.values()):
            raise InputError(f'`groups` must be such as {{"*.bias": {{"weight_decay": 0.0}}}}, got {groups!r}.')
        self.groups = {pattern: dict(one) for pattern, one in groups.items()}
        for more in ({}, *self.groups.values()):
            known = self.make([{"params": [nn.Parameter(torch.zeros(2, 2))], **more}]).defaults
            if odd := more.keys() - known.keys():
                raise InputError(f"{optimizer.__name__} has no setting {min(odd)!r} for a group of parameters.")
        self.kept_per_coordinate = self._tried() + bool(self.outer_momentum)
        """Numbers that are kept from round to round for each coordinate: two for AdamW."""

    def make(self, groups: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer:
        """The optimiser of these groups of parameters."""
        first = {} if self.schedule is None else {"lr": self.schedule.lr}
        name = self.optimizer.__name__
        try:
            return self.optimizer([dict(group) for group in groups], **(self.settings | first))
        except (TypeError, ValueError) as error:
            reason = str(error).split("\n")[0].removeprefix(f"{name}.__init__() ").rstrip(".")
            raise InputError(f"{name} does not take these settings or parameters: {reason}.") from None

    def _tried(self) -> int:
        """Numbers per coordinate that the optimiser keeps, from one step of it; refused if it cannot take one."""
        leaf = nn.Parameter(torch.zeros(4, 4))
        leaf.grad = torch.ones_like(leaf)
        optimizer = self.make([{"params": [leaf]}])
        try:
            optimizer.step()
        except (TypeError, RuntimeError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise InputError(
                f"{self.optimizer.__name__} cannot take a step from a gradient alone: {reason}; use AdamW, say."
            ) from None
        return sum(one.shape == leaf.shape for one in optimizer.state[leaf].values() if isinstance(one, Tensor))

    def group_of(self, name: str) -> str | None:
        """The pattern that a parameter's name fits."""
        return next((pattern for pattern in self.groups if fnmatchcase(name, pattern)), None)

    @property
    def is_elementwise(self) -> bool:
        """Whether all clients can be one tensor."""
        return self.optimizer is getattr(torch.optim, self.optimizer.__name__, None) and (
            self.optimizer.__name__ in _ELEMENTWISE
        )

    def __repr__(self) -> str:
        own = {"outer_momentum": self.outer_momentum, "clip": self.clip, "groups": self.groups}
        told = "".join(f", {name}={value!r}" for name, value in own.items() if value)
        told += "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"LocalSteps({self.optimizer.__name__}, steps={self.steps}{told})"


def nesterov(change: Tensor, before: Tensor | None, mu: float) -> tuple[Tensor, Tensor]:
    """A sum of local steps with outer momentum, as in DiLoCo; and the momentum, to be kept for the next."""
    momentum = change if before is None else change + mu * before
    return change + mu * momentum, momentum


def check_momentum(value: object) -> float:
    """The momentum of sums of local steps."""
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"`outer_momentum` must be in [0, 1), got {value!r}.")
    return float(value)


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
    """The local steps of one round from models x, (rows, d), with the moments that the round before left.

    Args:
        local: Whose steps.
        x: Where they begin.
        shapes: Of the parameters, in the order of the coordinates; by name, where they have names.
        kept: The moments.
        t: How many local steps were taken before.
    """

    def __init__(
        self, local: LocalSteps, x: Tensor, shapes: Mapping[str, torch.Size], kept: Mapping[str, Tensor], t: int = 0
    ) -> None:
        self._local, self._x, self._kept, self._t = local, x, kept, t
        patterns = [local.group_of(name) for name in shapes]
        for pattern in local.groups.keys() - set(patterns):
            raise InputError(f"No parameter fits the group {pattern!r}; there are {', '.join(shapes) or 'no names'}.")
        sizes = [shape.numel() for shape in shapes.values()]
        if local.is_elementwise:  # all rows are one tensor, cut where groups change
            runs = [[at for at, _ in run] for _, run in groupby(enumerate(patterns), key=lambda one: one[1])]
            self._sizes = [sum(sizes[at] for at in run) for run in runs]
            patterns, pieces = [patterns[run[0]] for run in runs], [torch.split(x, self._sizes, dim=1)]
            self._leaves = [[nn.Parameter(piece.detach().clone()) for piece in row] for row in pieces]
        else:
            self._sizes = sizes
            self._leaves = [
                [
                    nn.Parameter(piece.view(shape))
                    for piece, shape in zip(torch.split(row, sizes), shapes.values(), strict=True)
                ]
                for row in x.detach().clone()
            ]
        self._optimizers = [self._optimizer(leaves, patterns) for leaves in self._leaves]
        for optimizer, leaves, rows in zip(self._optimizers, self._leaves, self._rows(), strict=True):
            for number, leaf in enumerate(leaves):
                optimizer.state[leaf] |= self._restored(number, rows)
        self.moments: dict[str, Tensor] = {}

    def _optimizer(self, leaves: Sequence[nn.Parameter], patterns: Sequence[str | None]) -> torch.optim.Optimizer:
        groups = [
            {"params": [leaf for leaf, one in zip(leaves, patterns, strict=True) if one == pattern], **settings}
            for pattern, settings in ((None, {}), *self._local.groups.items())
        ]
        return self._local.make([group for group in groups if group["params"]])

    def taken(self, gradient: Callable[[Tensor, int], Tensor], correction: Tensor | None = None) -> Taken:
        """x minus the models after all steps, and the mean gradient; `gradient` gives that of step k."""
        mean = torch.zeros_like(self._x)
        for k in range(self._local.steps):
            own = self._clipped(gradient(self._point(), k))
            mean += own / self._local.steps
            self._step(own if correction is None else own + correction, k)
        self.moments = self._left()
        change = self._x - self._point()
        if self._local.outer_momentum:
            change, self.moments[_OUTER] = nesterov(change, self._kept.get(_OUTER), self._local.outer_momentum)
        return Taken(change, mean)

    def _clipped(self, gradient: Tensor) -> Tensor:
        if self._local.clip is None:
            return gradient
        norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        scale: Tensor = (self._local.clip / (norms + 1e-6)).clamp(max=1.0)  # as torch does
        return gradient * scale

    def _rows(self) -> Iterator[slice]:
        """The rows that each optimiser has."""
        many = len(self._x) if self._local.is_elementwise else 1
        return (slice(begin, begin + many) for begin in range(0, len(self._x), many))

    def _point(self) -> Tensor:
        if not self._local.is_elementwise:
            return torch.stack([torch.cat([leaf.detach().flatten() for leaf in leaves]) for leaves in self._leaves])
        leaves = [leaf.detach() for leaf in self._leaves[0]]
        return leaves[0] if len(leaves) == 1 else torch.cat(leaves, dim=1)

    def _step(self, gradient: Tensor, k: int) -> None:
        for optimizer, leaves, rows in zip(self._optimizers, self._leaves, self._rows(), strict=True):
            for leaf, piece in zip(leaves, torch.split(gradient[rows], self._sizes, dim=1), strict=True):
                leaf.grad = piece.reshape(leaf.shape)
            if self._local.schedule is not None:  # a group with an lr of its own keeps its ratio, as in torch
                for group in optimizer.param_groups:
                    ratio = group.setdefault("initial_lr", group["lr"]) / self._local.schedule.lr
                    group["lr"] = ratio * self._local.schedule(self._t + k)
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
