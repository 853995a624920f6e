"""A logging hook of another package."""

import logging

from gossamer.records.schema import Row
from gossamer.runtime.loop import Hook, Loop

logger = logging.getLogger("rows")


class LogRows(Hook):
    """Logs every evaluation, and how many rounds were run."""

    def __init__(self) -> None:
        self.rounds = 0

    def after(self, loop: Loop) -> None:
        self.rounds += 1

    def recorded(self, label: str, seed: int, row: Row) -> None:
        logger.info("%s seed %d round %d: %.3g", label, seed, row.round, row.grad_norm)
