"""What is measured of the clients' models, and what a record says of its run: the same for every runtime."""

import json
import platform
import shlex
import sys
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer._version import __version__
from gossamer.algorithms.base import Accepts, Algorithm
from gossamer.compression.base import Compressor
from gossamer.fingerprint import digest
from gossamer.problems.base import Problem
from gossamer.runtime.threads import is_small_evaluation, threads
from gossamer.topology import Mixing

_MOST_CLIENTS, _MOST_EDGES, _MOST_LABELS = 500, 2000, 60  # that a record keeps for a picture
_DRAWN = 1 << 18  # coordinates with which a compressor is tried out
_CLIENTS_TOGETHER = 1024  # models of clients measured at once, where each is a row of a closed form


def measure(problem: Problem, models: Tensor) -> dict[str, list[float]]:
    """By column, one number for each of the (k, clients, d or more) snapshots."""
    with threads(1 if is_small_evaluation(problem) else None):
        return _measure(problem, models)


def _measure(problem: Problem, models: Tensor) -> dict[str, list[float]]:
    average = models.mean(dim=1, dtype=torch.float64)
    measured = problem.evaluate(average)
    apart = (models - average[:, None])[:, :, : problem.d]
    measured["consensus"] = apart.square().sum(dim=2).mean(dim=1)
    for name, values in problem.score(average).items():
        measured[f"test_{name}" if name == "loss" else name] = values
    for name, values in _score(problem, models.flatten(0, 1)).items():
        own = values.view(models.shape[:2])
        measured[f"mean_{name}"] = own.mean(dim=1)
        measured[f"worst_{name}"] = own.amax(dim=1) if name == "loss" else own.amin(dim=1)
    return {name: values.tolist() for name, values in measured.items()}


def _score(problem: Problem, models: Tensor) -> dict[str, Tensor]:
    """The clients' own models on the test rows, or f at them where there are none."""
    scored = problem.score(models)
    if not scored and problem.measures_clients:
        parts = torch.split(models, _CLIENTS_TOGETHER)
        scored = {"loss": torch.cat([problem.evaluate(part)["loss"] for part in parts])}
    return scored


def header(method: Algorithm, problem: Problem, mixing: Mixing, about: dict[str, Any], seed: int) -> dict[str, Any]:
    """The first line of a record."""
    return settings(method, problem, mixing, about, seed) | {
        "device": str(problem.device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": _command(),
        **_pictures(problem, mixing),
    }


def _command() -> str:
    """The command line that runs this, without the folder of the program."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m gossamer
    return shlex.join([name, *sys.argv[1:]])


def _pictures(problem: Problem, mixing: Mixing) -> dict[str, Any]:
    """What a report draws of a run: who talks to whom, and who holds what; left out where it would not fit a page."""
    said: dict[str, Any] = {}
    if mixing.clients <= _MOST_CLIENTS and mixing.graph.number_of_edges() <= _MOST_EDGES:
        w = mixing.sparse
        edges = [[int(i), int(j), float(f"{w[i, j]:.6g}")] for i, j in mixing.graph.edges]
        said["network"] = {"edges": edges, "self": [float(f"{kept:.6g}") for kept in w.diagonal()]}
    counts = problem.rows.label_counts(_MOST_LABELS) if problem.rows and mixing.clients <= _MOST_CLIENTS else None
    if counts is not None:
        said["shares"] = {"labels": counts[0], "counts": counts[1]}
    return said


def settings(method: Algorithm, problem: Problem, mixing: Mixing, about: dict[str, Any], seed: int) -> dict[str, Any]:
    """What two runs must have in common to be the same run: all that determines its models, bits and measurements."""
    said = {
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
            "W": digest(mixing.sparse.indptr, mixing.sparse.indices, mixing.sparse.data),
            "device": problem.device.type,
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }
    return dict(json.loads(json.dumps(said)))


def alpha_of(method: Algorithm, d: int) -> float:
    """The contraction constant of a method's messages: 1 where nothing is compressed, 1/(1 + omega) if it averages."""
    compressor = getattr(method, "compressor", None)
    if not isinstance(compressor, Compressor):
        return 1.0
    return 1 / (1 + (compressor.omega(d) or 0)) if averages(method, d) else compressor.alpha(d)


def usual_alpha(compressor: Compressor | None, d: int) -> float:
    """1 - E||C(z) - z||^2 / ||z||^2 over Gaussian z: what a compressor usually keeps, where alpha is what it must."""
    if compressor is None:
        return 1.0
    many = max(2, min(64, _DRAWN // d))
    z = torch.from_numpy(np.random.default_rng(0).standard_normal((many, d)))
    omega = compressor.omega(d)
    c = compressor(z, seed=0).dense() / (1 + omega if omega is not None else 1)  # unbiased ones as `scaled` would
    kept = 1 - float(((c - z).square().sum(dim=1) / z.square().sum(dim=1)).mean())
    return min(1.0, max(kept, 1e-6))


def averages(method: Algorithm, d: int) -> bool:
    """Whether a method relies on its compressor's mean, and not on a contraction."""
    compressor = getattr(method, "compressor", None)
    omega = compressor.omega(d) if isinstance(compressor, Compressor) else None
    return omega is not None and (
        method.info.compressors is Accepts.UNBIASED or (method.info.compressors is Accepts.ANY and omega >= 1)
    )


def describe_method(method: Algorithm) -> dict[str, Any]:
    """The settings of a method, as plain data."""
    settings = {field.name: getattr(method, field.name) for field in fields(method)}  # type: ignore[arg-type]
    plain = int | float | str | None
    return {"name": method.info.title} | {k: v if isinstance(v, plain) else str(v) for k, v in settings.items()}
