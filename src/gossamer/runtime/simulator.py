"""The simulator: all clients of all seeds as rows of the same tensors, on one CPU or GPU."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, overload

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import CODECS, Codec
from gossamer.errors import InputError, check_bool, check_callable, check_choice, check_integer
from gossamer.files import alone_in
from gossamer.problems.base import Problem
from gossamer.records.runs import Run, Runs
from gossamer.runtime.arguments import (
    check_batch_size,
    check_method_fits,
    check_network,
    labelled,
    several_seeds,
)
from gossamer.runtime.caution import warn_of_gamma
from gossamer.runtime.measure import Measure
from gossamer.runtime.recorder import Progress, Saving, record_folder, record_seeds
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.start import X0, describe_start
from gossamer.topology import MixingMatrix


@overload
def simulate(  # type: ignore[overload-overlap]
    method: Algorithm,
    problem: Problem,
    mixing: MixingMatrix,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    eval_every: int | None = None,
    x0: X0 = None,
    codec: Codec = "fixed",
    measures: Sequence[Measure] = (),
    record_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    should_stop: Callable[[], bool] | None = None,
    progress: Progress | None = None,
) -> Run: ...
@overload
def simulate(
    method: Algorithm | Sequence[Algorithm] | Mapping[str, Algorithm],
    problem: Problem,
    mixing: MixingMatrix,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int | Sequence[int] = 0,
    eval_every: int | None = None,
    x0: X0 = None,
    codec: Codec = "fixed",
    measures: Sequence[Measure] = (),
    record_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    should_stop: Callable[[], bool] | None = None,
    progress: Progress | None = None,
) -> Runs: ...
def simulate(
    method: Algorithm | Sequence[Algorithm] | Mapping[str, Algorithm],
    problem: Problem,
    mixing: MixingMatrix,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int | Sequence[int] = 0,
    eval_every: int | None = None,
    x0: X0 = None,
    codec: Codec = "fixed",
    measures: Sequence[Measure] = (),
    record_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    should_stop: Callable[[], bool] | None = None,
    progress: Progress | None = None,
) -> Run | Runs:
    """Run a method, or several, on a problem over a network, with one seed or several.

    Args:
        method: A method, a sequence of them, or a mapping from labels to methods.
        problem: What gives the clients their gradients; its dtype and device are the run's.
        mixing: The mixing matrix, of as many clients as the problem.
        rounds: How many rounds.
        batch_size: Data rows a gradient, drawn with replacement; None for full gradients.
        seed: One seed, or several that run side by side in the same tensors.
        eval_every: Rounds between evaluations, beside the first and the last; by default about a hundred in all.
        x0: Where the clients start: None for the problem's own point, one point (d,), one a client (clients, d), or
            `"uniform"` / `"normal"` for one random point a client, `"same_uniform"` / `"same_normal"` for one random
            point for all, with an optional scale as in `"normal:0.1"`.
        codec: How the bits of a packet are counted: `"fixed"` width, which costs nothing; `"entropy"`, for which every
            message is really encoded; or `"auto"`, the shorter of the two. The models do not depend on it.
        measures: What to record beside the usual columns, such as the errors of BEER's proof, for
            `gossamer theory --check`: `gossamer.paper.omegas.Omegas()`, with `eval_every=1`.
        record_dir: A folder in which each run's record is written as it grows, its checkpoints while it goes on, and
            its final models when it is over.
        checkpoint_every: Rounds between checkpoints; by default one is written every minute.
        resume: Go on from the last checkpoint in `record_dir`; the result is bit for bit that of a run that was never
            interrupted. Runs that are over are read, and what was not begun begins. A record or checkpoint of another
            run (other settings, data, graph, starting point, versions) is an error, and nothing is changed.
        should_stop: Asked after every round; when it says True, a checkpoint is written and `StoppedError` raised.
        progress: Called with the label and the number of rounds done, about ten times a second.

    Returns:
        A `Run` for one method and one seed, else `Runs`, a list of them (by method, then by seed). A run whose models
        do not stay finite stops at that round and says so in `run.diverged`; the other seeds go on. One whose loss has
        grown a thousandfold goes on, with a `ConvergenceWarning`, and says so in `run.diverged` if that is how it ends.
    """
    check_network(problem, mixing)
    rounds = check_integer("rounds", rounds, 1)
    batch_size = None if batch_size is None else check_batch_size(batch_size, problem)
    eval_every = check_integer("eval_every", max(1, rounds // 100) if eval_every is None else eval_every, 1)
    seeds = several_seeds(seed)
    methods = labelled(method)
    check_choice("codec", codec, CODECS)
    for one in methods.values():
        check_method_fits(one, problem, mixing)
        for measure in measures:
            measure.check(one)
        warn_of_gamma(one, problem.d, mixing.rho)
    check_bool("resume", resume)
    check_callable("should_stop", should_stop)
    check_callable("progress", progress)
    if record_dir is None and (resume or checkpoint_every is not None):
        raise InputError("Checkpoints are written to `record_dir`; name a folder.")
    every = None if checkpoint_every is None else check_integer("checkpoint_every", checkpoint_every, 1)
    folder = None if record_dir is None else record_folder(record_dir, methods, seeds, fresh=not resume)
    saving = Saving(folder, every, resume, should_stop)

    about: dict[str, Any] = {"rounds": rounds, "batch_size": batch_size, "eval_every": eval_every, "codec": codec}
    about |= {"x0": describe_start(x0, problem)}
    runs = Runs()
    with contextlib.nullcontext() if folder is None else alone_in(folder, reenter=True):
        for label, one in methods.items():

            def start(some: Sequence[int], one: Algorithm = one) -> Simulation:
                return Simulation(one, problem, mixing, some, batch_size, x0, codec)

            runs += record_seeds(start, seeds, {"label": label, **about}, saving, progress, measures)
    return runs[0] if isinstance(method, Algorithm) and isinstance(seed, Integral) else runs
