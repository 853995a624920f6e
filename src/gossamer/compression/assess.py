"""Measure a compressor on one vector: the error it makes, and the bits it takes."""

from typing import TypedDict

import numpy as np
from torch import Tensor

from gossamer.compression.base import CODECS, Compressor, Message
from gossamer.compression.dithering import Levels
from gossamer.compression.natural import Powers

_SAMPLES = 20


class Assessment(TypedDict):
    """The result of `measure`."""

    compressor: str
    d: int
    error: float
    """||C(x) - x||^2 / ||x||^2; for a random compressor, the mean over 20 seeds."""
    alpha: float | None
    """None if the compressor is no contraction at this d."""
    omega: float | None
    bits: dict[str, int]
    """Bits of the packet, for each codec."""
    bits_per_coordinate: dict[str, float]
    bits_nominal: int
    symbol_entropy: float | None
    """Bits per coordinate that an ideal coder would need for the symbols, if their counts were known."""


def measure(compressor: Compressor, x: Tensor, seed: int = 0) -> Assessment:
    """Measure error, bits and entropy on one vector, (1, d)."""
    d = x.shape[1]
    omega = compressor.omega(d)
    contracts = omega is None or omega < 1
    seeds = range(seed, seed + (1 if compressor.is_deterministic else _SAMPLES))
    unit = float(x.double().abs().max()) or 1.0  # so that no square overflows or underflows
    scaled = x.double() / unit
    size = float(scaled.norm()) or 1.0
    errors = [float((compressor(x, seed=s).dense().double() / unit - scaled).norm() / size) ** 2 for s in seeds]
    message = compressor(x, seed=seed)
    bits: dict[str, int] = {codec: int(message.num_bits(codec)[0]) for codec in CODECS}
    return {
        "compressor": str(compressor),
        "d": d,
        "error": float(np.mean(errors)),
        "alpha": compressor.alpha(d) if contracts else None,
        "omega": omega,
        "bits": bits,
        "bits_per_coordinate": {codec: count / d for codec, count in bits.items()},
        "bits_nominal": message.bits_nominal,
        "symbol_entropy": _symbol_entropy(message),
    }


def _symbol_entropy(message: Message) -> float | None:
    if not isinstance(message, Levels | Powers):
        return None
    symbols = (message.levels if isinstance(message, Levels) else message.codes).cpu().numpy()
    share = np.unique(symbols, return_counts=True)[1] / symbols.size
    return float(-(share * np.log2(share)).sum())
