"""Closed-form gradients of networks of linear layers: one batched product per layer for all clients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.kernels import Layers, layer_gradients, layer_measures
from gossamer.kernels.layers import LINEAR, RELU, SIGMOID, TANH
from gossamer.problems.data.holdings import Rows

# Activations, and their backward functions in terms of the output.
_ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.Sigmoid: (torch.sigmoid, torch.ops.aten.sigmoid_backward),
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward),
    nn.ReLU: (torch.relu, lambda back, out: torch.ops.aten.threshold_backward(back, out, 0)),
}
_KINDS: dict[type[nn.Module], int] = {nn.Linear: LINEAR, nn.Sigmoid: SIGMOID, nn.Tanh: TANH, nn.ReLU: RELU}


@dataclass(frozen=True)
class LayerStack:
    """nn.Sequential of nn.Flatten, nn.Linear with bias and activations, ending in nn.Linear; mean cross-entropy."""

    modules: tuple[nn.Module, ...]

    @staticmethod
    def of(module: nn.Module, loss: object) -> "LayerStack | None":
        """The module as a stack; None if it is not one."""
        plain = type(loss) is nn.CrossEntropyLoss and (
            (loss.weight, loss.reduction, loss.label_smoothing) == (None, "mean", 0.0)
        )
        if not (plain or loss is nn.functional.cross_entropy) or type(module) is not nn.Sequential:
            return None
        layers = tuple(module)
        flat = layers[1:] if layers and type(layers[0]) is nn.Flatten and layers[0].start_dim == 1 else layers
        if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
            return None
        for layer in flat:
            linear = type(layer) is nn.Linear and [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
            if not (linear or type(layer) in _ACTIVATIONS) or any(not p.requires_grad for p in layer.parameters()):
                return None
        if not flat or type(flat[-1]) is not nn.Linear or len({id(layer) for layer in flat}) < len(flat):
            return None
        stack = LayerStack(flat)
        tied = sum(p.numel() for p in module.parameters()) != sum(stack._sizes)
        return None if tied or any(True for _ in module.buffers()) else stack

    def gradient(self, x: Tensor, inputs: Tensor, labels: Tensor, out: Tensor) -> None:
        """Write into `out` (k, d) the gradients at models (k, d), on rows (k, b, ...) with labels (k, b)."""
        weights = self._views(x)
        kept = [inputs.flatten(2)]  # the input of each layer
        for layer in self.modules[:-1]:
            if layer in weights:
                weight, bias = weights[layer]
                kept.append(torch.bmm(kept[-1], weight.mT).add_(bias[:, None]))
            else:
                kept.append(_ACTIVATIONS[type(layer)][0](kept[-1]))
        # Logits as (k, classes, b): torch's softmax is ten times slower over a short last dimension.
        last, bias = weights[self.modules[-1]]
        back = torch.softmax(torch.bmm(last, kept[-1].mT).add_(bias[..., None]), dim=1)
        at_label = labels[:, None]
        less = torch.full((), -1.0, dtype=x.dtype, device=x.device).expand_as(at_label)
        back = back.scatter_add_(1, at_label, less).div_(labels.shape[1]).mT
        into = self._views(out)
        for number, layer in reversed(list(enumerate(self.modules))):
            if layer not in weights:
                back = _ACTIVATIONS[type(layer)][1](back, kept[number + 1])
                continue
            into[layer][1].copy_(back.sum(dim=1))
            torch.bmm(back.mT, kept[number], out=into[layer][0])
            if number:
                back = torch.bmm(back, weights[layer][0])

    def kernel_gradients(self, rows: Rows, x: Tensor, batch: Tensor) -> Tensor | None:
        """Gradients over minibatches by a kernel, if there is one."""
        layers = self._prepared(rows)
        return None if layers is None else layer_gradients(layers, x, batch)

    def measures(self, rows: Rows, models: Tensor, *, derive: bool = True) -> dict[str, Tensor] | None:
        """Loss, accuracy and, on request, gradient norm over all rows by a kernel, if there is one."""
        layers = self._prepared(rows)
        found = None if layers is None else layer_measures(layers, models.to(rows.dtype), derive=derive)
        if found is None:
            return None
        loss, accuracy, gradient = found
        return {"loss": loss, "accuracy": accuracy} | ({} if gradient is None else {"grad_norm": gradient.norm(dim=1)})

    def _prepared(self, rows: Rows) -> Layers | None:
        """The stack with rows, as kernels take it; None where the stack has no kernel there."""
        if rows.prepared is None:
            rows.prepared = (self._layers(rows),)
        (layers,) = rows.prepared
        return layers  # type: ignore[no-any-return]

    def _layers(self, rows: Rows) -> Layers | None:
        labels, last = rows.labels, self._linear[-1].out_features
        if rows.device.type != "cpu" or rows.sparse is not None or rows.width != self._linear[0].in_features:
            return None
        if labels.dtype != torch.int64 or labels.dim() != 1 or ((labels < 0) | (labels >= last)).any():
            return None  # such as rows that cross-entropy ignores: kernels read memory unchecked
        widths = [rows.width]
        for layer in self.modules:
            widths.append(layer.out_features if isinstance(layer, nn.Linear) else widths[-1])
        shift, scale = rows.affine
        return Layers(
            tuple(_KINDS[type(layer)] for layer in self.modules),
            tuple(widths),
            rows.features.reshape(rows.total, rows.width).numpy(),
            shift,
            scale,
            labels.numpy(),
            np.array(rows.counts, np.int64),
            None if rows.weights is None else rows.weights.numpy(),
            torch.empty(0, dtype=rows.dtype).numpy().dtype,
            rows.mostly_zero,
        )

    @cached_property
    def _linear(self) -> list[nn.Linear]:
        return [layer for layer in self.modules if isinstance(layer, nn.Linear)]

    @cached_property
    def _sizes(self) -> list[int]:
        return [p.numel() for layer in self._linear for p in (layer.weight, layer.bias)]

    def _views(self, x: Tensor) -> dict[nn.Module, tuple[Tensor, Tensor]]:
        """Weights (k, out, in) and biases (k, out) of each linear layer, as views into the models."""
        pieces = iter(torch.split_with_sizes(x, self._sizes, 1))
        return {layer: (next(pieces).view(-1, *layer.weight.shape), next(pieces)) for layer in self._linear}
