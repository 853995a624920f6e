"""A folder to what can be reported of it: experiments, claims and rates, and a sentence for all that cannot be read."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from gossamer.errors import DataError, GossamerError, InputError
from gossamer.records.record import COLUMNS, Record, read_record
from gossamer.spec import read_toml

VERDICTS = ("holds", "does not hold", "cannot be told")
_MOST_BYTES = {".jsonl": 256 << 20, ".json": 32 << 20}
_MOST = 1e300  # larger numbers cannot be averaged
_CLAIM = ("id", "where", "says", "quantity", "rule", "why", "note")
_FIT = ("study", "what", "method", "x", "y")


@dataclass
class Group:
    """One experiment: the records of one folder, and the spec that they were made from."""

    name: str
    folder: Path
    records: list[Record]
    files: list[Path]
    spec: str = ""


@dataclass
class Gathered:
    """All that a folder, or a single record, holds."""

    path: Path
    groups: list[Group] = field(default_factory=list)
    claims: dict[str, Any] | None = None
    rates: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A sentence for each thing that could not be read."""


def gather(path: str | os.PathLike[str]) -> Gathered:
    """Read a folder with all that is below it, or one record; what is damaged or foreign becomes a sentence.

    Hidden folders and `checkpoints` are passed over. Raises `InputError` if nothing is left to report.
    """
    path = Path(path)
    if not os.path.exists(path):
        raise InputError(f"There is no '{path}'; give a folder with records, or a record.")
    found = Gathered(path)
    if path.is_dir():
        for folder, files in _folders(path, found.left_out):
            _add(found, folder, files)
        found.claims = _claims(path / "claims.json", found.left_out)
        found.rates = _rates(path / "rates.json", found.left_out)
    else:
        _add(found, path.parent, [path])
    if not found.groups and found.claims is None and not found.rates:
        why = f" {found.left_out[0]}" if found.left_out else ""
        more = f" (and {len(found.left_out) - 1} more)" if len(found.left_out) > 1 else ""
        raise InputError(f"There is nothing to report in '{path}': no record could be read.{why}{more}")
    return found


def load_record(path: Path) -> Record:
    """The record in a file, with nothing in it but what tables and figures can rely on; a `DataError` if it is damaged.

    Columns that a record is not known to have are dropped. Nulls, which stand for what was not finite, are kept.
    """
    _check_file(path)
    record = read_record(path)
    if not record.rows:
        raise DataError(f"The record '{path}' holds no measurements.")
    header = dict(record.header)
    if not isinstance(header.get("label"), str) or not header["label"].strip():
        header["label"] = path.stem
    rows = [_row(path, number, row) for number, row in enumerate(record.rows, 1)]
    rounds = [row["round"] for row in rows]
    if any(b <= a for a, b in pairwise(rounds)):
        raise DataError(f"The record '{path}' is damaged: its rounds do not rise from row to row.")
    end = record.end
    if end is not None and end.get("status") == "diverged" and not isinstance(end.get("reason"), str):
        end = end | {"reason": f"{header['label']} with seed {record.seed} diverged."}
    return Record(header, rows, end)


