"""Checkpoints: all that a run needs to continue, in files that are written as a whole and are safe to load.

A file is in the safetensors format: tensors by name and, as JSON in its header, the run that it belongs to, with a
checksum of both. Nothing in it is ever executed. It is written beside its place, forced to the disk and renamed.
"""

import contextlib
import json
import logging
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import DataError
from gossamer.files import replacing, writing
from gossamer.records.identity import check_same_run
from gossamer.records.typed import Settings

logger = logging.getLogger(__name__)
resume_log = logging.getLogger("gossamer.resume")
"""Where a run resumes (INFO), and which checkpoints it skips (WARNING); the command line shows these messages."""

_FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: facts as JSON, and tensors."""

    facts: Mapping[str, Any]
    tensors: dict[str, Tensor]

    @property
    def round(self) -> int:
        """Rounds done."""
        return int(self.facts["round"])


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a file of tensors and facts, atomically."""
    from safetensors.numpy import save

    arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
    about = json.dumps({"format": _FORMAT, **facts})
    data = save(arrays, {"gossamer": about, "checksum": str(_checksum(about, arrays))})
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside, beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def read(path: Path) -> Checkpoint:
    """The file's content, or a DataError that says why it cannot be used."""
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
        about = json.loads(metadata["gossamer"])
        arrays = load(path.read_bytes())
        version, checksum = about["format"], metadata.get("checksum")
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except (KeyError, ValueError, TypeError, RecursionError):
        raise DataError(f"'{path}' was not written by Gossamer.") from None
    except SafetensorError as error:
        raise DataError(f"'{path}' is torn or damaged: {str(error).rstrip('.')}.") from None
    if version != _FORMAT:
        raise DataError(f"'{path}' is of format {version!r}, and {_FORMAT} is what this version reads.")
    if checksum != str(_checksum(metadata["gossamer"], arrays)):
        raise DataError(f"'{path}' is damaged: its checksum does not match its content.")
    return Checkpoint(about, {name: torch.from_numpy(array) for name, array in arrays.items()})


class Checkpoints:
    """The checkpoints of one run, or of one rank of it: `STEM-round00000100.safetensors` in a folder.

    `identity` says what run they are of; a checkpoint of another run is an error, and stays as it is.
    """

    def __init__(self, folder: Path, stem: str, identity: Settings, keep: int) -> None:
        self.folder, self.stem, self.keep = folder, stem, keep
        self.identity = json.loads(json.dumps(identity))
        for left in folder.glob(f".{stem}-round*.tmp"):  # by a process that was killed while it wrote
            left.unlink(missing_ok=True)

    def path(self, round: int) -> Path:
        """The path of the checkpoint after this many rounds."""
        return self.folder / f"{self.stem}-round{round:08d}.safetensors"

    def save(self, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write one, then remove those that are older than needed."""
        write(self.path(round), tensors, {"round": round, "identity": self.identity, **facts})
        for old in self.rounds()[self.keep :]:
            self.path(old).unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """The rounds after which there is a file, the latest first."""
        pattern = re.compile(re.escape(self.stem) + r"-round(\d+)\.safetensors")
        try:
            found = [pattern.fullmatch(name) for name in os.listdir(self.folder)]
        except FileNotFoundError:
            return []
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def usable(self) -> Iterator[Checkpoint]:
        """Those that can be used, the latest first; a damaged one is logged, with its reason, and skipped.

        One of another run is an InputError: to continue would mix two runs, and to start again would delete it.
        """
        for round in self.rounds():
            path = self.path(round)
            try:
                checkpoint = read(path)
                check_same_run(path, checkpoint.facts.get("identity"), self.identity)
                if checkpoint.facts.get("round") != round:
                    raise DataError(f"'{path}' is of round {checkpoint.facts.get('round')!r}: it was renamed.")
            except DataError as error:
                resume_log.warning("A checkpoint is skipped: %s", error)
            else:
                yield checkpoint

    def latest_identity(self) -> Settings:
        """The identity in the latest checkpoint that can be read; empty if there is none."""
        for round in self.rounds():
            with contextlib.suppress(DataError):
                identity = read(self.path(round)).facts.get("identity")
                return identity if isinstance(identity, dict) else {}
        return {}

    def clear(self) -> None:
        """Remove all of them: the run starts again."""
        for round in self.rounds():
            self.path(round).unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove all of them, and their folder if it is empty: the run is over."""
        self.clear()
        with contextlib.suppress(OSError):  # other ranks may still have theirs in it, or remove it themselves
            self.folder.rmdir()


def needed(diameter: int, every: int) -> int:
    """How many checkpoints of each rank must be kept so that all ranks have one in common.

    Ranks may be apart by as many rounds as their distance in the graph.
    """
    return math.ceil((diameter + 1) / every) + 2


def under(prefix: str, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): x.to(device) for name, x in tensors.items() if name.startswith(prefix)}


def _checksum(about: str, arrays: Mapping[str, Any]) -> int:
    checksum = zlib.crc32(about.encode())
    for name in sorted(arrays):
        checksum = zlib.crc32(arrays[name].reshape(-1).view("u1"), zlib.crc32(name.encode(), checksum))
    return checksum


def common(offers: Sequence[Sequence[int]]) -> int | None:
    """The latest round that every rank offers."""
    return max(set.intersection(*map(set, offers)), default=None) if offers else None
