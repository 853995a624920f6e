"""The steps that a training loop takes by an optimiser of its own between two rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.algorithms.round import Oracle, Samples, Taken
from gossamer.errors import InputError, check_integer
from gossamer.runtime.gradients.local import check_momentum


class Inner:
    """An optimiser, how often its steps are exchanged, and what they have come to since the last round.

    Args:
        optimizer: Of the same parameters.
        every: Steps per round.
        outer_momentum: Nesterov momentum of the sums of steps.
        parameters: What is trained, in the order of the coordinates.
    """

    def __init__(self, optimizer: Any, every: int, outer_momentum: float, parameters: Sequence[nn.Parameter]) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(f"`inner` must be an optimiser such as torch.optim.AdamW(...), got {optimizer!r}.")
        theirs = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        if theirs != set(parameters):
            missing, more = len(set(parameters) - theirs), len(theirs - set(parameters))
            raise InputError(
                f"`inner` is over other parameters: it lacks {missing} of the {len(parameters)} that are trained, and "
                f"has {more} that are not; give both the same parameters."
            )
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
        kept = [p.grad for p in self._parameters]
        pieces = torch.split(direction[0], [p.numel() for p in self._parameters])
        for p, piece in zip(self._parameters, pieces, strict=True):
            p.grad = piece.view(p.shape)
        self.optimizer.step()
        for p, grad in zip(self._parameters, kept, strict=True):
            p.grad = grad

    def taken(self, x: Tensor, y: Tensor) -> Taken:
        """What all steps since the last round come to, from the models x to y; the next round begins."""
        change, mean = x - y, torch.zeros_like(x) if self._total is None else self._total / max(1, self.steps)
        if self.outer_momentum:
            self._momentum = change if self._momentum is None else change + self.outer_momentum * self._momentum
            change = change + self.outer_momentum * self._momentum
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
            zero = torch.zeros_like(torch.cat([p.detach().reshape(-1) for p in self._parameters]))[None]
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
        self.steps, device = int(facts["inner"]["steps"]), self._parameters[0].device
        own = {name.removeprefix("inner@"): x.to(device) for name, x in tensors.items() if name.startswith("inner@")}
        self._total, self._momentum = own.get("total"), own.get("momentum")
        self._last = Taken(own["last.change"], own["last.gradient"]) if "last.change" in own else None
        if "y" in own:
            pieces = torch.split(own["y"][0], [p.numel() for p in self._parameters])
            with torch.no_grad():
                for p, piece in zip(self._parameters, pieces, strict=True):
                    p.copy_(piece.view(p.shape))

    def _own(self) -> dict[str, Tensor]:
        y = torch.cat([p.detach().reshape(-1) for p in self._parameters])[None]
        kept: dict[str, Tensor | None] = {"y": y, "total": self._total, "momentum": self._momentum}
        if self._last is not None:
            kept |= {"last.change": self._last.change, "last.gradient": self._last.gradient}
        return {name: value for name, value in kept.items() if value is not None}


class GivenOracle(Oracle):
    """What a client has done on its own, handed to its method in place of a gradient."""

    def __init__(self, title: str, taken: Taken) -> None:
        self._title, self._taken, self._is_asked = title, taken, False

    def __call__(self, x: Tensor) -> Tensor:
        """The sum of its steps, once."""
        if self._is_asked:
            raise InputError(
                f"{self._title} takes several gradients per round, which local steps do not give; use BEER."
            )
        self._is_asked = True
        return self._taken.change

    def corrected(self, x: Tensor, correction: Tensor) -> Taken:
        """The steps, which had the correction."""
        return self._taken

    def full(self, x: Tensor) -> Tensor:
        """Not to be had."""
        raise InputError(f"{self._title} asks for full gradients, which an optimiser never sees.")

    def samples(self, x: Tensor, *, whole: bool = False, purpose: str = "batch") -> Samples:
        """Not to be had."""
        raise InputError(f"{self._title} asks for the gradient of each data row, which an optimiser never sees.")


def _plain(value: Any) -> Any:
    """A setting of an optimiser as JSON has it."""
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value
