"""TensorBoard, for who watches a run while it goes: counters of a rank and of each of its links."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.errors import InputError
from gossamer.runtime.transport.base import Account


def check_tensorboard() -> None:
    """Refuse to begin a run that could not be watched as asked."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise InputError("TensorBoard is not installed; install it with `pip install gossamer[tensorboard]`.") from None


class Watch:
    """A writer of events; without a folder, one that writes nothing."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self._writer: Any = None
        if folder is not None:
            check_tensorboard()
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / name))

    def note(self, round: int, counters: Mapping[str, float], links: Sequence[Account] = ()) -> None:
        """What was counted after so many rounds."""
        if self._writer is None:
            return
        for name, value in counters.items():
            if name != "round" and not math.isnan(value):
                self._writer.add_scalar(name, value, round)
        for link in links:
            for name in ("bytes_sent", "bytes_received", "packets_sent", "waiting", "hidden"):
                self._writer.add_scalar(f"neighbour {link.neighbor}/{name}", getattr(link, name), round)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
