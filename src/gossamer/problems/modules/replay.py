"""Gradients of a module on a GPU: compiled, or as a CUDA graph; few kernels or one launch instead of hundreds."""

import logging
import os
import time
import types
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gossamer.kernels import compiling, undisturbed

logger = logging.getLogger("gossamer")

Buffers = dict[str, Tensor]
Function = Callable[[Tensor, Tensor, Tensor, Buffers], tuple[Tensor, Buffers]]

_WARM = 3  # calls with one shape before recording, in which CUDA chooses its kernels


class Replay:
    """Wraps a pure function of tensors: from the fourth call with the same shapes on, its kernels are replayed.

    The results are the same. The outputs are overwritten by the next call.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self._shape: tuple[object, ...] = ()
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._outputs: tuple[Tensor, Buffers] | None = None

    def __call__(self, x: Tensor, inputs: Tensor, labels: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        """The function's value."""
        given = [x, inputs, labels, *buffers.values()]
        shape = tuple((one.shape, one.dtype) for one in given)
        if shape != self._shape:
            self._shape, self._calls, self._graph = shape, 0, None
        self._calls += 1
        if self._calls <= _WARM or torch.cuda.is_current_stream_capturing():  # a graph cannot hold another one
            return self.function(x, inputs, labels, buffers)
        if self._graph is None:
            self._record(given, list(buffers))
        for kept, new in zip(self._inputs, given, strict=True):
            kept.copy_(new)
        assert self._graph is not None
        assert self._outputs is not None
        self._graph.replay()
        return self._outputs

    def _record(self, given: list[Tensor], names: list[str]) -> None:
        self._inputs = [one.clone() for one in given]
        x, inputs, labels, *rest = self._inputs
        buffers = dict(zip(names, rest, strict=True))
        here, beside = torch.cuda.current_stream(x.device), torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        beside.wait_stream(here)
        with torch.cuda.stream(beside):  # CUDA needs warm-up calls on a side stream before recording
            for _ in range(_WARM):
                self.function(x, inputs, labels, buffers)
        here.wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        with undisturbed(), torch.cuda.graph(self._graph):
            self._outputs = self.function(x, inputs, labels, buffers)


class Compiled:
    """Wraps a pure function of tensors: `torch.compile` fuses its kernels, for each new shape.

    This takes half a minute for a convolutional network, and a few seconds once its parts are in torch's cache. The
    results differ in the last bits from those of the function. Where it fails, the function itself is used.
    """

    def __init__(self, function: Function, otherwise: Function) -> None:
        self._function, self._otherwise = _copied(function), otherwise
        self._compiled: Function | None = None
        self._is_possible = True
        self._shapes: set[tuple[object, ...]] = set()

    def __call__(self, x: Tensor, inputs: Tensor, labels: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        """The function's value."""
        shape = (x.shape, inputs.shape)
        if not self._is_possible:
            return self._otherwise(x, inputs, labels, buffers)
        if self._compiled is not None and shape in self._shapes:
            with torch.no_grad():
                return self._compiled(x, inputs, labels, buffers)
        begin = time.perf_counter()
        try:
            with compiling(), warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # advice of torch to those who wrote the function
                if self._compiled is None:
                    self._compiled = torch.compile(self._function, dynamic=False, fullgraph=True)
                found = self._compiled(x, inputs, labels, buffers)
        except Exception as error:  # compilers are many and large
            logger.warning("The gradients cannot be compiled, and take longer: %s.", str(error).split("\n")[0])
            self._is_possible = False
            return self._otherwise(x, inputs, labels, buffers)
        self._shapes.add(shape)
        logger.info(
            "Compiling the gradients of %d models took %.1f s; GOSSAMER_COMPILE=0 or gradients='vmap' goes without.",
            len(x),
            time.perf_counter() - begin,
        )
        return found


def _copied(function: Function) -> Function:
    """The function with code of its own: torch gives up on code that it has compiled for eight different functions."""

    def gradients(x: Tensor, inputs: Tensor, labels: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return function(x, inputs, labels, buffers)

    code = gradients.__code__.replace()
    return types.FunctionType(code, gradients.__globals__, "gradients", None, gradients.__closure__)


def can_compile() -> bool:
    """Whether there is a compiler for GPU kernels, and the user wants it."""
    import importlib.util

    return importlib.util.find_spec("triton") is not None and os.environ.get("GOSSAMER_COMPILE") != "0"


def can_replay(module: nn.Module, loss: object, device: torch.device) -> bool:
    """Whether module and loss are torch's own, or say that they only launch kernels: user code may do more."""
    own = all(
        type(one).__module__.startswith("torch.nn.") or getattr(one, "only_kernels", False) for one in module.modules()
    )
    is_known = getattr(loss, "__module__", "") == "torch.nn.functional" or getattr(loss, "only_kernels", False)
    return device.type == "cuda" and own and is_known
