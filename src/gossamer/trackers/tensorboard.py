"""Events as TensorBoard shows them."""

from pathlib import Path
from typing import Any

from gossamer.errors import check_path
from gossamer.records.typed import Settings
from gossamer.trackers.base import Event, Tracker, flat, required, run_name


class TensorBoard(Tracker):
    """Writes one TensorBoard run per run into a folder, named as its record (`pip install gossamer[tensorboard]`).

    A run that is resumed, or begins again, replaces the values of the rounds that it repeats.
    """

    def __init__(self, folder: str | Path) -> None:
        check_path("folder", folder)
        self.folder = Path(folder)
        required("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        self._settings: dict[str, Settings] = {}
        self._writers: dict[str, Any] = {}

    def begin(self, label: str, seed: int, client: int | None, settings: Settings) -> None:
        """Keep the settings, which are written with the first event as a table."""
        self._settings[run_name(label, seed, client)] = settings

    def event(self, event: Event) -> None:
        """Write each value as a scalar."""
        name = run_name(event.label, event.seed, event.client)
        writer = self._writers.get(name)
        if writer is None:
            writer = self._writers[name] = self._begun(name, event.round)
        for column, value in event.values.items():
            writer.add_scalar(column, value, event.round)
        writer.flush()

    def _begun(self, name: str, round: int) -> Any:
        tensorboard = required("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        writer = tensorboard.SummaryWriter(str(self.folder / name), purge_step=round)
        lines = [f"| {key} | {value} |" for key, value in flat(self._settings.get(name, {})).items()]
        writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]), round)
        return writer

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers, self._settings = {}, {}
