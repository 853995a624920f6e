"""The simulator: all clients of all seeds as rows of the same tensors, on one CPU or GPU."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, Arrived, Round, State, map_state
from gossamer.compression import packet
from gossamer.compression.base import CODECS, Codec, Message, checking_later
from gossamer.compression.partial import Partial
from gossamer.errors import InputError, NonFiniteError, check_bool, check_callable, check_choice, check_integer
from gossamer.lock import alone_in
from gossamer.paper.omegas import check_has_omegas
from gossamer.problems.base import Problem
from gossamer.records.checkpoint import Checkpoint, pack, under, unpack
from gossamer.records.runs import Run, Runs
from gossamer.runtime.arguments import (
    check_batch_size,
    check_method_fits,
    check_network,
    labelled,
    several_seeds,
)
from gossamer.runtime.caution import warn_of_gamma
from gossamer.runtime.exchange.rows import Mixer, network_of
from gossamer.runtime.oracle import BatchOracle
from gossamer.runtime.recorder import Progress, Saving, record_folder, record_seeds
from gossamer.runtime.start import X0, describe_start, starting_models
from gossamer.runtime.threads import is_small, threads
from gossamer.streams import Streams
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
    omegas: bool = False,
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
    omegas: bool = False,
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
    omegas: bool = False,
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
        omegas: Record the errors of BEER's proof, too: Omega_1 to Omega_5, and its Lyapunov function where the steps
            are certified (`gossamer.theory.certify`); with `eval_every=1`, `gossamer theory --check` can judge the run.
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
        if omegas:
            check_has_omegas(one)
        warn_of_gamma(one, problem.d, mixing.rho)
    check_bool("omegas", omegas)
    check_bool("resume", resume)
    check_callable("should_stop", should_stop)
    check_callable("progress", progress)
    if record_dir is None and (resume or checkpoint_every is not None):
        raise InputError("Checkpoints are written to `record_dir`; name a folder.")
    every = None if checkpoint_every is None else check_integer("checkpoint_every", checkpoint_every, 1)
    folder = None if record_dir is None else record_folder(record_dir, methods, seeds, fresh=not resume)
    saving = Saving(folder, every, resume, should_stop)

    about: dict[str, Any] = {"rounds": rounds, "batch_size": batch_size, "eval_every": eval_every, "codec": codec}
    about |= {"x0": describe_start(x0, problem)} | ({"omegas": True} if omegas else {})
    runs = Runs()
    with contextlib.nullcontext() if folder is None else alone_in(folder, reenter=True):
        for label, one in methods.items():

            def start(some: Sequence[int], one: Algorithm = one) -> Simulation:
                return Simulation(one, problem, mixing, some, batch_size, x0, codec)

            runs += record_seeds(start, seeds, {"label": label, **about}, saving, progress)
    return runs[0] if isinstance(method, Algorithm) and isinstance(seed, Integral) else runs


class Simulation:
    """A method under way: call `step` for the next round. `simulate` drives it; tests look inside."""

    def __init__(
        self,
        method: Algorithm,
        problem: Problem,
        mixing: MixingMatrix,
        seeds: Sequence[int] = (0,),
        batch_size: int | None = None,
        x0: X0 = None,
        codec: Codec = "fixed",
    ) -> None:
        mixing = network_of(method, mixing)
        self.method, self.problem, self.mixing = method, problem, mixing
        self.batch_size = batch_size
        self.streams = Streams(seeds, range(problem.clients), problem.device)
        self.mixer = Mixer(mixing, problem.device)
        self.traffic = Traffic(mixing, self.streams.seeds, codec)
        self.t = 0
        self.state: State = method.init(starting_models(x0, problem, self.streams))
        self.buffers = problem.new_buffers(len(seeds) * problem.clients)
        self.compression_error: Tensor | None = None
        """(rows,): the share of its messages that the compressor left out, when it was last measured."""
        self._ahead: _Ahead | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that still run."""
        return self.streams.seeds

    def step(self, *, measure: bool = False) -> None:
        """One round; a NonFiniteError with the bad rows, and nothing changed, if the models do not stay finite.

        With `measure`, how much the compressor left out is noted on the way.
        """
        ahead, self._ahead = self._ahead or self._look_ahead(measure), None
        self.state, self.buffers = ahead.state, ahead.buffers
        if ahead.errors:
            self.compression_error = torch.stack(ahead.errors).mean(dim=0)
        for sent in ahead.packets:
            self.traffic.count(sent, self.t, self.streams.seeds)
        self.t += 1

    def peek(self) -> State:
        """The state after the next round, without going there."""
        self._ahead = self._ahead or self._look_ahead(measure=True)
        return self._ahead.state

    def _look_ahead(self, measure: bool) -> "_Ahead":
        """What the next round comes to; nothing is changed."""
        errors: list[Tensor] | None = [] if measure else None
        packets: list[tuple[Message, ...]] = []
        oracle = BatchOracle(self.problem, self.streams, self.t, self.batch_size, self.buffers)

        def exchange(*messages: Message | None) -> Arrived:
            sent = tuple(message for message in messages if message is not None)
            if sent:
                packets.append(sent)
            return Arrived(tuple(self.mixer(m.dense()) if m is not None else self.mixer.zero for m in messages))

        round = Round(
            t=self.t,
            lr=self.method.lr_at(self.t),
            oracle=oracle,
            random=lambda purpose: self.streams.at(self.t, purpose),
            exchange=exchange,
            dtype=self.problem.dtype,
            rho=self.mixing.rho,
            errors=errors,
        )
        few = 1 if is_small(self.problem, len(self.state.x), self.batch_size) else None
        with checking_later(self.problem.device.type == "cuda") as doubts, threads(few):
            state = self.method.step(self.state, round)
        # One number to look at; the rows are looked for only when it is bad.
        if not torch.isfinite(torch.stack([state.x.sum(), *(total.to(state.x) for total, _ in doubts)]).sum()):
            for _, refuse in doubts:
                refuse()
            bad = (~torch.isfinite(state.x).all(dim=1)).nonzero()[:, 0].tolist()
            if bad:
                raise NonFiniteError("The models are no longer finite.", bad)
        return _Ahead(state, oracle.buffers, packets, errors)

    def models(self) -> Tensor:
        """(seeds, clients, d)."""
        x: Tensor = self.state.x
        return x.view(len(self.seeds), self.problem.clients, self.problem.d)

    def snapshot(self) -> Tensor:
        """(seeds, clients, d or more): the models as they are measured, with their buffers behind them."""
        x: Tensor = self.problem.with_buffers(self.state.x, self.buffers)
        return x.view(len(self.seeds), self.problem.clients, x.shape[1])

    def drop(self, seeds: Sequence[int]) -> None:
        """Go on without these seeds: rows of different seeds never meet, so the others do not notice."""
        self.keep([i for i, seed in enumerate(self.seeds) if seed not in seeds])

    def keep(self, places: Sequence[int]) -> None:
        """Go on with the seeds at these places alone."""
        shape = (len(self.seeds), self.problem.clients)

        def kept(x: Tensor) -> Tensor:
            return x.view(*shape, *x.shape[1:])[places].flatten(0, 1)

        self.state = map_state(self.state, kept)
        self.compression_error = self._ahead = None
        self.buffers = {name: kept(buffer) for name, buffer in self.buffers.items()}
        self.streams = Streams([self.seeds[i] for i in places], self.streams.clients, self.problem.device)

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts from which `restore` goes on."""
        tensors = pack(self.state) | {f"buffers.{name}": buffer for name, buffer in self.buffers.items()}
        return tensors, {"t": self.t, "seeds": list(self.seeds), "traffic": self.traffic.counts()}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be where a simulation with the same settings was when it was saved."""
        device = self.problem.device
        self.drop([seed for seed in self.seeds if seed not in checkpoint.facts["seeds"]])
        self.state = unpack(self.state, checkpoint.tensors, device)
        self.buffers = under("buffers.", checkpoint.tensors, device)
        self._ahead = None
        self.t = checkpoint.facts["t"]
        self.traffic.restore(checkpoint.facts["traffic"])


