"""The methods, one file each."""

from gossamer.algorithms.base import Algorithm, Pending, Round
from gossamer.algorithms.beer import BEER
from gossamer.algorithms.choco_sgd import CHOCOSGD
from gossamer.algorithms.d2 import D2
from gossamer.algorithms.dsgd import DSGD

__all__ = ["BEER", "CHOCOSGD", "D2", "DSGD", "Algorithm", "Pending", "Round"]
