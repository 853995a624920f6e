"""How many rounds a way of training needs, relative to all-reduce in every step: a model fitted to searches.

The logarithm of the ratio is a sum of a few terms, each with a coefficient of 0 or more. `progress.json` has the
coefficients, where they come from, and the steps that won; `benchmarks/links/fit.py` writes it.
"""

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from gossamer.runtime.planning.ways import Way
from gossamer.runtime.tuning.caution import usual_alpha

Differing = Literal["little", "much"]
"""How much clients' data differ: from equal shares to Dirichlet(0.3); or each client has classes of its own."""

_RHO = 2 / 3  # of a ring of four, where most searches were: the coefficient is about other graphs alone

Winner = Mapping[str, float | str]
"""Steps that won a search: the optimiser of local steps, lr, the outer lr and momentum, gamma."""


@dataclass(frozen=True)
class Model:
    """The fitted model.

    Args:
        source: What it was fitted to, in words.
        coefficients: By the names of `terms`.
        error: The usual factor by which rounds on a problem that was left out are wrong.
        fold: Steps of all-reduce per e-fold of the error, over the problems of the fit.
        winners: By `Way` without operator and codec: see `family`.
    """

    source: str
    coefficients: Mapping[str, float]
    error: float
    fold: float
    winners: Mapping[str, Winner]


@functools.cache
def fitted() -> Model:
    """The model that the package comes with."""
    text = resources.files("gossamer.runtime.planning").joinpath("progress.json").read_text(encoding="utf-8")
    return Model(**json.loads(text))


def terms(way: Way, d: int, rho: float, differing: Differing) -> dict[str, float]:
    """What is multiplied by coefficients and added up. Each coefficient is 0 or more, so signs are here.

    Args:
        way: How the hosts train.
        d: The number of parameters.
        rho: The spectral gap of the graph of Gossamer's methods.
        differing: How much clients' data differ.
    """
    much, steps = float(differing == "much"), math.log(way.steps)
    found = {
        "local steps": -steps,
        "local steps that differ": much * steps,
        "low rank": 1 / way.rank if way.rank else 0.0,
    }
    if way.kind != "gossip":
        return found
    tracking, lost = float(way.is_tracking), -math.log(alpha(way.compressor, d))
    return found | {
        "gossip": 1.0,
        "gossip of clients that differ": much,
        "compression": lost,
        "compression of clients that differ": much * lost,
        "slow mixing": math.log(_RHO / rho),
        "tracking": tracking,
        "tracking of clients that differ": -much * tracking,
        "momentum of clients that differ": -much * float(way.method == "MoTEF"),
        "late messages": float("stale" in way.method),
    }


@functools.lru_cache(maxsize=256)
def alpha(compressor: str, d: int) -> float:
    """What an operator keeps of Gaussian vectors."""
    return usual_alpha(Way("gossip", compressor=compressor).operator(), d)


def rounds_ratio(way: Way, d: int, rho: float, differing: Differing, model: Model | None = None) -> float:
    """Rounds in parts of those of all-reduce in every step."""
    coefficients = (fitted() if model is None else model).coefficients
    return math.exp(sum(coefficients[name] * term for name, term in terms(way, d, rho, differing).items()))


def family(way: Way, differing: Differing | None) -> str:
    """The name under which the steps that won are kept; None is for any data."""
    operator = "" if way.kind != "gossip" else ", fine" if way.compressor.startswith("blockwise") else ", coarse"
    local = ", local" if way.steps > 1 else ""
    return f"{way.title}{operator}{local}" + ("" if differing is None else f", {differing}")
