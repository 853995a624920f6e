"""What `gossamer reproduce` concludes, as claims.json and rates.json hold it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gossamer.errors import DataError
from gossamer.records.typed import read_as, read_json
from gossamer.theory.verdict import Verdict

T = TypeVar("T")


@dataclass(frozen=True)
class ClaimRow:
    """A claim of the paper and its verdict."""

    id: str
    where: str
    says: str
    quantity: str
    rule: str
    why: str
    values: tuple[float | None, ...]
    """One per seed; None where it is not finite."""
    value: float | None
    """Their mean."""
    verdict: Verdict
    note: str


@dataclass(frozen=True)
class FitRow:
    """A fitted rate of convergence."""

    slope: float
    study: str = ""
    what: str = ""
    method: str = ""
    x: str = ""
    y: str = ""
    low: float | None = None
    high: float | None = None
    theory: float | None = None
    is_exponential: bool = False
    agrees: str = ""
    points: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if any(value <= 0 for point in self.points for value in point):
            raise DataError("its `points` are not above zero, as logarithmic axes need.")


@dataclass(frozen=True)
class Claims:
    """All claims, and how they were judged."""

    title: str = ""
    command: str = ""
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    shortened: bool = False
    claims: tuple[ClaimRow, ...] = ()


def read_claims(path: Path, left_out: list[str]) -> Claims | None:
    """The claims in a file; what is damaged becomes a sentence in `left_out`."""
    table = _json(path, left_out)
    claims = [] if table is None else _rows(ClaimRow, "claims", table, path, left_out)
    if table is None or not claims:
        return None
    try:
        return replace(read_as(Claims, {**table, "claims": []}), claims=tuple(claims))
    except DataError as error:
        left_out.append(f"'{path}' is damaged: {error}")
        return None


def read_rates(path: Path, left_out: list[str]) -> list[FitRow]:
    """The fitted rates in a file; what is damaged becomes a sentence in `left_out`."""
    table = _json(path, left_out)
    return [] if table is None else _rows(FitRow, "fits", table, path, left_out)


def _json(path: Path, left_out: list[str]) -> Mapping[str, Any] | None:
    if not os.path.lexists(path):
        return None
    try:
        value = read_json(path)
        if isinstance(value, dict):
            return value
        left_out.append(f"'{path}' is damaged: it holds no JSON object.")
    except DataError as error:
        left_out.append(str(error))
    return None


def _rows(kind: type[T], key: str, table: Mapping[str, Any], path: Path, left_out: list[str]) -> list[T]:
    """Each entry of a list that can be read."""
    entries = table.get(key)
    if not isinstance(entries, list):
        left_out.append(f"'{path}' is damaged: it has no list of {key}.")
        return []
    rows = []
    for place, entry in enumerate(entries, 1):
        try:
            rows.append(read_as(kind, entry))
        except DataError as error:
            left_out.append(f"Entry {place} of the {key} in '{path}' is left out: {error}")
    return rows
