"""A spec as an open run: one client of it in this process, or all of them again from a history."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gossamer.algorithms.base import Algorithm
from gossamer.errors import InputError
from gossamer.records import checkpoint
from gossamer.records.identity import settings
from gossamer.runtime.experiment import Experiment
from gossamer.runtime.gradients.local import LocalSteps
from gossamer.runtime.gradients.oracle import BatchOracle, LocalOracle, of_module
from gossamer.runtime.open.history import Event, read_history
from gossamer.runtime.open.member import Member, check_open
from gossamer.runtime.open.participant import Openness, Participant
from gossamer.runtime.open.replaying import Replay
from gossamer.runtime.open.simulated.events_file import read_events
from gossamer.runtime.open.simulated.timetable import timetable
from gossamer.runtime.start import check_common, describe_start, starting_models
from gossamer.runtime.transport.curve import CurveOpener
from gossamer.streams import Streams


@dataclass(frozen=True)
class OpenRun:
    """The one method of a spec, checked."""

    experiment: Experiment
    label: str
    method: Algorithm
    rounds: int
    local: LocalSteps | None

    @classmethod
    def of(cls, experiment: Experiment) -> "OpenRun":
        """An InputError if the spec has several runs, or a method with which clients cannot come and go."""
        spec = experiment.spec
        if len(experiment.methods) != 1 or len(spec.seeds) != 1:
            raise InputError(
                f"An open run has one method and one seed, and the spec has {len(experiment.methods)} and "
                f"{len(spec.seeds)}."
            )
        ((label, (method, rounds)),) = experiment.methods.items()
        check_open(method, experiment.mixing)
        problem = experiment.problem
        streams = Streams(spec.seeds, range(problem.clients), problem.device)
        check_common(method, starting_models(spec.x0, problem, streams), problem.clients)
        return cls(experiment, label, method, rounds, experiment.local.get(label))

    @property
    def facts(self) -> str:
        """What all clients must have in common, beside what `Conversation` compares."""
        spec, problem = self.experiment.spec, self.experiment.problem
        about: Any = {"batch_size": spec.batch_size, "x0": describe_start(spec.x0, problem), "local": repr(self.local)}
        return str(settings(self.method, problem, self.experiment.mixing, about, spec.seeds[0]))

    def take_part(
        self,
        opener: CurveOpener,
        folder: Path,
        *,
        how: Openness,
        join: int | None = None,
        progress: Callable[[int], None] = lambda t: None,
        should_leave: Callable[[], bool] = lambda: False,
    ) -> Participant:
        """Be one client until the last round, or until asked to leave; the model and the history are in the folder."""
        spec, client = self.experiment.spec, opener.me.client
        if client >= self.experiment.problem.clients:
            raise InputError(
                f"The spec has {self.experiment.problem.clients} clients, and the key is that of client {client}."
            )
        problem, seed = self.experiment.problem.only(client), spec.seeds[0]
        x = starting_models(spec.x0, problem, Streams([seed], [client], problem.device))
        folder.mkdir(parents=True, exist_ok=True)
        part = Participant(
            self.method,
            self.experiment.mixing,
            x,
            opener,
            how=how,
            should_leave=should_leave,
            join=join,
            seed=seed,
            codec=spec.codec or "auto",
            facts=self.facts,
            history=folder / f"client{client}.history",
        )
        buffers = problem.new_buffers(1)
        try:
            with torch.no_grad():
                part.begin()
                while part.t < self.rounds and not should_leave():
                    given = problem, part.member.streams, part.t, spec.batch_size, buffers
                    oracle = BatchOracle(*given) if self.local is None else LocalOracle(self.local, *given)
                    part.step(oracle, self.method.lr_at(part.t))
                    buffers = oracle.buffers
                    progress(part.t)
        except BaseException:
            part.close()
            raise
        _write_model(folder, part.member, problem.with_buffers(part.member.state.x, of_module(buffers)))
        if part.t < self.rounds:
            part.leave()
        else:
            part.finish()
        return part

    def replay(self, history: dict[int, list[Event]], run: int = 0) -> Replay:
        """The same again from a history."""
        spec = self.experiment.spec
        how: Any = {"batch_size": spec.batch_size, "seed": spec.seeds[0], "x0": spec.x0, "codec": spec.codec or "auto"}
        given = self.method, self.experiment.problem, self.experiment.mixing, history
        return Replay(*given, run=run, local=self.local, **how)

    def history(self, path: Path) -> dict[int, list[Event]]:
        """What a folder of histories recorded, or what a TOML file of events leads to."""
        if path.is_dir():
            named = {one: one.stem.removeprefix("client") for one in sorted(path.glob("client*.history"))}
            found = {int(number): one for one, number in named.items() if number.isdecimal()}
            if not found:
                raise InputError(f"The folder '{path}' has no files client*.history.")
            return {client: read_history(one) for client, one in sorted(found.items())}
        mixing = check_open(self.method, self.experiment.mixing)
        return timetable(mixing, rounds=self.rounds, **read_events(path, mixing, self.rounds))


def _write_model(folder: Path, member: Member, model: torch.Tensor) -> None:
    facts = {"client": member.client, "t": member.t, "run": member.exchange.run, "bytes": member.bytes}
    checkpoint.write(folder / f"client{member.client}.safetensors", {"model": model}, facts)
