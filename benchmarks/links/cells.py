"""Which cells are measured: one reference cell with every contender, then one factor at a time, and the bars' cells."""

from collections.abc import Iterable

from benchmarks.links.contenders import CONTENDERS
from benchmarks.links.matrix import Cell
from benchmarks.links.search import Problem

DDP, POWER, REDUCE = "DDP float32", "DDP PowerSGD 4", "all-reduce, H 20"
CHOCO, OFTEN, SELDOM = (f"CHOCO-SGD, blockwise_gsgd_3,256{more}" for more in (", H 20", "", ", H 50"))
BEER, SMALL, MOTEF = "BEER, blockwise_gsgd_3,256", "BEER, gsgd_5", "MoTEF, blockwise_gsgd_3,256, H 5"
WHOLE, LONG = "CHOCO-SGD, gsgd_5", "all-reduce, H 50"


def _cells(problem: Problem, names: Iterable[str], mbit: float | None, delay_ms: float = 10.0) -> list[Cell]:
    return [Cell(problem, name, mbit, delay_ms) for name in names]


LIKE, DIGIT = Problem(), Problem(split="digit")
HIDDEN, CNN, LARGE, TEXT = Problem("hidden"), Problem("cnn"), Problem("ten million"), Problem("language", "iid")
CELLS = [
    *_cells(LIKE, CONTENDERS, 20.0),
    *(Cell(LIKE, name, codec="fixed") for name in (CHOCO, BEER, SMALL)),
    *_cells(DIGIT, (POWER, REDUCE, LONG, CHOCO, "CHOCO-SGD, blockwise_gsgd_3,256, H 10", SELDOM), 20.0),
    *_cells(DIGIT, (MOTEF, "MoTEF, blockwise_gsgd_3,256, H 20", "CHOCO-SGD, blockwise_gsgd_2,64, H 20"), 20.0),
    *_cells(HIDDEN, (DDP, POWER, REDUCE, CHOCO, BEER), 20.0),
    *_cells(CNN, (DDP, POWER, REDUCE, CHOCO, SMALL, BEER), 20.0),
    *_cells(TEXT, (DDP, REDUCE, CHOCO), 20.0),
    *_cells(Problem(graph="random"), (CHOCO, OFTEN, MOTEF), 20.0),
    *_cells(LIKE, (DDP, POWER, LONG, CHOCO, SELDOM, SMALL), 100.0),
    *_cells(LIKE, (DDP, POWER, LONG, CHOCO, SELDOM, SMALL), 10.0),
    *_cells(CNN, (DDP, POWER, CHOCO, SMALL), 1.0),
    *_cells(DIGIT, (POWER, CHOCO, "CHOCO-SGD, blockwise_gsgd_3,256, H 10", SELDOM, MOTEF), 1.0),
    *_cells(LIKE, (POWER, "DDP PowerSGD 1", "DDP PowerSGD 2", CHOCO, SELDOM, MOTEF, SMALL), 1.0),
    *_cells(LARGE, (SMALL,), 1.0),
    *_cells(LIKE, (DDP, POWER, REDUCE, CHOCO, OFTEN, SMALL, WHOLE), None, 0.0),
    *_cells(HIDDEN, (DDP, SMALL), None, 0.0),
    *_cells(CNN, (DDP, SMALL), None, 0.0),
    *_cells(LIKE, (DDP, POWER, CHOCO, SMALL), 20.0, 0.0),
    *_cells(HIDDEN, (DDP, SMALL), 20.0, 0.0),
    *_cells(Problem(hosts=8), (DDP, POWER, REDUCE, CHOCO), 20.0),
    *_cells(LARGE, (DDP, SMALL, CHOCO), 20.0),
    *_cells(LIKE, ("DDP fp16", LONG, DDP), 1.0),  # which take minutes each
]
assert len(CELLS) <= 120

CONFIRMED = [
    *_cells(LIKE, (CHOCO, SELDOM, POWER, LONG), 20.0),
    *_cells(DIGIT, (CHOCO, SELDOM, MOTEF, POWER), 20.0),
    *_cells(LIKE, (CHOCO, SELDOM), 1.0),
    *_cells(DIGIT, (CHOCO,), 1.0),
    *_cells(HIDDEN, (DDP, CHOCO), 20.0),
]
"""Cells in which whole runs are timed."""
