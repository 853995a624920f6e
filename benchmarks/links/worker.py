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


def _warmed(one: Trainer, job: dict[str, Any]) -> int:
    """Take a round before the clock runs, and some more if they are fast; how many there is time for then.

    The slowest host decides.
    """
    many, at_least = int(job["most"]), VANILLA + 1 if one.contender.powersgd else 1
    for t in range(1, 4):
        began = time.monotonic()
        one.round()
        seconds = torch.tensor([time.monotonic() - began])
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        many = int(min(max(job["seconds"] / float(seconds), job["least"]), job["most"]))
        if many == job["least"] and t >= at_least:
            break
    return many


def work(job: dict[str, Any], interface: str) -> dict[str, Any]:
    """One cell of the matrix."""
    contender, where = CONTENDERS[job["contender"]], job["problem"]
    found = problem(where["task"], where["split"], where["hosts"])
    ours = {"graph": where["graph"], "codec": job["codec"]}
    one = trainer(found, contender, job["setting"], job["seed"], TASKS[where["task"]].batch, **ours)
    computing = _computing(one)
    _say(ready=True)
    sys.stdin.readline()
    dist.barrier()
    is_whole, ends, models, rounds = job["snapshots"] is not None, [], [], job["rounds"]
    if not is_whole:
        rounds = _warmed(one, job)
        dist.barrier()
    began = time.monotonic()
    sent, payload, waited = _sent(interface), one.payload(), one.waited()
    for t in range(1, rounds + 1):
        one.round()
        ends.append(time.monotonic() - began)
        if is_whole and t % job["every"] == 0:
            models.append(one.model().numpy())
    took = ends[-1]
    after = {"wire": (_sent(interface) - sent) / rounds, "rounds": rounds, "gradient": computing, "ends": ends}
    if payload is not None and waited is not None:
        after |= {
            "payload": ((one.payload() or 0) - payload) / rounds,
            "waiting": ((one.waited() or 0) - waited) / took,
        }
    dist.barrier()
    one.close()
    if is_whole:
        np.save(Path(job["snapshots"]) / f"{dist.get_rank()}.npy", np.stack(models))
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
