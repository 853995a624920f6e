"""All clients of all seeds as rows of the same tensors: a session over the row exchange, with a problem's gradients."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, State, map_state
from gossamer.algorithms.surrogate import Outgoing
from gossamer.compression.base import Codec
from gossamer.errors import NonFiniteError
from gossamer.kernels import compile_seconds
from gossamer.problems.base import Problem
from gossamer.records.checkpoint import Checkpoint, under
from gossamer.runtime.device.capture import Replayed
from gossamer.runtime.exchange.rows import RowExchange, network_of
from gossamer.runtime.exchange.traffic import Traffic
from gossamer.runtime.gradients.local import LocalSteps
from gossamer.runtime.gradients.oracle import BatchOracle, LocalOracle, of_module
from gossamer.runtime.session import Ahead, Session, Surrogates, UnderWay, check_surrogates
from gossamer.runtime.start import X0, check_common, starting_models
from gossamer.runtime.threads import is_small, threads
from gossamer.streams import Streams
from gossamer.topology.schedule import Mixing

_REHEARSED = 8  # rounds of a rehearsal, at the most
_REHEARSED_FIRST = 2  # of which the first are not timed: they take full gradients, and warm up
_REHEARSED_SECONDS = 0.2  # a rehearsal that took longer ends as soon as one round was timed
_LONG_ROUND = 30.0  # seconds; one such round is enough


class _Next(NamedTuple):
    """What the round after a state comes to: the method's part, the clients' buffers, and what they sent."""

    before: State
    ahead: Ahead
    buffers: dict[str, Tensor]
    packets: list[tuple[Outgoing, ...]]


class Simulation(UnderWay):
    """A method under way: call `step` for the next round. `simulate` drives it; tests look inside."""

    def __init__(
        self,
        method: Algorithm,
        problem: Problem,
        mixing: Mixing,
        seeds: Sequence[int] = (0,),
        batch_size: int | None = None,
        x0: X0 = None,
        codec: Codec = "fixed",
        counts: bool = True,
        surrogates: Surrogates = "float64",
        local: LocalSteps | None = None,
    ) -> None:
        self.local = local
        self.problem, self.mixing, self.batch_size = problem, network_of(method, mixing), batch_size
        streams = Streams(seeds, range(problem.clients), problem.device)
        self.exchange = RowExchange(self.mixing, problem.device)
        start = check_common(method, starting_models(x0, problem, streams), problem.clients)
        self.session = Session(method, self.exchange, streams, start, check_surrogates(surrogates, problem.dtype))
        self.traffic, self._counts = Traffic(self.mixing, seeds, codec), counts
        self._buffers = problem.new_buffers(len(seeds) * problem.clients)
        self._next: _Next | None = None
        self.replayed = Replayed(self)

    @property
    def state(self) -> State:
        """The method's state."""
        self.replayed.leave()
        return self.session.state

    @state.setter
    def state(self, state: State) -> None:
        self.replayed.leave()
        self.session.state = state

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The clients' buffers, such as the running means of batch norm."""
        self.replayed.leave()
        return self._buffers

    @buffers.setter
    def buffers(self, buffers: dict[str, Tensor]) -> None:
        self._buffers = buffers

    @property
    def compression_error(self) -> Tensor | None:
        """(rows,): the share of its messages that the compressor left out, when it was last measured."""
        return self.session.compression_error

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that still run."""
        return self.session.streams.seeds

    @property
    def is_alive(self) -> bool:
        """Whether any seed still runs."""
        return bool(self.seeds)

    def step(self, *, measure: bool = False) -> None:
        """One round; a NonFiniteError with the bad rows, and nothing changed, if the models do not stay finite.

        With `measure`, how much the compressor left out is noted on the way.
        """
        if not measure and self._next is None and self.replayed.step():
            return
        following, self._next = self._known() or self._look_ahead(measure), None
        self.count(following.packets)
        self.session.take(following.ahead)
        self.buffers = following.buffers

    def count(self, packets: Sequence[tuple[Outgoing, ...]]) -> None:
        """Count what was sent in this round."""
        for sent in packets if self._counts else ():
            self.traffic.count(sent, self.t, self.seeds)

    def peek(self) -> State:
        """The state after the next round, without going there."""
        self._next = self._known() or self._look_ahead(measure=True)
        return self._next.ahead.state

    def rehearse(self) -> float | None:
        """The seconds that a round takes, from a few that are not kept; None if the models do not stay finite in them.

        A step is pure: the simulation is then where it was before.
        """
        session, buffers = self.session, self.buffers
        kept, seconds = (session.state, session.t, session.compression_error), list[float]()
        try:
            with torch.no_grad():
                while len(seconds) < _REHEARSED:
                    begin = time.perf_counter() - compile_seconds()
                    following = self._look_ahead(measure=False)
                    if self.problem.device.type == "cuda":
                        torch.cuda.synchronize(self.problem.device)
                    seconds.append(time.perf_counter() - compile_seconds() - begin)
                    session.take(following.ahead)
                    self.buffers = following.buffers
                    enough = len(seconds) > _REHEARSED_FIRST and sum(seconds) > _REHEARSED_SECONDS
                    if enough or seconds[-1] > _LONG_ROUND:
                        break
        except NonFiniteError:
            return None
        finally:
            (session.state, session.t, session.compression_error), self.buffers = kept, buffers
        timed = seconds[_REHEARSED_FIRST:] or seconds[-1:]
        return sum(timed) / len(timed)

    def _known(self) -> _Next | None:
        return self._next if self._next is not None and self._next.before is self.state else None

    def _look_ahead(self, measure: bool) -> _Next:
        """What the next round comes to; nothing is changed."""
        self.replayed.leave()
        session = self.session
        given = self.problem, session.streams, self.t, self.batch_size, self.buffers
        oracle = BatchOracle(*given) if self.local is None else LocalOracle(self.local, *given)
        few = 1 if is_small(self.problem, len(session.state.x), self.batch_size) else None
        with threads(few):
            ahead = session.look_ahead(oracle, session.method.lr_at(self.t), measure=measure)
        return _Next(session.state, ahead, oracle.buffers, self.exchange.packets)

    def models(self) -> Tensor:
        """(seeds, clients, d)."""
        x: Tensor = self.state.x
        return x.view(len(self.seeds), self.problem.clients, self.problem.d)

    def snapshot(self) -> Tensor:
        """(seeds, clients, d or more): the models as they are measured, with their buffers behind them."""
        x: Tensor = self.problem.with_buffers(self.state.x, of_module(self.buffers))
        return x.view(len(self.seeds), self.problem.clients, x.shape[1])

    def drop(self, seeds: Sequence[int]) -> None:
        """Go on without these seeds: rows of different seeds never meet, so the others do not notice."""
        self.keep([i for i, seed in enumerate(self.seeds) if seed not in seeds])

    def keep(self, places: Sequence[int]) -> None:
        """Go on with the seeds at these places only."""
        self.replayed.leave()
        session, shape = self.session, (len(self.seeds), self.problem.clients)

        def kept(x: Tensor) -> Tensor:
            return x.view(*shape, *x.shape[1:])[places].flatten(0, 1)

        session.state = map_state(session.state, kept)
        session.compression_error = None
        self.buffers = {name: kept(buffer) for name, buffer in self.buffers.items()}
        session.streams = Streams([self.seeds[i] for i in places], session.streams.clients, self.problem.device)

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts from which `restore` goes on."""
        self.replayed.leave()
        tensors = self.session.save() | {f"buffers.{name}": buffer for name, buffer in self.buffers.items()}
        return tensors, {"t": self.t, "seeds": list(self.seeds), "traffic": self.traffic.counts()}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be where a simulation with the same settings was when it was saved."""
        self.replayed.leave()
        self.drop([seed for seed in self.seeds if seed not in checkpoint.facts["seeds"]])
        self.session.restore(checkpoint.facts["t"], checkpoint.tensors)
        self.buffers = under("buffers.", checkpoint.tensors, self.problem.device)
        self.traffic.restore(checkpoint.facts["traffic"])
