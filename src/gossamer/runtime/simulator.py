"""The simulator: all clients of all seeds as rows of the same tensors, on one CPU or GPU."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import CODECS, Codec
from gossamer.errors import InputError, check_bool, check_callable, check_choice, check_integer
from gossamer.files import alone_in
from gossamer.problems.base import Problem
from gossamer.records.identity import settings
from gossamer.records.runs import Run, Runs
from gossamer.records.typed import Settings
from gossamer.runtime.arguments import (
    by_label,
    check_batch_size,
    check_method_fits,
    check_network,
    checked_seeds,
    labelled,
)
from gossamer.runtime.exchange.rows import network_of
from gossamer.runtime.gradients.local import LocalSteps, check_local, for_local_steps
from gossamer.runtime.loop import Hook, TellTrackers
from gossamer.runtime.measure import Measure
from gossamer.runtime.planning.memory import Demand, seeds_at_once
from gossamer.runtime.planning.pace import usual_interval
from gossamer.runtime.recorder import Progress, Saving, record_folder, record_seeds
from gossamer.runtime.session import Surrogates, check_surrogates
from gossamer.runtime.simulation import Simulation
from gossamer.runtime.start import X0, describe_start
from gossamer.runtime.tuning.caution import warn_of_gamma
from gossamer.topology import Mixing
from gossamer.trackers.base import Heard, Trackers


def simulate(
    method: Algorithm,
    problem: Problem,
    mixing: Mixing,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    eval_every: int | None = None,
    x0: X0 = None,
    codec: Codec = "fixed",
    surrogates: Surrogates = "float64",
    local: LocalSteps | None = None,
    measures: Sequence[Measure] = (),
    hooks: Sequence[Hook] = (),
    trackers: Sequence[Heard] = (),
    record_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    should_stop: Callable[[], bool] | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run a method on a problem over a network, with one seed; `sweep` runs several methods and seeds.

    Args:
        method: The method.
        problem: What gives the clients their gradients; its dtype and device are the run's.
        mixing: The mixing matrix, or a schedule of them, of as many clients as the problem.
        rounds: The number of rounds.
        batch_size: Data rows per gradient, drawn with replacement; None for full gradients.
        seed: The seed of minibatches and compressors.
        eval_every: Rounds between evaluations, beside the first and the last. By default about a hundred in all; fewer
            where they would take longer than the rounds between them, and more than a second in all. A short trial
            before the first round decides; the record's header has the interval, and a resumed run keeps it.
        x0: Where the clients start: None for the problem's own point, one point (d,), one per client (clients, d), or
            `"uniform"` / `"normal"` for one random point per client, `"same_uniform"` / `"same_normal"` for one random
            point for all, with an optional scale as in `"normal:0.1"`.
        codec: How the bits of a packet are counted: `"fixed"` width, which costs nothing; `"entropy"`, for which every
            message is really encoded; or `"auto"`, the shorter of the two. The models do not depend on it.
        surrogates: The type of surrogates, neighbour sums and trackers. `"float32"` nearly halves the memory of a run,
            at the price of a floor: rounding errors add up, and the gradient norm stops falling earlier.
        local: Steps of an optimiser that each client takes on its own, in place of one gradient: see `LocalSteps`.
        measures: What to record beside the usual columns, such as the errors of BEER's proof, for
            `gossamer theory --check`: `gossamer.paper.omegas.Omegas()`, with `eval_every=1`.
        hooks: Your own code around the rounds: see `gossamer.runtime.loop.Hook`.
        trackers: Hear of every evaluation: `gossamer.trackers.TensorBoard("folder")`, other `gossamer.trackers`, or
            functions that take an `Event`.
        record_dir: A folder in which each run's record is written as it grows, with checkpoints while it runs and the
            final models at the end.
        checkpoint_every: Rounds between checkpoints; by default one is written every minute.
        resume: Continue from the last checkpoint in `record_dir`. The result is bit for bit that of a run that was
            never interrupted. Finished runs are read, and runs that had not started start. A record or checkpoint of
            another run (other settings, data, graph, starting point, versions) is an error, and nothing is changed.
        should_stop: Called after every round; when it returns True, a checkpoint is written and `StoppedError` raised.
        progress: Called with the label and the number of rounds done, about ten times per second.

    Returns:
        The run: its record and its models. If the models do not stay finite, the run stops at that round, and
        `run.diverged` says so. If the loss grows a thousandfold, it continues with a `ConvergenceWarning`, and
        `run.diverged` says so if that is how it ends.
    """
    if isinstance(method, list | tuple | dict):
        raise InputError(f"`simulate` runs one method, got a {type(method).__name__}; use `sweep` for several.")
    if not isinstance(seed, Integral):
        raise InputError(f"`seed` must be one integer, got {seed!r}; use `sweep` for several seeds.")
    (run,) = sweep(
        method,
        problem,
        mixing,
        rounds=rounds,
        batch_size=batch_size,
        seeds=[int(seed)],
        eval_every=eval_every,
        x0=x0,
        codec=codec,
        surrogates=surrogates,
        local=local,
        measures=measures,
        hooks=hooks,
        trackers=trackers,
        record_dir=record_dir,
        checkpoint_every=checkpoint_every,
        resume=resume,
        should_stop=should_stop,
        progress=progress,
    )
    return run


