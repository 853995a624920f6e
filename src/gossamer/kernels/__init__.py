"""The hot loops of a round. The rest of the library calls only what is here; `reference` is the readable backend.

Each loop exists as plain torch and NumPy, which anyone can read, and compiled: by numba for a CPU, by Triton for a GPU.
The compiled ones are used where they can be, and hold to the reference bit by bit. Without numba or Triton the
reference runs in their place.
"""

import contextlib
import gc
import importlib
import importlib.util
import logging
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import reference
from gossamer.kernels.blocks import Blocks as Blocks
from gossamer.kernels.csr import Csr as Csr
from gossamer.kernels.csr import Examples as Examples
from gossamer.kernels.csr import Loss as Loss
from gossamer.kernels.layers import Layers as Layers
from gossamer.kernels.lines import Line as Line
from gossamer.kernels.lines import begin as begin
from gossamer.kernels.lines import difference as difference
from gossamer.kernels.lines import subtract as subtract
from gossamer.kernels.lines import tensors as tensors
from gossamer.kernels.pool import finite, is_recording, split
from gossamer.kernels.products import combination as combination
from gossamer.kernels.products import outputs as outputs
from gossamer.kernels.reference import Dithered as Dithered
from gossamer.kernels.reference import Kept as Kept
from gossamer.kernels.reference import Mixer as Mixer
from gossamer.kernels.reference import Powered as Powered
from gossamer.kernels.reference import Signed as Signed
from gossamer.kernels.reference import packed_size as packed_size
from gossamer.kernels.reference import power_values as power_values
from gossamer.kernels.stream import Keys as Keys
from gossamer.kernels.stream import Stream as Stream

logger = logging.getLogger("gossamer")
_only_reference: ContextVar[bool] = ContextVar("only_reference", default=False)


@contextlib.contextmanager
def only_reference() -> Iterator[None]:
    """Have the readable loops run inside, for tests and comparisons."""
    token = _only_reference.set(True)
    try:
        yield
    finally:
        _only_reference.reset(token)


_PAYS = 4096  # numbers from which a kernel saves more than loading it costs, whatever comes after
_SMALL_CALLS = 2000  # of less work each, after which loading the kernels pays too
_small_calls = iter(range(_SMALL_CALLS))


def is_loaded() -> bool:
    """Whether the compiled kernels of the CPU are there."""
    return "gossamer.kernels.cpu" in sys.modules


def backend(device: torch.device, numbers: int = _PAYS) -> Any:
    """The module whose loops run on a device, for so many numbers.

    Loading numba and its kernels takes half a second, and compiling them ten. A short run of a small problem does
    without: the reference gives the same bits.
    """
    if _only_reference.get():
        return reference
    if device.type == "cpu" and numbers < _PAYS and not is_loaded() and next(_small_calls, None) is not None:
        return reference
    return _compiled(device.type)


def kernels_on(device: torch.device) -> str:
    """The name of the loops that run on a device: cpu, cuda or reference."""
    library = {"cpu": "numba", "cuda": "triton"}.get(device.type)
    if library is None or _only_reference.get() or sys.modules.get(library, sys) is None:
        return "reference"
    return device.type if importlib.util.find_spec(library) else "reference"


@cache
def _compiled(kind: str) -> Any:
    name, library = {"cpu": ("cpu", "numba"), "cuda": ("cuda", "triton")}.get(kind, ("reference", ""))
    try:
        importlib.import_module(library or "torch")
        return importlib.import_module(f"gossamer.kernels.{name}")
    except ImportError as error:
        logger.info("%s cannot be used (%s): rounds on this %s take several times longer.", library, error, kind)
        return reference


_LINES_FROM = 1 << 15  # numbers from which lines are computed in one pass on a CPU


def has_lines(x: Tensor) -> bool:
    """Whether lines of tensors like x are worth computing in one pass."""
    return (x.is_cuda or x.numel() >= _LINES_FROM or is_recording()) and backend(x.device, x.numel()) is not reference


_elsewhere: list[float] = []


