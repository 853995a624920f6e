"""Quadratics with a different optimum per client: the smallest problem on which methods differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import InputError, check_integer, check_nonnegative, check_positive
from gossamer.problems.base import Facts, Problem, as_device, as_dtype, check_finite, chosen_rows, mean_of_rows
from gossamer.registry import objectives


class Quadratic(Problem):
    """f_i(x) = mean over rows r of 1/2 (x - c_ir)' D_i (x - c_ir) with diagonal D_i; everything has a closed form."""

    is_replayable = True

    def __init__(self, curvature: Tensor, centres: Tensor) -> None:
        self.curvature, self.centres = curvature, centres  # (clients, d), (clients, rows, d)
        self.clients, self.rows_per_client, self.d = centres.shape
        self.dtype, self.device = centres.dtype, centres.device
        mean = centres.mean(dim=1, dtype=torch.float64)
        spread = centres.double().var(dim=1, correction=0)
        wide = curvature.double()
        self._a = wide.mean(dim=0)
        self._b = (wide * mean).mean(dim=0)
        self._c = (wide * (mean**2 + spread)).sum(dim=1).mean()

    def only(self, client: int) -> "Quadratic":
        """One client's centres and curvature."""
        return Quadratic(self.curvature[client : client + 1], self.centres[client : client + 1])

    def content(self) -> Sequence[Any]:
        """The curvatures and the centres."""
        return [self.curvature, self.centres]

    def minimizer(self) -> Tensor:
        """The x where the gradient of f is zero."""
        return self._b / self._a

    def smoothness(self) -> float:
        """The largest curvature of a client."""
        return float(self.curvature.max())

    def pl_constant(self) -> float:
        """The smallest curvature of f, which is strongly convex."""
        return float(self._a.min())

    def minimum(self) -> float:
        """f at the minimizer."""
        return float(self.evaluate(self.minimizer()[None])["loss"][0])

    def noise_bound(self) -> float:
        """The variance of the noisiest client, which is the same at every point."""
        spread = self.centres.double().var(dim=1, correction=0)
        return float((self.curvature.double().square() * spread).sum(dim=1).max())

    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """D_i (x_i - mean of the chosen centres)."""
        away = x.view(-1, self.clients, self.d) - mean_of_rows(self.centres, batch)
        return (self.curvature * away).view(x.shape)

    def batch_loss(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """Mean over the chosen centres of 1/2 (x_i - c)' D_i (x_i - c)."""
        away = x.view(-1, self.clients, 1, self.d) - chosen_rows(self.centres, batch)
        return (self.curvature[:, None] * away.square()).sum(dim=-1).mean(dim=-1).flatten() / 2

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        """In closed form, in float64."""
        x = models.double()
        gradient = self._a * x - self._b
        loss = ((self._a * x / 2 - self._b) * x).sum(dim=1) + self._c / 2
        return {"loss": loss, "grad_norm": gradient.norm(dim=1)}

    def describe(self) -> Facts:
        """The size of the problem."""
        return super().describe() | {"rows_per_client": self.rows_per_client}


@objectives.register("quadratic")
def quadratic(
    clients: int = 8,
    d: int = 10,
    *,
    condition: float = 10.0,
    heterogeneity: float = 1.0,
    noise: float = 0.0,
    rows: int = 16,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> Quadratic:
    """Random diagonal quadratics, each client with its own curvature and its own centre.

    There are `d` coordinates, and `rows` of data per client. `condition` is the largest over the smallest curvature
    within each client; the largest is 1. `heterogeneity` is the deviation of the clients' centres around their mean,
    and `noise` that of a client's rows around its centre, which makes minibatch gradients noisy.
    """
    clients, d, rows = (check_integer(k, v, 1, 10**9) for k, v in {"clients": clients, "d": d, "rows": rows}.items())
    seed = check_integer("seed", seed, 0)
    if check_positive("condition", condition) < 1:
        raise InputError(f"`condition` must be 1 or more, got {condition!r}.")
    check_nonnegative("heterogeneity", heterogeneity)
    check_nonnegative("noise", noise)
    generator = np.random.default_rng(seed)
    curvature = condition ** -generator.random((clients, d))
    common = generator.standard_normal(d)
    centre = common + heterogeneity * generator.standard_normal((clients, d))
    centres = np.repeat(centre[:, None], rows, axis=1)
    if noise:
        spread = generator.standard_normal((clients, rows, d))
        centres += noise * (spread - spread.mean(axis=1, keepdims=True))
    check_finite(centres, centres, as_dtype(dtype))
    kind, where = as_dtype(dtype), as_device(device)
    return Quadratic(torch.tensor(curvature, dtype=kind, device=where), torch.tensor(centres, dtype=kind, device=where))
