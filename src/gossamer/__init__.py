"""Gossamer: decentralized training in a few bits.

Many clients, each with its own data, find one good model together while each talks only to its neighbours in a
graph, and only in compressed messages.

>>> import gossamer as gs
>>> mixing = gs.mixing_matrix(gs.ring(8), weights="fdla")
>>> problem = gs.quadratic(clients=8, d=10)
>>> method = gs.BEER(lr=0.2, gamma=0.5, compressor=gs.gsgd(5))
>>> run = gs.simulate(method, problem, mixing, rounds=500, seed=0)
>>> bool(run.final.grad_norm < 1e-3)
True
"""

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

from gossamer._version import __version__

# Every round makes large arrays anew. With small pages the system spends more time on handing out their memory than we
# spend on filling it (a BEER round of 1,000 clients with 25,450 coordinates: 3.5 s, with large pages 1.6 s).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read by torch when it first needs much memory, on Linux

# Threads that are done spin until the slowest is. Where another program wants the processors, that one may not even be
# running (two `gossamer demo` at once on two cores: 96 s each, 12 s with this; one alone is not slower).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # read when torch is imported

if TYPE_CHECKING:
    from gossamer import algorithms, problems, topology
    from gossamer.algorithms import BEER, CHOCOSGD, D2, DSGD, Algorithm
    from gossamer.compression import (
        Compressor,
        Message,
        blockwise,
        decode,
        gsgd,
        identity,
        natural,
        qsgd,
        rand_k,
        scaled,
        sign,
        top_k,
    )
    from gossamer.errors import CodecError, DataError, GossamerError, InputError
    from gossamer.problems import Problem, logistic_regression, module_problem, quadratic
    from gossamer.runtime import DecentralizedOptimizer, Record, Run, Runs, read_record, simulate
    from gossamer.runtime.tuning.auto import auto
    from gossamer.topology import MixingMatrix, complete, mixing_matrix, ring

logging.getLogger(__name__).addHandler(logging.NullHandler())  # a library speaks only to who listens

# Names are imported when they are first used, because torch takes a second to import and `gossamer --help` needs none.
_HOMES = {
    "algorithms": "BEER CHOCOSGD D2 DSGD Algorithm",
    "compression": "Compressor Message blockwise decode gsgd identity natural qsgd rand_k scaled sign top_k",
    "errors": "CodecError DataError GossamerError InputError",
    "problems": "Problem logistic_regression module_problem quadratic",
    "runtime": "DecentralizedOptimizer Record Run Runs auto read_record simulate",
    "topology": "MixingMatrix complete mixing_matrix ring",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = {*_HOMES, "registry", "spec", "streams", "theory"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


__all__ = [
    "BEER",
    "CHOCOSGD",
    "D2",
    "DSGD",
    "Algorithm",
    "CodecError",
    "Compressor",
    "DataError",
    "DecentralizedOptimizer",
    "GossamerError",
    "InputError",
    "Message",
    "MixingMatrix",
    "Problem",
    "Record",
    "Run",
    "Runs",
    "__version__",
    "algorithms",
    "auto",
    "blockwise",
    "complete",
    "decode",
    "gsgd",
    "identity",
    "logistic_regression",
    "mixing_matrix",
    "module_problem",
    "natural",
    "problems",
    "qsgd",
    "quadratic",
    "rand_k",
    "read_record",
    "ring",
    "scaled",
    "sign",
    "simulate",
    "top_k",
    "topology",
]
