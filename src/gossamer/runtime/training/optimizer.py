"""A `torch.optim.Optimizer` for one client of a network: the same methods, on a training loop of your own."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer._version import __version__
from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.schedules import Schedule
from gossamer.compression.base import CODECS, Codec
from gossamer.errors import InputError, check_choice, check_integer, check_nonnegative
from gossamer.fingerprint import digest
from gossamer.records.checkpoint import Checkpoint, Checkpoints, needed
from gossamer.records.identity import describe_method, difference
from gossamer.runtime.open.participant import Openness
from gossamer.runtime.processes.contract import TrainingClient
from gossamer.runtime.processes.leaving import close_at_exit
from gossamer.runtime.processes.reporting import LinkTraffic, Reporter
from gossamer.runtime.training.averaging import modules_of
from gossamer.runtime.training.inner import Inner
from gossamer.runtime.training.lockstep import Lockstep
from gossamer.runtime.training.open_client import OpenClient, opener_of, openness
from gossamer.runtime.training.parameters import Parameters
from gossamer.runtime.training.training import TrainingLoop
from gossamer.runtime.transport.base import Open
from gossamer.streams import STREAMS
from gossamer.topology import MixingMatrix
from gossamer.trackers.base import Heard, Trackers

_INSTEAD = "keep the model's own state_dict, and come back with a neighbour's model by `join`"


class DecentralizedOptimizer(torch.optim.Optimizer):
    """Trains this process's model together with those of its graph neighbours, and with nobody else.

    Start one process per client with torchrun; each builds the same model, has its own data, and calls `backward` and
    `step` as with any optimiser. A step sends one packet to each neighbour; BEER needs theirs in the next
    step only, so packets travel while the next gradient is computed.

    Without torchrun, and with `transport=opened(peers, key)` of `gossamer.runtime.transport.curve`, it is a client of
    an open run, whose clients come and go: those that are lost or leave are not waited for, and others join. Which
    client this is follows from its key.

    Args:
        params: Parameters, or groups of them with their own `lr` and `weight_decay`. Those that are frozen now
            (`requires_grad=False`) are left alone.
        method: Such as `gossamer.BEER(...)`. What it asks of the full gradient is taken from the first minibatch: an
            optimiser never sees more.
        mixing: The mixing matrix, of as many clients as there are processes; rank i is client i. In an open run, the
            possible edges.
        inner: An optimiser of the same parameters, such as `torch.optim.AdamW(...)`, whose steps take the place of the
            gradient. `backward`, clipping, schedulers of `inner` and `step` are as ever; there is one round in `every`
            steps. The method's `lr` multiplies the sum of these steps, and is usually 1.
        every: Steps of `inner` per round.
        outer_momentum: Nesterov momentum of the sums of steps, as in DiLoCo.
        weight_decay: Adds `weight_decay` times the parameters to their gradients, as in `torch.optim.SGD`.
        seed: Of the compressor's randomness; the same on all ranks.
        codec: How packets are written: `"auto"`, the shorter of `"fixed"` width and `"entropy"`-coded.
        initial: `"check"` that all ranks begin with the same parameters, or `"broadcast"` those of rank 0.
        timeout: Seconds after which a silent neighbour is an error, or in an open run is gone.
        transport: `"gloo"`, over TCP, the name of another registered transport, or a function that opens one (see
            `gossamer.runtime.transport.base`).
        trackers: Hear of the steps of this process, as in `gossamer.simulate`: see `track`.
        track_every: Steps between two events.
        patience: Seconds that a step of an open run waits for late neighbours; None waits until their packets have come
            or they are gone.
        join: Join an open run that is under way, with the model of this neighbour: its name, address or number in the
            peers file. The parameters are set to that model, and `rounds` is that of the neighbour. Buffers, such as
            batch norm's running statistics, stay this client's own.
        open: `gossamer.runtime.open.participant.Openness`: all that can be said of an open run's waiting, in place of
            `patience` and `timeout`.
        history: A file to which an open run appends what happens to this client, one event per line.
    """

    def __init__(
        self,
        params: Iterable[Any],
        method: Algorithm,
        mixing: MixingMatrix,
        *,
        inner: torch.optim.Optimizer | None = None,
        every: int = 1,
        outer_momentum: float = 0.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        codec: Codec = "auto",
        initial: Literal["check", "broadcast"] = "check",
        timeout: float = 60.0,
        transport: str | Open = "gloo",
        trackers: Iterable[Heard] = (),
        track_every: int = 1,
        patience: float | None = None,
        join: str | int | None = None,
        open: Openness | None = None,
        history: str | os.PathLike[str] | None = None,
    ) -> None:
        _check(method, mixing)
        if inner is None and (every != 1 or outer_momentum):
            raise InputError("`every` and `outer_momentum` are those of `inner`, an optimiser such as AdamW; give one.")
        if inner is not None and weight_decay:
            raise InputError("With `inner`, weight decay is that of the inner optimiser; leave out `weight_decay`.")
        check_choice("initial", initial, ("check", "broadcast"))
        check_choice("codec", codec, CODECS)
        followers, track_every = Trackers(trackers), check_integer("track_every", track_every, 1)
        opener = opener_of(transport, patience=patience, join=join, open=open, history=history)
        self._client: TrainingClient | None = None
        self._lockstep: Lockstep | None = None
        self._open: OpenClient | None = None
        self._mixing, self._method = mixing, method.with_minibatch_start()
        super().__init__(params, {"lr": method.lr, "weight_decay": check_nonnegative("weight_decay", weight_decay)})
        self._parameters = Parameters(self.param_groups, method)
        local = self._inner = None if inner is None else Inner(inner, every, outer_momentum, self._parameters)
        x = self._parameters.row()
        method.check_dimension(x.shape[1])
        method.check_mixing(mixing.lambda_min)
        facts, how = self._facts(x, seed, codec), {"seed": seed, "codec": codec}
        if opener is None:
            given: Any = {"initial": initial, "timeout": timeout, "transport": transport} | how
            self._lockstep = Lockstep(self._method, mixing, x, facts, **given)
            self._client = self._lockstep.client
        else:
            if initial == "broadcast":
                raise InputError(
                    "initial='broadcast' needs all clients at once, and in an open run they come and go; call "
                    "torch.manual_seed with the same seed before you make the model, or pass `join`."
                )
            waits = openness(open, patience, timeout, opener.start_timeout)
            given = {"how": waits, "join": join, "history": history} | how
            self._client = self._open = OpenClient(self._method, mixing, x, opener, facts=facts, **given)
        self._identity = {"client": self._client.rank, **facts}
        self._training = TrainingLoop(self._client, self._parameters, local)
        self._reporter = Reporter(self._client, followers, track_every)
        self._forget = close_at_exit(self._client)

    def _facts(self, x: Tensor, seed: int, codec: str) -> dict[str, Any]:
        """What all ranks must have in common."""
        shapes = [list(p.shape) for p in self._parameters.trained]
        return {
            "Gossamer's version": __version__,
            "the random streams": STREAMS,
            **{f"the method's {name}": value for name, value in describe_method(self._method).items()},
            "the mixing matrix": digest(self._mixing.matrix),
            "the number of parameters": x.shape[1],
            "the list of the parameters' shapes": digest(shapes),
            "the type of the parameters": str(x.dtype)[6:],
            "`seed`": check_integer("seed", seed, 0, 2**64 - 1),
            "`codec`": codec,
            **({} if self._inner is None else self._inner.facts()),
        }

    @property
    def client(self) -> TrainingClient:
        """This process's half of the method: its state, its links and what went over them."""
        assert self._client is not None
        return self._client

    @property
    def present(self) -> set[int]:
        """The clients that take part: in an open run, those of this part of the graph, as far as is known."""
        return set(range(self._mixing.clients)) if self._open is None else self._open.present

    @property
    def rounds(self) -> int:
        """Rounds done. In an open run, a client that stood still goes on from the round of its neighbours."""
        return self.client.t

    @property
    def steps(self) -> int:
        """Steps done: rounds, unless there is an inner optimiser with several steps per round."""
        return self.rounds if self._inner is None else self.rounds * self._inner.every + self._inner.steps

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One round, from the gradients that `backward` left, or that the closure makes.

        With `inner`, one of its steps, and a round after every `every`-th of them. Methods that take gradients at
        several points of a round need the closure: it is called once more for each.
        """
        if self.client.is_closed:
            raise InputError(f"The optimiser was closed after round {self.rounds}; make another one to go on.")
        loss = None
        with self._or_give_up():
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            with torch.no_grad():
                self._training.step(closure, measure=self._reporter.is_due)
        self._reporter.after(loss)
        return loss

    def track(self, **values: Any) -> None:
        """Values for the event of the next round, such as `batch_loss=loss` and metrics: numbers, or tensors of one.

        With a closure, `batch_loss` is what the closure returns. Nothing is exchanged between processes.
        """
        self._reporter.give(values)

    @property
    def traffic(self) -> LinkTraffic:
        """What this process sent to its neighbours and received so far, in all and by neighbour."""
        return LinkTraffic.of(self.client)

    @contextlib.contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._forget()
            self.client.give_up(error)
            self._reporter.close()
            raise

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """For loops of unequal length: a rank that comes to its end goes on exchanging until all have come to theirs.

        The last gradient of such a client stays in its tracker. With a method that has none, it is zero. All ranks
        leave after the same round, a few rounds after the last has run out of data: as many as a word needs from one
        end of the graph to the other.
        """
        lockstep = self._all("join()", "call close() after the last round, and the others go on")
        yield
        if self.should_stop or self.client.is_closed:
            return  # all ranks were asked to stop, and have
        with self._or_give_up(), torch.no_grad():
            lockstep.idle(self._training)

    def _all(self, what: str, instead: str) -> Lockstep:
        """All ranks together, where there are such."""
        if self._lockstep is None:
            raise InputError(f"`{what}` needs all clients at once, and in an open run they come and go; {instead}.")
        return self._lockstep

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in any optimiser, while it is made; afterwards the vector that travels has its length."""
        if self._client is not None:
            raise InputError("Parameters cannot be added to a DecentralizedOptimizer; name them all when you make it.")
        super().add_param_group(param_group)

    @contextlib.contextmanager
    def average_model(
        self, model: nn.Module | None = None, *, how: Literal["exact", "gossip"] = "exact", rounds: int | None = None
    ) -> Iterator[None]:
        """Inside it, the parameters are the average of all clients', and so are the buffers of the model.

        The model is the module that holds the parameters; it is found unless it is given. All ranks enter it after the
        same step. `"exact"` averages by a collective over all processes; `"gossip"` talks to neighbours only, in full
        precision, for so many `rounds`: by default as many as bring the models a thousand times closer together.
        """
        check_choice("how", how, ("exact", "gossip"))
        lockstep = self._all("average_model", "evaluate the model of this client, which mixing keeps near the others")
        own, modules = self._parameters.row(), modules_of(self._parameters.trained) if model is None else [model]
        average = lockstep.average(own, modules, how, rounds)
        self._parameters.place(average.model[None])
        average.exchange_buffers()
        try:
            yield
        finally:
            self._parameters.place(own)
            average.exchange_buffers()

    def average_state_dict(self, model: nn.Module, **how: Any) -> dict[str, Tensor]:
        """A state dict of the model with the average of all clients' parameters and buffers.

        All ranks call it after the same step; `how` and `rounds` are those of `average_model`. It is the same on every
        rank, unless `how="gossip"`, which ends a little apart.
        """
        with self.average_model(model, **how):
            return {name: value.detach().clone() for name, value in model.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """As of any optimiser, with the method's state; the exchange under way is waited for."""
        saved, facts = self._training.save()
        tensors = {name: tensor.clone() for name, tensor in saved.items()}
        return super().state_dict() | {"client": {"tensors": tensors, "facts": facts, "identity": self._identity}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same method, network and rank; the parameters are set, too."""
        self._all("load_state_dict", _INSTEAD)
        kept = state_dict.get("client")
        identity = kept.get("identity") if isinstance(kept, dict) else None
        if not isinstance(kept, dict) or identity != self._identity:
            raise InputError(f"The state is not this rank's: {difference(identity, self._identity)}.")
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "client"})
        self._training.restore(Checkpoint(kept["facts"], {name: x.clone() for name, x in kept["tensors"].items()}))

    def save(self, folder: str | os.PathLike[str], *, every: int = 1, model: nn.Module | None = None) -> None:
        """Write a checkpoint of this rank, atomically; old ones are removed.

        Ranks may be some rounds apart, so enough are kept for all to have one in common if you save after every
        `every`-th step. The model's buffers are kept too, if it is given.
        """
        tensors, facts = self._training.save()
        if model is not None:
            tensors |= {f"buffers.{name}": buffer for name, buffer in model.named_buffers()}
        rates = [[group["lr"], group.get("initial_lr")] for group in self.param_groups]
        self._checkpoints(folder, every).save(self.steps, tensors, {**facts, "lr": rates})

    def resume(self, folder: str | os.PathLike[str], *, model: nn.Module | None = None) -> int:
        """Go back to the latest checkpoint that all ranks have in a folder; 0, and nothing changed, if there is none.

        Called by all ranks, before the first step. Returns how many steps were done.
        """
        found: dict[int, Checkpoint] = {}

        def usable() -> list[int]:
            found.update({checkpoint.round: checkpoint for checkpoint in self._checkpoints(folder, 1).usable()})
            return sorted(found)

        start = self._all("resume", _INSTEAD).common(usable)
        if start is None:
            return 0
        self._training.restore(found[start])
        for group, (lr, initial) in zip(self.param_groups, found[start].facts["lr"], strict=True):
            group["lr"] = lr
            if initial is not None:
                group["initial_lr"] = initial
        if model is not None:
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(found[start].tensors[f"buffers.{name}"])
        return start

    def _checkpoints(self, folder: str | os.PathLike[str], every: int) -> Checkpoints:
        apart = self._all("save", _INSTEAD).client.reach * (1 if self._inner is None else self._inner.every)
        keep = needed(apart, check_integer("every", every, 1))
        return Checkpoints(Path(folder), f"client{self.client.rank}", self._identity, keep)

    def ask_to_stop(self) -> None:
        """Have all ranks stop after the same step, by a word in the packets: for a handler of SIGTERM, say.

        In an open run this client alone stops, and the others go on; call `leave` then.
        """
        self.client.ask_to_stop()

    @property
    def should_stop(self) -> bool:
        """Whether this is the step after which to stop, because `ask_to_stop` was called."""
        return self.client.should_stop

    def leave(self) -> None:
        """Leave an open run before its last round: a neighbour takes over this client's part of the tracker."""
        if self._open is None:
            raise InputError("All ranks stop together in this run; call `ask_to_stop` instead of `leave`.")
        self._forget()
        if not self._open.is_closed:
            self._open.leave()
        self._reporter.close()

    def close(self) -> None:
        """Take leave of the neighbours after the last round; done at the end of the program, too."""
        self._forget()
        if not self.client.is_closed:
            self.client.close()
        self._reporter.close()


def _check(method: Algorithm, mixing: MixingMatrix) -> None:
    """Refuse what an optimiser cannot run."""
    if not isinstance(method, Algorithm):
        raise InputError(f"`method` must be a method such as gossamer.BEER(...), got {method!r}.")
    if not isinstance(mixing, MixingMatrix):
        raise InputError(f"`mixing` must be made by gossamer.mixing_matrix(graph), got {type(mixing).__name__}.")
    if method.needs is not None:
        raise InputError(
            f"{method.info.title} needs {method.needs.value}, which an optimiser never sees; BEER does not."
        )
    if isinstance(method.lr, Schedule):
        raise InputError(
            f"`lr` of an optimiser's method must be a number, got {method.lr}; use torch.optim.lr_scheduler."
        )
