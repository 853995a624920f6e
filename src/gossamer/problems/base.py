"""The contract of a problem: gradients of each client, and measurements of a model."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from gossamer.errors import InputError, check_choice, check_integer
from gossamer.fingerprint import digest
from gossamer.problems.data.holdings import Rows

Facts = dict[str, str | int | float | bool | None]
"""Settings and sizes of a problem, as a record stores them."""
TOGETHER = 64  # models that are evaluated in one matrix product


class Problem(ABC):
    """min f(x) = mean over clients of f_i(x), where f_i is the mean over the rows of data of client i.

    Tensors of models are (S * clients, d), the clients of one seed after those of another.
    """

    clients: int
    d: int
    rows_per_client: int
    """The smallest number of rows of data of a client."""
    row_counts: Tensor | None = None
    """(clients,): the number of rows of each client, if these differ."""
    rows: Rows | None = None  # of data, if the problem has any
    dtype: torch.dtype
    device: torch.device
    is_random: bool = False
    """Whether a gradient draws random numbers (dropout): `gradient` then takes `seeds`, one per row."""
    least_batch: int = 1
    """The smallest possible minibatch: 2 rows for batch norm."""
    measures_clients: bool = True
    """Whether f is measured at every client's model if there are no test rows; too expensive for a network."""
    scores_clients: bool = True
    """Whether every client's model is scored on the test rows, and not only the average of all."""
    _fingerprint: str
    models_at_once: int = 1
    """Models that `evaluate` handles in one matrix product."""
    is_replayable: bool = False
    """Whether a gradient does nothing but launch the same kernels each time, so that a GPU may repeat it."""
    has_buffers: bool = False
    """Whether a client has buffers besides its model (batch norm): `gradient` then takes and updates `buffers`."""

    @abstractmethod
    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        """Row i: client i's gradient at row i of x, over its data rows `batch[i]`, or over all of them."""

    def batch_loss(self, x: Tensor, batch: Tensor | None = None) -> Tensor | None:
        """(rows of x,): what `gradient` is the gradient of, for those who follow a run; None if it is not defined.

        It takes a forward pass. Where `gradient` takes `buffers` and `seeds`, so does this; nothing is updated.
        """
        return None

    @abstractmethod
    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        """`loss` and `grad_norm` of f at each of the (k, d) models, in float64."""

    def score(self, models: Tensor) -> dict[str, Tensor]:
        """`loss` and `accuracy` of each of the (k, d) models on the test rows; keys that do not apply are left out."""
        return {}

    def new_buffers(self, models: int) -> dict[str, Tensor]:
        """Initial buffers, (models, ...) each; most problems have none."""
        return {}

    def with_buffers(self, x: Tensor, buffers: dict[str, Tensor]) -> Tensor:
        """(k, d or more): models with their buffers appended, as `evaluate` and `score` take them."""
        return x

    def only(self, client: int) -> "Problem":
        """The problem of one client, with its rows of data only: what a process of that client holds.

        Its `evaluate` measures f_i.
        """
        if self.has_buffers or self.is_random:
            raise InputError(f"{type(self).__name__} cannot be split by client; define its method `only`.")
        return _OneOf(self, client)

    def x0(self) -> Tensor:
        """The default starting point of all clients: zero."""
        return torch.zeros(self.d, dtype=self.dtype, device=self.device)

    def smoothness(self) -> float | None:
        """L, such that every client's gradient is L-Lipschitz; None if unknown."""
        return None

    def pl_constant(self) -> float | None:
        """mu of the PL condition ||grad f||^2 >= 2 mu (f - f*); None if not known to hold."""
        return None

    def minimum(self) -> float | None:
        """f*, the minimum of f; None if unknown."""
        return None

    def noise_bound(self) -> float | None:
        """sigma^2, a bound on E||gradient of one row - gradient||^2 for every client and point; None if unknown."""
        return None

    def heterogeneity(self, x: Tensor | None = None) -> float:
        """Mean over clients of ||grad f_i(x) - grad f(x)||^2, by default at the starting point."""
        gradients = self.gradient(self._everywhere(x)).double()
        return float((gradients - gradients.mean(dim=0)).square().sum(dim=1).mean())

    def gradient_noise(self, x: Tensor | None = None, batch_size: int = 1, samples: int = 256, seed: int = 0) -> float:
        """sigma^2: mean over clients of E||minibatch gradient - gradient||^2 at x.

        Rows are drawn with replacement, so it falls as 1 / batch_size. Exact where clients have at most `samples`
        rows, else estimated from that many rows of each.
        """
        batch_size, samples = check_integer("batch_size", batch_size, 1), check_integer("samples", samples, 2)
        if self.least_batch > 1:
            raise InputError(
                "Gradient noise is measured row by row, and this module cannot train on one row (batch norm)."
            )
        models = self._everywhere(x)
        counts = self.row_counts if self.row_counts is not None else torch.full((self.clients,), self.rows_per_client)
        counts, most = counts.to(self.device), int(counts.max())
        exact = most <= samples
        generator = torch.Generator().manual_seed(check_integer("seed", seed, 0, 2**63 - 1))
        if exact:
            rows = torch.arange(most, device=self.device).expand(self.clients, most)
        else:
            drawn = torch.rand(self.clients, samples, generator=generator).to(self.device)
            rows = torch.minimum((drawn * counts[:, None]).long(), counts[:, None] - 1)
        total = torch.zeros(models.shape, dtype=torch.float64, device=self.device)
        squares = torch.zeros(self.clients, dtype=torch.float64, device=self.device)
        for draw in torch.split(rows, 1, dim=1):
            counted = (draw < counts[:, None]).double()  # clients with fewer rows skip the remaining draws
            gradient = self.gradient(models, torch.minimum(draw, counts[:, None] - 1)).double() * counted
            total += gradient
            squares += gradient.square().sum(dim=1)
        seen = counts.double() if exact else torch.full_like(counts, samples, dtype=torch.float64)
        variance = squares / seen - (total / seen[:, None]).square().sum(dim=1)
        return float(variance.mean()) * (1 if exact else samples / (samples - 1)) / batch_size

    def _everywhere(self, x: Tensor | None) -> Tensor:
        """The same point at every client."""
        try:
            point = self.x0() if x is None else torch.as_tensor(x).detach().to(self.device, self.dtype)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"A point must be a tensor or an array, got {type(x).__name__}.") from None
        if point.shape != (self.d,):
            raise InputError(f"A point of this problem has {self.d} coordinates, got shape {tuple(point.shape)}.")
        return point.expand(self.clients, self.d).contiguous()

    def fingerprint(self) -> str:
        """A digest of what determines the gradients and the measurements: data, who holds which rows, model.

        It is computed once. A run is never resumed as a run with another fingerprint.
        """
        if "_fingerprint" not in self.__dict__:
            self._fingerprint = digest(type(self).__qualname__, self.describe(), self.x0(), *self.content())
        return self._fingerprint

    def content(self) -> Sequence[Any]:
        """What `fingerprint` covers besides `describe` and `x0`: tensors, arrays, numbers and strings.

        By default, the norm of each client's gradient at two points, to six digits to be robust to rounding.
        """
        near = torch.linspace(-0.1, 0.1, self.d, dtype=self.dtype, device=self.device)
        gradients = [self.gradient(self._everywhere(x)) for x in (self.x0(), self.x0() + near)]
        return [f"{length:.6g}" for at in gradients for length in at.double().norm(dim=1).tolist()]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.describe().items() if k != 'problem')})"

    def describe(self) -> Facts:
        """The facts about the problem that a record stores."""
        return {"problem": type(self).__name__, "clients": self.clients, "d": self.d, "dtype": str(self.dtype)[6:]}


