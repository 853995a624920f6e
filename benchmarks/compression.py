"""The speed of compressing, encoding and decoding, on one thread.

    python benchmarks/compression.py [--json]

Encoding is timed from message to packet, and decoding back to the message, with header, checksum and checks. The time
to compress is given as a ratio to drawing the uniform numbers that it needs, measured in turns in the same run.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import torch

import gossamer as gs
from gossamer.streams import Streams

MILLION = 1_000_000


def best(function: Callable[[], Any], repeats: int, inner: int = 1) -> float:
    """The shortest time of one call, in seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(inner):
            function()
        times.append((time.perf_counter() - begin) / inner)
    return min(times)


def coding(message: gs.compression.Message, codec: Any, repeats: int, inner: int = 1) -> tuple[float, float]:
    """Seconds to encode a one-row message and to decode it."""
    (packet,) = message.encode(codec)
    assert torch.equal(gs.compression.decode(packet).dense(), message.dense())
    return best(lambda: message.encode(codec), repeats, inner), best(
        lambda: gs.compression.decode(packet), repeats, inner
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    result: dict[str, float] = {}

    vector = torch.randn(1, MILLION, generator=generator)
    for name, compressor in {"gsgd_5": gs.gsgd(5), "gsgd_5_blocks_of_256": gs.blockwise(gs.gsgd(5), 256)}.items():
        message = compressor(vector, seed=0)
        for codec in ("fixed", "entropy"):
            encode, decode = coding(message, codec, 7)
            result[f"{name}_{codec}_encode_mcoord_s"] = MILLION / encode / 1e6
            result[f"{name}_{codec}_decode_mcoord_s"] = MILLION / decode / 1e6
    small = gs.gsgd(5)(torch.randn(1, 124, generator=generator), seed=0)
    for codec in ("fixed", "entropy"):
        # Many short turns, so that some are not interrupted by other programs.
        encode, decode = coding(small, codec, 300, inner=15)
        result[f"d124_{codec}_encode_and_decode_us"] = 1e6 * (encode + decode)

    x = torch.randn(10, MILLION, generator=generator)
    draws, compresses = [], []
    for number in range(12):
        draw = partial(Streams([number], range(10)).uniform, "u", 0, MILLION, torch.float32)
        draws.append(best(draw, 1))
        compresses.append(best(partial(gs.gsgd(5), x, seed=number), 1))
    result["draw_ms"] = 1e3 * min(draws)
    result["compress_ms"] = 1e3 * min(compresses)
    result["compress_over_draw"] = min(compresses) / min(draws)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:45s} {value:10.2f}")


if __name__ == "__main__":
    main()
