"""The methods beside BEER equal literal transcriptions of their equations, round by round.

Eight clients on a ring with the breast cancer rows sorted by label: all clients but one see one class alone.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
import reference_compressed as rc
import reference_methods as rm
import torch
from reference import Array, Compression, Gradient

import gossamer as gs
from gossamer import algorithms as al
from gossamer.runtime.simulation import Simulation
from gossamer.streams import Streams

ROUNDS, SEED, CLIENTS, BATCH, ROWS, D = 100, 7, 8, 4, 57, 31
LR = 0.05

PROBLEM = gs.logistic_regression("breast_cancer", clients=CLIENTS, dtype="float64")
MIXING = gs.mixing_matrix(gs.ring(CLIENTS), "metropolis")
W = MIXING.matrix
LAZY = (W + np.eye(CLIENTS)) / 2
A = PROBLEM.signed.numpy()  # (clients, rows, d), rows times their labels
STREAMS = Streams([SEED], range(CLIENTS))


def drawn(purpose: str, t: int, width: int) -> Array:
    return STREAMS.uniform(purpose, t, width, torch.float64).numpy()


def rows(t: int, purpose: str = "batch") -> npt.NDArray[np.int64]:
    """(clients, batch): the minibatch of round t."""
    return (drawn(purpose, t, BATCH) * ROWS).astype(np.int64)


def table_rows(t: int) -> npt.NDArray[np.int64]:
    """The rows whose gradients GT-SAGA replaces in round t."""
    return rows(t, "table")


def every_row(t: int) -> npt.NDArray[np.int64]:
    return np.tile(np.arange(ROWS), (CLIENTS, 1))


def each(X: Array) -> Array:
    """(clients, rows, d): the gradients of log(1 + exp(-a'x)) + 0.05 sum x_j^2 / (1 + x_j^2)."""
    gradients: Array = -A / (1 + np.exp(np.einsum("imd,di->im", A, X)))[:, :, None]
    return gradients + (0.05 * 2 * X / (1 + X**2) ** 2).T[:, None, :]


def each_of_batch(X: Array, t: int) -> Array:
    return np.take_along_axis(each(X), rows(t)[:, :, None], axis=1)


def each_of_all(X: Array, t: int) -> Array:
    return each(X)


def full(X: Array) -> Array:
    mean: Array = each(X).mean(axis=1).T
    return mean


def gradient(X: Array, t: int) -> Array:
    mean: Array = each_of_batch(X, t).mean(axis=1).T
    return mean


def full_gradient(X: Array, t: int) -> Array:
    return full(X)


def steady(t: int) -> float:
    return LR


def halving(t: int) -> float:
    return LR * 0.5 ** (t // 30)


def compression(compressor: gs.Compressor) -> Compression:
    def compress(x: Array, purpose: str, t: int) -> Array:
        if isinstance(compressor, gs.top_k):
            assert compressor.k is not None
            return reference.top_k(x, compressor.k)
        if isinstance(compressor, gs.gsgd):
            return reference.gsgd(x, drawn(purpose, t, D).T, compressor.bits)
        if isinstance(compressor, gs.identity):
            return x
        assert isinstance(compressor, gs.qsgd)
        s, norm = compressor.levels, np.linalg.norm(x, axis=0)
        quantized: Array = norm * np.sign(x) / s * np.floor(s * np.abs(x) / norm + drawn(purpose, t, D).T)
        return quantized

    return compress


X0 = drawn("x0", 0, D).T.copy()
FULL_START, MINIBATCH_START = full(X0), gradient(X0, 0)


def assert_agree(
    method: Any,
    expected: Iterator[list[Array]],
    batch: int | None = BATCH,
    mixing: gs.MixingMatrix = MIXING,
    x0: Any = "uniform",
    **how: Any,
) -> None:
    sim = Simulation(method, PROBLEM, mixing, [SEED], batch, x0, **how)
    for t, (X, *_) in zip(range(ROUNDS), expected, strict=False):
        sim.step()
        gap = np.abs(sim.state.x.numpy().T - X).max()
        assert gap <= 1e-10, f"the models differ by {gap:.1e} after round {t}"


BATCHES = [pytest.param(None, full_gradient, id="full"), pytest.param(BATCH, gradient, id="minibatch")]
STARTS = [pytest.param("full", FULL_START, id="full-start"), pytest.param("minibatch", MINIBATCH_START, id="own-start")]
CONTRACTIVE = [pytest.param(gs.top_k(5), 0.1, id="top_5"), pytest.param(gs.gsgd(5), 0.3, id="gsgd_5")]
# LEAD's and CEDAS's rounding errors grow by themselves under dithering: two runs of a transcription whose starts differ
# by 4e-16 part by 5e-13 within these rounds at gamma = 0.05, by 6e-12 at 0.1 and by 1e-8 at 0.3.
DUAL_GAMMA = 0.05
over_batches = pytest.mark.parametrize(("batch", "grad"), BATCHES)
over_starts = pytest.mark.parametrize(("start", "first"), STARTS)
over_contractive = pytest.mark.parametrize(("compressor", "gamma"), CONTRACTIVE)


def test_the_gradients_here_are_those_of_the_definition() -> None:
    clients = reference.LogisticClients(A, np.ones((CLIENTS, ROWS)), 0.05)
    np.testing.assert_allclose(full(X0), clients.gradient(X0), atol=1e-13)
    np.testing.assert_allclose(gradient(X0, 3), clients.gradient(X0, rows(3)), atol=1e-13)


@over_batches
@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_diloco(mu: float, batch: int | None, grad: Gradient) -> None:
    start = np.tile(X0[:, :1], CLIENTS)
    method = al.DiLoCo(lr=LR, momentum=mu)
    assert_agree(method, rm.diloco(start, grad, LR, mu), batch, x0=torch.from_numpy(start.T.copy()))


@over_batches
@pytest.mark.parametrize(("decay", "clip"), [(0.0, None), (0.1, 0.2)])
def test_all_reduce_adamw(decay: float, clip: float | None, batch: int | None, grad: Gradient) -> None:
    expected = rm.all_reduce_adamw(X0, grad, steady, 0.9, 0.95, 1e-8, decay, clip or np.inf)
    method = al.AllReduceAdamW(lr=LR, betas=(0.9, 0.95), weight_decay=decay, clip=clip)
    assert_agree(method, expected, batch)


@over_batches
def test_centralized_sgd(batch: int | None, grad: Gradient) -> None:
    assert_agree(al.CentralizedSGD(lr=LR), rm.centralized_sgd(X0, grad, LR), batch)


def test_centralized_sgd_that_takes_full_gradients_although_there_are_minibatches() -> None:
    assert_agree(al.CentralizedSGD(lr=LR, batch="full"), rm.centralized_sgd(X0, full_gradient, LR))


@over_batches
@pytest.mark.parametrize("mix_first", [True, False], ids=["mixed", "unmixed"])
def test_d2(mix_first: bool, batch: int | None, grad: Gradient) -> None:
    assert_agree(al.D2(lr=LR, mix_first=mix_first), rm.d2(X0, LAZY, grad, steady, mix_first), batch)


@pytest.mark.parametrize("mix_first", [True, False], ids=["mixed", "unmixed"])
def test_d2_without_laziness_on_a_matrix_that_allows_it(mix_first: bool) -> None:
    mixing = gs.MixingMatrix(0.8 * W + 0.2 * np.eye(CLIENTS), gs.ring(CLIENTS))
    expected = rm.d2(X0, mixing.matrix, gradient, steady, mix_first)
    assert_agree(al.D2(lr=LR, lazy=False, mix_first=mix_first), expected, mixing=mixing)


@over_batches
def test_extra(batch: int | None, grad: Gradient) -> None:
    assert_agree(al.EXTRA(lr=LR), rm.extra(X0, W, grad, steady), batch)


@over_batches
@pytest.mark.parametrize("c", [0.5, 0.3])
def test_nids(c: float, batch: int | None, grad: Gradient) -> None:
    assert_agree(al.NIDS(lr=LR, c=c), rm.nids(X0, W, grad, steady, c), batch)


@over_starts
@pytest.mark.parametrize("order", ["combine-then-adapt", "adapt-then-combine", "semi"])
def test_gradient_tracking(order: Any, start: Any, first: Array) -> None:
    method = al.GradientTracking(lr=LR, order=order, start=start)
    assert_agree(method, rm.gradient_tracking(X0, first, W, gradient, LR, order))


def test_dsgt_is_the_semi_order() -> None:
    assert_agree(al.GradientTracking(lr=LR, order="semi", start="minibatch"), rm.dsgt(X0, W, gradient, LR))
    with pytest.raises(AssertionError, match="the models differ"):
        assert_agree(al.GradientTracking(lr=LR, start="minibatch"), rm.dsgt(X0, W, gradient, LR))


SAGA_BATCHES = [(BATCH, rows, table_rows), (None, every_row, every_row)]


@pytest.mark.parametrize(("batch", "tau", "s"), SAGA_BATCHES, ids=["minibatch", "full"])
def test_gt_saga(batch: int | None, tau: rm.Indices, s: rm.Indices) -> None:
    assert_agree(al.GTSAGA(lr=LR), rm.gt_saga(X0, W, each, tau, s, LR), batch)


@pytest.mark.parametrize(("batch", "s"), [(BATCH, rows), (None, every_row)], ids=["minibatch", "full"])
def test_gt_saga_combine_then_adapt(batch: int | None, s: rm.Indices) -> None:
    expected = rm.gt_saga_combine_first(X0, W, each, s, LR)
    assert_agree(al.GTSAGA(lr=LR, order="combine-then-adapt"), expected, batch)


@pytest.mark.parametrize("period", [10, 7, 1])
def test_gt_sarah(period: int) -> None:
    assert_agree(al.GTSARAH(lr=LR, period=period), rm.gt_sarah(X0, W, gradient, full, LR, period))


@pytest.mark.parametrize("period", [10, 7, 1])
def test_d_get(period: int) -> None:
    assert_agree(al.DGET(lr=LR, period=period), rm.d_get(X0, W, gradient, full, LR, period))


@pytest.mark.parametrize("p", [1.0, 0.7])
@pytest.mark.parametrize(("inner", "outer", "period"), [(1, 1, 10), (2, 3, 10), (3, 2, 7)])
def test_destress(inner: int, outer: int, period: int, p: float) -> None:
    def active(t: int) -> Array:
        return (drawn("active", t, 1)[:, 0] < p).astype(np.float64)

    method = al.DESTRESS(lr=LR, period=period, inner_mixing=inner, outer_mixing=outer, activation=p)
    assert_agree(method, rm.destress(X0, W, gradient, full, active, LR, period, inner, outer, p))


@over_batches
@over_contractive
def test_deep_squeeze(compressor: gs.Compressor, gamma: float, batch: int | None, grad: Gradient) -> None:
    expected = rc.deep_squeeze(X0, W, grad, compression(compressor), LR, gamma)
    assert_agree(al.DeepSqueeze(lr=LR, gamma=gamma, compressor=compressor), expected, batch)


@pytest.mark.parametrize("local_steps", [1, 3])
@over_contractive
def test_squarm_sgd(compressor: gs.Compressor, gamma: float, local_steps: int) -> None:
    method = al.SQuARMSGD(lr=0.01, gamma=gamma, compressor=compressor, momentum=0.8, local_steps=local_steps)
    C = compression(compressor)
    assert_agree(method, rc.squarm_sgd(X0, W, gradient, C, 0.01, gamma, 0.8, local_steps, lambda t: 0.0))


@pytest.mark.parametrize("local_steps", [1, 3])
@over_contractive
def test_squarm_sgd_with_clients_that_keep_silent(compressor: gs.Compressor, gamma: float, local_steps: int) -> None:
    c, power = 400.0, 0.25
    mixed_rounds = 0

    def counted(expected: Iterator[list[Array]]) -> Iterator[list[Array]]:
        nonlocal mixed_rounds
        for X, sent in expected:
            mixed_rounds += 0 < sent.sum() < CLIENTS
            yield [X]

    method = al.SQuARMSGD(0.01, gamma, compressor, local_steps=local_steps, threshold=c, threshold_power=power)
    expected = rc.squarm_sgd(
        X0, W, gradient, compression(compressor), 0.01, gamma, 0.9, local_steps, lambda t: c * (t + 1) ** power
    )
    assert_agree(method, counted(expected))
    assert mixed_rounds >= 10, "rounds in which some sent and others did not"


DUALS: dict[str, Any] = {"LEAD": rc.lead, "CEDAS": rc.cedas}


@over_batches
@pytest.mark.parametrize(("a", "meant"), [(None, 1 / (1 + 31 / 16**2)), (0.5, 0.5)], ids=["a from omega", "a given"])
@pytest.mark.parametrize("name", DUALS)
def test_lead_and_cedas(name: str, a: float | None, meant: float, batch: int | None, grad: Gradient) -> None:
    expected = DUALS[name](X0, W, grad, compression(gs.qsgd(16)), steady, DUAL_GAMMA, meant)
    assert_agree(getattr(al, name)(lr=LR, gamma=DUAL_GAMMA, compressor=gs.qsgd(16), a=a), expected, batch)


@over_batches
def test_lead_without_its_second_line(batch: int | None, grad: Gradient) -> None:
    expected = rc.lead(X0, W, grad, compression(gs.qsgd(16)), steady, DUAL_GAMMA, 0.5, line_2=False)
    assert_agree(al.LEAD(LR, DUAL_GAMMA, gs.qsgd(16), a=0.5, mix_first=True), expected, batch)


@pytest.mark.parametrize("name", DUALS)
def test_lead_and_cedas_without_compression(name: str) -> None:
    expected = DUALS[name](X0, W, gradient, compression(gs.identity()), steady, 0.5, 1.0)
    assert_agree(getattr(al, name)(lr=LR, gamma=0.5, compressor=gs.identity()), expected)


@over_starts
@over_contractive
def test_c_gt(compressor: gs.Compressor, gamma: float, start: Any, first: Array) -> None:
    expected = rc.c_gt(X0, first, W, gradient, compression(compressor), LR, gamma, 1.0)
    assert_agree(al.CGT(lr=LR, gamma=gamma, compressor=compressor, start=start), expected)


@pytest.mark.parametrize(
    ("levels", "a", "meant"),
    [(16, None, 1.0), (16, 0.5, 0.5), (3, None, 1 / (1 + 31**0.5 / 3))],
    ids=["contraction", "a given", "no contraction"],
)
def test_c_gt_with_unbiased_compression(levels: int, a: float | None, meant: float) -> None:
    compressor = gs.qsgd(levels)
    expected = rc.c_gt(X0, FULL_START, W, gradient, compression(compressor), LR, 0.1, meant)
    assert_agree(al.CGT(lr=LR, gamma=0.1, compressor=compressor, a=a), expected)


@over_starts
@over_contractive
def test_motef(compressor: gs.Compressor, gamma: float, start: Any, first: Array) -> None:
    expected = rc.motef(X0, first, W, gradient, compression(compressor), LR, gamma, 0.3, vr=False)
    assert_agree(al.MoTEF(lr=LR, gamma=gamma, compressor=compressor, lam=0.3, start=start), expected)


@over_starts
@over_contractive
def test_motef_vr(compressor: gs.Compressor, gamma: float, start: Any, first: Array) -> None:
    expected = rc.motef(X0, first, W, gradient, compression(compressor), LR, gamma, 0.3, vr=True)
    assert_agree(al.MoTEFVR(lr=LR, gamma=gamma, compressor=compressor, lam=0.3, start=start), expected)


@pytest.mark.parametrize("order", ["fresh", "stale"])
@over_starts
@over_contractive
def test_docom(compressor: gs.Compressor, gamma: float, start: Any, first: Array, order: Any) -> None:
    expected = rc.docom(X0, first, W, gradient, compression(compressor), LR, gamma, 0.3, fresh=order == "fresh")
    method = al.DoCoM(lr=LR, gamma=gamma, compressor=compressor, beta=0.3, order=order, start=start)
    assert_agree(method, expected)


@pytest.mark.parametrize(("vr", "name"), [(False, "MoTEF"), (True, "MoTEFVR")])
def test_motef_with_full_gradients(vr: bool, name: str) -> None:
    expected = rc.motef(X0, FULL_START, W, full_gradient, compression(gs.gsgd(5)), LR, 0.3, 0.3, vr)
    assert_agree(getattr(al, name)(lr=LR, gamma=0.3, compressor=gs.gsgd(5), lam=0.3), expected, None)


@pytest.mark.parametrize("order", ["fresh", "stale"])
def test_docom_with_full_gradients(order: Any) -> None:
    expected = rc.docom(X0, FULL_START, W, full_gradient, compression(gs.gsgd(5)), LR, 0.3, 0.3, order == "fresh")
    assert_agree(al.DoCoM(lr=LR, gamma=0.3, compressor=gs.gsgd(5), beta=0.3, order=order), expected, None)


def noise(t: int) -> Array:
    """N(0, I)."""
    return STREAMS.at(t, "noise").normal(D).numpy().T


def no_noise(t: int) -> Array:
    return np.zeros((D, CLIENTS))


@pytest.mark.parametrize(("dp", "sigma"), [(False, 0.0), (True, 0.0), (True, 0.1)], ids=["GC", "DP", "DP with noise"])
@over_contractive
def test_porter(compressor: gs.Compressor, gamma: float, dp: bool, sigma: float) -> None:
    g = rc.porter_gradient(each_of_batch, 0.7, dp, lambda t: sigma * noise(t))
    expected = rc.porter(X0, g(X0, 0), W, g, compression(compressor), LR, gamma)
    method = al.PORTER(LR, gamma, compressor, clip=0.7, per_sample=dp, noise=sigma, start="minibatch")
    assert_agree(method, expected)


@pytest.mark.parametrize("batch", [None, BATCH], ids=["full", "minibatch"])
@pytest.mark.parametrize("dp", [False, True], ids=["GC", "DP"])
def test_porter_started_with_all_rows(dp: bool, batch: int | None) -> None:
    over_all = rc.porter_gradient(each_of_all, 0.7, dp, no_noise)
    g = over_all if batch is None else rc.porter_gradient(each_of_batch, 0.7, dp, no_noise)
    expected = rc.porter(X0, over_all(X0, 0), W, g, compression(gs.gsgd(5)), LR, 0.3)
    assert_agree(al.PORTER(LR, 0.3, gs.gsgd(5), clip=0.7, per_sample=dp, start="full"), expected, batch)


def local_gradient(X: Array, t: int, k: int) -> Array:
    """On the minibatch of local step k of three."""
    own = (drawn("batch", t, 3 * BATCH)[:, k * BATCH : (k + 1) * BATCH] * ROWS).astype(np.int64)
    mean: Array = np.take_along_axis(each(X), own[:, :, None], axis=1).mean(axis=1).T
    return mean


def test_kgt() -> None:
    local = gs.LocalSteps("SGD", steps=3, lr=LR)
    assert_agree(al.KGT(lr=0.8), rm.kgt(X0, W, local_gradient, 3, LR, 0.8), local=local)


@pytest.mark.parametrize("order", ["fresh", "stale"])
@over_contractive
def test_compressed_kgt(compressor: gs.Compressor, gamma: float, order: Any) -> None:
    C, fresh = compression(compressor), order == "fresh"
    expected = rc.compressed_kgt(X0, W, local_gradient, C, 3, 0.01, gamma, fresh)
    expected = rc.compressed_kgt(X0, W, local_gradient, compression(compressor), 3, 0.01, gamma, fresh=order == "fresh")
    method = al.CompressedKGT(lr=1.0, gamma=gamma, compressor=compressor, order=order)
    assert_agree(method, expected, local=gs.LocalSteps("SGD", steps=3, lr=0.01))


SCHEDULED: dict[str, tuple[dict[str, Any], Callable[[], Iterator[list[Array]]]]] = {
    "D2": ({}, lambda: rm.d2(X0, LAZY, gradient, halving, mix_first=True)),
    "EXTRA": ({}, lambda: rm.extra(X0, W, gradient, halving)),
    "NIDS": ({}, lambda: rm.nids(X0, W, gradient, halving, 0.5)),
    "LEAD": (
        {"gamma": DUAL_GAMMA, "compressor": gs.qsgd(16), "a": 0.5},
        lambda: rc.lead(X0, W, gradient, compression(gs.qsgd(16)), halving, DUAL_GAMMA, 0.5),
    ),
    "CEDAS": (
        {"gamma": DUAL_GAMMA, "compressor": gs.qsgd(16), "a": 0.5},
        lambda: rc.cedas(X0, W, gradient, compression(gs.qsgd(16)), halving, DUAL_GAMMA, 0.5),
    ),
    "BEER": (
        {"gamma": 0.3, "compressor": gs.gsgd(5)},
        lambda: rc.beer(X0, FULL_START, W, gradient, compression(gs.gsgd(5)), halving, 0.3),
    ),
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_step_that_changes(name: str) -> None:
    settings, expected = SCHEDULED[name]
    lr = al.schedules.step(LR, step_size=30, gamma=0.5)
    assert_agree(getattr(al, name)(lr=lr, **settings), expected())