def sweep(
    methods: Algorithm | Sequence[Algorithm] | Mapping[str, Algorithm],
    problem: Problem,
    mixing: Mixing,
    *,
    rounds: int | Mapping[str, int],
    batch_size: int | None = None,
    seeds: Sequence[int] = (0,),
    eval_every: int | None = None,
    x0: X0 = None,
    codec: Codec = "fixed",
    surrogates: Surrogates = "float64",
    local: LocalSteps | Mapping[str, LocalSteps | None] | None = None,
    measures: Sequence[Measure] = (),
    hooks: Sequence[Hook] = (),
    trackers: Sequence[Heard] = (),
    record_dir: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    should_stop: Callable[[], bool] | None = None,
    progress: Progress | None = None,
) -> Runs:
    """Run one or several methods, each with several seeds. The other arguments are those of `simulate`.

    `methods` is a method, a sequence of them, or a mapping from labels to methods. Seeds run side by side in the same
    tensors, and do not depend on one another. The runs come by method, then by seed; `.frame` has the rows of all.

    `rounds` and `local` may be mappings from labels: the rounds of each method, and the local steps of those that take
    any. A comparison of methods that take gradients with others that take local steps is then one call:

    >>> import gossamer as gs, torch
    >>> local = gs.LocalSteps(torch.optim.SGD, steps=5, lr=0.1)
    >>> methods = {"SGD": gs.algorithms.CentralizedSGD(lr=0.1), "DiLoCo": gs.algorithms.DiLoCo()}
    >>> mixing, problem = gs.mixing_matrix(gs.ring(4)), gs.quadratic(clients=4, d=5)
    >>> runs = gs.sweep(methods, problem, mixing, rounds={"SGD": 50, "DiLoCo": 10}, local={"DiLoCo": local})
    >>> [int(run.final["round"]) for run in runs]
    [50, 10]
    """
    check_network(problem, mixing)
    batch_size = None if batch_size is None else check_batch_size(batch_size, problem)
    eval_every = None if eval_every is None else check_integer("eval_every", eval_every, 1)
    chosen, named = checked_seeds(seeds), labelled(methods)
    lengths = by_label("rounds", rounds, named, whole=True)
    lengths = {label: check_integer("rounds", many, 1) for label, many in lengths.items()}
    locals_ = {label: check_local(one) for label, one in by_label("local", local, named, whole=False).items()}
    named = {label: one if locals_.get(label) is None else for_local_steps(one) for label, one in named.items()}
    check_choice("codec", codec, CODECS)
    check_surrogates(surrogates, problem.dtype)
    for one in named.values():
        check_method_fits(one, problem, mixing)
        for measure in measures:
            measure.check(one)
        warn_of_gamma(one, problem.d, mixing.rho)
    followers = Trackers(trackers)
    check_bool("resume", resume)
    check_callable("should_stop", should_stop)
    check_callable("progress", progress)
    if record_dir is None and (resume or checkpoint_every is not None):
        raise InputError("Checkpoints are written to `record_dir`; name a folder.")
    every = None if checkpoint_every is None else check_integer("checkpoint_every", checkpoint_every, 1)
    folder = None if record_dir is None else record_folder(record_dir, named, chosen, fresh=not resume)

    common: dict[str, Any] = {"batch_size": batch_size, "eval_every": eval_every, "codec": codec}
    common |= {"x0": describe_start(x0, problem), "surrogates": surrogates}

    def about(label: str) -> dict[str, Any]:
        steps = locals_.get(label)
        return {"label": label, "rounds": lengths[label], **common} | ({} if steps is None else {"local": repr(steps)})

    def described(label: str, seed: int) -> Settings:
        return settings(named[label], problem, network_of(named[label], mixing), about(label), seed)

    hooks = [*hooks, TellTrackers(followers, described)] if followers else hooks
    saving = Saving(folder, every, resume, should_stop, hooks)
    runs = Runs()
    with (
        contextlib.nullcontext() if folder is None else alone_in(folder, reenter=True),
        contextlib.closing(followers),
    ):
        for label, one in named.items():
            many, steps = lengths[label], locals_.get(label)

            def start(some: Sequence[int], one: Algorithm = one, steps: LocalSteps | None = steps) -> Simulation:
                return Simulation(one, problem, mixing, some, batch_size, x0, codec, surrogates=surrogates, local=steps)

            evaluations = many // (eval_every or usual_interval(many)) + 1
            demand = Demand(one, problem, mixing, batch_size, surrogates, evaluations, steps)
            at_once = seeds_at_once(demand, label, len(chosen))
            runs += record_seeds(start, chosen, about(label), saving, progress, measures, at_once)
    return runs
