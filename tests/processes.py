"""Several ranks for a test: forks of this process, which need not import torch again."""

import multiprocessing
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

_fork = multiprocessing.get_context("fork")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(ranks: int, function: Callable[..., Any], *arguments: Any, seconds: float = 120) -> list[Any]:
    """What `function(rank, *arguments)` returns on each rank, or the exception that it raised."""
    port = free_port()
    pipes = []
    for rank in range(ranks):
        ours, theirs = _fork.Pipe(duplex=False)
        process = _fork.Process(target=_run, args=(theirs, rank, ranks, port, function, arguments))
        process.start()
        theirs.close()
        pipes.append((process, ours))
    results: list[Any] = []
    deadline = time.monotonic() + seconds
    try:
        for process, pipe in pipes:
            try:
                answered = pipe.poll(max(0.0, deadline - time.monotonic()))
                results.append(pickle.loads(pipe.recv_bytes()) if answered else TimeoutError("a rank did not answer"))
            except EOFError:
                results.append(None)  # killed
            process.join(20)  # the machine may be busy
            if process.is_alive():
                results[-1] = TimeoutError("a rank did not end")
    finally:
        for process, _ in pipes:
            process.kill()
            process.join()
    return results


def _run(pipe: Any, rank: int, ranks: int, port: int, function: Callable[..., Any], arguments: Any) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    try:
        result = function(rank, *arguments)
    except Exception as error:
        error.add_note(traceback.format_exc())
        result = error
    pipe.send_bytes(pickle.dumps(result))  # by value: torch's own way needs the sender to stay
    pipe.close()
