"""What every compressor must do."""

import math

import torch
from torch import Tensor

from gossamer import registry
from gossamer.compression import packet
from gossamer.compression.base import CODECS, Compressor, Message
from gossamer.testing.instances import instances

_DIMENSIONS = (1, 2, 7, 124)
_SAMPLES = 400
_DEVIATIONS = 5.0  # a mean over samples may miss its bound by this many standard errors: one chance in three million


def check_compressor(compressor: Compressor | type[Compressor]) -> None:
    """Contraction with its stated alpha, purity, independence of rows, and an exact codec of the stated length."""
    for one in instances(compressor, registry.compressors):
        for d in _DIMENSIONS:
            for dtype in (torch.float32, torch.float64):
                x = _adversarial(d, dtype)
                _check_message(one, x)
                if dtype == torch.float64 or d == _DIMENSIONS[-1]:
                    _check_contraction(one, x)


def _adversarial(d: int, dtype: torch.dtype) -> Tensor:
    """One row for each way to be difficult."""
    generator = torch.Generator().manual_seed(d)
    one_hot = torch.zeros(d, dtype=torch.float64)
    one_hot[d // 2] = -3.0
    heavy = torch.randn(d, generator=generator, dtype=torch.float64) ** 5
    rows = [
        torch.randn(d, generator=generator, dtype=torch.float64),
        one_hot,
        torch.full((d,), -0.7, dtype=torch.float64),
        heavy,
        torch.zeros(d, dtype=torch.float64),
        1e-30 * torch.randn(d, generator=generator, dtype=torch.float64),
        1e20 * torch.randn(d, generator=generator, dtype=torch.float64),
        torch.arange(d, dtype=torch.float64) % 2 * 2 - 1,
    ]
    far = 30.0 if dtype == torch.float32 else 290.0
    rows += [10.0**power * torch.randn(d, generator=generator, dtype=torch.float64) for power in (-far, far)]
    return torch.stack(rows).to(dtype)


def _check_message(compressor: Compressor, x: Tensor) -> None:
    before = x.clone()
    message = compressor(x, seed=3)
    dense = message.dense()
    assert torch.equal(x, before), f"{compressor} changes its input."
    assert isinstance(message, Message), f"{compressor} must yield a Message, got {type(message).__name__}."
    assert message.shape == x.shape, f"{compressor} changes the shape {tuple(x.shape)} to {message.shape}."
    assert dense.shape == x.shape, f"{compressor} changes the shape {tuple(x.shape)} to {tuple(dense.shape)}."
    assert dense.dtype == message.dtype == x.dtype, f"{compressor} changes the type {x.dtype} to {dense.dtype}."
    assert torch.isfinite(dense).all(), f"{compressor} yields NaN or Inf for d = {x.shape[1]}."
    assert not dense[(x == 0).all(dim=1)].any(), f"{compressor} does not keep a zero vector zero."
    assert torch.equal(compressor(x, seed=3).dense(), dense), f"{compressor} differs for the same seed."
    assert torch.equal(compressor(x[:3], seed=3).dense(), dense[:3]), f"{compressor} lets rows depend on other rows."

    clients = [7 * row for row in range(len(x))]
    for codec in CODECS:
        packets = packet.encode([message, message], run=9, round=300, clients=clients, codec=codec)
        assert [len(p) for p in packets] == packet.sizes([message, message], 300, clients, codec).tolist(), (
            f"{compressor}: the size of a packet ({codec}) is not what it was said to be."
        )
        for row, buffer in enumerate(packets):
            read = packet.decode(buffer, d=x.shape[1], dtype=x.dtype)
            assert (read.run, read.round, read.client) == (9, 300, clients[row])
            for part in read.messages:
                same = torch.equal(part.dense()[0].signbit(), dense[row].signbit())
                same &= torch.equal(part.dense()[0], dense[row])
                assert same, f"{compressor}: decoding row {row} ({codec}) does not give it back bit for bit."


def _check_contraction(compressor: Compressor, x: Tensor) -> None:
    d = x.shape[1]
    omega = compressor.omega(d)
    assert compressor.is_unbiased == (omega is not None), (
        f"{compressor} states is_unbiased = {compressor.is_unbiased}, but omega = {omega}."
    )
    bound = 1 - compressor.alpha(d) if omega is None or omega < 1 else omega
    assert omega is not None or 0 <= bound < 1, f"{compressor} states alpha = {1 - bound}, which is not in (0, 1]."
    seeds = 1 if compressor.is_deterministic else math.isqrt(_SAMPLES)
    samples = seeds**2  # of each seed as many rows
    largest = x.double().abs().amax(dim=1, keepdim=True)
    wide = x.double() / largest.where(largest > 0, 1)
    size = wide.norm(dim=1, keepdim=True).where(largest > 0, 1) * largest.where(largest > 0, 1)
    scaled = x.double() / size
    many = [compressor(x.repeat(seeds, 1), seed=seed).dense().double() for seed in range(seeds)]
    drawn = torch.cat(many).view(samples, *x.shape) / size
    errors = (drawn - scaled).square().sum(dim=2)
    rounding = 1e-6 if x.dtype == torch.float32 else 1e-12
    chance = _DEVIATIONS * errors.std(dim=0, correction=0) / math.sqrt(samples)
    worst = (errors.mean(dim=0) - chance - rounding).amax().item()
    assert worst <= bound, (
        f"{compressor} promises to lose at most {bound:.4f} of ||x||^2 for d = {d} (alpha = {1 - bound:.4f}), "
        f"but loses {worst:.4f}."
    )
    if omega is not None:
        # Of the mean of N samples: E||mean - x||^2 <= omega ||x||^2 / N; and along x itself, its own standard error.
        off = drawn.mean(dim=0) - scaled
        distance = off.norm(dim=1).amax().item() - _DEVIATIONS * math.sqrt(omega / samples)
        along = ((drawn - scaled) * scaled).sum(dim=2)
        lean = (
            (along.mean(dim=0).abs() - _DEVIATIONS * along.std(dim=0, correction=0) / math.sqrt(samples)).amax().item()
        )
        assert max(distance, lean) <= 1e-3, f"{compressor} states an omega for d = {d}, but its mean is not x."
