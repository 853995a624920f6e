"""One host: reads jobs from standard input, one JSON line each, and writes what it measured to standard output.

After "ready" it waits for the word to go, so that links are shaped only when the clock runs.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.links.contenders import CONTENDERS
from benchmarks.links.progress import VANILLA
from benchmarks.links.tasks import TASKS, problem
from benchmarks.links.trainers import Trainer, trainer

_ALONE = 5  # gradients by which computing alone is timed


def _sent(interface: str) -> int:
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def _say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def _computing(one: Trainer) -> float:
    """Seconds per gradient while all hosts compute and nobody sends."""
    drawn = one.drawn(0)
    one.backward(one.module, 0, drawn)
    dist.barrier()
    began = time.monotonic()
    for _ in range(_ALONE):
        one.backward(one.module, 0, drawn)
    return (time.monotonic() - began) / _ALONE


def _timed(one: Trainer) -> float:
    began = time.monotonic()
    one.round()
    return time.monotonic() - began


def _count(seconds: float, job: dict[str, Any]) -> int:
    """How many rounds there is time for; the slowest host decides."""
    slowest = torch.tensor([seconds])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return int(min(max(job["seconds"] / float(slowest), job["least"]), job["most"]))


def _rounds(one: Trainer, job: dict[str, Any]) -> list[float]:
    """Seconds of each round of a cell. The first tells how many there is time for, and counts only if there are few."""
    first = _timed(one)
    many = _count(first, job)
    if many == job["least"]:
        return [first, *(_timed(one) for _ in range(many - 1))]
    _timed(one)
    return [_timed(one) for _ in range(many)]


def _whole(one: Trainer, job: dict[str, Any]) -> list[float]:
    """Seconds of each round of a whole run; models are kept on the way, to be measured afterwards."""
    seconds, models = [], []
    for t in range(1, job["rounds"] + 1):
        seconds.append(_timed(one))
        if t % job["every"] == 0:
            models.append(one.model().numpy())
    np.save(Path(job["snapshots"]) / f"{dist.get_rank()}.npy", np.stack(models))
    return seconds


def work(job: dict[str, Any], interface: str) -> dict[str, Any]:
    """One cell of the matrix, or a whole run."""
    contender, where = CONTENDERS[job["contender"]], job["problem"]
    found = problem(where["task"], where["split"], where["hosts"])
    ours = {"graph": where["graph"], "codec": job["codec"]}
    one = trainer(found, contender, job["setting"], job["seed"], TASKS[where["task"]].batch, **ours)
    computing, is_whole = _computing(one), job["snapshots"] is not None
    for _ in range(0 if is_whole else VANILLA + 1):  # PowerSGD begins then; others allocate memory
        one.round()
    _say(ready=True)
    sys.stdin.readline()
    dist.barrier()
    sent, payload, waited, before = _sent(interface), one.payload(), one.waited(), one.t
    seconds = _whole(one, job) if is_whole else _rounds(one, job)
    rounds, took = one.t - before, sum(seconds)
    after = {"wire": (_sent(interface) - sent) / rounds, "gradient": computing, "seconds": seconds}
    if payload is not None and waited is not None:
        after["payload"] = ((one.payload() or 0) - payload) / rounds
        after["waiting"] = ((one.waited() or 0) - waited) / (took * rounds / len(seconds))
    dist.barrier()
    one.close()
    return after


def main() -> None:
    """Work until standard input ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for line in sys.stdin:
        _say(result=work(json.loads(line), os.environ["GLOO_SOCKET_IFNAME"]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
