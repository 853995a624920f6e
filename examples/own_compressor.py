"""Your own compressor, tested by the conformance suite and used by BEER.

    python examples/own_compressor.py

It sends one bit per coordinate, the sign, and one magnitude for all coordinates. To use it by name in spec files and on
the command line, list it under the entry point `gossamer.compressors` of your package.
"""

from dataclasses import dataclass

import torch

import gossamer as gs
from gossamer.compression.layout import Layout
from gossamer.compression.sign import Signs
from gossamer.streams import Draw
from gossamer.testing import check_compressor


@dataclass(frozen=True)
class one_bit(gs.Compressor):
    """C(x) = c sign(x) with c = ||x||_1 / (2d): half the mean magnitude.

    ||C(x) - x||^2 = d c^2 - 2 c ||x||_1 + ||x||^2 = ||x||^2 - (3/4) ||x||_1^2 / d, and ||x||_1 >= ||x||.
    """

    def alpha(self, d: int) -> float:
        return 3 / (4 * d)

    @property
    def is_deterministic(self) -> bool:
        return True

    def compress(self, x: torch.Tensor, draw: Draw, layout: Layout) -> gs.compression.Message:
        c = (layout.split(x).abs() / (2 * layout.size)).sum(dim=1)
        return Signs(c.view(len(x), -1), x < 0, layout)


def main() -> None:
    check_compressor(one_bit())
    problem, mixing = gs.quadratic(clients=8, d=20), gs.mixing_matrix(gs.ring(8))
    run = gs.simulate(gs.BEER(lr=0.1, gamma=0.3, compressor=one_bit()), problem, mixing, rounds=1000)
    print(run.frame[["round", "bits", "grad_norm"]].tail(1).to_string(index=False))


if __name__ == "__main__":
    main()
