"""What can be reported of a folder: experiments, claims and rates, and a sentence for each file that cannot be read."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gossamer.errors import DataError, GossamerError, InputError
from gossamer.records.record import Record, read_record
from gossamer.records.typed import check_file
from gossamer.report.conclusions import Claims, FitRow, read_claims, read_rates
from gossamer.spec import read_toml


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
    claims: Claims | None = None
    rates: list[FitRow] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A sentence for each thing that could not be read."""


def gather(path: str | os.PathLike[str]) -> Gathered:
    """Read a folder with all its subfolders, or one record; what is damaged or foreign becomes a sentence.

    Hidden folders and `checkpoints` are skipped. Raises `InputError` if nothing is left to report.
    """
    path = Path(path)
    if not os.path.exists(path):
        raise InputError(f"There is no '{path}'; give a folder with records, or a record.")
    found = Gathered(path)
    if path.is_dir():
        for folder, files in _folders(path, found.left_out):
            _add(found, folder, files)
        found.claims = read_claims(path / "claims.json", found.left_out)
        found.rates = read_rates(path / "rates.json", found.left_out)
    else:
        _add(found, path.parent, [path])
    if not found.groups and found.claims is None and not found.rates:
        why = f" {found.left_out[0]}" if found.left_out else ""
        more = f" (and {len(found.left_out) - 1} more)" if len(found.left_out) > 1 else ""
        raise InputError(f"There is nothing to report in '{path}': no record could be read.{why}{more}")
    return found


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
            record = read_record(path)
            if not record.rows:
                raise DataError(f"The record '{path}' holds no measurements.")
        except DataError as error:
            found.left_out.append(str(error))
            continue
        key = (record.label, record.seed)
        if key in records:
            first = records[key][1].name
            found.left_out.append(f"The record '{path}' is left out: it has the label and the seed of '{first}'.")
        else:
            records[key] = (record, path)
    if records:
        name, spec, order = _spec(folder / "spec.toml", found.left_out)
        places = {label: order.index(label) if label in order else len(order) for label, _ in records}
        kept, paths = zip(*sorted(records.values(), key=lambda one: places[one[0].label]), strict=True)
        name = name or folder.resolve().name or str(folder)
        found.groups.append(Group(name, folder, list(kept), list(paths), spec))


def _spec(path: Path, left_out: list[str]) -> tuple[str, str, list[object]]:
    """Name and text of a spec, and the labels of its methods in their order; all empty where there is none."""
    if not os.path.lexists(path):
        return "", "", []
    try:
        check_file(path)
        text, table = read_toml(path)
    except GossamerError as error:
        left_out.append(str(error))
        return "", "", []
    name, methods = table.get("name", ""), table.get("methods", [])
    labels = [one.get("label") for one in methods if isinstance(one, dict)] if isinstance(methods, list) else []
    return name.strip() if isinstance(name, str) else "", text, labels
