"""A nonconvex function that satisfies the Polyak-Lojasiewicz condition, with every constant known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import check_integer, check_nonnegative
from gossamer.problems.base import Problem, as_device, as_dtype, check_finite, mean_of_rows
from gossamer.registry import objectives


class SinePL(Problem):
    """f_i(x) = sum_j x_j^2 + 3 sin(x_j)^2 + (mean over rows r of c_ir)'x, where the c_ir of all clients sum to 0.

    So f(x) = sum_j x_j^2 + 3 sin(x_j)^2 for any heterogeneity: not convex, with its only minimum at 0
    (Karimi, Nutini and Schmidt, 2016).
    """

    is_replayable = True

    def __init__(self, slopes: Tensor) -> None:
        self.slopes = slopes  # (clients, rows, d)
        self.clients, self.rows_per_client, self.d = slopes.shape
        self.dtype, self.device = slopes.dtype, slopes.device

    def only(self, client: int) -> "SinePL":
        """One client's slopes."""
        return SinePL(self.slopes[client : client + 1])

    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """2 x + 3 sin(2 x) + the mean of the chosen slopes."""
        with np.errstate(invalid="ignore"):  # the session reports divergence
            # By NumPy: unlike torch, its rounding does not depend on the position of an element.
            sine = torch.sin(2 * x) if x.is_cuda else torch.from_numpy(np.sin((2 * x).numpy()))
        common = (2 * x + 3 * sine).view(-1, self.clients, self.d)
        return (common + mean_of_rows(self.slopes, batch)).view(x.shape)

    def batch_loss(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """f_i with the mean of the chosen slopes."""
        own = x.view(-1, self.clients, self.d)
        slopes = mean_of_rows(self.slopes, batch)
        return (own.square() + 3 * torch.sin(own).square() + slopes * own).sum(dim=-1).flatten()

    def content(self) -> Sequence[Any]:
        """The slopes."""
        return [self.slopes]

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        """In closed form, in float64, including the rounding error of the sum of the slopes."""
        x, slope = models.double(), self.slopes.double().mean(dim=(0, 1))
        loss = (x * x + 3 * torch.sin(x) ** 2 + slope * x).sum(dim=1)
        return {"loss": loss, "grad_norm": (2 * x + 3 * torch.sin(2 * x) + slope).norm(dim=1)}

    def x0(self) -> Tensor:
        """3 in every coordinate: outside the convex region around the minimum."""
        return torch.full((self.d,), 3.0, dtype=self.dtype, device=self.device)

    def smoothness(self) -> float:
        """8: the second derivative is 2 + 6 cos(2 x)."""
        return 8.0

    def pl_constant(self) -> float:
        """1/32 (Karimi, Nutini and Schmidt, 2016)."""
        return 1 / 32

    def minimum(self) -> float:
        """0, at 0."""
        return 0.0

    def noise_bound(self) -> float:
        """The variance of the noisiest client, which is the same at every point."""
        return float(self.slopes.double().var(dim=1, correction=0).sum(dim=1).max())


@objectives.register("sine_pl")
def sine_pl(
    clients: int = 8,
    d: int = 10,
    *,
    heterogeneity: float = 1.0,
    noise: float = 0.0,
    rows: int = 16,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> SinePL:
    """A nonconvex function with L = 8, mu = 1/32 and f* = 0, and adjustable heterogeneity.

    The arguments are those of `quadratic`, but `heterogeneity` is the mean over clients of ||grad f_i - grad f||^2 at
    every point, and `noise` the deviation of a row's slope from its client's slope, in each coordinate.
    """
    clients, d, rows = (check_integer(k, v, 1, 10**9) for k, v in {"clients": clients, "d": d, "rows": rows}.items())
    random = np.random.default_rng(check_integer("seed", seed, 0))
    slopes: Any = random.standard_normal((clients, d))
    slopes -= slopes.mean(axis=0)
    size = np.sqrt((slopes**2).sum(axis=1).mean())
    slopes *= np.sqrt(check_nonnegative("heterogeneity", heterogeneity)) / size if size > 0 else 0.0
    spread = random.standard_normal((clients, rows, d))
    spread = (spread - spread.mean(axis=1, keepdims=True)) * check_nonnegative("noise", noise)
    check_finite(slopes, spread, as_dtype(dtype))
    return SinePL(torch.tensor(slopes[:, None] + spread, dtype=as_dtype(dtype), device=as_device(device)))
