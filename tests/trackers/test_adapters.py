"""TensorBoard, Weights & Biases and MLflow: what was written is read back with their own formats."""

import importlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer.trackers import Event, MLflow, TensorBoard, Tracker, WeightsAndBiases

pytest.importorskip("tensorboard")
MIXING = gs.mixing_matrix(gs.ring(4), weights="fdla")
METHOD = gs.BEER(lr=0.1, gamma=0.5, compressor=gs.gsgd(5))


def simulated(tracker: Tracker, **how: Any) -> Any:
    return gs.sweep(METHOD, gs.quadratic(clients=4), MIXING, rounds=20, seeds=[0, 1], trackers=[tracker], **how)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {name: [(one.step, one.value) for one in read.Scalars(name)] for name in read.Tags()["scalars"]}


def test_tensorboard_holds_the_record(tmp_path: Path) -> None:
    runs = simulated(TensorBoard(tmp_path))
    for run in runs:
        found = scalars(tmp_path / f"BEER-seed{run.seed}")
        for name in ("loss", "grad_norm", "bits", "consensus"):
            column = [(row.round, row[name]) for row in run.record.rows]
            assert [step for step, _ in found[name]] == [step for step, _ in column]
            assert [value for _, value in found[name]] == pytest.approx([value for _, value in column], rel=1e-6)
        assert found["bytes"][-1][1] == run.record.rows[-1].bits / 8


def test_tensorboard_keeps_the_settings(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    simulated(TensorBoard(tmp_path))
    read = EventAccumulator(str(tmp_path / "BEER-seed1"))
    read.Reload()
    text = read.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| method.lr | 0.1 |" in text
    assert "| seed | 1 |" in text


def test_a_resumed_run_replaces_the_rounds_that_it_repeats(tmp_path: Path) -> None:
    for rounds, value in ((range(10), 1.0), (range(5, 8), 2.0)):
        tracker = TensorBoard(tmp_path)
        tracker.begin("BEER", 0, 3, {})
        for t in rounds:
            tracker.event(Event("BEER", 0, t, {"loss": value}, client=3))
        tracker.close()
    found = scalars(tmp_path / "BEER-seed0" / "client3")
    assert found["loss"] == [(t, 1.0) for t in range(5)] + [(t, 2.0) for t in range(5, 8)]


def test_trackers_serve_several_calls(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path)
    for lr in (0.1, 0.2):
        method = {f"lr {lr}": gs.DSGD(lr=lr)}
        gs.sweep(method, gs.quadratic(clients=4), MIXING, rounds=5, trackers=[tracker])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lr-0.1-seed0", "lr-0.2-seed0"]


def offline_records(path: Path) -> list[Any]:
    """The records of a W&B run: a LevelDB log of protocol buffers after a header of 7 bytes."""
    wire: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    data, at, piece, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0:
            break
        piece += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found.append(wire.Record.FromString(piece))
            piece = b""
    return found


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    runs = simulated(WeightsAndBiases("rings", mode="offline", dir=str(tmp_path)))
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    seen = set()
    for path in files:
        limit, records = time.monotonic() + 30, offline_records(path)
        while not {"run", "exit"} <= {one.WhichOneof("record_type") for one in records} and time.monotonic() < limit:
            time.sleep(0.1)  # a process of its own writes the file
            records = offline_records(path)
        (about,) = [one.run for one in records if one.WhichOneof("record_type") == "run"]
        config = {item.key: json.loads(item.value_json) for item in about.config.update}
        run = next(run for run in runs if run.seed == config["seed"])
        seen.add(about.display_name)
        assert about.project == "rings"
        assert config["method"]["lr"] == 0.1
        history = [one.history.item for one in records if one.WhichOneof("record_type") == "history"]
        rows = [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row} for row in history]
        assert [row["_step"] for row in rows] == [row.round for row in run.record.rows]
        assert [row["loss"] for row in rows] == pytest.approx([row.loss for row in run.record.rows], rel=1e-6)
    assert seen == {"BEER-seed0", "BEER-seed1"}


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of SQLAlchemy 2.1, to MLflow
def test_mlflow_in_a_database(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    runs = simulated(MLflow("rings", uri))
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = client.search_runs([client.get_experiment_by_name("rings").experiment_id])
    assert {one.info.run_name for one in found} == {"BEER-seed0", "BEER-seed1"}
    for one in found:
        assert one.info.status == "FINISHED"
        assert one.data.params["method.lr"] == "0.1"
        assert one.data.params["method.compressor"] == str(gs.gsgd(5))
        run = next(run for run in runs if str(run.seed) == one.data.params["seed"])
        for name in ("loss", "bits"):
            history = [(metric.step, metric.value) for metric in client.get_metric_history(one.info.run_id, name)]
            assert sorted(history) == [(row.round, row[name]) for row in run.record.rows]


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_mlflow_takes_what_is_not_finite_and_long(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    tracker = MLflow("odd", uri)
    tracker.begin("BEER", 0, 1, {f"setting{k}": "x" * 9000 for k in range(150)})
    tracker.event(Event("BEER", 0, 3, {"batch_loss": math.nan, "neighbour 2/bytes_sent": 5.0}, client=1))
    tracker.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("odd").experiment_id])
    assert len(run.data.params) >= 150
    assert math.isnan(run.data.metrics["batch_loss"])
    assert run.data.metrics["neighbour 2/bytes_sent"] == 5.0


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("torch.utils.tensorboard", lambda: TensorBoard("folder"), "tensorboard"),
        ("wandb", WeightsAndBiases, "wandb"),
        ("mlflow", MLflow, "mlflow"),
    ],
)
def test_a_missing_package_is_one_sentence(module: str, make: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(gs.InputError, match=rf"is not installed; install it with `pip install gossamer\[{extra}\]`\.$"):
        make()


def test_a_folder_of_no_name_is_refused() -> None:
    with pytest.raises(gs.InputError, match="`folder` must be a string or a path, got 3"):
        TensorBoard(3)  # type: ignore[arg-type]


def test_values_may_be_tensors(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path)
    tracker.event(Event("BEER", 0, 1, {"loss": torch.tensor(2.0)}))  # type: ignore[dict-item]
    tracker.close()
    assert scalars(tmp_path / "BEER-seed0") == {"loss": [(1, 2.0)]}