def number(value: object) -> float | None:
    """A finite number of a size that can be averaged; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return value if math.isfinite(value) and abs(value) <= _MOST else None
    except OverflowError:
        return None


def _row(path: Path, place: int, row: dict[str, Any]) -> dict[str, Any]:
    plain = {name: row[name] for name in COLUMNS if name in row}
    for name, value in plain.items():
        wrong = number(value) is None and value is not None
        if wrong or (name == "round" and value is None):
            raise DataError(f"The record '{path}' is damaged in row {place}: its `{name}` is {_shown(value)}.")
        if name in ("round", "bits", "bits_nominal", "seconds") and value is not None and value < 0:
            raise DataError(f"The record '{path}' is damaged in row {place}: its `{name}` is below zero.")
    if "round" not in plain:
        raise DataError(f"The record '{path}' is damaged in row {place}: it has no `round`.")
    return plain


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}, an absurd size" if math.isfinite(value) else "not finite"
    if isinstance(value, int) and not isinstance(value, bool):
        return "a number of an absurd size"
    text = json.dumps(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'}, which is no number"


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"'{path}' is a folder, though its name is that of a file.")
    if not path.exists():
        raise DataError(f"'{path}' cannot be read: it is a link to nothing.")
    if not path.is_file():
        raise DataError(f"'{path}' is not a regular file.")
    size, most = path.stat().st_size, _MOST_BYTES.get(path.suffix, _MOST_BYTES[".jsonl"])
    if size == 0:
        raise DataError(f"'{path}' is empty.")
    if size > most:
        raise DataError(f"'{path}' holds {size / 1e6:,.0f} MB; at most {most / 1e6:,.0f} are read.")


def _folders(top: Path, left_out: list[str]) -> Iterator[tuple[Path, list[Path]]]:
    """Every folder that holds records, with them, in the order of their names."""

    def complain(error: OSError) -> None:
        left_out.append(f"The folder '{error.filename}' cannot be read: {error.strerror or error}.")

    for here, below, names in os.walk(top, onerror=complain):
        odd = [name for name in below if name.endswith(".jsonl")]
        below[:] = sorted(set(below) - set(odd) - {"checkpoints"} - {name for name in below if name.startswith(".")})
        files = sorted(name for name in [*names, *odd] if name.endswith(".jsonl") and not name.startswith("."))
        if files:
            yield Path(here), [Path(here) / name for name in files]


def _add(found: Gathered, folder: Path, files: Sequence[Path]) -> None:
    records: dict[tuple[str, int], tuple[Record, Path]] = {}
    for path in files:
        try:
            record = load_record(path)
        except DataError as error:
            found.left_out.append(str(error))
            continue
        except OSError as error:
            found.left_out.append(f"The record '{path}' cannot be read: {error.strerror or error}.")
            continue
        key = (record.label, record.seed)
        if key in records:
            first = records[key][1].name
            found.left_out.append(f"The record '{path}' is left out: it has the label and the seed of '{first}'.")
        else:
            records[key] = (record, path)
    if records:
        name, spec, order = _spec(folder / "spec.toml", found.left_out)
        kept = sorted(
            records.values(), key=lambda one: order.index(one[0].label) if one[0].label in order else len(order)
        )
        found.groups.append(
            Group(
                name or folder.resolve().name or str(folder), folder, [r for r, _ in kept], [p for _, p in kept], spec
            )
        )


def _spec(path: Path, left_out: list[str]) -> tuple[str, str, list[object]]:
    """Name and text of a spec, and the labels of its methods in their order; all empty where there is none."""
    if not os.path.lexists(path):
        return "", "", []
    try:
        _check_file(path)
        text, table = read_toml(path)
    except GossamerError as error:
        left_out.append(str(error))
        return "", "", []
    name, methods = table.get("name", ""), table.get("methods", [])
    labels = [one.get("label") for one in methods if isinstance(one, dict)] if isinstance(methods, list) else []
    return name.strip() if isinstance(name, str) else "", text, labels


def _json(path: Path, left_out: list[str]) -> dict[str, Any] | None:
    if not os.path.lexists(path):
        return None
    try:
        _check_file(path)
        value = json.loads(path.read_bytes())
    except DataError as error:
        left_out.append(str(error))
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not JSON"
        left_out.append(f"'{path}' cannot be read: {reason}.")
        return None
    if not isinstance(value, dict):
        left_out.append(f"'{path}' is not what it should be: it holds no JSON object.")
        return None
    return value


def _claims(path: Path, left_out: list[str]) -> dict[str, Any] | None:
    """What `gossamer reproduce` found of the paper's claims."""
    told = _json(path, left_out)
    if told is None:
        return None
    claims = []
    for place, claim in enumerate(_list(told, "claims", path, left_out), 1):
        if not isinstance(claim, dict) or claim.get("verdict") not in VERDICTS:
            left_out.append(f"Claim {place} in '{path}' has no verdict that is one of {', '.join(VERDICTS)}.")
            continue
        values = claim.get("values")
        claims.append(
            {name: _text(claim.get(name)) for name in _CLAIM}
            | {"verdict": claim["verdict"], "value": number(claim.get("value"))}
            | {"values": [v for v in values if v is None or number(v) is not None] if isinstance(values, list) else []}
        )
    if not claims:
        return None
    versions = told.get("versions")
    return {
        "title": _text(told.get("title")),
        "command": _text(told.get("command")),
        "date": _text(told.get("date")),
        "versions": {k: _text(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        "shortened": told.get("shortened") is True,
        "claims": claims,
    }


def _rates(path: Path, left_out: list[str]) -> list[dict[str, Any]]:
    """Fitted rates of convergence."""
    told = _json(path, left_out)
    fits = []
    for place, fit in enumerate(_list(told, "fits", path, left_out) if told is not None else [], 1):
        if not isinstance(fit, dict) or number(fit.get("slope")) is None:
            left_out.append(f"Fit {place} in '{path}' has no slope that is a number.")
            continue
        points = fit.get("points")
        fits.append(
            {name: _text(fit.get(name)) for name in _FIT}
            | {name: number(fit.get(name)) for name in ("slope", "low", "high", "theory")}
            | {"is_exponential": fit.get("is_exponential") is True, "agrees": _text(fit.get("agrees"))}
            | {"points": [p for p in points if _is_point(p)] if isinstance(points, list) else []}
        )
    return fits


def _list(told: dict[str, Any], key: str, path: Path, left_out: list[str]) -> list[Any]:
    value = told.get(key)
    if not isinstance(value, list):
        left_out.append(f"'{path}' is not what it should be: it has no list of {key}.")
        return []
    return value


def _is_point(point: object) -> bool:
    """A place on axes that are both logarithmic."""
    return isinstance(point, list) and len(point) == 2 and all((number(v) or 0) > 0 for v in point)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
