"""The lines of a step in one pass over memory.

`v + gamma * g.pull + gradient - old` is five operations for torch, each of which reads and writes whole tensors. A
`Line` stands for such an expression and computes it when its numbers are needed, several lines at once and block by
block, so that what lies between is never written to memory. Every operation is rounded as torch rounds it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Leaf = Tensor | float
Number = "Line | Leaf"
_NAMES = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "true_divide": "div"}
_FLOATS = (torch.float32, torch.float64)
_MOST = 48  # operations in one expression


class Op(NamedTuple):
    """One value of a program: an operation on earlier values, or the k-th tensor, column or scalar."""

    name: str
    """load, column, scalar; add, sub, mul, div, to."""
    a: int
    b: int
    is_single: bool
    """Whether the result is rounded to float32."""


class Program(NamedTuple):
    """What to compute from which tensors; the operations alone decide which code runs."""

    ops: tuple[Op, ...]
    outputs: tuple[int, ...]
    tensors: list[Tensor]
    """(rows, d)."""
    columns: list[Tensor]
    """(rows, 1)."""
    scalars: list[Leaf]


class Line:
    """An expression of (rows, d) tensors that is computed when its numbers are needed. It can be used like a tensor."""

    def __init__(self, name: str, a: Any, b: Any, dtype: torch.dtype, like: "Tensor | Line") -> None:
        self.name, self.a, self.b, self.dtype = name, a, b, dtype
        self.shape: torch.Size = like.shape
        self.device: torch.device = like.device
        self.is_cuda: bool = like.is_cuda
        self.size: int = 1 + sum(part.size for part in (a, b) if isinstance(part, Line))
        self.result: Tensor | None = None

    def tensor(self) -> Tensor:
        """The numbers."""
        return tensors(self)[0]

    def _with(self, name: str, other: Any, *, is_swapped: bool = False) -> Any:
        kind = _kind(self, other)
        if kind is None or self.size > _MOST:
            a, b = self.tensor(), other.tensor() if isinstance(other, Line) else other
            return getattr(torch, name)(b, a) if is_swapped else getattr(torch, name)(a, b)
        first, second = (other, self) if is_swapped else (self, other)
        return Line(name, first, second, kind, self)

    def __add__(self, other: Any) -> Any:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Any:
        return self._with("add", other, is_swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("sub", other, is_swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._with("mul", other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("mul", other, is_swapped=True)

    def __truediv__(self, other: Any) -> Any:
        return self._with("div", other)

    def __neg__(self) -> Any:
        return self._with("mul", -1.0)

    def to(self, kind: Any, *more: Any, **named: Any) -> Any:
        """In another type, or like another tensor."""
        dtype = kind if isinstance(kind, torch.dtype) else getattr(kind, "dtype", None)
        if (
            more
            or named
            or dtype not in (torch.float32, torch.float64)
            or getattr(kind, "device", self.device) != (self.device)
        ):
            return self.tensor().to(kind, *more, **named)
        return self if dtype == self.dtype else Line("to", self, None, dtype, self)

    def double(self) -> Any:
        """In float64."""
        return self.to(torch.float64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor(), name)

    def __getitem__(self, which: Any) -> Tensor:
        return self.tensor()[which]

    def __len__(self) -> int:
        return self.shape[0]

    def __abs__(self) -> Tensor:
        return abs(self.tensor())

    def __lt__(self, other: Any) -> Any:
        return self.tensor() < _real(other)

    def __le__(self, other: Any) -> Any:
        return self.tensor() <= _real(other)

    def __gt__(self, other: Any) -> Any:
        return self.tensor() > _real(other)

    def __ge__(self, other: Any) -> Any:
        return self.tensor() >= _real(other)

    def __pow__(self, other: Any) -> Any:
        return self.tensor() ** _real(other)

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in _NAMES and len(args) == 2 and not kwargs:
            a, b = args
            return b._with(_NAMES[name], a, is_swapped=True) if not isinstance(a, Line) else a._with(_NAMES[name], b)
        return function(*(_real(one) for one in args), **{key: _real(one) for key, one in (kwargs or {}).items()})


def _real(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_real(one) for one in value)
    return value.tensor() if isinstance(value, Line) else value


def _wider(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    return torch.float64 if torch.float64 in (a, b) else torch.float32


def _kind(line: Line, other: Any) -> torch.dtype | None:
    """The type of the result, as torch has it; None where `other` is nothing that a line can hold."""
    if isinstance(other, Line):
        return _wider(line.dtype, other.dtype) if other.shape == line.shape else None
    if isinstance(other, int | float):
        return line.dtype
    if not isinstance(other, Tensor) or (other.device != line.device and other.dim()):
        return None
    if other.dim() == 0 and other.is_floating_point():
        return line.dtype
    is_whole = other.shape == line.shape and other.is_contiguous()
    if other.dtype in (torch.float32, torch.float64) and (is_whole or other.shape == (line.shape[0], 1)):
        return _wider(line.dtype, other.dtype)
    return None


def tensors(*values: Tensor | Line, apart_from: Sequence[Tensor] = ()) -> list[Tensor]:
    """The numbers of lines, computed together; tensors are returned as they are.

    `apart_from` are tensors from which the distance of each value is wanted next; a GPU measures it on the way.
    """
    waiting = {id(value): value for value in values if isinstance(value, Line) and value.result is None}
    wanted = list(waiting.values())  # each once
    if wanted:
        from gossamer.kernels import backend

        more: list[Any] = []
        if apart_from and wanted[0].is_cuda:
            own = {id(value): one for value, one in zip(values, apart_from, strict=True)}
            more = [[own[id(line)] for line in wanted]]
        for line, result in zip(wanted, backend(wanted[0].device).lines(_program(wanted), *more), strict=True):
            line.result, line.a, line.b, line.size = result, None, None, 1
    return [value.result if isinstance(value, Line) else value for value in values]  # type: ignore[misc]


def _program(lines: Sequence[Line]) -> Program:
    """Each operation once, also where lines share it."""
    found, ops = Program((), (), [], [], []), list[Op]()
    places: dict[tuple[int, Any], int] = {}
    outputs = tuple(_place(line, line.dtype, found, ops, places) for line in lines)
    return found._replace(ops=tuple(ops), outputs=outputs)


def _place(part: Any, dtype: torch.dtype, program: Program, ops: list[Op], places: dict[tuple[int, Any], int]) -> int:
    """Where the value of a part is found; its operations are added if they are not there yet."""
    line = part if isinstance(part, Line) else None
    leaf = part if line is None else line.result
    # A scalar is rounded to the type of its operation; the same one may serve in both types.
    key = (id(part), dtype if not isinstance(leaf, Tensor) or leaf.dim() == 0 else None)
    if key not in places:
        op = _leaf(leaf, dtype, program) if leaf is not None else None
        if op is None and line is not None:
            a = _place(line.a, line.dtype, program, ops, places)
            b = _place(line.b, line.dtype, program, ops, places) if line.name != "to" else a
            op = Op(line.name, a, b, line.dtype == torch.float32)
        assert op is not None
        ops.append(op)
        places[key] = len(ops) - 1
    return places[key]


def _leaf(leaf: Leaf, dtype: torch.dtype, program: Program) -> Op:
    if not isinstance(leaf, Tensor) or leaf.dim() == 0:
        program.scalars.append(leaf)
        return Op("scalar", len(program.scalars) - 1, 0, dtype == torch.float32)
    kept, name = (program.columns, "column") if leaf.shape[1] == 1 else (program.tensors, "load")
    kept.append(leaf)
    return Op(name, len(kept) - 1, 0, leaf.dtype == torch.float32)


def begin(x: Tensor) -> Tensor:
    """x as the beginning of a line, where lines are computed in one pass on a CPU."""
    from gossamer.kernels import has_lines

    is_fit = not isinstance(x, Line) and not x.is_cuda and x.dim() == 2 and x.is_contiguous() and x.dtype in _FLOATS
    if not is_fit or not has_lines(x):
        return x
    line: Any = Line("load", None, None, x.dtype, x)
    line.result = x
    return line  # type: ignore[no-any-return]


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """a - b: at once where that is quick, else as the beginning of a line."""
    from gossamer.kernels import has_lines

    if a.dtype != b.dtype or not (a.is_contiguous() and b.is_contiguous()) or a.dim() != 2 or not has_lines(a):
        return a - b
    line: Any = Line("sub", a, b, a.dtype, a)
    return line  # type: ignore[no-any-return]


def difference(value: Tensor, own: Tensor, dtype: torch.dtype) -> Tensor:
    """value - own, rounded to `dtype`, in one pass where that is quick."""
    from gossamer.kernels import has_lines

    fits = value.shape == own.shape and value.is_contiguous() and own.is_contiguous() and value.dim() == 2
    if not fits or not has_lines(value):
        return (value - own).to(dtype)
    return tensors(Line("sub", value, own, _wider(value.dtype, own.dtype), value).to(dtype))[0]
