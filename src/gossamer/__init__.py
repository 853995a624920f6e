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
import operator
import os
import warnings
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
    from gossamer import algorithms, compression, problems, testing, theory, topology, trackers
    from gossamer.algorithms import BEER, CHOCOSGD, D2, DSGD, Algorithm
    from gossamer.compression import Compressor, blockwise, gsgd, identity, qsgd, rand_k, top_k
    from gossamer.errors import DataError, GossamerError, InputError, StoppedError
    from gossamer.problems import Problem, logistic_regression, module_problem, quadratic
    from gossamer.records import Run, read_record
    from gossamer.runtime import DecentralizedOptimizer, LocalSteps, auto_steps, plan, simulate, suggest, sweep
    from gossamer.topology import MixingMatrix, mixing_matrix, ring

logging.getLogger(__name__).addHandler(logging.NullHandler())  # a library speaks only to who listens

# Names are imported when they are first used, because torch takes a second to import and `gossamer --help` needs none.
_HOMES = {
    "algorithms": "BEER CHOCOSGD D2 DSGD Algorithm",
    "compression": "Compressor blockwise gsgd identity qsgd rand_k top_k",
    "errors": "DataError GossamerError InputError StoppedError",
    "problems": "Problem logistic_regression module_problem quadratic",
    "records": "Run read_record",
    "runtime": "DecentralizedOptimizer LocalSteps auto_steps plan simulate suggest sweep",
    "topology": "MixingMatrix mixing_matrix ring",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = {*_HOMES, "registry", "spec", "streams", "testing", "theory", "trackers"}
_OLD = {
    "auto": "auto_steps",
    "CodecError": "errors.CodecError",
    "MixingSchedule": "topology.MixingSchedule",
    "Message": "compression.Message",
    "Record": "records.Record",
    "Runs": "records.Runs",
    "complete": "topology.complete",
    "decode": "compression.decode",
    "natural": "compression.natural",
    "scaled": "compression.scaled",
    "sign": "compression.sign",
}
"""Names of earlier versions, and where they are now."""


def __getattr__(name: str) -> Any:
    if name in _OLD:
        warnings.warn(f"gossamer.{name} is now gossamer.{_OLD[name]}.", DeprecationWarning, stacklevel=2)
        return operator.attrgetter(_OLD[name])(importlib.import_module(__name__))
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
    "Compressor",
    "DataError",
    "DecentralizedOptimizer",
    "GossamerError",
    "InputError",
    "LocalSteps",
    "MixingMatrix",
    "Problem",
    "Run",
    "StoppedError",
    "__version__",
    "algorithms",
    "auto_steps",
    "blockwise",
    "compression",
    "gsgd",
    "identity",
    "logistic_regression",
    "mixing_matrix",
    "module_problem",
    "plan",
    "problems",
    "qsgd",
    "quadratic",
    "rand_k",
    "read_record",
    "ring",
    "simulate",
    "suggest",
    "sweep",
    "testing",
    "theory",
    "top_k",
    "topology",
    "trackers",
]
