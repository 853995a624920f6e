"""A history again, in one process: the same models as those who lived it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm
from gossamer.compression.base import Codec
from gossamer.errors import DataError
from gossamer.problems.base import Problem
from gossamer.runtime.gradients.local import LocalSteps
from gossamer.runtime.gradients.oracle import BatchOracle, LocalOracle
from gossamer.runtime.open.history import (
    Begin,
    Close,
    Event,
    Forget,
    Gone,
    History,
    Inherit,
    Leave,
    Open,
    Release,
    Step,
)
from gossamer.runtime.open.member import Debt, Member, check_open
from gossamer.runtime.open.terms import Contents
from gossamer.runtime.start import X0, check_common, starting_models
from gossamer.streams import Streams
from gossamer.topology import Mixing

Left = dict[int, Debt]


class Replay:
    """All clients of a history. `run` plays it to the end; `advance` one event of one client, for tests."""

    def __init__(
        self,
        method: Algorithm,
        problem: Problem,
        mixing: Mixing,
        history: History,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        x0: X0 = None,
        codec: Codec = "fixed",
        run: int = 0,
        local: LocalSteps | None = None,
    ) -> None:
        check_open(method, mixing)
        if not history:
            raise DataError("The history has no clients.")
        for i in history:
            if not 0 <= i < problem.clients:
                raise DataError(f"The history has client {i}, but the problem has clients 0 to {problem.clients - 1}.")
        self.method, self.problem, self.mixing, self.batch_size = method, problem, mixing, batch_size
        self.local = local
        self.seed, self.codec, self.run_number = seed, codec, run
        self.members: dict[int, Member] = {}
        """Those who are present."""
        self.left: dict[int, Member] = {}
        """Those who left or were lost, as they last were."""
        self._history = {client: list(events) for client, events in history.items()}
        self._at = dict.fromkeys(self._history, 0)
        self._starts: dict[int, Tensor] = {
            i: starting_models(x0, problem.only(i), Streams([seed], [i], problem.device)) for i in self._history
        }
        check_common(method, torch.cat(list(self._starts.values())), len(self._starts))
        self._problems = {i: problem.only(i) for i in self._history}
        self._packets: dict[tuple[int, int, int, int], bytes] = {}
        self._models: dict[tuple[int, int, int], Tensor] = {}
        self._buffers: dict[int, dict[str, Tensor]] = {}
        self._handed: dict[tuple[int, int], Left] = {}

    def run(self) -> dict[int, Member]:
        """Play all events; the members that are present at the end, by client."""
        with torch.no_grad():
            while True:
                moved = False
                for client in self._history:
                    while self.advance(client):
                        moved = True
                if all(at == len(self._history[i]) for i, at in self._at.items()):
                    return self.members
                if not moved:
                    stuck = {i: self._history[i][at] for i, at in self._at.items() if at < len(self._history[i])}
                    client, event = next(iter(stuck.items()))
                    raise DataError(f"The history cannot go on: {event} of client {client} needs what nobody sent.")

    def next_event(self, client: int) -> Event | None:
        """What happens to a client next."""
        events, at = self._history[client], self._at[client]
        return events[at] if at < len(events) else None

    def advance(self, client: int) -> bool:
        """The next event of a client; False if there is none, or if it needs what others have not done yet."""
        event = self.next_event(client)
        try:
            if event is None or not self._do(client, event):
                return False
        except (KeyError, ValueError) as error:
            if isinstance(event, Step) and isinstance(error, ValueError):
                raise  # of the method or the problem
            raise DataError(f"The history of client {client} has {event}, which is not possible there.") from None
        self._at[client] += 1
        return True

    def _do(self, client: int, event: Event) -> bool:
        if isinstance(event, Begin):
            return self._begin(client, event)
        member = self.members.get(client)
        if member is None:
            raise DataError(f"The history of client {client} has {event} before it begins.")
        if isinstance(event, Open):
            return self._open(member, event)
        if isinstance(event, Step):
            return self._step(member, event.neighbors)
        if isinstance(event, Close):
            member.close(event.neighbor)
        elif isinstance(event, Forget):
            member.forget(event.number)
        elif isinstance(event, Gone):
            self.left[client] = self.members.pop(client)
        elif isinstance(event, Leave):
            return self._leave(member, event)
        else:
            return self._part(member, event)
        return True

    def _leave(self, member: Member, event: Leave) -> bool:
        packets = self._next(member, event.neighbors)
        if packets is None:
            return False
        member.absorb(packets)
        if event.heir is not None:
            self._handed[member.client, member.edges[event.heir].number] = member.hand_over(event.heir)
        self.left[member.client] = self.members.pop(member.client)
        return True

    def _part(self, member: Member, event: Release | Inherit) -> bool:
        """A neighbour left on purpose."""
        neighbor, number = event.neighbor, member.edges[event.neighbor].number
        left = self._handed.get((neighbor, number))
        if isinstance(event, Inherit) and left is None:
            return False
        packets = self._next(member, [neighbor] if event.has_packet else [])
        if packets is None:
            return False
        member.absorb(packets)
        if isinstance(event, Release):
            member.release(neighbor, event.heir)
        elif left is not None:
            member.inherit(neighbor, left)
        return True

    def _begin(self, client: int, event: Begin) -> bool:
        x = self._starts[client]
        if event.via is not None:
            given = self._models.get((event.via, client, event.number))
            if given is None:
                return False
            x = given
        if client in self.members:
            self.left[client] = self.members.pop(client)
        how = {"seed": self.seed, "codec": self.codec, "run": self.run_number}
        self.members[client] = Member(self.method, self.mixing, client, x, t=event.t, **how)  # type: ignore[arg-type]
        self._buffers[client] = self.problem.new_buffers(1)
        return True

    def _open(self, member: Member, event: Open) -> bool:
        model = None
        if event.start == "own":
            model = self._models[member.client, event.neighbor, event.number] = member.state.x
        elif event.start == "theirs":
            model = self._models.get((event.neighbor, member.client, event.number))
            if model is None:
                return False
        member.open(event.neighbor, event.number, model)
        return True

    def _next(self, member: Member, neighbors: Sequence[int]) -> dict[int, Contents] | None:
        """The next packet of each of these neighbours; None if one is not there yet."""
        for j in neighbors:
            if not member.edges[j].is_waiting:
                raise KeyError(j)
        keys = {j: (j, member.client, member.edges[j].number, member.edges[j].applied + 1) for j in neighbors}
        if any(key not in self._packets for key in keys.values()):
            return None
        return {j: member.read(j, self._packets.pop(key)) for j, key in keys.items()}

    def _step(self, member: Member, neighbors: Sequence[int]) -> bool:
        packets = self._next(member, neighbors)
        if packets is None:
            return False
        client = member.client
        given = self._problems[client], member.streams, member.t, self.batch_size, self._buffers[client]
        oracle = BatchOracle(*given) if self.local is None else LocalOracle(self.local, *given)
        for j, data in member.step(oracle, self.method.lr_at(member.t), packets).items():
            self._packets[client, j, member.edges[j].number, member.edges[j].said] = data
        self._buffers[client] = oracle.buffers
        return True


def replay(
    method: Algorithm, problem: Problem, mixing: Mixing, history: Mapping[int, list[Event]], **how: Any
) -> dict[int, Member]:
    """The members at the end of a history, by client."""
    return Replay(method, problem, mixing, history, **how).run()
