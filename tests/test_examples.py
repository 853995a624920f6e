"""Examples run as they stand, and stay short."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from curve_network import Network

import gossamer as gs

ROOT = Path(__file__).parents[1]


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PROCESSES = [  # started as several processes
    "train_mnist.py", "torchrun_adamw.py", "lightning_digits.py", "accelerate_gpt.py", "transformer_torchrun.py",
    "compare_ddp.py", "open_network.py",
]  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=pytest.mark.slow if path.name == "transformer.py" else [])
        for path in EXAMPLES
        if path.name not in PROCESSES
    ],
)
def test_example(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def torchrun(example: Path, ranks: int, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """An example on this host; nothing may be downloaded."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(example), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def printed(example: str, ranks: int, folder: Path, *arguments: str) -> list[tuple[int, float]]:
    """What rank 0 prints: `step 100: accuracy of the average 0.5 ...`, as (100, 0.5)."""
    done = torchrun(ROOT / "examples" / example, ranks, folder, *arguments)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^\w+ (\d+): .*? of the average ([\d.]+)", done.stdout, re.MULTILINE)
    return [(int(when), float(value)) for when, value in found]


def resumed(example: str, ranks: int, folder: Path, short: list[str], long: list[str]) -> list[tuple[int, float]]:
    """What an example prints that was ended early and started again; equal to what it prints in one go."""
    whole, parts = folder / "whole", folder / "parts"
    whole.mkdir()
    parts.mkdir()
    expected = printed(example, ranks, whole, *long)
    first, second = printed(example, ranks, parts, *short), printed(example, ranks, parts, *long)
    assert first
    assert second
    assert first + second == expected
    return expected


@pytest.mark.slow
def test_adamw_with_torchrun(tmp_path: Path) -> None:
    """Continued from the oldest checkpoint, in the middle of the schedule: the same again."""
    whole = printed("torchrun_adamw.py", 4, tmp_path, "--checkpoints", "kept")
    assert [step for step, _ in whole] == [100, 200, 300, 400, 500, 600]
    assert whole[0][1] < 0.6
    assert whole[-1][1] > 0.9
    oldest = min(path.name.split("-")[1] for path in tmp_path.glob("kept/client0-*"))
    for path in tmp_path.glob("kept/client*"):
        if path.name.split("-")[1] != oldest:
            path.unlink()
    again = printed("torchrun_adamw.py", 4, tmp_path, "--checkpoints", "kept")
    assert again
    assert again == whole[-len(again) :]


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    """The example asserts in every epoch that the model is not wrapped."""
    epochs = printed("lightning_digits.py", 2, tmp_path, "6")
    assert [epoch for epoch, _ in epochs] == list(range(6))
    assert epochs[0][1] < 0.7
    assert epochs[-1][1] > 0.9


@pytest.mark.slow
def test_accelerate(tmp_path: Path) -> None:
    epochs = printed("accelerate_gpt.py", 2, tmp_path, "2")
    assert [epoch for epoch, _ in epochs] == [0, 1]
    assert 5 > epochs[0][1] > epochs[1][1]


@pytest.mark.long
def test_lightning_goes_on_with_the_same_models(tmp_path: Path) -> None:
    resumed("lightning_digits.py", 2, tmp_path, ["2"], ["6"])
    for rank in (0, 1):
        models = [
            torch.load(tmp_path / how / f"lightning/client{rank}/last.ckpt")["state_dict"] for how in ("whole", "parts")
        ]
        assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.long
def test_accelerate_goes_on_with_the_same_models(tmp_path: Path) -> None:
    resumed("accelerate_gpt.py", 2, tmp_path, ["1"], ["3"])
    for rank in (0, 1):
        models = [tmp_path / how / f"accelerate/client{rank}/model.safetensors" for how in ("whole", "parts")]
        assert models[0].read_bytes() == models[1].read_bytes()


