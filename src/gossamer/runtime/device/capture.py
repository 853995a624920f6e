"""Whole rounds on a GPU as a CUDA graph: one launch per round instead of a hundred.

A round of ten clients is some dozens of kernels that take less time than their launches. Once they are recorded, with
the minibatch, the gradient, the messages and the sums of the neighbours, a round is one launch. The host waits for
the device only when someone asks for the state.

The number of the round and the step size are tensors that the graph reads. The state is kept in fixed memory: at its
end, a graph copies the new state over the old one. Eight rounds are recorded in one graph, so that they share the copy,
and one round in another, for what is left. A round that is asked for is owed until there are eight, or until someone
asks for the state. Of large states the copies cost more than their launches do, so those are not recorded.

Whether the models stay finite is noted on the device, with the number of the first round in which they did not. The
note is read when the state is asked for, and every few hundred rounds. If it is bad, the simulation goes back to the
last state that was seen to be good, replays the rounds before the bad one, and takes the bad one without a graph, which
then raises the same error as if there had never been one.
"""

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from gossamer.algorithms.base import State, map_state
from gossamer.kernels import note_bad, undisturbed
from gossamer.kernels.buffers import Noted, noting
from gossamer.kernels.pool import Call, recording
from gossamer.runtime.device.tape import BadRound, Later, OnlyKernels, Side, Tape, Unfit, compared, there_and_back
from gossamer.runtime.gradients.oracle import BatchOracle

if TYPE_CHECKING:
    from gossamer.runtime.simulation import Simulation

logger = logging.getLogger("gossamer")

_COMPARED = 3  # rounds of a tape that are compared with real ones before any is used
_WARM = 3  # rounds of one shape before recording: kernels are compiled, and libraries choose theirs
_LARGEST = 4 << 30  # bytes of a state; an eighth of a copy takes 0.25 ms on an H200, launching kernel by kernel 1 ms
_LARGEST_CPU = 128 << 20  # a tape needs memory for three more states
_TOGETHER = 8  # rounds in one graph
_COPIES = 6  # states that fit beside the present one: those of the graphs, and what a round needs on its way
_CHECKED = 256  # rounds between two looks at the note
_NEVER = 1 << 62  # the first bad round, as long as there is none


class _Good(NamedTuple):
    """Where the simulation was when it was last seen to be good."""

    t: int
    state: State
    buffers: dict[str, Tensor]
    traffic: Any


@dataclass
class _Recorded:
    """Graphs, and the memory that they read and write."""

    state: State
    buffers: dict[str, Tensor]
    t: Tensor
    lr: Tensor
    """(_TOGETHER, ...): the step sizes of the rounds of a graph."""
    bad: Tensor
    """The first round whose models were not finite."""
    packets: list[Any]
    graphs: dict[int, Any]
    """CUDA graphs by the number of rounds; on a CPU, the tape of one."""
    owed: list[float | Tensor]
    """The step sizes of the rounds that were asked for, and not replayed yet."""
    given: list[float | Tensor | None]
    """The step sizes that `lr` holds."""

    def replay(self, rounds: int) -> None:
        """So many of the rounds that are owed."""
        now, self.owed = self.owed[:rounds], self.owed[rounds:]
        for k, lr in enumerate(now):
            if isinstance(lr, Tensor):
                self.lr[k].copy_(lr)
            elif lr != self.given[k]:
                self.lr[k].fill_(lr)
                self.given[k] = lr
        side = self.graphs[rounds].replay()
        if side is not None:  # a tape moves the state
            self.state, self.packets = side.state, side.packets

    def pay(self) -> None:
        """All rounds that are owed."""
        while self.owed:
            self.replay(1)

    def finish(self) -> None:
        """All rounds that are owed, to their ends: the state is then there."""
        self.pay()
        if isinstance(self.graphs[1], Tape):
            self.graphs[1].finish()