def compile_seconds() -> float:
    """Seconds spent compiling kernels so far, which no round should be blamed for."""
    modules: list[Any] = [sys.modules.get(f"gossamer.kernels.{name}") for name in ("compile", "cuda.language")]
    return sum(_elsewhere) + sum(float(module.seconds()) for module in modules if module is not None)  # if imported


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Count what happens inside as compiling."""
    begin = time.perf_counter() - compile_seconds()
    try:
        yield
    finally:
        _elsewhere.append(time.perf_counter() - compile_seconds() - begin)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Collect no garbage inside: a CUDA graph that is freed while another one is captured spoils that one."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def uniform(stream: Stream, width: int, dtype: torch.dtype) -> Tensor:
    """(rows, width) numbers in [0, 1), as the stream says."""
    drawn: Tensor = backend(stream.keys.seeds.device, len(stream.keys.seeds) * width).uniform(stream, width, dtype)
    return drawn


def below(stream: Stream, high: Tensor, width: int) -> Tensor:
    """(rows, width) integers below a number for all, or for each client; see `reference.below`."""
    drawn: Tensor = backend(stream.keys.seeds.device, len(stream.keys.seeds) * width).below(stream, high, width)
    return drawn


def are_finite(*values: Tensor) -> bool:
    """Whether all numbers are finite; False also where their sum is not. The program waits for the device."""
    if is_recording():
        noted = [split(len(x), x.numel(), finite(x.numpy())) for x in values]
        return all(noted)
    found: bool = _checks(values[0]).are_finite(*values)
    return found


def note_bad(bad: Tensor, t: Tensor, *values: Tensor) -> None:
    """Lower `bad` to t, on the device, if a number is not finite."""
    _checks(values[0]).note_bad(bad, t, *values)


def _checks(x: Tensor) -> Any:
    return backend(x.device) if x.is_cuda else reference


def dither(
    value: Tensor,
    own: Tensor | None,
    stream: Stream,
    blocks: Blocks,
    highest: int,
    tau: float,
    dtype: torch.dtype,
    kind: torch.dtype,
) -> Dithered:
    """Levels of value - own, and the surrogate moved by them; see `reference.dither`."""
    levels: Dithered = backend(value.device, value.numel()).dither(
        value, own, stream, blocks, highest, tau, dtype, kind
    )
    return levels


def signs(value: Tensor, own: Tensor | None, blocks: Blocks, dtype: torch.dtype) -> Signed:
    """Signs of value - own with one scale per block, and the surrogate moved by them; see `reference.signs`."""
    found: Signed = backend(value.device, value.numel()).signs(value, own, blocks, dtype)
    return found


def powers(value: Tensor, own: Tensor | None, stream: Stream, dtype: torch.dtype) -> Powered:
    """value - own in powers of two, and the surrogate moved by them; see `reference.powers`."""
    found: Powered = backend(value.device, value.numel()).powers(value, own, stream, dtype)
    return found


def largest(x: Tensor, blocks: Blocks, k: int) -> Tensor:
    """The places of the k largest numbers of each block; see `reference.largest`."""
    places: Tensor = backend(x.device, x.numel()).largest(x, blocks, k)
    return places


def keep(x: Tensor, own: Tensor, blocks: Blocks, k: int) -> Kept:
    """The k numbers of largest size of each block, and own moved by them; see `reference.keep`."""
    kept: Kept = backend(x.device).keep(x, own, blocks, k)
    return kept


def move(own: Tensor, q: Tensor, a: float = 1.0) -> Tensor:
    """H + a Q, in the type of H; see `reference.move`."""
    return tensors(begin(own) + (q if a == 1 else a * begin(q)))[0]


def make_mixer(w: Any, device: torch.device) -> Mixer:
    """What multiplies rows by W, a SciPy matrix in compressed rows."""
    mixer: Mixer = backend(device, 0).Mixer(w, device)
    return mixer


def pack(values: Any, width: int) -> reference.Bytes:
    """Unsigned integers of a fixed width as bytes; see `reference.pack`."""
    packed: reference.Bytes = backend(torch.device("cpu"), values.size).pack(values, width)
    return packed


def pack_rows(values: Tensor, shift: int, width: int) -> reference.Bytes:
    """As `pack`, for values + shift. On a GPU they are packed before they cross to the host."""
    if values.is_cuda and hasattr(backend(values.device), "pack_rows"):
        packed: reference.Bytes = backend(values.device).pack_rows(values, shift, width).cpu().numpy()
        return packed
    return pack(values.cpu().numpy() + shift, width)


def unpack(payload: bytes, count: int, width: int) -> Any:
    """What `pack` wrote."""
    return backend(torch.device("cpu"), count).unpack(payload, count, width)


def linear_gradients(examples: Examples, x: Tensor, batch: Tensor | None, nonconvex: float, l2: float) -> Tensor:
    """Gradients of linear models on sparse rows; see `csr.linear_gradients`."""
    gradients: Tensor = backend(x.device).linear_gradients(examples, x, batch, nonconvex, l2)
    return gradients


def layer_gradients(layers: Layers, x: Tensor, batch: Tensor) -> Tensor | None:
    """Gradients of networks of linear layers; None where there is no kernel.

    However small, since torch's own products round differently: a run must not depend on what was loaded before it.
    """
    found = getattr(backend(x.device), "layer_gradients", None)
    return None if found is None else found(layers, x, batch)


def layer_measures(layers: Layers, models: Tensor, *, derive: bool) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Mean losses, shares of hits and, on request, gradients of such networks; None where there is no kernel."""
    found = getattr(backend(models.device), "layer_measures", None)
    return None if found is None else found(layers, models, derive)


def linear_measures(examples: Examples, models: Tensor, *, derive: bool) -> tuple[Tensor, Tensor]:
    """Mean losses of models on sparse rows, with gradients or hits; see `csr.linear_measures`."""
    measured: tuple[Tensor, Tensor] = backend(models.device).linear_measures(examples, models, derive)
    return measured
