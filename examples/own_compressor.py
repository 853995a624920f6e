"""A compressor of your own, checked by the conformance suite and used by BEER.

    python examples/own_compressor.py

One bit a coordinate: its sign, and for all of them their mean size. To make it known by name, in spec files and on the
command line, list it under the entry point `gossamer.compressors` of your package.
"""

from dataclasses import dataclass

import torch

import gossamer as gs
from gossamer.compression.dithering import Levels
from gossamer.streams import Draw
from gossamer.testing import check_compressor


@dataclass(frozen=True)
class one_bit(gs.Compressor):
    """C(x) = (||x||_1 / d) sign(x): ||C(x) - x||^2 = ||x||^2 - ||x||_1^2 / d, so alpha is 1/d at the worst."""

    def alpha(self, d: int) -> float:
        return 1 / d

    @property
    def is_deterministic(self) -> bool:
        return True

    def compress(self, x: torch.Tensor, draw: Draw) -> gs.Message:
        return Levels(x.abs().mean(dim=1), x.sign().to(torch.int8), bits=1)


def main() -> None:
    check_compressor(one_bit())
    problem, mixing = gs.quadratic(clients=8, d=20), gs.mixing_matrix(gs.ring(8))
    run = gs.simulate(gs.BEER(lr=0.1, gamma=0.3, compressor=one_bit()), problem, mixing, rounds=1000)
    print(run.frame[["round", "bits", "grad_norm"]].tail(1).to_string(index=False))


if __name__ == "__main__":
    main()
