"""The parameters of a training loop as one row of numbers."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.algorithms.base import Algorithm
from gossamer.errors import InputError

_KNOWN = ("params", "param_names", "lr", "weight_decay")


class Parameters:
    """Those of an optimiser's groups that are trained, in the order of the coordinates."""

    def __init__(self, groups: Sequence[dict[str, Any]], method: Algorithm) -> None:
        self._groups = groups
        self.trained: list[nn.Parameter] = [p for group in groups for p in group["params"] if p.requires_grad]
        self.check(method)
        self._sizes = [p.numel() for p in self.trained]

    def check(self, method: Algorithm) -> None:
        """Refuse what cannot be one row, or what the method cannot train."""
        kinds = {(p.dtype, p.device) for p in self.trained}
        if not kinds:
            raise InputError("There is nothing to train: no parameter has requires_grad=True.")
        if len(kinds) > 1 or next(iter(kinds))[0] not in (torch.float32, torch.float64):
            found = ", ".join(sorted(f"{str(dtype)[6:]} on {device}" for dtype, device in kinds))
            raise InputError(
                f"The parameters must all be float32, or all float64, on one device, got {found}; for mixed precision "
                "keep them in float32 and use torch.autocast."
            )
        odd = [name for group in self._groups for name in group if name not in _KNOWN]
        if odd:
            raise InputError(f"A group of parameters takes `lr` and `weight_decay`, got {odd[0]!r}.")
        if len(self._groups) > 1 and not method.info.lr_may_differ:
            raise InputError(
                f"{method.info.title} has one step size for all parameters, got {len(self._groups)} groups."
            )

    def row(self) -> Tensor:
        """(1, d): a copy of their values."""
        return torch.cat([p.detach().reshape(-1) for p in self.trained])[None]

    @torch.no_grad()
    def copy_to(self, x: Tensor) -> None:
        """Copy their values into a row."""
        for p, piece in self.pieces(x):
            piece.copy_(p)

    @torch.no_grad()
    def place(self, x: Tensor) -> None:
        """Copy a row into the parameters.

        They keep memory of their own: Accelerate takes parameters that are parts of one tensor for tied weights, and
        saves only the first.
        """
        for p, piece in self.pieces(x):
            p.copy_(piece)

    def pieces(self, x: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter, with its part of a row in its shape."""
        for p, piece in zip(self.trained, torch.split(x[0], self._sizes), strict=True):
            yield p, piece.view(p.shape)

    def gradient(self, round: int, rank: int) -> Tensor:
        """(1, d): what `backward` left."""
        for number, p in enumerate(self.trained):
            if p.grad is None or p.grad.is_sparse:
                kind = "no" if p.grad is None else "a sparse"
                raise InputError(
                    f"{self._name(number)} has {kind} gradient in round {round} on rank {rank}; call backward before "
                    "step, and leave out parameters that the loss does not use."
                )
        return torch.cat([p.grad.reshape(-1) for p in self.trained if p.grad is not None])[None]

    def of_groups(self, name: str) -> float | Tensor:
        """`lr` or `weight_decay`: one number, or where groups differ one per coordinate, (1, d)."""
        values = [float(group[name]) for group in self._groups]
        if len(set(values)) == 1:
            return values[0]
        sizes = [sum(p.numel() for p in group["params"] if p.requires_grad) for group in self._groups]
        first = self.trained[0]
        repeated = torch.repeat_interleave(torch.tensor(values, dtype=first.dtype), torch.tensor(sizes))
        return repeated.to(first.device)[None]

    def _name(self, number: int) -> str:
        named = [zip(group.get("param_names", []), group["params"], strict=False) for group in self._groups]
        names = [name for group in named for name, p in group if p.requires_grad]
        known = f" {names[number]!r}" if number < len(names) else f" {number}"
        return f"Parameter{known}, of shape {tuple(self.trained[number].shape)},"
