"""The steps that a training loop takes by an optimiser of its own between two rounds."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.algorithms.round import Taken
from gossamer.errors import InputError, check_integer
from gossamer.runtime.gradients.local import check_momentum, nesterov
from gossamer.runtime.training.parameters import Parameters


class Inner:
    """An optimiser, how often its steps are exchanged, and what they have come to since the last round.

    Args:
        optimizer: Of the same parameters.
        every: Steps per round.
        outer_momentum: Nesterov momentum of the sums of steps.
        parameters: What is trained, in the order of the coordinates.
    """

    def __init__(self, optimizer: Any, every: int, outer_momentum: float, parameters: Parameters) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(f"`inner` must be an optimiser such as torch.optim.AdamW(...), got {optimizer!r}.")
        theirs = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        ours = set(parameters.trained)
        if theirs != ours:
            raise InputError(
                f"`inner` is over other parameters: it lacks {len(ours - theirs)} of the {len(ours)} that are trained, "
                f"and has {len(theirs - ours)} that are not; give both the same parameters."
            )
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            name = type(optimizer).__name__
            raise InputError(f"`inner` must take steps without a closure, which {name} does not; use AdamW, say.")
        self.optimizer, self.every = optimizer, check_integer("every", every, 1)
        self.outer_momentum, self._parameters = check_momentum(outer_momentum), parameters
        self.steps = 0
        """Since the last round."""
        self._total: Tensor | None = None
        self._momentum: Tensor | None = None
        self._last: Taken | None = None

    def facts(self) -> Mapping[str, object]:
        """What all ranks must have in common."""
        kind = type(self.optimizer).__name__
        return {"`inner`": kind, "`every`": self.every, "`outer_momentum`": self.outer_momentum}

    @property
    def is_due(self) -> bool:
        """Whether a round follows."""
        return self.steps == self.every

    def step(self, gradient: Tensor | None, correction: Tensor | None) -> None:
        """One step, from the gradients that `backward` left.

        Args:
            gradient: These gradients, (1, d), where a correction is added to them for the step.
            correction: (1, d).
        """
        if gradient is None or correction is None:
            self.optimizer.step()
        else:
            self._total = gradient.clone() if self._total is None else self._total + gradient
            self._step_along(gradient + correction.to(gradient))
        self.steps += 1

    def _step_along(self, direction: Tensor) -> None:
        """A step with this as the gradient; the parameters then have the gradients that they had."""
        kept = [p.grad for p in self._parameters.trained]
        for p, piece in self._parameters.pieces(direction):
            p.grad = piece
        self.optimizer.step()
        for p, grad in zip(self._parameters.trained, kept, strict=True):
            p.grad = grad

    def taken(self, x: Tensor, y: Tensor) -> Taken:
        """What all steps since the last round come to, from the models x to y; the next round begins."""
        change, mean = x - y, torch.zeros_like(x) if self._total is None else self._total / max(1, self.steps)
        if self.outer_momentum:
            change, self._momentum = nesterov(change, self._momentum, self.outer_momentum)
        self.steps, self._total, self._last = 0, None, Taken(change, mean)
        return self._last

    def idle(self, correction: Tensor | None, *, is_tracking: bool) -> Taken | None:
        """What a client does in a round for which it has no data, or None if it goes on from its parameters.

        A tracker keeps its last gradient; corrected steps are taken along it. Without a tracker there is no step.
        """
        if self.steps:
            return None  # what it did before its data ended
        last = self._last
        if last is None or not is_tracking:
            zero = torch.zeros_like(self._parameters.row())
            return Taken(zero, zero)
        if correction is None:
            return last
        for _ in range(self.every):
            self.step(last.gradient, correction)
        return None

    def save(self) -> tuple[dict[str, Tensor], Mapping[str, object]]:
        """Tensors and facts from which `restore` goes on."""
        state = self.optimizer.state_dict()
        moments = {(str(i), key): value for i, one in state["state"].items() for key, value in one.items()}
        tensors = {f"inner.{i}.{key}": value for (i, key), value in moments.items() if isinstance(value, Tensor)}
        numbers = [[i, key, value] for (i, key), value in moments.items() if not isinstance(value, Tensor)]
        tensors |= {f"inner@{name}": value for name, value in self._own().items()}
        groups = [{name: _plain(value) for name, value in group.items()} for group in state["param_groups"]]
        return tensors, {"inner": {"steps": self.steps, "numbers": numbers, "groups": groups}}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Be where an inner optimiser with the same settings was when it was saved."""
        state: dict[int, dict[str, Any]] = {}
        for name, value in tensors.items():
            if name.startswith("inner."):
                _, i, key = name.split(".", 2)
                state.setdefault(int(i), {})[key] = value.clone()
        for i, key, value in facts["inner"]["numbers"]:
            state.setdefault(int(i), {})[key] = value
        self.optimizer.load_state_dict({"state": state, "param_groups": facts["inner"]["groups"]})
        self.steps, device = int(facts["inner"]["steps"]), self._parameters.trained[0].device
        own = {name.removeprefix("inner@"): x.to(device) for name, x in tensors.items() if name.startswith("inner@")}
        self._total, self._momentum = own.get("total"), own.get("momentum")
        self._last = Taken(own["last.change"], own["last.gradient"]) if "last.change" in own else None
        self._parameters.place(own["y"])

    def _own(self) -> dict[str, Tensor]:
        kept: dict[str, Tensor | None] = {"y": self._parameters.row(), "total": self._total, "momentum": self._momentum}
        if self._last is not None:
            kept |= {"last.change": self._last.change, "last.gradient": self._last.gradient}
        return {name: value for name, value in kept.items() if value is not None}


def _plain(value: Any) -> Any:
    """A setting of an optimiser as JSON has it."""
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value
