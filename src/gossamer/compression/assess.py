"""What a compressor does to a vector: the error it makes, and the bits it takes."""

from typing import Any

import numpy as np
from torch import Tensor

from gossamer.compression.base import CODECS, Compressor
from gossamer.compression.dithering import Levels
from gossamer.compression.natural import Powers

_SAMPLES = 20


def measure(compressor: Compressor, x: Tensor, seed: int = 0) -> dict[str, Any]:
    """Error, bound, bits and entropy for one vector, (1, d); errors of random compressors are means over 20 seeds."""
    d = x.shape[1]
    omega = compressor.omega(d)
    contracts = omega is None or omega < 1
    seeds = range(seed, seed + (1 if compressor.is_deterministic else _SAMPLES))
    unit = float(x.double().abs().max()) or 1.0  # squares of very large or small numbers would be lost
    scaled = x.double() / unit
    size = float(scaled.norm()) or 1.0
    errors = [float((compressor(x, seed=s).dense().double() / unit - scaled).norm() / size) ** 2 for s in seeds]
    message = compressor(x, seed=seed)
    bits = {codec: int(message.num_bits(codec)[0]) for codec in CODECS}
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


def _symbol_entropy(message: Any) -> float | None:
    """Bits a coordinate that an ideal coder would need for the symbols of the message, were their counts known."""
    if not isinstance(message, Levels | Powers):
        return None
    symbols = (message.levels if isinstance(message, Levels) else message.codes).cpu().numpy()
    share = np.unique(symbols, return_counts=True)[1] / symbols.size
    return float(-(share * np.log2(share)).sum())
