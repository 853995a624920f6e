"""Where the clients start."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.errors import InputError
from gossamer.fingerprint import digest
from gossamer.problems.base import Problem
from gossamer.streams import Streams

X0 = Tensor | np.ndarray[Any, Any] | str | None


def starting_models(x0: X0, problem: Problem, streams: Streams) -> Tensor:
    """(seeds * clients, d) models to start from."""
    n, d, seeds = problem.clients, problem.d, len(streams.seeds)
    if isinstance(x0, str):
        kind, _, scale = x0.partition(":")
        is_same = kind.startswith("same_")  # for all clients: that of client 0
        draw = (Streams(streams.seeds, [0], problem.device) if is_same else streams).at(0, "x0")
        try:
            points = {"uniform": draw.uniform, "normal": draw.normal}[kind.removeprefix("same_")](d)
            points = points * float(scale or 1)
        except (KeyError, ValueError):
            raise InputError(
                "`x0` must be 'uniform' or 'normal' for a point a client, 'same_uniform' or 'same_normal' for one "
                f"point, with a scale as in 'normal:0.1'; got {x0!r}."
            ) from None
        points = points.repeat_interleave(n, dim=0) if is_same else points
        return _finite(points.to(problem.dtype), f"`x0` = {x0!r}")
    try:
        points = problem.x0() if x0 is None else torch.as_tensor(x0)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"`x0` must be a tensor, an array or a string, got {type(x0).__name__}.") from None
    points = points.detach().to(problem.device, problem.dtype)
    if points.shape not in ((d,), (n, d)):
        raise InputError(f"`x0` must be of shape ({d},) or ({n}, {d}), got {tuple(points.shape)}.")
    return _finite(points.expand(seeds, n, d).reshape(seeds * n, d).clone(), "`x0`")


def check_common(method: Algorithm, points: Tensor, clients: int) -> Tensor:
    """The points; refused where clients start apart, and the method has the neighbours know where."""
    if getattr(method, "h0", "zero") == "model":
        by_seed = points.view(-1, clients, points.shape[1])
        if not torch.equal(by_seed, by_seed[:, :1].expand_as(by_seed)):
            raise InputError(
                f"`h0` = 'model' is for clients that all start from one model, got {clients} clients with an `x0` of "
                "their own; use h0='zero', or one point for all."
            )
    return points


def describe_start(x0: X0, problem: Problem) -> str:
    """Where the clients start, as a word for a record: a rule, or a digest of the points."""
    if x0 is None:
        return "the problem's own"
    if isinstance(x0, str):
        return x0
    return f"points {digest(starting_models(x0, problem, Streams([0], range(problem.clients), problem.device)))}"


def _finite(points: Tensor, what: str) -> Tensor:
    if not torch.isfinite(points).all():
        raise InputError(f"{what} must be finite, but holds NaN or Inf.")
    return points
