"""A `torch.optim.Optimizer` for one client of a network: the same methods, on a training loop of your own."""

import contextlib
import functools
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer._version import __version__
from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.dsgd import DSGD
from gossamer.algorithms.schedules import Schedule
from gossamer.compression.base import CODECS, Codec
from gossamer.errors import InputError, check_choice, check_integer, check_nonnegative, check_positive
from gossamer.fingerprint import digest
from gossamer.records.checkpoint import Checkpoint, Checkpoints, common, needed
from gossamer.records.identity import describe_method, difference
from gossamer.runtime.gradients.oracle import LoopOracle, ZeroOracle
from gossamer.runtime.processes.averaging import Average, modules_of
from gossamer.runtime.processes.client import Client
from gossamer.runtime.processes.leaving import close_at_exit
from gossamer.runtime.processes.ranks import Ranks
from gossamer.runtime.processes.reporting import LinkTraffic, Reporter
from gossamer.runtime.transport.base import Open
from gossamer.runtime.tuning.caution import warn_of_gamma
from gossamer.streams import STREAMS
from gossamer.topology import MixingMatrix
from gossamer.trackers.base import Heard, Trackers

_GOSSIP_SHRINKS = 1000.0  # how much closer the models come by gossip alone, unless told otherwise


class DecentralizedOptimizer(torch.optim.Optimizer):
    """Trains this process's model together with those of its graph neighbours, and with nobody else.

    Start one process per client with torchrun; each builds the same model, has its own data, and calls `backward` and
    `step` as with any optimiser. A step sends one packet to each neighbour; BEER needs theirs in the next
    step only, so packets travel while the next gradient is computed.

    Args:
        params: Parameters, or groups of them with their own `lr` and `weight_decay`. Those that are frozen now
            (`requires_grad=False`) are left alone.
        method: Such as `gossamer.BEER(...)`. What it asks of the full gradient is taken from the first minibatch: an
            optimiser never sees more.
        mixing: The mixing matrix, of as many clients as there are processes; rank i is client i.
        weight_decay: Adds `weight_decay` times the parameters to their gradients, as in `torch.optim.SGD`.
        seed: Of the compressor's randomness; the same on all ranks.
        codec: How packets are written: `"auto"`, the shorter of `"fixed"` width and `"entropy"`-coded.
        initial: `"check"` that all ranks begin with the same parameters, or `"broadcast"` those of rank 0.
        timeout: Seconds after which a silent neighbour is an error.
        transport: `"gloo"`, over TCP, the name of another registered transport, or a function that opens one (see
            `gossamer.runtime.transport.base`).
        trackers: Hear of the steps of this process, as in `gossamer.simulate`: see `track`.
        track_every: Steps between two events.
    """

    def __init__(
        self,
        params: Iterable[Any],
        method: Algorithm,
        mixing: MixingMatrix,
        *,
        weight_decay: float = 0.0,
        seed: int = 0,
        codec: Codec = "auto",
        initial: Literal["check", "broadcast"] = "check",
        timeout: float = 60.0,
        transport: str | Open = "gloo",
        trackers: Iterable[Heard] = (),
        track_every: int = 1,
    ) -> None:
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
        check_choice("initial", initial, ("check", "broadcast"))
        check_choice("codec", codec, CODECS)
        followers, track_every = Trackers(trackers), check_integer("track_every", track_every, 1)
        self._client: Client | None = None
        self._transport = transport
        self._mixing, self._method = mixing, method.with_minibatch_start()
        super().__init__(params, {"lr": method.lr, "weight_decay": check_nonnegative("weight_decay", weight_decay)})
        self._parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        self._check_parameters()
        x = torch.cat([p.detach().reshape(-1) for p in self._parameters])[None]
        method.check_dimension(x.shape[1])
        method.check_mixing(mixing.lambda_min)
        ranks = self._ranks = Ranks(check_positive("timeout", timeout))
        if ranks.rank == 0:
            warn_of_gamma(method, x.shape[1], mixing.rho)
        if ranks.size != mixing.clients:
            raise InputError(
                f"The mixing matrix is of {mixing.clients} clients, but {ranks.size} processes were started: "
                "one process per client."
            )
        facts = self._facts(x, seed, codec)
        ranks.agree(facts | {"`initial`": initial})
        if initial == "broadcast":
            x = ranks.broadcast(x)
        else:
            ranks.agree(
                {"the initial model": digest(x)},
                "call torch.manual_seed with the same seed before you make the model, or pass initial='broadcast'",
                show=False,
            )
        run = zlib.crc32(str(ranks.share(os.urandom(8).hex())[0]).encode())
        self._identity = {"client": ranks.rank, **facts}
        self._client = Client(
            self._method, mixing, ranks.rank, x, ranks=ranks, seed=seed, codec=codec, run=run, transport=transport
        )
        self._gossips = 0
        self._sizes = [p.numel() for p in self._parameters]
        self._place(self._client.state.x)
        self._reporter = Reporter(self._client, followers, track_every)
        self._forget = close_at_exit(self._client)

    def _check_parameters(self) -> None:
        kinds = {(p.dtype, p.device) for p in self._parameters}
        if not kinds:
            raise InputError("There is nothing to train: no parameter has requires_grad=True.")
        if len(kinds) > 1 or next(iter(kinds))[0] not in (torch.float32, torch.float64):
            found = ", ".join(sorted(f"{str(dtype)[6:]} on {device}" for dtype, device in kinds))
            raise InputError(
                f"The parameters must all be float32, or all float64, on one device, got {found}; for mixed precision "
                "keep them in float32 and use torch.autocast."
            )
        known = ("params", "param_names", "lr", "weight_decay")
        odd = [name for group in self.param_groups for name in group if name not in known]
        if odd:
            raise InputError(f"A group of parameters takes `lr` and `weight_decay`, got {odd[0]!r}.")
        if len(self.param_groups) > 1 and not self._method.info.lr_may_differ:
            raise InputError(
                f"{self._method.info.title} has one step size for all parameters, got {len(self.param_groups)} groups."
            )

    def _facts(self, x: Tensor, seed: int, codec: str) -> dict[str, Any]:
        """What all ranks must have in common."""
        shapes = [list(p.shape) for p in self._parameters]
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
        }

    @property
    def client(self) -> Client:
        """This process's half of the method: its state, its links and what went over them."""
        assert self._client is not None
        return self._client

    @property
    def rounds(self) -> int:
        """Steps done."""
        return self.client.t

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One round, from the gradients that `backward` left, or that the closure makes.

        Methods that take gradients at several points of a round need the closure: it is called once more for each.
        """
        if self.client.is_closed:
            raise InputError(f"The optimiser was closed after round {self.rounds}; make another one to go on.")
        loss = None
        try:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            with torch.no_grad():
                self.client.step(self._oracle(closure), self._of_groups("lr"), measure=self._reporter.is_due)
                self._place(self.client.state.x)
        except BaseException as error:
            self._forget()
            self.client.give_up(error)
            self._reporter.close()
            raise
        self._reporter.after(loss)
        return loss

    def track(self, **values: Any) -> None:
        """Values for the event of the next step, such as `batch_loss=loss` and metrics: numbers, or tensors of one.

        With a closure, `batch_loss` is what the closure returns. Nothing is exchanged between processes.
        """
        self._reporter.give(values)

    @property
    def traffic(self) -> LinkTraffic:
        """What this process sent to its neighbours and received so far, in all and by neighbour."""
        return LinkTraffic.of(self.client)

    def _oracle(self, closure: Callable[[], Any] | None) -> LoopOracle:
        own = self.client.state.x

        def elsewhere(x: Tensor) -> Tensor:
            assert closure is not None
            self._place(x)
            with torch.enable_grad():
                closure()
            gradient = self._gradient(x)
            self._place(own)
            return gradient

        return LoopOracle(self._method.info.title, own, self._gradient, elsewhere if closure is not None else None)

    def _of_groups(self, name: str) -> float | Tensor:
        """`lr` or `weight_decay`: one number, or where groups differ one per coordinate, (1, d)."""
        values = [float(group[name]) for group in self.param_groups]
        if len(set(values)) == 1:
            return values[0]
        trained = [[p.numel() for p in group["params"] if p.requires_grad] for group in self.param_groups]
        sizes, x = torch.tensor([sum(group) for group in trained]), self.client.state.x
        return torch.repeat_interleave(torch.tensor(values, dtype=x.dtype), sizes).to(x.device)[None]

    def _place(self, x: Tensor) -> None:
        """Have the parameters be this row; they share its memory."""
        for p, piece in zip(self._parameters, torch.split(x[0], self._sizes), strict=True):
            p.data = piece.view(p.shape)

    def _gradient(self, x: Tensor) -> Tensor:
        """(1, d): what the parameters' gradients are, with weight decay."""
        for number, p in enumerate(self._parameters):
            if p.grad is None or p.grad.is_sparse:
                kind = "no" if p.grad is None else "a sparse"
                raise InputError(
                    f"{self._name(number)} has {kind} gradient in round {self.rounds} on rank {self._ranks.rank}; call "
                    "backward before step, and leave out parameters that the loss does not use."
                )
        gradient = torch.cat([p.grad.reshape(-1) for p in self._parameters if p.grad is not None])[None]
        decay = self._of_groups("weight_decay")
        return gradient + decay * x if isinstance(decay, Tensor) or decay else gradient

    def _name(self, number: int) -> str:
        named = [zip(group.get("param_names", []), group["params"], strict=False) for group in self.param_groups]
        names = [name for group in named for name, p in group if p.requires_grad]
        known = f" {names[number]!r}" if number < len(names) else f" {number}"
        return f"Parameter{known}, of shape {tuple(self._parameters[number].shape)},"

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
        own, modules = self.client.state.x, modules_of(self._parameters) if model is None else [model]
        mean = self._ranks.mean if how == "exact" else functools.partial(self._gossip, rounds=rounds)
        average = Average(self._ranks, own, modules, mean)
        self._place(average.model[None].clone())
        average.exchange_buffers()
        try:
            yield
        finally:
            self._place(own)
            average.exchange_buffers()

    def average_state_dict(self, model: nn.Module, **how: Any) -> dict[str, Tensor]:
        """A state dict of the model with the average of all clients' parameters and buffers.

        All ranks call it after the same step; `how` and `rounds` are those of `average_model`. It is the same on every
        rank, unless `how="gossip"`, which ends a little apart.
        """
        with self.average_model(model, **how):
            return {name: value.detach().clone() for name, value in model.state_dict().items()}

    def _gossip(self, x: Tensor, rounds: int | None) -> Tensor:
        """W x, so many times over: DSGD where every gradient is zero."""
        slowest = 1 - self._mixing.rho
        enough = 1 if slowest < 1e-12 else math.ceil(math.log(_GOSSIP_SHRINKS) / -math.log(slowest))
        many = enough if rounds is None else check_integer("rounds", rounds, 1)
        self._gossips += 1
        run, channel = self.client.run ^ self._gossips, 1 + self._gossips % 4096
        how: Any = {"ranks": self._ranks, "run": run, "channel": channel, "transport": self._transport}
        client = Client(DSGD(lr=1.0), self._mixing, self._ranks.rank, x, **how)
        for _ in range(many):
            client.step(ZeroOracle(), 0.0)
        client.close()
        mixed: Tensor = client.state.x
        return mixed

    def state_dict(self) -> dict[str, Any]:
        """As of any optimiser, with the method's state; the exchange under way is waited for."""
        tensors, facts = self.client.save()
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        return super().state_dict() | {"client": {"tensors": tensors, "facts": facts, "identity": self._identity}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same method, network and rank; the parameters are set, too."""
        kept = state_dict.get("client")
        identity = kept.get("identity") if isinstance(kept, dict) else None
        if not isinstance(kept, dict) or identity != self._identity:
            raise InputError(f"The state is not this rank's: {difference(identity, self._identity)}.")
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "client"})
        self.client.restore(Checkpoint(kept["facts"], {name: x.clone() for name, x in kept["tensors"].items()}))
        self._place(self.client.state.x)

    def save(self, folder: str | os.PathLike[str], *, every: int = 1, model: nn.Module | None = None) -> None:
        """Write a checkpoint of this rank, atomically; old ones are removed.

        Ranks may be some rounds apart, so enough are kept for all to have one in common if `every` is how often you
        save. The model's buffers are kept too, if it is given.
        """
        tensors, facts = self.client.save()
        if model is not None:
            tensors |= {f"buffers.{name}": buffer for name, buffer in model.named_buffers()}
        rates = [[group["lr"], group.get("initial_lr")] for group in self.param_groups]
        self._checkpoints(folder, every).save(self.rounds, tensors, facts | {"lr": rates})

    def resume(self, folder: str | os.PathLike[str], *, model: nn.Module | None = None) -> int:
        """Go back to the latest checkpoint that all ranks have in a folder; 0, and nothing changed, if there is none.

        Called by all ranks, before the first step.
        """
        found: dict[int, Checkpoint] = {}

        def usable() -> list[int]:
            found.update({checkpoint.round: checkpoint for checkpoint in self._checkpoints(folder, 1).usable()})
            return sorted(found)

        start = common(self._ranks.share_or_refuse(usable))
        if start is None:
            return 0
        self.client.restore(found[start])
        self._place(self.client.state.x)
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
        keep = needed(self.client.reach, check_integer("every", every, 1))
        return Checkpoints(Path(folder), f"client{self._ranks.rank}", self._identity, keep)

    def ask_to_stop(self) -> None:
        """Have all ranks stop after the same step, by a word in the packets: for a handler of SIGTERM, say."""
        self.client.ask_to_stop()

    @property
    def should_stop(self) -> bool:
        """Whether this is the step after which all ranks stop, because one was asked to."""
        return self.client.stop is not None and self.client.t >= self.client.stop

    def close(self) -> None:
        """Take leave of the neighbours; done at the end of the program, too."""
        self._forget()
        if not self.client.is_closed:
            self.client.close()
        self._reporter.close()
