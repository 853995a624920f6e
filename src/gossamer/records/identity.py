"""What identifies a run: its settings and fingerprints, and a sentence on where two runs differ."""

import json
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from gossamer._version import __version__
from gossamer.algorithms.base import Accepts, Algorithm
from gossamer.compression.base import Compressor
from gossamer.errors import InputError
from gossamer.fingerprint import digest
from gossamer.kernels import kernels_on
from gossamer.problems.base import Problem
from gossamer.records.schema import Header, plain
from gossamer.records.typed import Settings, read_as
from gossamer.streams import STREAMS
from gossamer.topology import Mixing

_MOST_CLIENTS, _MOST_EDGES, _MOST_LABELS = 500, 2000, 60  # that a record keeps for a picture
_CONTENT = {
    "identity.problem": "the problem (its data, its split among clients, or its model)",
    "identity.W": "the mixing matrix",
    "x0": "the starting point `x0`",
}
"""What a digest in a run's identity stands for."""


def settings(method: Algorithm, problem: Problem, mixing: Mixing, about: Settings, seed: int) -> Settings:
    """What two runs must have in common to be the same run: all that determines its models, bits and measurements."""
    every = {
        "gossamer": __version__,
        **about,
        "seed": seed,
        "method": describe_method(method),
        "alpha": alpha_of(method, problem.d),
        "problem": problem.describe(),
        "mixing": {
            "clients": mixing.clients,
            "edges": mixing.graph.number_of_edges(),
            "rho": mixing.rho,
            "C": mixing.C,
        },
        "identity": {
            "problem": problem.fingerprint(),
            "W": digest(*mixing.content()),
            "device": problem.device.type,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "streams": STREAMS,
            "kernels": kernels_on(problem.device),
        },
    }
    return dict(json.loads(json.dumps(every)))


def header(method: Algorithm, problem: Problem, mixing: Mixing, about: Settings, seed: int, **more: object) -> Header:
    """The first line of a record."""
    written = {
        "device": str(problem.device),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": _command(),
    }
    found = {**settings(method, problem, mixing, about, seed), **written, **more}
    return read_as(Header, found | _pictures(problem, mixing))


def _command() -> str:
    """The command line that runs this, without the folder of the program."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m gossamer
    return shlex.join([name, *sys.argv[1:]])


def _pictures(problem: Problem, mixing: Mixing) -> dict[str, object]:
    """What a report draws of a run: the network and the shares of labels; left out if they are too large for a page."""
    pictures: dict[str, object] = {}
    if mixing.clients <= _MOST_CLIENTS and mixing.graph.number_of_edges() <= _MOST_EDGES:
        w = mixing.sparse
        edges = [[int(i), int(j), float(f"{w[i, j]:.6g}")] for i, j in mixing.graph.edges]
        pictures["network"] = {"edges": edges, "self": [float(f"{kept:.6g}") for kept in w.diagonal()]}
    counts = problem.rows.label_counts(_MOST_LABELS) if problem.rows and mixing.clients <= _MOST_CLIENTS else None
    if counts is not None:
        pictures["shares"] = {"labels": counts[0], "counts": counts[1]}
    return pictures


def alpha_of(method: Algorithm, d: int) -> float:
    """The contraction constant of a method's messages: 1 where nothing is compressed, 1/(1 + omega) if it averages."""
    compressor = getattr(method, "compressor", None)
    if not isinstance(compressor, Compressor):
        return 1.0
    return 1 / (1 + (compressor.omega(d) or 0)) if averages(method, d) else compressor.alpha(d)


def averages(method: Algorithm, d: int) -> bool:
    """Whether a method relies on its compressor's mean, and not on a contraction."""
    compressor = getattr(method, "compressor", None)
    omega = compressor.omega(d) if isinstance(compressor, Compressor) else None
    accepts = method.info.compressors
    return omega is not None and (accepts is Accepts.UNBIASED or (accepts is Accepts.ANY and omega >= 1))


def describe_method(method: Algorithm) -> dict[str, int | float | str | None]:
    """The settings of a method, as plain data."""
    values = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    simple = int | float | str | None
    return {"name": method.info.title} | {k: v if isinstance(v, simple) else str(v) for k, v in values.items()}


def check_same_run(path: Path, theirs: object, ours: Settings) -> None:
    """Refuse to continue from a file of another run: a header, or settings that were read."""
    if isinstance(theirs, Header):
        known = json.loads(json.dumps(plain(theirs)))
        theirs = {name: known.get(name) for name in ours}
    if theirs != ours:
        raise InputError(
            f"'{path}' is of another run: {difference(theirs, ours)}; repeat the settings of that run, or choose "
            "another folder. Nothing was changed."
        )


def difference(theirs: object, ours: Settings) -> str:
    """The first setting in which two runs differ."""
    if not isinstance(theirs, Mapping):
        return "it does not say of which run it is"
    one, other = _flat(theirs), _flat(ours)
    for name in {**other, **one}:
        if one.get(name) != other.get(name):
            if name in _CONTENT and name in one:
                return f"{_CONTENT[name]} is not the same ({one.get(name)} there, {other.get(name)} here)"
            return f"`{name}` is {one.get(name)!r} there and {other.get(name)!r} here"
    return "it is the same run"


def _flat(nested: Settings, prefix: str = "") -> dict[str, object]:
    """Nested settings under dotted names, digests last: a named setting says more."""
    flat: dict[str, object] = {}
    for name, value in nested.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return dict(sorted(flat.items(), key=lambda item: item[0] in _CONTENT))