WRAPPED = {
    "lightning_digits.py": ('strategy=SingleDeviceStrategy("cpu")', 'strategy="ddp", devices=2'),
    "accelerate_gpt.py": ("patch_environment(LOCAL_RANK=-1, WORLD_SIZE=1)", "patch_environment()"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPED)
def test_the_examples_notice_ddp(name: str, tmp_path: Path) -> None:
    text = (ROOT / "examples" / name).read_text()
    assert WRAPPED[name][0] in text
    changed = tmp_path / name
    changed.write_text(text.replace(*WRAPPED[name]))
    done = torchrun(changed, 2, tmp_path, "1")
    assert done.returncode != 0
    assert re.search(r"assert .*# and not a DistributedDataParallel", done.stderr)


@pytest.mark.slow
def test_training_mnist_with_torchrun(data_dir: Path, tmp_path: Path) -> None:
    """Stopped by SIGTERM to one rank, and gone on with."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    command = [
        *torchrun,
        str(ROOT / "examples" / "train_mnist.py"),
        "--data-dir",
        str(data_dir),
        "--checkpoints",
        "kept",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 100
        while not list(tmp_path.glob("kept/client0-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        os.kill(int(found.stdout.split()[2]), signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    latest = {max(path.name.split("-")[1] for path in tmp_path.glob(f"kept/client{rank}-*")) for rank in range(4)}
    assert len(latest) == 1, "all stopped at one round"
    assert "step 300" not in out, "before the end"
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("step 300:")
    assert float(last.split()[-1]) > 0.85


@pytest.mark.slow
def test_a_transformer_under_torchrun(tmp_path: Path) -> None:
    """The model, the data and the measure of the simulated example, unchanged, and 25 lines at most."""
    rounds = printed("transformer_torchrun.py", 4, tmp_path)
    assert [when for when, _ in rounds] == [20, 40, 60, 80]
    assert rounds[0][1] < 0.5
    assert rounds[-1][1] > 0.95
    lines = (ROOT / "examples" / "transformer.py").read_text().splitlines()
    first, last = lines.index("TOKENS, LENGTH = 16, 8"), lines.index('if __name__ == "__main__":')
    assert len([line for line in lines[first:last] if line]) <= 25


@pytest.mark.slow
def test_a_transformer_simulated_and_launched(tmp_path: Path) -> None:
    """The same file, unchanged, for both; the spec names what the example defines."""
    (tmp_path / "examples").mkdir()
    for name in ("transformer.py", "transformer.toml"):
        text = (ROOT / "examples" / name).read_text().replace("rounds = 80", "rounds = 8")
        (tmp_path / "examples" / name).write_text(text)
    for command, folder in (("run", "simulated"), ("launch", "real")):
        done = subprocess.run(
            [sys.executable, "-m", "gossamer", command, "examples/transformer.toml", "-q", "-o", folder],
            cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    frames = [gs.read_record(tmp_path / folder / "CHOCO-SGD-seed0.jsonl").frame for folder in ("simulated", "real")]
    assert frames[0]["token_accuracy"].iloc[-1] > 0
    assert (frames[0]["loss"] - frames[1]["loss"]).abs().max() < 1e-3


@pytest.mark.slow
def test_comparison_with_ddp(tmp_path: Path) -> None:
    done = torchrun(ROOT / "examples" / "compare_ddp.py", 2, tmp_path, "2")
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(\w+): accuracy ([\d.]+) after \d+ steps", done.stdout, re.MULTILINE)
    assert [name for name, _ in found] == ["DDP", "DiLoCo", "Gossamer"]
    assert all(float(accuracy) > 0.6 for _, accuracy in found)


@pytest.mark.slow
def test_an_open_network(no_process_left: None, tmp_path: Path) -> None:
    """Three hosts; one leaves and comes back with a neighbour's model, and in the end one after the other leaves."""
    network = Network(tmp_path, 3)

    def start(client: int, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(ROOT / "examples" / "open_network.py"), "--rounds", "1000000", *arguments]
        return subprocess.Popen(
            [*command, str(network.peers(client)), str(network.secret(client))], cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def read(process: "subprocess.Popen[str]", pattern: str) -> "re.Match[str]":
        """The next line that a host prints."""
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(pattern, line.strip())
        assert found is not None, line or process.communicate()[1]
        return found

    def leave(process: "subprocess.Popen[str]") -> str:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out

    hosts = [start(client) for client in range(3)]
    for client, host in enumerate(hosts):
        read(host, f"client {client} begins in round 0")
    read(hosts[2], r"round 100: accuracy [\d.]+, clients \[0, 1, 2\]")
    assert "client 2 ended after round " in leave(hosts[2])
    hosts[2] = start(2, "--join", "peer0")
    assert int(read(hosts[2], r"client 2 begins in round (\d+)")[1]) > 100
    for _ in range(4):
        last = read(hosts[2], r"round \d+: accuracy ([\d.]+), clients \[0, 1, 2\]")
    assert float(last[1]) > 0.8
    for host in hosts:
        out = leave(host)
        assert set(re.findall(r"clients (.*)", out)) <= {"[0, 1, 2]", "[0, 1]", "[1, 2]", "[2]"}
        assert "LinkTraffic(7 neighbours" in out