class DataProblem(Problem):
    """A problem whose clients hold rows of data; `test` holds test rows, if there are any."""

    rows: Rows

    def __init__(self, rows: Rows, test: Rows | None, d: int, about: Facts) -> None:
        self.rows, self.test, self.d, self._about = rows, test, d, about
        self.clients, self.rows_per_client = rows.clients, rows.least
        self.row_counts = None if rows.are_equal else rows.per_client
        self.dtype, self.device = rows.dtype, rows.device

    def only(self, client: int) -> Self:
        """One client's rows; the test rows stay whole."""
        one = copy.copy(self)
        for name in ("_minimum", "_fingerprint", "_examples"):
            one.__dict__.pop(name, None)
        one.rows = self.rows.only(client)
        one.clients, one.rows_per_client, one.row_counts = 1, one.rows.least, None
        return one

    def content(self) -> Sequence[Any]:
        """The rows of every client, and the test rows."""
        return [self.rows.content(), None if self.test is None else self.test.content()]

    def describe(self) -> Facts:
        """The data, its split and its scale."""
        return super().describe() | self._about


class _OneOf(Problem):
    """The default `only`: computes the gradients of all clients, and keeps one."""

    def __init__(self, whole: Problem, client: int) -> None:
        self.whole, self.client = whole, client
        self.clients, self.d, self.least_batch = 1, whole.d, whole.least_batch
        self.dtype, self.device = whole.dtype, whole.device
        counts = whole.row_counts
        self.rows_per_client = whole.rows_per_client if counts is None else int(counts[client])

    def gradient(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        return self.whole.gradient(*self._among_all(x, batch))[self.client : self.client + 1]

    def batch_loss(self, x: Tensor, batch: Tensor | None = None) -> Tensor | None:
        losses = self.whole.batch_loss(*self._among_all(x, batch))
        return None if losses is None else losses[self.client : self.client + 1]

    def _among_all(self, x: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The model at every client, and the batch at this one."""
        every = None
        if batch is not None:
            every = batch.new_zeros(self.whole.clients, batch.shape[1])
            every[self.client] = batch[0]
        return x.expand(self.whole.clients, self.d).contiguous(), every

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        return self.whole.evaluate(models)

    def x0(self) -> Tensor:
        return self.whole.x0()

    def content(self) -> Sequence[Any]:
        return [self.whole.fingerprint(), self.client]


def in_groups(models: Tensor) -> Iterator[Tensor]:
    """The (k, d) models in groups of 64, the last one padded with zeros.

    A product with 64 models costs a fraction of 64 products with one. As all products have the same size, the
    measurements of a model do not depend on the other models in its group.
    """
    short = -len(models) % TOGETHER
    yield from torch.split(torch.cat([models, models.new_zeros(short, models.shape[1])]), TOGETHER)


def chosen_rows(rows: Tensor, batch: Tensor | None) -> Tensor:
    """Each client's rows `batch`: (S, clients, b, d), or all: (clients, rows, d); `rows` is (clients, rows, d)."""
    if batch is None:
        return rows
    client = torch.arange(len(rows), device=rows.device)[:, None]
    return rows[client, batch.view(-1, len(rows), batch.shape[1])]


def mean_of_rows(rows: Tensor, batch: Tensor | None) -> Tensor:
    """Mean of each client's rows `batch`: (S, clients, d), or of all: (clients, d); `rows` is (clients, rows, d)."""
    return chosen_rows(rows, batch).mean(dim=-2)


def as_device(device: str | torch.device) -> torch.device:
    """The torch device; an error if it is not available."""
    if not isinstance(device, str | torch.device) or str(device) == "meta":
        raise InputError(f"`device` must be a name such as 'cpu' or 'cuda', got {device!r}.")
    try:
        made = torch.device(device)
        torch.empty(0, device=made)
    except (RuntimeError, AssertionError):
        cuda = f"{torch.cuda.device_count()} CUDA devices are" if torch.cuda.is_available() else "no CUDA device is"
        raise InputError(f"The device {str(device)!r} cannot be used: {cuda} here; 'cpu' always works.") from None
    return made


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The torch dtype, float32 or float64."""
    names = {"float32": torch.float32, "float64": torch.float64}
    check_choice("dtype", str(dtype).removeprefix("torch."), names)
    return names[str(dtype).removeprefix("torch.")]


def check_finite(one: Any, two: Any, dtype: torch.dtype) -> None:
    """Refuse settings that lead to numbers too large for the dtype."""
    if not max(float(abs(one).max()), float(abs(two).max())) < float(torch.finfo(dtype).max) ** 0.5:
        raise InputError(f"`heterogeneity` or `noise` is too large for {str(dtype)[6:]}.")