class Replayed:
    """The rounds of a simulation that are replayed, where that is possible and faster.

    After them the state may turn out to be bad, and the simulation to be some rounds back: whoever allows it, by
    `is_allowed`, reads the number of the round after the state.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._sim = simulation
        self.is_allowed = False
        self._key: tuple[object, ...] = ()
        self._warm, self._refused = 0, False
        self._recorded: _Recorded | None = None
        self._good: _Good | None = None
        self._doubtful: int | None = None
        self._is_looked_at = False

    def step(self) -> bool:
        """The next round, if it can be replayed."""
        sim = self._sim
        is_exact = not sim.session.state.x.is_cuda  # a tape is asked in every round
        if not (self.is_allowed or is_exact) or self._refused or not self._is_ready():
            return False
        if self._good is not None and sim.t - self._good.t >= _CHECKED:
            self.leave()
        if sim.t == self._doubtful:
            return False
        recorded = self._recorded
        assert recorded is not None
        if self._good is None:
            self._enter(recorded)
        try:
            with self._redone(recorded):
                self._take(recorded)
        except BadRound:
            self.leave()
            return False
        return True

    @contextlib.contextmanager
    def _redone(self, recorded: _Recorded) -> Iterator[None]:
        """Have the rounds since the last good state done again if a tape was interrupted: it writes in place."""
        try:
            yield
        except BaseException:
            if not recorded.t.is_cuda:
                recorded.owed.clear()
                recorded.bad.fill_(self._sim.session.t)
            raise

    def leave(self) -> None:
        """Give the simulation a state of its own, seen to be good."""
        recorded, good, sim = self._recorded, self._good, self._sim
        if recorded is None or good is None:
            return
        with self._redone(recorded):
            recorded.finish()
            bad = int(recorded.bad)
            if bad != _NEVER:
                self._doubtful = bad
                self._write(recorded, good.state, good.buffers, good.t)
                sim.session.t = good.t
                sim.traffic.restore(good.traffic)
                while sim.session.t < bad:
                    self._take(recorded)
                recorded.finish()
        self._good = None
        sim.session.state = map_state(recorded.state, torch.clone)
        sim.buffers = {name: buffer.clone() for name, buffer in recorded.buffers.items()}

    def _enter(self, recorded: _Recorded) -> None:
        sim = self._sim
        state = map_state(sim.session.state, lambda x: x)
        self._write(recorded, state, sim.buffers, sim.t)
        # A step never changes its state, so the old one is still there when it is needed again.
        self._good = _Good(sim.t, state, sim.buffers, sim.traffic.counts())
        sim.session.state = recorded.state

    def _take(self, recorded: _Recorded) -> None:
        """The next round: at once if its packets are to be looked at, else when there are enough."""
        sim, session = self._sim, self._sim.session
        recorded.owed.append(session.method.lr_at(session.t))
        most = max(recorded.graphs)
        if self._is_looked_at:
            recorded.pay()
        elif len(recorded.owed) == most:
            recorded.replay(most)
        sim.count(recorded.packets)
        session.t += 1

    def _write(self, recorded: _Recorded, state: State, buffers: dict[str, Tensor], t: int) -> None:
        _copy([*_tensors(recorded.state), *recorded.buffers.values()], [*_tensors(state), *buffers.values()])
        recorded.t.fill_(t)
        recorded.bad.fill_(_NEVER)

    def _is_ready(self) -> bool:
        """Whether rounds like the next one are recorded; after a few of them, they are."""
        session = self._sim.session
        key = (session.method, session.streams)  # whoever changes the rows changes the streams
        if not self._key or any(a is not b for a, b in zip(self._key, key, strict=True)):
            self._key, self._warm, self._recorded, self._good, self._doubtful = key, 0, None, None, None
        if self._recorded is not None:
            return True
        self._warm += 1
        if self._warm <= _WARM or session.t == 0:
            return False
        reason = self._reason()
        if reason is None:
            try:
                self._recorded = _record(self._sim)
                self._is_looked_at = not self._sim.traffic.counts_blindly(self._recorded.packets)
            except Exception as error:  # a method, a problem or a library may do anything
                reason = str(error).split("\n")[0]
        if reason is not None:
            self._refused = True
            logger.debug("Rounds are launched kernel by kernel: %s.", reason)
        return self._recorded is not None

    def _reason(self) -> str | None:
        """Why rounds are not recorded, as far as that is known without trying."""
        sim = self._sim
        is_cuda = sim.session.state.x.is_cuda
        if not is_cuda and (sim.problem.has_buffers or sim.problem.is_random):
            return "the gradients are not a kernel's"
        if is_cuda and not sim.problem.is_replayable:
            return "the gradients are a user's own code, which may do more than launch kernels"
        if os.environ.get("GOSSAMER_GRAPH") == "0":
            return "GOSSAMER_GRAPH is 0"
        if sim.exchange.edges is not None:
            return "the network changes"
        if sim.local is not None:
            return "the local steps are an optimiser's own code"
        size = sum(x.numel() * x.element_size() for x in _tensors(sim.session.state))
        if size > (_LARGEST if is_cuda else _LARGEST_CPU):
            return f"the state has {size >> 20} MiB"
        if not is_cuda:
            return None
        free = torch.cuda.mem_get_info(sim.session.state.x.device)[0] + _unused()
        return f"{free >> 20} MiB of memory are too few" if free < _COPIES * size else None


def _prepared(sim: "Simulation") -> _Recorded:
    """The memory of graphs."""
    session, device = sim.session, sim.session.state.x.device
    lr = torch.as_tensor(session.method.lr_at(session.t), device=device)
    lr = lr if lr.dim() else lr.double()  # in a column, in the type of the models
    return _Recorded(
        state=map_state(session.state, torch.clone),
        buffers={name: buffer.clone() for name, buffer in sim.buffers.items()},
        t=torch.full((), session.t, dtype=torch.int64, device=device),
        lr=lr.expand(_TOGETHER, *lr.shape).clone(),
        bad=torch.full((), _NEVER, dtype=torch.int64, device=device),
        packets=[],
        graphs={},
        owed=[],
        given=[None] * _TOGETHER,
    )


def _record(sim: "Simulation") -> _Recorded:
    """Rehearse a round, which must not look at the device, and record it."""
    recorded, device = _prepared(sim), sim.session.state.x.device
    if device.type == "cpu":
        _record_tape(sim, recorded)
        return recorded
    here, beside = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    beside.wait_stream(here)
    with torch.cuda.stream(beside), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that looks at the device are not all noticed
        _rounds(sim, recorded, 1)  # kernels that are new are compiled here
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            _rounds(sim, recorded, 1)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    here.wait_stream(beside)
    for rounds in (_TOGETHER, 1):  # the packets are those of the last: where they are looked at, rounds go one by one
        graph = torch.cuda.CUDAGraph()
        pool = recorded.graphs[_TOGETHER].pool() if recorded.graphs else None  # they never run at the same time
        with undisturbed(), torch.cuda.graph(graph, pool=pool):
            recorded.packets = _rounds(sim, recorded, rounds)
        recorded.graphs[rounds] = graph
    return recorded


def _rounds(sim: "Simulation", recorded: _Recorded, count: int) -> list[Any]:
    """Rounds in the memory of a graph; what the last one sent."""
    session = sim.session
    before, any_round = session.state, cast(int, Later(session.t))
    state, buffers = recorded.state, recorded.buffers
    try:
        for k in range(count):
            session.state = state
            oracle = BatchOracle(sim.problem, session.streams, recorded.t, sim.batch_size, buffers)
            state, doubts = session.attempt(oracle, recorded.lr[k], any_round, recorded.t)
            state, buffers = map_state(state, lambda x: x), oracle.buffers
            note_bad(recorded.bad, recorded.t, state.x, *(numbers for numbers, _ in doubts))
            recorded.t += 1
    finally:
        session.state = before
    kept = [*_tensors(recorded.state), *recorded.buffers.values()]
    own = {x.untyped_storage().data_ptr() for x in kept}
    made = [*_tensors(state), *buffers.values()]
    # What is only handed on would be overwritten before it is copied.
    made = [
        x if x is one or x.untyped_storage().data_ptr() not in own else x.clone()
        for x, one in zip(made, kept, strict=True)
    ]
    _copy(kept, made)
    return list(sim.exchange.packets)


def _record_tape(sim: "Simulation", recorded: _Recorded) -> None:
    """Note the kernels of a round and of one back, and compare the rounds that they repeat with real ones."""
    session, before, t = sim.session, sim.session.state, sim.session.t
    try:
        tried, noted = _noted_round(sim, recorded, recorded.state, None)
        sent = {part.data_ptr() for packet in tried.packets for one in packet for part in _parts(one)}
        memory = there_and_back(_tensors(recorded.state), _tensors(tried.state), noted, sent)
        there, _ = _noted_round(sim, recorded, recorded.state, memory[0])
        back, _ = _noted_round(sim, recorded, there.state, memory[1])
        both = zip(_tensors(recorded.state), _tensors(back.state), strict=True)
        if any(a.data_ptr() != b.data_ptr() for a, b in both):
            raise Unfit("a round does not come back to where it began")
        recorded.graphs = {1: Tape((there, back), recorded.t)}
        recorded.packets = there.packets
        real = map_state(before, lambda x: x)
        _copy(_tensors(recorded.state), _tensors(real))
        for again in range(_COMPARED):
            lr, session.state = session.method.lr_at(t + again), real
            oracle = BatchOracle(sim.problem, session.streams, t + again, sim.batch_size, {})
            real = map_state(session.attempt(oracle, lr, t + again, t + again)[0], lambda x: x)
            recorded.owed.append(lr)
            recorded.finish()
            if not compared(_tensors(real), _tensors(recorded.state)):
                raise Unfit("a replayed round is not the same as a real one")
    finally:
        session.state = before


def _noted_round(sim: "Simulation", recorded: _Recorded, state: State, given: list[Any] | None) -> tuple[Side, Noted]:
    """The kernels of a round from a state on, in the memory that is given, and the memory that they asked for."""
    session, calls, noted = sim.session, list[Call](), Noted(given)
    session.state = state
    oracle = BatchOracle(sim.problem, session.streams, recorded.t, sim.batch_size, {})
    with recording(calls), noting(noted), OnlyKernels():  # type: ignore[no-untyped-call]
        new, _ = session.attempt(oracle, recorded.lr[0], cast(int, Later(session.t)), recorded.t)
        new = map_state(new, lambda x: x)
    return Side(calls, new, list(sim.exchange.packets)), noted


def _parts(message: Any) -> list[Tensor]:
    """The tensors that a message is made of."""
    return [part for part in vars(message).values() if isinstance(part, Tensor)]


def _unused() -> int:
    """Bytes that torch holds and nobody uses."""
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def _copy(to: list[Tensor], what: list[Tensor]) -> None:
    for a, b in zip(to, what, strict=True):
        if a is not b and a.is_floating_point():
            torch.mul(b, 1, out=a)  # a kernel copies nearly twice as fast as CUDA's own copy does in a graph
        elif a is not b:
            a.copy_(b)


def _tensors(state: State) -> list[Tensor]:
    """The tensors of a state, in their order."""
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    collect: Callable[[Tensor], Tensor] = note
    map_state(state, collect)
    return found
