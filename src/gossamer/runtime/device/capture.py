"""Whole rounds on a GPU as a CUDA graph: one launch per round instead of a hundred.

A round of ten clients is some dozens of kernels that take less time than their launches. Once they are recorded, with
the minibatch, the gradient, the messages and the sums of the neighbours, a round is one launch. The host waits for
the device only when someone asks for the state.

The number of the round and the step size are tensors that the graph reads. The state is kept in fixed memory: at its
end, the graph copies the new state over the old one. Copying a large state would cost more than its launches, so rounds
of large states are not recorded.

Whether the models stay finite is noted on the device, with the number of the first round in which they did not. The
note is read when the state is asked for, and every few hundred rounds. If it is bad, the simulation goes back to the
last state that was seen to be good, replays the rounds before the bad one, and takes the bad one without a graph, which
then raises the same error as if there had never been one.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from gossamer.algorithms.base import State, map_state
from gossamer.kernels.pool import Call, recording
from gossamer.runtime.device.tape import BadRound, OnlyKernels, Tape, Unfit, compared
from gossamer.runtime.oracle import BatchOracle
from gossamer.runtime.session import total_of

if TYPE_CHECKING:
    from gossamer.runtime.simulation import Simulation

logger = logging.getLogger("gossamer")

_COMPARED = 3  # replayed rounds that are compared with real ones before any is used
_WARM = 3  # rounds of one shape before recording: kernels are compiled, and libraries choose theirs
_LARGEST = 256 << 20  # bytes of a state; copying so much takes 0.12 ms on an H200, as long as launching a round does
_LARGEST_CPU = 1 << 20  # copying so much takes as long as the calls that a tape saves
_CHECKED = 256  # rounds between two looks at the note
_NEVER = -1  # the first bad round, as long as there is none


class Later:
    """The number of any round from `least` on: it can be compared with smaller numbers, and that is all.

    A method that does more with it, such as computing a period, does not do the same in every round.
    """

    def __init__(self, least: int) -> None:
        self._least = least

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self._is_above(other, strictly=True) and False

    def __ne__(self, other: object) -> bool:
        return self._is_above(other, strictly=True)

    def __lt__(self, other: object) -> bool:
        return not self._is_above(other)

    def __ge__(self, other: object) -> bool:
        return self._is_above(other)

    def __le__(self, other: object) -> bool:
        return not self._is_above(other, strictly=True)

    def __gt__(self, other: object) -> bool:
        return self._is_above(other, strictly=True)

    __hash__ = None  # type: ignore[assignment]

    def _is_above(self, other: object, *, strictly: bool = False) -> bool:
        """True; an error where that is not known of all later rounds."""
        if not isinstance(other, int) or other > self._least - strictly:
            raise Unfit(f"the method compares the number of the round with {other!r}")
        return True


class _Good(NamedTuple):
    """Where the simulation was when it was last seen to be good."""

    t: int
    state: State
    buffers: dict[str, Tensor]
    traffic: Any


@dataclass
class _Recorded:
    """A graph, and the memory that it reads and writes."""

    key: tuple[object, ...]
    state: State
    buffers: dict[str, Tensor]
    t: Tensor
    lr: Tensor
    bad: Tensor
    """The first round whose models were not finite."""
    graph: Any
    """A CUDA graph, or on a CPU a tape."""
    packets: list[Any]
    last_lr: object = None

    def replay(self, lr: float | Tensor) -> None:
        """The next round."""
        if isinstance(lr, Tensor):
            self.lr.copy_(lr)
        elif lr != self.last_lr:
            self.lr.fill_(lr)
            self.last_lr = lr
        self.graph.replay()


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

    def step(self) -> bool:
        """The next round, if it can be replayed."""
        is_exact = not self._sim.session.state.x.is_cuda  # a tape never has to go back
        if not (self.is_allowed or is_exact) or self._refused or not self._is_ready():
            return False
        sim = self._sim
        if self._good is not None and sim.t - self._good.t >= _CHECKED:
            self.leave()
        if sim.t == self._doubtful:
            return False
        recorded = self._recorded
        assert recorded is not None
        if self._good is None:
            self._enter(recorded)
        try:
            self._replay(recorded)
        except BadRound:
            self.leave()
            self._doubtful = sim.t
            return False
        return True

    def leave(self) -> None:
        """Give the simulation a state of its own, seen to be good."""
        recorded, good, sim = self._recorded, self._good, self._sim
        if recorded is None or good is None:
            return
        bad = int(recorded.bad)
        self._good = None
        if bad != _NEVER:
            self._doubtful = bad
            self._write(recorded, good.state, good.buffers, good.t)
            sim.session.t = good.t
            sim.traffic.restore(good.traffic)
            while sim.session.t < bad:
                self._replay(recorded)
        sim.session.state = map_state(recorded.state, torch.clone)
        sim.buffers = {name: buffer.clone() for name, buffer in recorded.buffers.items()}

    def _enter(self, recorded: _Recorded) -> None:
        sim = self._sim
        state = map_state(sim.session.state, lambda x: x)
        self._write(recorded, state, sim.buffers, sim.t)
        # A step never changes its state, so the old one is still there when it is needed again.
        self._good = _Good(sim.t, state, sim.buffers, sim.traffic.counts())
        sim.session.state = recorded.state

    def _replay(self, recorded: _Recorded) -> None:
        sim = self._sim
        recorded.replay(sim.session.method.lr_at(sim.session.t))
        sim.count(recorded.packets)
        sim.session.t += 1

    def _write(self, recorded: _Recorded, state: State, buffers: dict[str, Tensor], t: int) -> None:
        _copy([*_tensors(recorded.state), *recorded.buffers.values()], [*_tensors(state), *buffers.values()])
        recorded.t.fill_(t)
        recorded.bad.fill_(_NEVER)

    def _is_ready(self) -> bool:
        """Whether rounds like the next one are recorded; after a few of them, they are."""
        session = self._sim.session
        key = (session.method, session.streams, session.state.x.shape)
        if len(self._key) != len(key) or any(a is not b and a != b for a, b in zip(self._key, key, strict=True)):
            self._key, self._warm, self._recorded, self._good, self._doubtful = key, 0, None, None, None
        if self._recorded is not None:
            return True
        self._warm += 1
        if self._warm <= _WARM or session.t == 0:
            return False
        reason = self._reason()
        if reason is None:
            try:
                self._recorded = _record(self._sim, key)
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
        if os.environ.get("GOSSAMER_GRAPH") == "0":
            return "GOSSAMER_GRAPH is 0"
        if sim.exchange.edges is not None:
            return "the network changes"
        size = sum(x.numel() * x.element_size() for x in _tensors(sim.session.state))
        return f"the state has {size >> 20} MiB" if size > (_LARGEST if is_cuda else _LARGEST_CPU) else None


def _record(sim: "Simulation", key: tuple[object, ...]) -> _Recorded:
    """Rehearse a round, which must not look at the device, and record it."""
    session, device = sim.session, sim.session.state.x.device
    before = session.state
    lr = session.method.lr_at(session.t)
    state = map_state(session.state, torch.clone)
    buffers = {name: buffer.clone() for name, buffer in sim.buffers.items()}
    recorded = _Recorded(
        key=key,
        state=state,
        buffers=buffers,
        t=torch.full((), session.t, dtype=torch.int64, device=device),
        lr=torch.as_tensor(lr, dtype=lr.dtype if isinstance(lr, Tensor) else torch.float64, device=device).clone(),
        bad=torch.full((), _NEVER, dtype=torch.int64, device=device),
        graph=None,
        packets=[],
    )
    session.state = state
    if device.type == "cpu":
        try:
            _record_tape(sim, recorded)
        finally:
            session.state = before
        return recorded
    recorded.graph = torch.cuda.CUDAGraph()
    try:
        here, beside = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            _round(sim, recorded)  # kernels that are new are compiled here
            mode = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")
            try:
                _round(sim, recorded)
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        here.wait_stream(beside)
        with torch.cuda.graph(recorded.graph):
            _round(sim, recorded)
        recorded.packets = list(sim.exchange.packets)
    finally:
        session.state = before
    return recorded


def _round(sim: "Simulation", recorded: _Recorded) -> None:
    """A round in the memory of a graph."""
    session = sim.session
    oracle = BatchOracle(sim.problem, session.streams, recorded.t, sim.batch_size, recorded.buffers)
    any_round = cast(int, Later(session.t))
    new, doubts = session.attempt(oracle, recorded.lr, any_round, recorded.t)
    total = total_of(new, doubts)
    new = map_state(new, lambda x: x)
    is_new = ~torch.isfinite(total) & (recorded.bad == _NEVER)
    recorded.bad.copy_(torch.where(is_new, recorded.t, recorded.bad))
    kept = [*_tensors(recorded.state), *recorded.buffers.values()]
    own = {x.untyped_storage().data_ptr() for x in kept}
    made = [*_tensors(new), *oracle.buffers.values()]
    # What is only handed on would be overwritten before it is copied.
    made = [
        x if x is one or x.untyped_storage().data_ptr() not in own else x.clone()
        for x, one in zip(made, kept, strict=True)
    ]
    _copy(kept, made)
    recorded.t += 1


def _record_tape(sim: "Simulation", recorded: _Recorded) -> None:
    """Note the kernels of a round, and compare the rounds that they repeat with real ones."""
    session, calls = sim.session, list[Call]()
    oracle = BatchOracle(sim.problem, session.streams, recorded.t, sim.batch_size, {})
    with recording(calls), OnlyKernels():  # type: ignore[no-untyped-call]
        new, _ = session.attempt(oracle, recorded.lr, cast(int, Later(session.t)), recorded.t)
        new = map_state(new, lambda x: x)
    kept, made = _tensors(recorded.state), _tensors(new)
    own = {x.data_ptr() for x in kept}
    if any(a is not b and b.data_ptr() in own for a, b in zip(kept, made, strict=True)):
        raise Unfit("a round hands a tensor on from one letter to another")
    recorded.graph = Tape(calls, new.x, list(zip(kept, made, strict=True)), recorded.t)
    recorded.packets = list(sim.exchange.packets)
    start, t = map_state(recorded.state, torch.clone), session.t
    expected, found = [], []
    for again in range(_COMPARED):
        lr = session.method.lr_at(t + again)
        oracle = BatchOracle(sim.problem, session.streams, t + again, sim.batch_size, {})
        session.state = map_state(session.state if again else start, lambda x: x)
        session.state, _ = session.attempt(oracle, lr, t + again, t + again)
        expected.append(_tensors(session.state))
    for again in range(_COMPARED):
        recorded.replay(session.method.lr_at(t + again))
        found.append(_tensors(map_state(recorded.state, torch.clone)))
    if not all(compared(a, b) for a, b in zip(expected, found, strict=True)):
        raise Unfit("a replayed round is not the same as a real one")


def _copy(to: list[Tensor], what: list[Tensor]) -> None:
    pairs = [(a, b) for a, b in zip(to, what, strict=True) if a is not b]
    if pairs:
        torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])


def _tensors(state: State) -> list[Tensor]:
    """The tensors of a state, in their order."""
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    collect: Callable[[Tensor], Tensor] = note
    map_state(state, collect)
    return found
