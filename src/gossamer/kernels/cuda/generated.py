"""Lines of a step on a GPU: Triton source is written for each expression, and compiled once."""

import hashlib
import linecache
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.kernels.cuda.language import EXACT, ceil_div, jit, tl, triton
from gossamer.kernels.cuda.norms import divided
from gossamer.kernels.lines import Op, Program

SIZE = 1024
"""Numbers per program, and squares per partial sum."""
_SIGNS = {"add": "+", "sub": "-", "mul": "*"}


class Squares(NamedTuple):
    """Sums of squares that were taken while a line was computed: of its difference from `own`, in float32."""

    own: "weakref.ref[Tensor]"
    part: Tensor
    """(rows, pieces of SIZE coordinates), float64."""


class _Shape(NamedTuple):
    """What decides the source."""

    ops: tuple[Op, ...]
    outputs: tuple[int, ...]
    kept: tuple[bool, ...]
    """For each scalar, whether it is on the device."""
    against: tuple[int, ...]
    """For each output, the tensor from which its distance is wanted, or -1."""
    counts: tuple[int, int]
    """Tensors and columns."""


def lines(program: Program, against: Sequence[Tensor | None] = ()) -> list[Tensor]:
    """The outputs of a program: see `reference.lines`. With `against`, distances of outputs are taken on the way."""
    first = program.tensors[0]
    rows, d = first.shape
    loaded = [tensor.contiguous() for tensor in program.tensors]
    places = []
    for own in against:
        at = next((k for k, one in enumerate(program.tensors) if one is own), -1)
        if own is not None and at < 0:
            loaded.append(own.contiguous())
            at = len(loaded) - 1
        places.append(at)
    scalars = [one if isinstance(one, Tensor) and one.is_cuda else float(one) for one in program.scalars]
    kept = tuple(isinstance(one, Tensor) for one in scalars)
    measured = tuple(places) if any(place >= 0 for place in places) else (-1,) * len(program.outputs)
    shape = _Shape(program.ops, program.outputs, kept, measured, (len(loaded), len(program.columns)))
    kinds = [torch.float32 if program.ops[k].is_single else torch.float64 for k in program.outputs]
    made = [torch.empty(rows, d, dtype=kind, device=first.device) for kind in kinds]
    by_rows = _goes_by_rows(shape)
    chunks = ceil_div(d, SIZE) if by_rows else ceil_div(rows * d, SIZE)
    parts = [torch.empty(rows, chunks, dtype=torch.float64, device=first.device) for at in measured if at >= 0]
    columns = [column.contiguous() for column in program.columns]
    grid = (rows * chunks if by_rows else chunks,)
    width = d if by_rows else rows * d
    _kernel(shape)[grid](*loaded, *columns, *scalars, *made, *parts, width, chunks, num_warps=4, **EXACT)
    waiting = iter(parts)
    for result, at in zip(made, measured, strict=True):
        if at >= 0:
            result.squares = Squares(weakref.ref(loaded[at]), next(waiting))  # type: ignore[attr-defined]
    return made


def squares_of(value: Tensor, own: Tensor | None) -> Tensor | None:
    """The sums of squares of value - own, if they were taken when `value` was computed. They are given out once."""
    found: Squares | None = value.__dict__.pop("squares", None)
    return found.part if found is not None and own is not None and found.own() is own else None


def _goes_by_rows(shape: _Shape) -> bool:
    """Without columns and distances the rows do not matter, and memory can be read in larger pieces."""
    return shape.counts[1] > 0 or any(at >= 0 for at in shape.against)


@lru_cache(256)
def _kernel(shape: _Shape) -> Any:
    source = _source(shape)
    name = f"<lines {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # Triton reads the source
    found: dict[str, Any] = {"tl": tl, "triton": triton, "divided": divided, "__name__": __name__}
    exec(compile(source, name, "exec"), found)
    return jit()(found["lines"])


def _source(shape: _Shape) -> str:
    """One statement for each operation."""
    (many, columns), by_rows = shape.counts, _goes_by_rows(shape)
    scalars = [f"s{k}" if kept else f's{k}: "fp64"' for k, kept in enumerate(shape.kept)]
    names = [f"t{k}" for k in range(many)] + [f"c{k}" for k in range(columns)] + scalars
    names += [f"o{k}" for k in range(len(shape.outputs))] + [f"p{k}" for k, at in enumerate(shape.against) if at >= 0]
    body = [
        "pid = tl.program_id(0)",
        "row = (pid // chunks).to(tl.int64)" if by_rows else "row = tl.zeros((), tl.int64)",
        f"first = ({'pid % chunks' if by_rows else 'pid'}).to(tl.int64) * {SIZE}",
        f"o = tl.arange(0, {SIZE})",
        f"mask = o < tl.minimum(d - first, {SIZE}).to(tl.int32)",
        "at = row * d + first + o" if by_rows else "at = first + o",
    ]
    for k, op in enumerate(shape.ops):
        body.append(f"v{k} = {_statement(op, shape)}")
    seen = {op.a: f"v{k}" for k, op in enumerate(shape.ops) if op.name == "load"}
    for k, (place, own) in enumerate(zip(shape.outputs, shape.against, strict=True)):
        if own >= 0:
            h = seen.get(own, f"tl.load(t{own} + at, mask, 0.0)")
            body.append(f"e{k} = tl.where(mask, v{place} - {h}, 0.0).to(tl.float32).to(tl.float64)")
            body.append(f"tl.store(p{k} + row * chunks + pid % chunks, tl.sum(e{k} * e{k}))")
    for k, place in enumerate(shape.outputs):
        body.append(f"tl.store(o{k} + at, v{place}, mask)")
    return f"def lines({', '.join(names)}, d, chunks):\n" + "".join(f"    {line}\n" for line in body)


def _statement(op: Op, shape: _Shape) -> str:
    kind = "tl.float32" if op.is_single else "tl.float64"
    if op.name == "load":
        return f"tl.load(t{op.a} + at, mask, 0.0)"
    if op.name == "column":
        return f"tl.load(c{op.a} + row)"
    if op.name == "scalar":
        return f"tl.load(s{op.a}).to({kind})" if shape.kept[op.a] else f"tl.full((), s{op.a}, {kind})"
    if op.name == "to":
        return f"v{op.a}.to({kind})"
    if op.name == "div":
        return f"divided(v{op.a}.to({kind}), v{op.b}.to({kind}))"
    return f"v{op.a}.to({kind}) {_SIGNS[op.name]} v{op.b}.to({kind})"
