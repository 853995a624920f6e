"""The simulator: all clients of all seeds as rows of the same tensors, on one CPU or GPU."""

import logging
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from gossamer._version import __version__
from gossamer.algorithms.base import Algorithm, Arrived, Round, State, map_state
from gossamer.compression import packet
from gossamer.compression.base import Message
from gossamer.errors import InputError, NonFiniteError, check_integer
from gossamer.problems.base import Problem
from gossamer.runtime.record import Record, RecordWriter, record_name
from gossamer.streams import Streams
from gossamer.topology import MixingMatrix

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

Method = Algorithm[Any]
X0 = Tensor | np.ndarray[Any, Any] | str | None
Progress = Callable[[str, int], None]

_EVALUATED_TOGETHER = 50
_SNAPSHOT_BYTES = 256 << 20  # models kept waiting for an evaluation, at the most
_FLUSH_SECONDS = 2.0  # a record on disk is never further behind than this, or one round
_SPARSE_FROM = 256  # clients from which W is multiplied as a sparse matrix


@dataclass(frozen=True)
class Run:
    """What `simulate` gives back for one method and one seed."""

    label: str
    method: Method
    seed: int
    record: Record
    x: Tensor
    """The final models, (clients, d); those before the fatal round if the run diverged."""

    @property
    def frame(self) -> "pd.DataFrame":
        """The measurements, a row for each evaluation."""
        return self.record.frame

    @property
    def final(self) -> "pd.Series[Any]":
        """The last row of the frame."""
        return self.frame.iloc[-1]

    @property
    def diverged(self) -> str | None:
        """A sentence with the round and the likely remedy, if the models did not stay finite."""
        return self.record.diverged


class Runs(list[Run]):
    """Several runs; a list that can be seen as one frame."""

    @property
    def frame(self) -> "pd.DataFrame":
        """All rows, with the columns `method` and `seed` in front."""
        import pandas as pd

        frames = [run.frame.assign(method=run.label, seed=run.seed) for run in self]
        both = pd.concat(frames, ignore_index=True)
        return both[["method", "seed", *both.columns.drop(["method", "seed"])]]


