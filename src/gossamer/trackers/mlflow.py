"""Events as MLflow shows them."""

import time
from typing import Any

from gossamer.records.typed import Settings
from gossamer.trackers.base import Event, Tracker, flat, required, run_name

_PARAMETERS = 100  # that MLflow takes at a time
_LONGEST = 500  # characters of a parameter that every release takes


class MLflow(Tracker):
    """One MLflow run per run, named as its record, with its settings (`pip install gossamer[mlflow]`).

    Args:
        experiment: The experiment, which is made if it does not exist.
        uri: Where MLflow stores runs, such as `"sqlite:///mlflow.db"` or `"http://server:5000"`; by default what
            `MLFLOW_TRACKING_URI` says, else MLflow's own place.
    """

    def __init__(self, experiment: str = "gossamer", uri: str | None = None) -> None:
        self.experiment, self.uri = experiment, uri
        required("mlflow", "MLflow", "mlflow")
        self._client: Any = None
        self._runs: dict[str, str] = {}

    def begin(self, label: str, seed: int, client: int | None, settings: Settings) -> None:
        """Start a run of MLflow."""
        mlflow, name = required("mlflow", "MLflow", "mlflow"), run_name(label, seed, client)
        self._client = self._client or mlflow.MlflowClient(tracking_uri=self.uri)
        run = self._client.create_run(self._experiment_id(), run_name=name)
        self._runs[name] = run.info.run_id
        known = flat({**settings, "label": label, "seed": seed, "client": client})
        params = [mlflow.entities.Param(key, str(value)[:_LONGEST]) for key, value in known.items()]
        for begin in range(0, len(params), _PARAMETERS):
            self._client.log_batch(run.info.run_id, params=params[begin : begin + _PARAMETERS])

    def _experiment_id(self) -> str:
        known = self._client.get_experiment_by_name(self.experiment)
        if known is None:
            try:
                return str(self._client.create_experiment(self.experiment))
            except required("mlflow.exceptions", "MLflow", "mlflow").MlflowException:
                known = self._client.get_experiment_by_name(self.experiment)  # another process was faster
                if known is None:
                    raise
        return str(known.experiment_id)

    def event(self, event: Event) -> None:
        """Log the values, at the step of the round."""
        entities = required("mlflow.entities", "MLflow", "mlflow")
        now = int(1000 * time.time())
        metrics = [entities.Metric(name, float(value), now, event.round) for name, value in event.values.items()]
        self._client.log_batch(self._runs[run_name(event.label, event.seed, event.client)], metrics=metrics)

    def close(self) -> None:
        """End the runs."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            self._client.set_terminated(run)
        self._client = None
