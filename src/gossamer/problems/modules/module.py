"""Any `nn.Module` as a problem: its parameters as one vector, and gradients for all clients."""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.conv import _ConvNd

from gossamer.errors import InputError, check_choice
from gossamer.problems.base import DataProblem, Facts
from gossamer.problems.data.holdings import Rows
from gossamer.problems.data.lazy import LazyRows
from gossamer.problems.modules.closed import LayerStack
from gossamer.problems.modules.judged import for_gradients
from gossamer.problems.modules.replay import Buffers, Compiled, Function, Replay, can_compile, can_replay
from gossamer.problems.modules.trial import Loss, Metric, module_content, own_generator, try_out

Gradients = Literal["auto", "closed", "compiled", "vmap", "loop"]

_GROUP_BYTES = 8 << 20  # of models and rows handled at once on a CPU, to fit its caches
_GRADIENT_BYTES = 64 << 20  # of gradients that are measured together
_ROWS = 500  # rows that go through a module at once on a CPU


class ModuleProblem(DataProblem):
    """f_i(x) = the loss of the module with parameters x, mean over client i's rows.

    Gradients use training mode, measurements evaluation mode. Buffers (the running means of batch norm) belong to a
    client: its gradients update them, they are stored beside its model, and are averaged with the models for
    evaluation.
    """

    measures_clients = False

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        rows: Rows,
        test: Rows | None,
        gradients: Gradients,
        about: Facts,
        metrics: Mapping[str, Metric] | None = None,
        *,
        measured: Rows | None = None,
        at_once: int | None = None,
    ) -> None:
        try:
            own = copy.deepcopy(module).to(rows.features.device, rows.dtype)
        except Exception as error:  # lazy modules, and user code
            raise InputError(f"The module cannot be copied: {str(error).split(chr(10))[0].rstrip('.')}.") from None
        self.module, self.loss, self.metrics = own.train(), loss, dict(metrics or {})
        self._judged = copy.deepcopy(own).eval()
        self._sloped = for_gradients(self._judged) if rows.features.is_cuda else self._judged
        trained = {name: p for name, p in own.named_parameters() if p.requires_grad}
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in trained.values()):
            raise InputError("The module has lazy parameters; call it once on a batch to initialise them.")
        if not trained:
            raise InputError("The module has no parameters to train.")
        self._shapes = {name: p.shape for name, p in trained.items()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        self._start = torch.cat([p.detach().flatten() for p in trained.values()])
        self._buffers = {name: b.detach().clone() for name, b in own.named_buffers() if b is not None}
        self.has_buffers = bool(self._buffers)
        super().__init__(rows, test, sum(self._sizes), about)
        self.is_random, self.least_batch = try_out(self.module, loss, rows, test, self.metrics)
        side_by_side: Function = vmap(grad(self._with_buffers, has_aux=True))
        self._is_own = can_replay(self.module, loss, self.device)
        self._side_by_side = Replay(side_by_side) if self._is_own else side_by_side
        self._compiled = Compiled(side_by_side, self._side_by_side)
        self._of = rows if measured is None else measured  # the rows of f, or some of them where these are too many
        self._measured = at_once or (_ROWS if self.device.type == "cpu" else 20 * _ROWS)  # rows at once; more on a GPU
        self._stack: LayerStack | None = None
        self.gradients = self._choose(gradients)
        self._stack = self._stack if self.gradients == "closed" else None
        self.is_replayable = self._is_own and self.gradients != "loop" and not rows.is_lazy
        if self.gradients == "closed" and isinstance(rows, LazyRows):
            rows.limit(self.module[-1].out_features)  # type: ignore[index]
        self._about = {"module": type(module).__name__, "gradients": self.gradients, **about}

    def _choose(self, asked: Gradients) -> Gradients:
        """Choose how to compute gradients for this module on this device, by rules from measurements.

        Stacks of nn.Linear have closed forms. Convolutions under vmap are slower than a loop on a CPU, and faster on a
        GPU. Random numbers of a module must follow its client's stream, which only a loop allows. Modules that vmap
        does not support, such as attention on a CPU, use the loop. What is made of torch's layers is compiled on a GPU.
        """
        check_choice("gradients", asked, ("auto", "closed", "compiled", "vmap", "loop"))
        self._stack = stack = LayerStack.of(self.module, self.loss) if self.rows.are_classes else None
        if asked == "closed" and stack is None:
            raise InputError("Closed forms exist for nn.Sequential of linear layers and activations only; use 'auto'.")
        if self.is_random and asked in ("closed", "compiled", "vmap"):
            raise InputError(f"A module that draws random numbers needs gradients='loop', got {asked!r}.")
        if asked != "auto":
            return asked
        if self.is_random or (self.device.type == "cpu" and any(isinstance(m, _ConvNd) for m in self.module.modules())):
            return "loop"
        if stack is not None:
            return "closed"
        try:
            x, buffers = self._start.expand(2, -1), self.new_buffers(2)
            some = torch.zeros(2, min(2, self.rows_per_client), dtype=torch.int64, device=self.device)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "There is a performance drop")  # vmap would loop, too, and slowly
                self._vmapped(x, *self._shaped(some), buffers)
        except (RuntimeError, ValueError, NotImplementedError, UserWarning):
            return "loop"
        return "compiled" if self._is_own and can_compile() else "vmap"

    @property
    def named_shapes(self) -> Mapping[str, torch.Size]:
        """Of the parameters, in the order in which they are flattened."""
        return self._shapes

    def content(self) -> Sequence[Any]:
        """The rows, and the module with its loss."""
        some = [] if self._of is self.rows else [self._of.content()]
        return [*super().content(), *some, *module_content(self._judged, self.loss, self.rows)]

    def only(self, client: int) -> Self:
        """One client's rows; the test rows stay whole."""
        one = super().only(client)
        one._of = one.rows if self._of is self.rows else self._of.only(client)
        return one

    # Gradients

    def gradient(
        self, x: Tensor, batch: Tensor | None = None, buffers: Buffers | None = None, seeds: Tensor | None = None
    ) -> Tensor:
        """Row i: the gradient of client i's loss over its rows `batch[i]`, or over all of them, 500 at a time.

        `buffers` are updated in place, as in training; `seeds` are for modules that draw random numbers.
        """
        if isinstance(self.rows, LazyRows) and batch is not None:
            one = copy.copy(self)
            one.rows, batch = self.rows.gathered(batch)
            one.clients = one.rows.clients
            return one.gradient(x, batch, buffers, seeds)
        found = self._stack.kernel_gradients(self.rows, x, batch) if self._stack and batch is not None else None
        if found is not None:
            return found
        buffers = self.new_buffers(len(x)) if buffers is None else buffers
        out = torch.empty_like(x)
        index = None if batch is None else self.rows.index(batch)
        for group in self._groups(len(x), _ROWS if batch is None else batch.shape[1]):
            own = {name: b[group] for name, b in buffers.items()}
            mine = None if seeds is None else seeds[group]
            if index is not None:
                self._batch_gradient(x[group], index[group], own, mine, out[group])
            else:
                self._full_gradient(x[group], group, own, mine, out[group])
        return out

    def _groups(self, models: int, rows: int) -> Iterator[slice]:
        """Groups of models to handle together."""
        per_model = (self.d + rows * self.rows.width) * self.dtype.itemsize
        most = max(1, (_GROUP_BYTES if self.device.type == "cpu" else 1 << 30) // per_model)
        together = models if self.gradients == "loop" and not self.rows.is_lazy else most
        for begin in range(0, models, together):
            yield slice(begin, min(models, begin + together))

    def _full_gradient(self, x: Tensor, group: slice, buffers: Buffers, seeds: Tensor | None, out: Tensor) -> None:
        """The mean over all rows of each client, from batches of a few hundred."""
        who = torch.arange(group.start, group.stop, device=self.device) % self.clients
        first, counts = self.rows.first[who], self.rows.per_client[who]
        total = torch.zeros(x.shape, dtype=torch.float64, device=self.device)
        pieces = (counts + _ROWS - 1) // _ROWS  # of nearly equal size: batch norm needs more than one row
        for piece in range(int(pieces.max())):
            begin, end = (torch.minimum(counts * k // pieces, counts) for k in (piece, piece + 1))
            sizes = end - begin
            for size in sorted(set(sizes.tolist()) - {0}):  # several if clients hold different numbers of rows
                some = (sizes == size).nonzero()[:, 0]
                index = (first + begin)[some, None] + torch.arange(size, device=self.device)
                own = {name: b[some] for name, b in buffers.items()}
                part = torch.empty_like(x[some])
                mine = None if seeds is None else seeds[some] + piece
                # These are taken once in a run: compiling for their many sizes would not pay.
                self._batch_gradient(x[some], index, own, mine, part, is_whole=True)
                for name, b in own.items():
                    buffers[name][some] = b
                total[some] += part.double() * size / counts[some, None]
        out.copy_(total)

    def _batch_gradient(
        self,
        x: Tensor,
        index: Tensor,
        buffers: Buffers,
        seeds: Tensor | None,
        out: Tensor,
        *,
        is_whole: bool = False,
    ) -> None:
        inputs, labels = self._shaped(index)
        if self.gradients == "closed":
            assert self._stack is not None
            self._stack.gradient(x, inputs, labels, out)
        elif self.gradients in ("compiled", "vmap"):
            out.copy_(
                self._vmapped(x, inputs, labels, buffers, is_compiled=self.gradients == "compiled" and not is_whole)
            )
        else:
            self._looped(x, inputs, labels, buffers, seeds, out)

    def _shaped(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The features and labels of rows, in the shape of their numbers."""
        inputs, labels = self.rows.batch(index.reshape(-1))
        return inputs.view(*index.shape, *inputs.shape[1:]), labels.view(*index.shape, *labels.shape[1:])

    def _vmapped(
        self, x: Tensor, inputs: Tensor, labels: Tensor, buffers: Buffers, *, is_compiled: bool = False
    ) -> Tensor:
        gradient, after = (self._compiled if is_compiled else self._side_by_side)(x, inputs, labels, buffers)
        for name, b in after.items():
            buffers[name].copy_(b)
        return gradient

    def _with_buffers(self, flat: Tensor, inputs: Tensor, labels: Tensor, own: Buffers) -> tuple[Tensor, Buffers]:
        """The loss of one client, and its updated buffers."""
        after = {name: b.clone() for name, b in own.items()}
        return self._loss(self.module, flat, after, inputs, labels), after

    def _looped(
        self, x: Tensor, inputs: Tensor, labels: Tensor, buffers: Buffers, seeds: Tensor | None, out: Tensor
    ) -> None:
        chosen = [None] * len(x) if seeds is None else seeds.tolist()
        with torch.enable_grad(), own_generator(self.device, enabled=self.is_random):
            for i, seed in enumerate(chosen):
                if seed is not None:
                    torch.manual_seed(seed)
                leaf = x[i].detach().requires_grad_()
                own = {name: b[i] for name, b in buffers.items()}
                loss = self._loss(self.module, leaf, own, inputs[i], labels[i])
                out[i] = torch.autograd.grad(loss, leaf)[0]

    def batch_loss(
        self, x: Tensor, batch: Tensor | None = None, buffers: Buffers | None = None, seeds: Tensor | None = None
    ) -> Tensor:
        """The loss of each client in training mode, client by client; its buffers stay as they are."""
        rows, clients = self.rows, list(self.rows.by_client())
        index = None if batch is None else rows.index(batch)
        buffers = self.new_buffers(len(x)) if buffers is None else buffers
        losses = torch.zeros(len(x), dtype=torch.float64, device=self.device)
        with torch.no_grad(), own_generator(self.device, enabled=self.is_random):
            for i, flat in enumerate(x):
                own = {name: b[i].clone() for name, b in buffers.items()}
                mine = clients[i % self.clients]
                count = mine.stop - mine.start
                pieces = -(-count // _ROWS) if index is None else 1  # as `_full_gradient` takes them
                for piece in range(pieces):
                    begin, end = (mine.start + count * k // pieces for k in (piece, piece + 1))
                    some = slice(begin, end) if index is None else index[i]
                    if seeds is not None:
                        torch.manual_seed(int(seeds[i]) + piece)
                    labels = rows.labels[some]
                    share = 1.0 if index is not None else (end - begin) / count
                    losses[i] += share * self._loss(self.module, flat, own, rows.inputs(some), labels).double()
        return losses

    def _loss(self, module: nn.Module, flat: Tensor, buffers: Buffers, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.loss(functional_call(module, self._named(flat) | buffers, (inputs,)), labels)

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views into a vector, by the names of the parameters."""
        pieces = torch.split(flat[: self.d], self._sizes)
        return {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    # Buffers

    def new_buffers(self, models: int) -> dict[str, Tensor]:
        """A copy of the module's buffers for each model."""
        return {name: b.expand(models, *b.shape).clone() for name, b in self._buffers.items()}

    def with_buffers(self, x: Tensor, buffers: Buffers) -> Tensor:
        """Models (k, d) with their floating-point buffers appended, to be averaged; counters are left out."""
        floats = [b.reshape(len(b), b.shape[1:].numel()).to(x.dtype) for b in buffers.values() if b.is_floating_point()]
        return torch.cat([x, *floats], dim=1) if floats else x

    def as_module(self, x: Tensor) -> nn.Module:
        """A copy of the module with these parameters: a model (d,), or `run.average` with its buffers appended."""
        module = copy.deepcopy(self._judged)
        with torch.no_grad():
            named = dict(module.named_parameters()) | dict(module.named_buffers())
            for name, value in self._parts(x).items():
                named[name].copy_(value)
        return module

    def _parts(self, x: Tensor) -> dict[str, Tensor]:
        """Parameters and, if appended, buffers."""
        x = x.to(self.device, self.dtype)
        parts, at = self._named(x), self.d
        for name, b in self._buffers.items():
            if b.is_floating_point() and at < len(x):
                parts[name] = x[at : at + b.numel()].view(b.shape).to(b.dtype)
                at += b.numel()
        return parts

    # Measuring

    def evaluate(self, models: Tensor) -> dict[str, Tensor]:
        """Loss and gradient norm over all rows, in evaluation mode, summed in float64."""
        found = self._stack.measures(self.rows, models) if self._stack and not self.rows.is_lazy else None
        if found is not None:
            return {name: found[name] for name in ("loss", "grad_norm")}
        together = max(1, _GRADIENT_BYTES // (8 * self.d))
        losses, norms = zip(*(self._values(some) for some in torch.split(models, together)), strict=True)
        return {"loss": torch.cat(losses), "grad_norm": torch.cat(norms)}

    def _values(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and gradient norm of each model; all rows are read once."""
        extras = [{n: part for n, part in self._parts(model).items() if n in self._buffers} for model in models]
        gradients = [torch.zeros(self.d, dtype=torch.float64, device=self.device) for _ in models]
        totals = torch.zeros(len(models), dtype=torch.float64, device=self.device)
        with torch.enable_grad():
            leaves = [model[: self.d].detach().to(self.device, self.dtype).requires_grad_() for model in models]
            for some, share in self._pieces():
                inputs, labels = self._of.read(some)
                for i, (leaf, extra) in enumerate(zip(leaves, extras, strict=True)):
                    own = inputs if i + 1 == len(leaves) else inputs.clone()  # a module may change its input in place
                    loss = self._loss(self._sloped, leaf, extra, own, labels)
                    gradients[i] += torch.autograd.grad(loss, leaf)[0].double() * share
                    totals[i] += loss.detach().double() * share
        return totals, torch.stack([gradient.norm() for gradient in gradients])

    def _pieces(self) -> Iterator[tuple[slice, float]]:
        """Rows to measure together, and their weight in f."""
        rows = self._of
        for mine in [slice(0, rows.total)] if rows.are_equal else rows.by_client():
            weight = 1.0 if rows.are_equal else 1 / self.clients
            for begin in range(mine.start, mine.stop, self._measured):
                end = min(mine.stop, begin + self._measured)
                yield slice(begin, end), weight * (end - begin) / (mine.stop - mine.start)

    def score(self, models: Tensor) -> dict[str, Tensor]:
        """Loss, metrics and, where labels are classes, accuracy on the test rows, in evaluation mode."""
        if self.test is None:
            return {}
        has_kernel = self._stack and not self.metrics and not self.test.is_lazy
        found = self._stack.measures(self.test, models, derive=False) if self._stack and has_kernel else None
        if found is not None:
            return found
        parts = [self._parts(model) for model in models]
        sums: list[dict[str, Tensor]] = [{} for _ in parts]
        for begin in range(0, self.test.total, self._measured):
            inputs, labels = self.test.read(slice(begin, begin + self._measured))
            for i, (part, own) in enumerate(zip(parts, sums, strict=True)):
                self._score(part, inputs if i + 1 == len(parts) else inputs.clone(), labels, own)
        return {name: torch.stack([own[name] / self.test.total for own in sums]) for name in sums[0]}

    @torch.no_grad()
    def _score(self, parts: dict[str, Tensor], inputs: Tensor, labels: Tensor, sums: dict[str, Tensor]) -> None:
        """Add the scores of a model on some test rows."""
        output = functional_call(self._judged, parts, (inputs,))
        found = {"loss": self.loss(output, labels)}
        if labels.ndim == 1 and not labels.is_floating_point() and output.ndim == 2:
            found["accuracy"] = (output.argmax(dim=1) == labels).double().mean()
        found |= {name: torch.as_tensor(metric(output, labels)) for name, metric in self.metrics.items()}
        for name, mean in found.items():
            sums[name] = sums.get(name, 0.0) + mean.to(self.device, torch.float64) * len(labels)

    def x0(self) -> Tensor:
        """The module's own parameters."""
        return self._start.clone()

    def smoothness(self, x: Tensor | None = None, steps: int = 30) -> float:
        """The largest absolute eigenvalue of a client's Hessian at x (by default x0), by power iteration.

        A local estimate from below. It takes `steps` passes over all rows, with two gradients each.
        """
        at = (self.x0() if x is None else x)[: self.d].detach().to(self.device, self.dtype)
        return max(self._curvature(at, mine, steps) for mine in self.rows.by_client())

    def _curvature(self, at: Tensor, mine: slice, steps: int) -> float:
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(self.d, generator=generator).to(self.device, self.dtype)
        direction, largest = direction / direction.norm(), 0.0
        for _ in range(steps):
            product = torch.zeros(self.d, dtype=torch.float64, device=self.device)
            with torch.enable_grad():
                leaf = at.clone().requires_grad_()
                for begin in range(mine.start, mine.stop, _ROWS):
                    some = slice(begin, min(mine.stop, begin + _ROWS))
                    loss = self._loss(self._judged, leaf, {}, *self.rows.read(some))
                    slope = torch.autograd.grad(loss, leaf, create_graph=True)[0]
                    share = (some.stop - some.start) / (mine.stop - mine.start)
                    if slope.requires_grad:
                        product += torch.autograd.grad(slope @ direction, leaf)[0].double() * share
            largest = float(product.norm())
            if largest == 0:
                return 0.0
            direction = (product / largest).to(self.dtype)
        return largest