@overload
def simulate(
    method: Method,
    problem: Problem,
    mixing: MixingMatrix,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int = 0,
    eval_every: int | None = None,
    x0: X0 = None,
    record_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Run: ...
@overload
def simulate(
    method: Method | Sequence[Method] | Mapping[str, Method],
    problem: Problem,
    mixing: MixingMatrix,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int | Sequence[int] = 0,
    eval_every: int | None = None,
    x0: X0 = None,
    record_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Runs: ...
def simulate(
    method: Method | Sequence[Method] | Mapping[str, Method],
    problem: Problem,
    mixing: MixingMatrix,
    *,
    rounds: int,
    batch_size: int | None = None,
    seed: int | Sequence[int] = 0,
    eval_every: int | None = None,
    x0: X0 = None,
    record_dir: str | Path | None = None,
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
            `"uniform"` / `"normal"` for one random point a client, with an optional scale as in `"normal:0.1"`.
        record_dir: A folder in which each run's record is written as it grows.
        progress: Called with the label and the number of rounds done, about ten times a second.

    Returns:
        A `Run` for one method and one seed, else `Runs`, a list of them (by method, then by seed). A run that diverges
        stops at that round and says so in `run.diverged`; the other seeds go on.
    """
    check_integer("rounds", rounds, 1)
    if batch_size is not None:
        check_integer("batch_size", batch_size, 1)
    eval_every = max(1, rounds // 100) if eval_every is None else eval_every
    check_integer("eval_every", eval_every, 1)
    seeds = (seed,) if isinstance(seed, int) else tuple(seed)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"`seed` must be one seed or several different ones, got {seed!r}.")
    methods = _labelled(method)
    if problem.clients != mixing.clients:
        raise InputError(f"The problem has {problem.clients} clients, but the mixing matrix {mixing.clients}.")
    for one in methods.values():
        one.check_mixing(mixing.lambda_min)

    runs = Runs()
    for label, one in methods.items():
        simulation = Simulation(one, problem, mixing, seeds, batch_size, x0)
        about = {"label": label, "rounds": rounds, "batch_size": batch_size, "eval_every": eval_every}
        recorder = _Recorder(simulation, about, None if record_dir is None else Path(record_dir))
        runs += recorder.run(rounds, eval_every, progress)
    return runs[0] if isinstance(method, Algorithm) and isinstance(seed, int) else runs


def _labelled(method: Method | Sequence[Method] | Mapping[str, Method]) -> dict[str, Method]:
    if isinstance(method, Algorithm):
        return {method.title: method}
    if isinstance(method, Mapping):
        labelled = dict(method)
    else:
        titles = [getattr(one, "title", str(one)) for one in method]
        # Equal titles are told apart by their settings.
        labelled = {
            title if titles.count(title) == 1 else str(one): one for title, one in zip(titles, method, strict=True)
        }
    for one in labelled.values():
        if not isinstance(one, Algorithm):
            raise InputError(f"A method is an instance such as gossamer.DSGD(lr=0.1), got {one!r}.")
    if not labelled or (isinstance(method, Sequence) and len(labelled) < len(method)):
        raise InputError("`method` must hold at least one method, and no two with the same settings.")
    return labelled


class Simulation:
    """A method under way: call `step` for the next round. `simulate` drives it; tests look inside."""

    def __init__(
        self,
        method: Method,
        problem: Problem,
        mixing: MixingMatrix,
        seeds: Sequence[int] = (0,),
        batch_size: int | None = None,
        x0: X0 = None,
    ) -> None:
        self.method, self.problem, self.mixing = method, problem, mixing
        self.batch_size = batch_size
        self.streams = Streams(seeds, range(problem.clients), problem.device)
        self.mixer = Mixer(mixing, problem.device)
        self.traffic = Traffic()
        self.t = 0
        self.state: State = method.init(_start(x0, problem, self.streams))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that still run."""
        return self.streams.seeds

    def step(self) -> None:
        """One round; a NonFiniteError with the bad rows, and nothing changed, if the models do not stay finite."""
        packets: list[tuple[Message, ...]] = []

        def exchange(*messages: Message | None) -> Arrived:
            sent = tuple(message for message in messages if message is not None)
            if sent:
                packets.append(sent)
            return Arrived(tuple(self.mixer(m.dense()) if m is not None else self.mixer.zero for m in messages))

        round = Round(
            t=self.t,
            lr=self.method.lr,
            oracle=_Oracle(self.problem, self.streams, self.t, self.batch_size),
            random=lambda purpose: self.streams.at(self.t, purpose),
            exchange=exchange,
            dtype=self.problem.dtype,
        )
        state = self.method.step(self.state, round)
        if not torch.isfinite(state.x.sum()):  # one number to look at; the rows are looked for only when it is bad
            bad = (~torch.isfinite(state.x).all(dim=1)).nonzero()[:, 0].tolist()
            if bad:
                raise NonFiniteError("The models are no longer finite.", bad)
        self.state = state
        for sent in packets:
            self.traffic.count(sent, self.t, self.streams.clients, self.mixing)
        self.t += 1

    def models(self) -> Tensor:
        """(seeds, clients, d)."""
        return self.state.x.view(len(self.seeds), self.problem.clients, -1)

    def drop(self, seeds: Sequence[int]) -> None:
        """Go on without these seeds: rows of different seeds never meet, so the others do not notice."""
        keep = [i for i, seed in enumerate(self.seeds) if seed not in seeds]
        shape = (len(self.seeds), self.problem.clients)
        self.state = map_state(self.state, lambda x: x.view(*shape, *x.shape[1:])[keep].flatten(0, 1))
        self.streams = Streams([self.seeds[i] for i in keep], self.streams.clients, self.problem.device)


class Mixer:
    """W times rows, in float64; the sums run in one order, whatever the number of seeds."""

    def __init__(self, mixing: MixingMatrix, device: torch.device) -> None:
        w = torch.tensor(mixing.matrix, dtype=torch.float64, device=device)
        self.w = w.to_sparse_csr() if mixing.clients >= _SPARSE_FROM else w
        self.clients = mixing.clients
        self.zero = torch.zeros((), dtype=torch.float64, device=device)

    def __call__(self, q: Tensor) -> Tensor:
        """Sum_j w_ij q_j for each row i."""
        rows = q.double().view(-1, self.clients, q.shape[1])
        if self.w.layout == torch.strided:
            return (self.w @ rows).view(q.shape)
        return torch.stack([self.w @ one for one in rows]).view(q.shape)


@dataclass
class Traffic:
    """What has been sent so far; fixed-width packets are as long for every seed."""

    packets: int = 0
    bits: float = 0.0
    bits_total: int = 0
    bits_paper: int = 0
    _sizes: dict[Any, tuple[float, int]] = field(default_factory=dict)

    def count(self, messages: tuple[Message, ...], t: int, clients: Sequence[int], mixing: MixingMatrix) -> None:
        """Add one exchange: a packet from each client to each of its neighbours."""
        # Fixed-width sizes depend on little, so they are worked out once: messages, and the bytes that t takes.
        key = (t.bit_length(), *((type(m), m.parameter) for m in messages))
        if key not in self._sizes:
            bits = 8 * packet.sizes(messages, t, clients)
            self._sizes[key] = (float(bits.mean()), int((bits * mixing.degrees).sum()))
        one_link, all_links = self._sizes[key]
        self.packets += 1
        self.bits += one_link
        self.bits_total += all_links
        self.bits_paper += sum(message.bits_paper for message in messages)


class _Oracle:
    """A round's gradients; the minibatch is drawn when it is first asked for, and is the same for the whole round."""

    def __init__(self, problem: Problem, streams: Streams, t: int, batch_size: int | None) -> None:
        self.problem, self.streams, self.t, self.batch_size = problem, streams, t, batch_size
        self._batch: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self.batch_size is not None and self._batch is None:
            self._batch = self.streams.at(self.t, "batch").below(self.problem.rows_per_client, self.batch_size)
        return self.problem.gradient(x, self._batch)

    def full(self, x: Tensor) -> Tensor:
        return self.problem.gradient(x, None)


def _start(x0: X0, problem: Problem, streams: Streams) -> Tensor:
    """(seeds * clients, d) models to start from."""
    n, d, seeds = problem.clients, problem.d, len(streams.seeds)
    if isinstance(x0, str):
        kind, _, scale = x0.partition(":")
        draw = streams.at(0, "x0")
        try:
            points = {"uniform": draw.uniform, "normal": draw.normal}[kind](d) * float(scale or 1)
        except (KeyError, ValueError):
            raise InputError(f"`x0` must be 'uniform' or 'normal', with a scale as in 'normal:0.1'; got {x0!r}.") from None
        return points.to(problem.dtype)
    points = problem.x0() if x0 is None else torch.as_tensor(x0)
    points = points.to(problem.device, problem.dtype)
    if points.shape not in ((d,), (n, d)):
        raise InputError(f"`x0` must be of shape ({d},) or ({n}, {d}), got {tuple(points.shape)}.")
    if not torch.isfinite(points).all():
        raise InputError("`x0` must be finite, but holds NaN or Inf.")
    return points.expand(seeds, n, d).reshape(seeds * n, d).clone()


class _Recorder:
    """Drives a simulation and keeps its records: evaluates many snapshots together, and writes what it measures."""

    def __init__(self, simulation: Simulation, about: dict[str, Any], folder: Path | None) -> None:
        self.simulation = simulation
        self.label = str(about["label"])
        self.folder = folder
        self.records = {seed: Record(self._header(seed, about)) for seed in simulation.seeds}
        self.finals: dict[int, Tensor] = {}
        self.writers: dict[int, RecordWriter] = {}
        self._snapshots: list[tuple[dict[str, Any], tuple[int, ...], Tensor]] = []
        self._flushed = time.monotonic()

    def run(self, rounds: int, eval_every: int, progress: Progress | None) -> Iterator[Run]:
        sim = self.simulation
        if self.folder is not None:
            for seed, record in self.records.items():
                self.writers[seed] = RecordWriter(self.folder / record_name(self.label, seed), record)
        try:
            self._loop(rounds, eval_every, progress)
        finally:
            # An interrupt, too, leaves what was measured on the disk; a record without an end is one that was cut off.
            self._flush()
            for seed, writer in self.writers.items():
                writer.close(self.records[seed].end)
        for seed, record in self.records.items():
            yield Run(self.label, sim.method, seed, record, self.finals[seed])

    def _loop(self, rounds: int, eval_every: int, progress: Progress | None) -> None:
        sim = self.simulation
        seconds, told = 0.0, 0.0
        self._snapshot(0.0)
        while sim.t < rounds and sim.seeds:
            begin = time.perf_counter()
            try:
                sim.step()
            except NonFiniteError as error:
                self._diverged(error)
                continue
            now = time.perf_counter()
            seconds += now - begin
            if sim.t % eval_every == 0 or sim.t == rounds:
                self._snapshot(seconds)
            if progress is not None and (now - told > 0.1 or sim.t == rounds):
                progress(self.label, sim.t)
                told = now
        for seed, x in zip(sim.seeds, sim.models(), strict=True):
            self.finals[seed] = x
            self.records[seed].end = {"status": "finished", "round": rounds}
        if progress is not None:
            progress(self.label, rounds)

    def _diverged(self, error: NonFiniteError) -> None:
        sim = self.simulation
        clients = sim.problem.clients
        bad = sorted({row // clients for row in error.rows})
        self._snapshot_if_new()
        for i in bad:
            seed = sim.seeds[i]
            client = next(row % clients for row in error.rows if row // clients == i)
            reason = (
                f"{self.label} with seed {seed} diverged in round {sim.t + 1}: the model of client {client} is no "
                f"longer finite; {sim.method.remedy()}."
            )
            logger.warning(reason)
            self.finals[seed] = sim.models()[i]
            self.records[seed].end = {"status": "diverged", "round": sim.t + 1, "reason": reason}
        sim.drop([sim.seeds[i] for i in bad])

    def _snapshot_if_new(self) -> None:
        """The last finite state of a run that diverges is worth a row, unless it has one already."""
        last = self._snapshots[-1][0]["round"] if self._snapshots else None
        rows = [record.rows[-1]["round"] for record in self.records.values() if record.rows]
        if self.simulation.t != last and self.simulation.t not in rows:
            self._snapshot(float("nan"))

    def _snapshot(self, seconds: float) -> None:
        sim, traffic = self.simulation, self.simulation.traffic
        row = {
            "round": sim.t,
            "packets": traffic.packets,
            "bits": traffic.bits,
            "bits_total": traffic.bits_total,
            "bits_paper": traffic.bits_paper,
            "seconds": round(seconds, 6),
        }
        models = sim.models()
        self._snapshots.append((row, sim.seeds, models))
        size = models.numel() * models.element_size()
        together = max(1, min(_EVALUATED_TOGETHER, _SNAPSHOT_BYTES // size))
        late = self.folder is not None and time.monotonic() - self._flushed > _FLUSH_SECONDS
        if len(self._snapshots) >= together or late:
            self._flush()

    def _flush(self) -> None:
        snapshots, self._snapshots = self._snapshots, []
        self._flushed = time.monotonic()
        if not snapshots:
            return
        problem = self.simulation.problem
        models = torch.cat([models for _, _, models in snapshots])  # (snapshots and seeds, clients, d)
        average = models.mean(dim=1, dtype=torch.float64)
        measured = problem.evaluate(average)
        measured["consensus"] = (models - average[:, None]).square().sum(dim=2).mean(dim=1)
        accuracy = problem.accuracy(average)
        if accuracy is not None:
            measured["accuracy"] = accuracy
            own = problem.accuracy(models.flatten(0, 1))
            assert own is not None
            measured["worst_accuracy"] = own.view(models.shape[:2]).amin(dim=1)
        columns = {name: values.tolist() for name, values in measured.items()}
        at = 0
        for row, seeds, _ in snapshots:
            for seed in seeds:
                whole = row | {name: values[at] for name, values in columns.items()}
                at += 1
                self.records[seed].rows.append(whole)
                if seed in self.writers:
                    self.writers[seed].row(whole)

    def _header(self, seed: int, about: dict[str, Any]) -> dict[str, Any]:
        sim = self.simulation
        return {
            "gossamer": __version__,
            **about,
            "seed": seed,
            "method": describe_method(sim.method),
            "problem": sim.problem.describe(),
            "mixing": {
                "clients": sim.mixing.clients,
                "edges": sim.mixing.graph.number_of_edges(),
                "rho": sim.mixing.rho,
                "C": sim.mixing.C,
            },
            "device": str(sim.problem.device),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }


def describe_method(method: Method) -> dict[str, Any]:
    """The settings of a method, as plain data."""
    settings = asdict(method) if is_dataclass(method) else {}  # type: ignore[call-overload]
    plain = {k: v if isinstance(v, int | float | str | bool) or v is None else str(getattr(method, k)) for k, v in settings.items()}
    return {"name": method.title, **plain}