class _Ahead(NamedTuple):
    """What a round comes to."""

    state: State
    buffers: dict[str, Tensor]
    packets: list[tuple[Message, ...]]
    errors: list[Tensor] | None


class Traffic:
    """What has been sent so far: packets, and bits for each seed."""

    def __init__(self, mixing: MixingMatrix, seeds: Sequence[int], codec: Codec) -> None:
        self.codec: Codec = codec
        self.packets = 0
        self.bits_paper = dict.fromkeys(seeds, 0)  # these, too, are added up over clients
        self.bits = dict.fromkeys(seeds, 0)  # added up over clients; what a link carried is their mean
        self.bits_total = dict.fromkeys(seeds, 0)
        self._degrees = mixing.degrees
        self._fixed: dict[Any, npt.NDArray[np.int64]] = {}

    def count(self, messages: tuple[Message, ...], t: int, seeds: Sequence[int]) -> None:
        """Add one exchange: a packet from each client to each of its neighbours."""
        if not self._degrees.any():  # a client alone sends nothing
            return
        self.packets += 1
        shape = (len(seeds), len(self._degrees))
        paper = sum(message.bits_paper_of_rows() for message in messages).reshape(shape)  # type: ignore[union-attr]
        for seed, bits, counted in zip(seeds, self._lengths(messages, t).reshape(shape), paper, strict=True):
            self.bits[seed] += int(bits.sum())
            self.bits_total[seed] += int((bits * self._degrees).sum())
            self.bits_paper[seed] += int(counted.sum())

    def on_one_link(self, seed: int) -> float:
        """Bits so far, averaged over clients."""
        return self.bits[seed] / len(self._degrees)

    def paper_on_one_link(self, seed: int) -> float:
        """The same as the paper counts."""
        return self.bits_paper[seed] / len(self._degrees)

    def counts(self) -> dict[str, Any]:
        """The counters, as JSON keeps them."""
        every = [[seed, self.bits[seed], self.bits_total[seed], self.bits_paper[seed]] for seed in self.bits]
        return {"packets": self.packets, "seeds": every}

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Go on from such counters."""
        self.packets = counts["packets"]
        for seed, bits, total, paper in counts["seeds"]:
            self.bits[seed], self.bits_total[seed], self.bits_paper[seed] = bits, total, paper

    def _lengths(self, messages: tuple[Message, ...], t: int) -> npt.NDArray[np.int64]:
        """The bits of each row's packet; fixed-width ones depend on little, and are worked out once."""
        clients = range(len(self._degrees))
        if self.codec != "fixed" or any(isinstance(message, Partial) for message in messages):
            return 8 * packet.sizes(messages, t, clients, self.codec)
        key = (t.bit_length(), *((type(m), m.shape, m.payload_size()) for m in messages))
        if key not in self._fixed:
            self._fixed[key] = 8 * packet.sizes(messages, t, clients)
        return self._fixed[key]
