"""The kernels of a GPU give the numbers of the reference on a CPU, bit by bit, given the norms."""

import os
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

from gossamer.kernels import Blocks, Keys, Stream, lines, reference

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own interpreter needs no GPU
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(DEVICE == "cpu" and not IS_INTERPRETED, reason="no CUDA device here"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of the interpreter, where squares overflow
]
if IS_INTERPRETED or DEVICE == "cuda":
    cuda = pytest.importorskip("gossamer.kernels.cuda", reason="no Triton here")

F32, F64 = torch.float32, torch.float64


def on(x: Any) -> Any:
    return x if x is None else x.to(DEVICE)


def same(there: Tensor, here: Tensor) -> None:
    assert there.dtype == here.dtype
    assert torch.equal(there.cpu(), here)


def stream(rows: int, t: Any = 3, device: str = "cpu") -> Stream:
    return Stream(Keys.of([2**64 - 1 - k for k in range(rows)], [2**31 + k for k in range(rows)], device), 2**32 - 9, t)


def cut(d: int, size: int) -> Blocks:
    return Blocks((size,) * (d // size) + ((d % size,) if d % size else ()))


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("width", [1, 31, 64, 1000, 5000])
def test_uniform_numbers(width: int, dtype: torch.dtype) -> None:
    same(cuda.uniform(stream(3, device=DEVICE), width, dtype), reference.uniform(stream(3), width, dtype))
    kept = torch.tensor(7, device=DEVICE)
    same(cuda.uniform(stream(3, kept, DEVICE), width, dtype), reference.uniform(stream(3, 7), width, dtype))


@pytest.mark.parametrize("high", [[7], [7, 1, 2**40]])
def test_integers_below(high: list[int]) -> None:
    for width in (1, 100):
        there = cuda.below(stream(3, device=DEVICE), torch.tensor(high, device=DEVICE), width)
        same(there, reference.below(stream(3), torch.tensor(high), width))


def test_numbers_that_are_not_finite() -> None:
    x = torch.zeros(3, 5000)
    for wrong in (float("nan"), float("inf"), -float("inf")):
        for at in (0, 4999):
            y = x.clone()
            y[2, at] = wrong
            assert not cuda.are_finite(on(x), on(y))
            bad = torch.tensor(90, device=DEVICE)
            for t, first in ((91, 90), (70, 70), (80, 70)):
                cuda.note_bad(bad, torch.tensor(t, device=DEVICE), on(x), on(y.double()))
                assert int(bad) == first
    assert cuda.are_finite(on(x), on(x + torch.finfo(F32).max))


LAYOUTS = {
    "whole": Blocks((5000,)),
    "one": Blocks((1,)),
    "blocks of 64": cut(1000, 64),
    "blocks of 256": cut(1100, 256),
    "blocks of 192": cut(1000, 192),
    "blocks of 50": cut(1000, 50),
    "tensors": Blocks((10, 500, 1, 4500)),
}
SIZES = [1.0, 0.0, 1e-42, 1e30]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kinds", [(F32, None), (F32, F64), (F32, F32), (F64, F64)], ids=str)
def test_levels(layout: str, kinds: tuple[torch.dtype, torch.dtype | None]) -> None:
    blocks, (dtype, own_dtype) = LAYOUTS[layout], kinds
    d, rows, generator = sum(blocks.lengths), 4, torch.Generator().manual_seed(0)
    wide = {1e-42: 1e-200, 1e30: 1e200}
    size = torch.tensor([size if dtype == F32 else wide.get(size, size) for size in SIZES], dtype=F64)
    value, own = (torch.randn(rows, d, dtype=F64, generator=generator) * size[:, None] for _ in range(2))
    value, own = value.to(dtype), None if own_dtype is None else own.to(own_dtype)  # type: ignore[assignment]
    for highest, kind in ((16, torch.int8), (3, torch.int8), (5000, torch.int16), (1 << 19, torch.int32)):
        told = (blocks, highest, 1.7, dtype, kind)
        here = reference.dither(value, own, stream(rows), *told)
        there = cuda.dither(on(value), on(own), stream(rows, device=DEVICE), *told)
        ulps = 1 if dtype == F32 else 32
        assert ((there.norm.cpu() - here.norm).abs() <= ulps * torch.finfo(dtype).eps * here.norm).all()
        given = cuda.follow(
            on(value), on(own), on(here.norm), on(here.scale), stream(rows, device=DEVICE), blocks, highest, kind
        )
        same(given.levels, here.levels)
        reach = here.norm + here.scale * (1.001 * highest)
        torch.testing.assert_close(there.reach.cpu(), reach, rtol=1e-5, atol=torch.finfo(dtype).tiny)
        alike = (there.norm.cpu() == here.norm) & (there.scale.cpu() == here.scale)
        spread = blocks.spread(alike).expand(rows, d)
        assert torch.equal(there.levels.cpu()[spread], here.levels[spread])
        if own is not None:
            assert here.moved is not None
            same(given.moved, here.moved)
            assert torch.equal(there.moved.cpu()[spread], here.moved[spread])


def test_few_norms_differ(record_property: Any) -> None:
    """The sums are in float64, so the order matters for about one norm in 2^24 additions' error, that is rarely."""
    rows, d = (40, 300) if IS_INTERPRETED else (4000, 10_000)
    x = torch.randn(rows, d, generator=torch.Generator().manual_seed(0))
    differ, of = 0, 0
    for blocks in (Blocks((d,)), cut(d, 100), cut(d, 128)):
        here = reference.norms(x, blocks)
        told = (blocks, 16, 1.0, F32, torch.int8)
        there = cuda.dither(on(x), None, stream(rows, device=DEVICE), *told).norm.cpu()
        differ, of = differ + int((there != here).sum()), of + here.numel()
    record_property("norms that differ", f"{differ} of {of}")
    print(f"{differ} of {of} norms differ")
    assert differ <= 1e-4 * of


@pytest.mark.parametrize("dtype", [F32, F64])
def test_the_largest(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    long: Any = ((2, (5000,), 50), (1, (5000,), 5000), (1, (4500, 4500, 3, 10), 5))
    for rows, lengths, k in ((3, (100,), 10), (2, (33,), 1), (2, (64, 64, 7), 9), *long):
        blocks, d = Blocks(lengths), sum(lengths)
        for x in (
            torch.randn(rows, d, dtype=dtype, generator=generator),
            torch.randint(-4, 4, (rows, d), generator=generator).to(dtype),  # many ties
            torch.zeros(rows, d, dtype=dtype),
        ):
            same(cuda.largest(on(x), blocks, k), reference.largest(x, blocks, k))
            for kind in (dtype, F64):
                own = torch.randn(rows, d, dtype=F64, generator=generator).to(kind)
                there, here = cuda.keep(on(x), on(own), blocks, k), reference.keep(x, own, blocks, k)
                for a, b in zip(there[:3], here[:3], strict=True):
                    same(a, b)
                if there.dense is not None:
                    same(there.dense, torch.zeros_like(x).scatter_(1, here.places, here.values))


@pytest.mark.parametrize("seeds", [1, 2])
def test_sums_of_neighbours(seeds: int) -> None:
    generator, n = np.random.default_rng(0), 5
    w = scipy.sparse.csr_matrix(generator.random((n, n)) * (generator.random((n, n)) < 0.6))
    there, here = cuda.Mixer(w, torch.device(DEVICE)), reference.Mixer(w, torch.device("cpu"))
    torch.manual_seed(0)
    for blocks in (Blocks((1500,)), cut(1500, 70), Blocks((2, 1497, 1))):
        mixed = torch.randn(seeds * n, 1500, dtype=F64)
        for dtype in (F32, F64):
            q = torch.randn(seeds * n, 1500, dtype=dtype)
            scale = torch.rand(seeds * n, len(blocks.lengths), dtype=dtype)
            levels = torch.randint(-16, 17, q.shape, dtype=torch.int8)
            same(there(on(q)), here(q))
            for a in (1.0, 0.3):
                same(there.add(on(mixed), on(q), a), here.add(mixed, q, a))
                got = there.add_levels(on(mixed), on(scale), on(levels), blocks, a)
                same(got, here.add_levels(mixed, scale, levels, blocks, a))


@pytest.mark.parametrize("width", [1, 2, 3, 6, 8, 11, 21, 31])
def test_packing(width: int) -> None:
    most = (1 << width) - 1
    shift = most // 2
    for count in (1, 7, 3000):
        drawn = np.random.default_rng(count).integers(0, most, (3, count), endpoint=True)
        values = torch.from_numpy(drawn) - shift
        packed = cuda.pack_rows(on(values), shift, width)
        assert np.array_equal(packed.cpu().numpy(), reference.pack(drawn, width))
        same(cuda.unpack_rows(packed, count, shift, width, torch.int64), values)


def sub(a: Tensor, b: Tensor) -> Any:
    return lines.Line("sub", a, b, a.dtype, a)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("lr", [0.013, torch.tensor(0.013, dtype=F64), torch.linspace(0.1, 0.3, 3, dtype=F64)[:, None]])
def test_lines(rows: int, lr: Any) -> None:
    torch.manual_seed(0)
    lr = lr[:rows] if isinstance(lr, Tensor) and lr.dim() else lr
    v, g, mg, h, mh = (torch.randn(rows, 1500, dtype=F64) for _ in range(5))
    x, new, old = (torch.randn(rows, 1500) for _ in range(3))

    def step(minus: Any, v: Any, g: Any, mg: Any, h: Any, mh: Any, x: Any, new: Any, old: Any, lr: Any) -> list[Any]:
        v = v + 0.3 * minus(mg, g) + new - old
        return [v, x + (0.3 * minus(mh, h) - lr * v).to(x), minus(x, new) * 0.7 / 3.1]

    given: list[Any] = [v, g, mg, h, mh, x, new, old, lr]
    here = step(torch.sub, *given)
    moved = [on(one) if isinstance(one, Tensor) else one for one in given]
    for own in ([], [moved[1], moved[3], None]):
        program = lines._program(step(sub, *moved))
        made = cuda.lines(program, own)
        for there, one in zip(reference.lines(program), here, strict=True) if DEVICE == "cpu" else ():
            same(there, one)
        for there, one in zip(made, here, strict=True):
            same(there, one)
        for k, near in enumerate((moved[1], moved[3]) if own else ()):
            part = cuda.generated.squares_of(made[k], near)
            error = (here[k].double() - near.cpu()).float().double()
            torch.testing.assert_close(part.sum(dim=1).cpu(), error.square().sum(dim=1), rtol=1e-13, atol=0)
            assert cuda.generated.squares_of(made[k], near) is None, "they are given out once"


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device here")
def test_more_numbers_than_32_bits_can_count() -> None:
    rows, d = 43_000, 50_890  # 2.2e9
    w = scipy.sparse.identity(rows, format="csr")
    levels = torch.zeros(rows, d, dtype=torch.int8, device=DEVICE)
    levels[-1] = torch.arange(d, device=DEVICE) % 33 - 16
    mixed = torch.zeros(rows, 1, dtype=F64, device=DEVICE).expand(rows, d)
    value = torch.zeros(rows, d, device=DEVICE)
    value[-1] = torch.linspace(-1, 1, d, device=DEVICE)
    told = (Blocks((d,)), 16, 1.0, F32, torch.int8)
    got = cuda.dither(value, None, stream(rows, device=DEVICE), *told)
    here = reference.dither(
        value[-1:].cpu(), None, Stream(Keys.of([2**64 - rows], [2**31 + rows - 1]), 2**32 - 9, 3), *told
    )
    assert torch.equal(got.levels[-1:].cpu(), here.levels)
    del value, got
    scale = torch.ones(rows, 1, device=DEVICE)
    total = cuda.Mixer(w, torch.device(DEVICE)).add_levels(mixed, scale, levels, Blocks((d,)))
    assert torch.equal(total[-1].cpu(), levels[-1].double().cpu())
