"""What one rank notes of a run for the record: its counters and its model at each evaluation, in a file of its own.

No rank sees the other models while it trains, so nothing is measured before the end, when the journals are merged. Rows
of a journal have a fixed size, so a resumed run can cut off what came after its checkpoint.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Counters = Mapping[str, "np.ndarray[Any, np.dtype[np.float64]]"]
"""By name, one number per rank."""
COUNTERS = (
    "round",
    "packets",
    "bytes",
    "bytes_total",
    "bits_nominal",
    "seconds",
    "waiting",
    "hidden",
    "compression_error",
)


class Journal:
    """The rows in a file."""

    def __init__(self, path: Path, width: int, dtype: torch.dtype) -> None:
        self.path = path
        number = {torch.float32: "<f4", torch.float64: "<f8"}[dtype]
        self.dtype = np.dtype([("counters", "<f8", (len(COUNTERS),)), ("model", number, (width,))])

    def keep(self, rounds: int) -> None:
        """Cut off the rows after this many rounds, and a row that was not written to its end."""
        if not self.path.exists():
            return
        kept = [row for row in self.rows() if row["counters"][0] <= rounds]
        with self.path.open("r+b") as file:
            file.truncate(len(kept) * self.dtype.itemsize)

    def note(self, counters: Mapping[str, float], model: Tensor) -> None:
        """Append a row."""
        row = np.zeros(1, self.dtype)
        row["counters"][0] = [counters[name] for name in COUNTERS]
        row["model"][0] = model.detach().cpu().numpy()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(row.tobytes())

    def rows(self) -> Any:
        """All whole rows, in the order in which they were noted."""
        if not self.path.exists() or self.path.stat().st_size < self.dtype.itemsize:
            return np.zeros(0, self.dtype)
        whole = self.path.stat().st_size // self.dtype.itemsize
        return np.memmap(self.path, self.dtype, mode="r", shape=(whole,))

    def rounds(self) -> list[int]:
        """After which rounds there is a row."""
        return [int(row["counters"][0]) for row in self.rows()]

    def row(self, rounds: int) -> Tensor:
        """One row as bytes that can be sent."""
        rows = self.rows()
        at = self.rounds().index(rounds)
        return torch.frombuffer(bytearray(rows[at : at + 1].tobytes()), dtype=torch.uint8)

    def read(self, sent: Sequence[Tensor]) -> tuple[Counters, Tensor]:
        """Every rank's row of one round: counters, (ranks,) each, and models, (ranks, width)."""
        rows = np.concatenate([np.frombuffer(one.numpy().tobytes(), self.dtype) for one in sent])
        counters = {name: rows["counters"][:, number] for number, name in enumerate(COUNTERS)}
        return counters, torch.from_numpy(rows["model"].copy())

    def remove(self) -> None:
        """Delete the file: the run is over and merged, or starts again."""
        self.path.unlink(missing_ok=True)
