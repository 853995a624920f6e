"""Events as Weights & Biases shows them."""

from typing import Any

from gossamer.records.typed import Settings
from gossamer.trackers.base import Event, Tracker, required, run_name


class WeightsAndBiases(Tracker):
    """One W&B run per run, named as its record, with its settings (`pip install gossamer[wandb]`).

    Args:
        project: The project.
        init: What `wandb.init` takes beside it, such as `entity`, `group`, `dir`, or `mode="offline"`, which needs no
            network; `wandb sync` sends such runs later.
    """

    def __init__(self, project: str = "gossamer", **init: Any) -> None:
        self.project, self.init = project, init
        required("wandb", "Weights & Biases", "wandb")
        self._runs: dict[str, Any] = {}

    def begin(self, label: str, seed: int, client: int | None, settings: Settings) -> None:
        """Start a run of W&B."""
        wandb, name = required("wandb", "Weights & Biases", "wandb"), run_name(label, seed, client)
        how = {"name": name, "reinit": "create_new"} | self.init  # several runs at a time
        config = {**settings, "label": label, "seed": seed, "client": client}
        self._runs[name] = wandb.init(project=self.project, config=config, **how)

    def event(self, event: Event) -> None:
        """Log the values, at the step of the round."""
        self._runs[run_name(event.label, event.seed, event.client)].log(dict(event.values), step=event.round)

    def close(self) -> None:
        """Finish the runs."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            run.finish()
