"""The compiled kernels of linear models on sparse rows, against the reference and against dense algebra."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

import gossamer as gs
from gossamer.kernels import Csr, Examples, Loss, csr, linear_gradients, linear_measures, only_reference
from gossamer.kernels.compile import jit
from gossamer.kernels.cpu import elementary
from gossamer.kernels.cpu import examples as compiled

BOUND = {torch.float32: 1e-5, torch.float64: 1e-12}


def by_kernel_and_reference(call: Callable[[], Any]) -> tuple[Any, Any]:
    return call(), as_reference(call)


def as_reference(call: Callable[[], Any]) -> Any:
    with only_reference():
        return call()


@st.composite
def examples(draw: st.DrawFn, dtype: torch.dtype) -> Examples:
    """Rows with few, one or no entries, of one or many features, divided into unequal clients.

    Values are multiples of 1/4, so that sums of few of them are exact. Some are all equal in a column, up to
    the signs of rows.
    """
    loss = draw(st.sampled_from(Loss))
    width, rows = draw(st.integers(1, 40)), draw(st.integers(1, 60))
    seed, density = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    random = np.random.default_rng(seed)
    values = random.integers(-8, 9, (rows, width)) / 4
    has_columns, has_signs = draw(st.booleans()), draw(st.booleans())
    if has_columns:
        values[:] = random.integers(1, 9, width) / 4
        values *= random.choice([-1, 1], (rows, 1) if has_signs else width)
    dense = values * (random.random((rows, width)) < density)
    outputs = draw(st.sampled_from([1, 2, 3, 17])) if loss == Loss.SOFTMAX else 1
    cuts = sorted(draw(st.sets(st.integers(1, rows - 1), max_size=4))) if rows > 1 else []
    counts = np.diff([0, *cuts, rows]).tolist()
    targets = {
        Loss.LOGISTIC: random.choice([-1, 1], rows),
        Loss.SOFTMAX: random.integers(0, outputs, rows),
        Loss.SQUARES: random.integers(-8, 9, rows) / 4,
    }[loss]
    weights = random.random(rows) + 0.5 if draw(st.booleans()) else None
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    csr_rows = Csr.of(sparse.csr_array(dense), dtype)
    assert not has_columns or csr_rows.columns is not None
    return Examples(csr_rows, targets.astype(kind), counts, weights, outputs, loss)


def models(draw: Any, held: Examples, count: int, scale: float) -> torch.Tensor:
    d = held.outputs * held.rows.width
    integers = draw.draw(arrays.arrays(np.int8, (count, d), elements=st.integers(-24, 24)))
    return torch.from_numpy(integers.astype(held.rows.values.dtype) / 8 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
@settings(max_examples=150)
def test_gradients(dtype: torch.dtype, data: st.DataObject) -> None:
    """Of kernel and reference, within the stated bound; rows may be drawn more than once."""
    held = data.draw(examples(dtype))
    clients, seeds = len(held.counts), data.draw(st.integers(1, 3))
    x = models(data, held, seeds * clients, data.draw(st.sampled_from([1.0, 30.0])))
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    size = data.draw(st.sampled_from([None, 1, 5, 300]))
    batch = None
    if size is not None:
        batch = torch.from_numpy(np.concatenate([random.integers(0, n, (1, size)) for n in [*held.counts] * seeds]))
    one, two = by_kernel_and_reference(partial(linear_gradients, held, x, batch, 0.05, 0.1))
    matrix, first = held.rows.matrix.astype(np.float64), np.cumsum([0, *held.counts])
    for i in range(len(x)):
        client = i % clients
        rows = np.arange(held.counts[client]) if batch is None else batch[i].numpy()
        a, y = matrix[first[client] + rows], held.targets[first[client] + rows].astype(np.float64)
        z = (a @ x[i].double().numpy().reshape(held.outputs, -1).T)[:, :, None]
        _, pull, _ = csr.losses(z, y, held.loss)
        lengths = np.sqrt((a**2).sum(axis=1))
        scale = float((lengths * np.maximum(1, np.linalg.norm(pull[:, :, 0], axis=1))).mean()) + float(x[i].norm())
        assert float((one[i] - two[i]).norm()) <= BOUND[dtype] * scale
        w = x[i].double()
        exact = torch.from_numpy((pull[:, :, 0].T @ a).ravel() / len(y)) + 0.1 * w + 0.05 * 2 * w / (1 + w * w) ** 2
        assert float((one[i].double() - exact).norm()) <= 3 * BOUND[dtype] * max(1, float(abs(z).max())) * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
@settings(max_examples=100)
def test_measurements(dtype: torch.dtype, data: st.DataObject) -> None:
    held = data.draw(examples(dtype))
    x = models(data, held, data.draw(st.sampled_from([1, 2, 10, 70])), 1.0)
    for derive in (True, False):
        (loss, other), (expected, also) = by_kernel_and_reference(partial(linear_measures, held, x, derive=derive))
        torch.testing.assert_close(loss, expected, rtol=BOUND[dtype], atol=BOUND[dtype])
        if derive:
            torch.testing.assert_close(other, also, rtol=BOUND[dtype], atol=BOUND[dtype] * 10)
        elif held.loss != Loss.SQUARES:
            assert torch.equal(other, also), "outputs are exact here, ties included"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
@settings(max_examples=60)
def test_a_model_does_not_notice_its_company(dtype: torch.dtype, data: st.DataObject) -> None:
    """Bit by bit: measured alone and among others, gradients of one seed and of several, rows divided in any way."""
    held = data.draw(examples(dtype))
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    clients, d = len(held.counts), held.outputs * held.rows.width
    x = torch.from_numpy(random.standard_normal((3 * clients, d))).to(dtype)
    batch = torch.from_numpy(np.concatenate([random.integers(0, n, (1, 9)) for n in [*held.counts] * 3]))
    gradients, apart = partial(linear_gradients, held, nonconvex=0.05, l2=0.1), partial(linear_measures, held)
    one, own = slice(1, 2), slice(clients, 2 * clients)
    for context in (contextlib.nullcontext, only_reference):
        with context():
            for rows in (batch, None):
                together = gradients(x, rows)
                assert torch.equal(gradients(x[own], None if rows is None else rows[own]), together[own])
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(compiled, "split", backwards)
                    assert torch.equal(gradients(x, rows), together)
            for derive in (True, False):
                measured, alone = apart(x, derive=derive), apart(x[one], derive=derive)
                assert all(torch.equal(a[one], b) for a, b in zip(measured, alone, strict=True))
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(compiled, "split", backwards)
                    assert all(torch.equal(a, b) for a, b in zip(measured, apart(x, derive=derive), strict=True))


def backwards(rows: int, work: float, fn: Callable[[int, int], None]) -> None:
    """One row at a time, the last one first."""
    for i in reversed(range(rows)):
        fn(i, i + 1)


def small(loss: Loss = Loss.LOGISTIC, targets: tuple[float, ...] = (1, -1, 1)) -> Examples:
    matrix = sparse.csr_array(np.array([[1.0, 0, 2], [0, 0, 0], [0, 3, 0]]))
    return Examples(Csr.of(matrix, torch.float64), np.array(targets), [2, 1], None, 1, loss)


def test_what_does_not_fit_is_refused() -> None:
    held, x = small(), torch.zeros(2, 3, dtype=torch.float64)

    def refused(said: str, call: Callable[[], Any]) -> None:
        for run in (call, lambda: as_reference(call)):
            with pytest.raises(gs.InputError, match=said):
                run()

    one = torch.tensor([[0], [1]])
    refused(
        "minibatch of client 1 has row 1, but the client has rows 0 to 0", lambda: linear_gradients(held, x, one, 0, 0)
    )
    refused("minibatch of client 0 has row -1", lambda: linear_gradients(held, x, -one[[1, 0]], 0, 0))
    refused(
        r"\(seeds \* 2, 3\), one row per client, got \(3, 3\)", lambda: linear_gradients(held, x[[0, 0, 0]], None, 0, 0)
    )
    refused(
        r"\(seeds \* 2, 3\), one row per client, got \(2, 2\)", lambda: linear_gradients(held, x[:, :2], None, 0, 0)
    )
    refused(
        r"must be \(2, rows per client\), got shape \(4, 1\)", lambda: linear_gradients(held, x, one.repeat(2, 1), 0, 0)
    )
    refused(r"must be \(k, 3\), got shape \(2, 1\)", lambda: linear_measures(held, x[:, :1], derive=True))
    refused("Targets must be classes from 0 to 0", lambda: small(Loss.SOFTMAX))
    refused("Targets must be 1 or -1", lambda: small(targets=(1, 0, 1)))


def test_how_rows_are_stored() -> None:
    """In as few bits as fit, and with one number per column where that is all there is."""

    def stored(*rows: list[float]) -> tuple[list[float] | None, list[int] | None]:
        held = Csr.of(sparse.csr_array(np.array(rows)), torch.float32)
        assert np.array_equal(held.matrix.toarray(), np.array(rows, np.float32))
        columns, signs = (None if found is None else found.tolist() for found in (held.columns, held.signs))
        return columns, signs

    assert stored([1, 0, -2], [0, 0, -2], [1, 0, 0]) == ([1, 0, -2], None)
    assert stored([1, 0, 2], [0, 0, 0], [-1, 0, 0]) == ([1, 0, 2], [1, 1, -1])
    assert stored([1, 2], [-1, 2]) == (None, None), "a row with both signs"
    assert stored([1, 2], [0, 3]) == (None, None), "a column with two values"
    assert stored([0, 0]) == ([0, 0], None)
    twice = sparse.csr_array((np.array([0.0, 1.0]), np.array([0, 0]), np.array([0, 1, 2])), shape=(2, 1))
    assert Csr.of(twice, torch.float32).columns is None, "a stored zero is a value"
    for width, kind in ((1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)):
        matrix = sparse.csr_array((np.ones(2), np.array([0, width - 1]), np.array([0, 1, 2])), shape=(2, width))
        wide = Csr.of(matrix, torch.float32)
        assert (wide.indptr.dtype.type, wide.indices.dtype.type, wide.columns) == (np.uint32, kind, None)
        assert Csr.bytes_of(matrix, 4) == sum(array.nbytes for array in (wide.indptr, wide.indices, wide.values))
        held = Examples(wide, np.ones(2, np.float32), [1, 1], None, 1, Loss.LOGISTIC)
        x = torch.zeros(2, width)
        for gradient in by_kernel_and_reference(partial(linear_gradients, held, x, None, 0, 0)):
            assert (gradient[0, 0], gradient[1, -1], gradient.abs().sum()) == (-0.5, -0.5, 1)


def test_large_and_missing_numbers() -> None:
    """A saturated loss has no slope or slope 1, and NaN stays NaN."""
    for dtype in (torch.float32, torch.float64):
        held = Examples(
            Csr.of(small().rows.matrix, dtype), small().targets.astype(str(dtype)[6:]), [2, 1], None, 1, Loss.LOGISTIC
        )
        x = torch.tensor([[1e30, 0, 0], [0, -1e30, 0]], dtype=dtype)
        expected = torch.tensor([[0, 0, 0], [0, -3, 0]], dtype=dtype)
        assert torch.equal(linear_gradients(held, x, torch.tensor([[0], [0]]), 0, 0).abs() > 1e-30, expected.abs() > 0)
        loss, _ = linear_measures(held, x, derive=True)
        assert torch.isfinite(loss).all()
        assert float(loss[1]) == pytest.approx(1e30)
        bad = torch.full((2, 3), torch.nan, dtype=dtype)
        assert linear_gradients(held, bad, None, 0, 0)[0].isnan()[[0, 2]].all()
        assert linear_measures(held, bad, derive=True)[0].isnan().all()
        rows = Csr.of(sparse.csr_array(np.array([[2.0, 0]])), dtype)
        held = Examples(rows, np.ones(1, rows.values.dtype), [1], None, 1, Loss.LOGISTIC)
        loss, gradient = linear_measures(held, torch.tensor([[0, torch.inf]], dtype=dtype), derive=True)
        assert (round(float(loss), 6), gradient.tolist()) == (0.693147, [[-1, 0]]), "a feature that no row has"


def test_exp_and_log1p() -> None:
    @jit()
    def apply(x: Any, exps: Any, logs: Any) -> None:
        for i in range(len(x)):
            exps[i] = elementary.exp(-x[i])
            logs[i] = elementary.log1p(x[i] if x[i] < 1 else x[i] / x[i])

    random = np.random.default_rng(0)
    for kind, highest in ((np.float32, 87), (np.float64, 708)):
        x = np.concatenate([random.random(20_000), random.random(20_000) * highest, [0, 1, 0.414, 1e-30]]).astype(kind)
        exps, logs = np.empty_like(x), np.empty_like(x)
        apply(x, exps, logs)
        wide = x.astype(np.longdouble)
        for found, exact in ((exps, np.exp(-wide)), (logs, np.log1p(np.minimum(wide, 1)))):
            assert (abs(found - exact) <= 2 * np.finfo(kind).eps * exact).all()
        x = np.array([np.inf, np.nan, highest + 50], kind)
        exps, logs = np.empty_like(x), np.empty_like(x)
        apply(x, exps, logs)
        assert 0 < exps[0] == exps[2] < 1e-37
        assert np.isnan([exps[1], logs[1]]).all()
