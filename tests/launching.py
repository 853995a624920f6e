"""Launching a spec across real processes in a test: start it, watch it, and see what is left of it."""

import contextlib
import ipaddress
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import gossamer as gs
from gossamer.records.checkpoint import read

SPEC = """
rounds = {rounds}
seeds = {seeds}
batch_size = 16
codec = "auto"
eval_every = {every}
[problem]
objective = "logistic_regression"
data = "breast_cancer"
clients = {clients}
dtype = "float64"
[graph]
name = "ring"
weights = "fdla"
[[methods]]
name = "beer"
lr = 0.1
gamma = 0.3
compressor = "gsgd:5"
{more}
"""
DSGD = '[[methods]]\nname = "dsgd"\nlr = 0.1'


def spec(folder: Path, *, clients: int = 4, rounds: int = 60, seeds: str = "[0]", more: str = "") -> Path:
    path = folder / "my.toml"
    path.write_text(SPEC.format(clients=clients, rounds=rounds, seeds=seeds, every=max(1, rounds // 10), more=more))
    return path


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "gossamer", "launch", "my.toml", *arguments]
    # A place of its own for what is there while a run goes on: other tests run beside this one.
    (folder / "tmp").mkdir(exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: "subprocess.Popen[str]", seconds: float = 200) -> tuple[int, str]:
    """Exit code and what was said on standard error."""
    try:
        _, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, err


def ranks_of(folder: Path) -> list[int]:
    """The processes that are ranks of a run in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"launch" in words and (entry / "cwd").resolve() == folder.resolve():
                    environment = (entry / "environ").read_bytes()
                    found += [int(entry.name)] if b"\0RANK=" in environment else []
            except OSError:
                continue
    return found


def nothing_left(folder: Path) -> None:
    assert ranks_of(folder) == []
    left = [path for path in folder.rglob("*") if ".tmp" in path.name or "checkpoints" in path.parts]
    assert left == []
    assert list((folder / "tmp").iterdir()) == []


def rank_of(pid: int) -> int:
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(one[5:]) for one in environment if one.startswith(b"RANK="))


def checkpointed(folder: Path, since: float = 0.0) -> int:
    """The round of the latest checkpoint that was written after a point in time, or 0."""
    found = [0]
    for path in (folder / "checkpoints").glob("*-round*.safetensors"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime > since:
                found.append(int(path.stem.rpartition("round")[2]))
    return max(found)


def wait_for(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """A process and all that it started, directly or not."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def listening(pids: list[int]) -> set[str]:
    """ADDRESS:PORT for all TCP sockets on which processes listen, in their own network namespaces."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
            sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
            for name in ("tcp", "tcp6"):
                for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                    words = line.split()
                    if words[3] == "0A" and words[9] in sockets:
                        raw, _, port = words[1].partition(":")
                        parts = [bytes.fromhex(raw[at : at + 8])[::-1] for at in range(0, len(raw), 8)]
                        address: Any = ipaddress.ip_address(b"".join(parts))
                        found.add(f"{getattr(address, 'ipv4_mapped', None) or address}:{int(port, 16)}")
    return found


def listeners(pids: list[int]) -> set[str]:
    """The addresses on which processes listen for TCP connections, in their own network namespaces."""
    return {place.rpartition(":")[0] for place in listening(pids)}


def same(one: Path, two: Path, name: str, tolerance: float = 0.0) -> None:
    """Two runs have the same models, bit by bit, and records that differ in what clocks tell only.

    The simulator evaluates other models side by side than a process does, so measured columns may need a tolerance.
    """
    models = [read(folder / f"{name}.safetensors").tensors["models"] for folder in (one, two)]
    assert torch.equal(models[0], models[1])
    clocks = ["seconds", "waiting", "hidden"]
    frames = [gs.read_record(folder / f"{name}.jsonl").frame.drop(columns=clocks) for folder in (one, two)]
    for column in ("round", "packets", "bits", "bits_total", "bits_nominal"):
        assert frames[0][column].tolist() == frames[1][column].tolist()
    assert ((frames[0] - frames[1]).abs().max().fillna(0) <= max(tolerance, 1e-15)).all()
