"""One host's half of each way of training, as a user would write it: `round` takes H steps and one exchange."""

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import gossamer as gs
from benchmarks.links.contenders import OPTIMIZERS, Contender, Setting, method, outer_momentum
from benchmarks.links.progress import VANILLA, mixing_of
from gossamer.problems import ModuleProblem
from gossamer.streams import Streams


class Trainer(ABC):
    """A host's model, its data and its optimiser.

    Args:
        found: All hosts' data.
        contender: How it trains.
        setting: The steps.
        seed: Of the minibatches, which are those of the simulator.
        batch: Rows per gradient.
    """

    def __init__(self, found: ModuleProblem, contender: Contender, setting: Setting, seed: int, batch: int) -> None:
        self.rank, self.contender, self.setting, self.batch = dist.get_rank(), contender, setting, batch
        self.seed = seed
        self.mine, self._streams = found.only(self.rank), Streams([seed], [self.rank], found.device)
        self.module = found.as_module(found.x0()).train()
        self.t = 0

    def local_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the local steps."""
        kind, more = OPTIMIZERS[self.setting["inner"]]
        made: torch.optim.Optimizer = kind(self.module.parameters(), lr=self.setting["lr"], **more)  # type: ignore[call-arg]
        return made

    def backward(self, module: nn.Module, k: int, drawn: Tensor) -> None:
        """The gradient of this round's k-th minibatch."""
        rows = self.mine.rows
        inputs, labels = rows.batch(rows.index(drawn[:, k * self.batch : (k + 1) * self.batch]).reshape(-1))
        module.zero_grad()
        self.mine.loss(module(inputs), labels).backward()  # type: ignore[no-untyped-call]

    def drawn(self, t: int) -> Tensor:
        """The rows of a round's minibatches, as the simulator draws them."""
        counts = self.mine.row_counts
        high = self.mine.rows_per_client if counts is None else counts
        return self._streams.at(t, "batch").below(high, self.contender.steps * self.batch)

    def round(self) -> None:
        """H steps and one exchange."""
        drawn = self.drawn(self.t)
        for k in range(self.contender.steps):
            self.step(k, drawn)
        self.exchange()
        self.t += 1

    @abstractmethod
    def step(self, k: int, drawn: Tensor) -> None:
        """One gradient and what follows it."""

    def exchange(self) -> None:  # noqa: B027 (where a step does not do it by itself)
        """What follows the last step of a round."""

    def waited(self) -> float | None:
        """Seconds so far in which the host stood still; None if it is not known."""
        return None

    def payload(self) -> int | None:
        """Bytes so far that were handed to the links; None if it is not known."""
        return None

    def model(self) -> Tensor:
        """A copy of the model."""
        return parameters_to_vector(self.module.parameters()).detach().clone()

    def close(self) -> None:  # noqa: B027
        """After the last round."""


class WithDDP(Trainer):
    """torch's DistributedDataParallel, with or without a hook."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._wrapped, self._optimizer = DistributedDataParallel(self.module), self.local_optimizer()
        if self.contender.powersgd:
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=self.contender.powersgd, start_powerSGD_iter=VANILLA
            )
            self._wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif self.contender.hook == "fp16":
            self._wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)

    def step(self, k: int, drawn: Tensor) -> None:
        """Gradients are averaged while `backward` runs."""
        self.backward(self._wrapped, k, drawn)
        self._optimizer.step()


class WithAllReduce(Trainer):
    """Local SGD, or DiLoCo with outer momentum: models are averaged after every round."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._optimizer, self._x, self._momentum = self.local_optimizer(), self.model(), torch.zeros(())

    def step(self, k: int, drawn: Tensor) -> None:
        """A local step."""
        self.backward(self.module, k, drawn)
        self._optimizer.step()

    def exchange(self) -> None:
        """The outer step, from the average of all models."""
        lr, mu = self.setting["outer"]
        mean = self.model()
        dist.all_reduce(mean)
        delta = self._x - mean / dist.get_world_size()
        self._momentum = mu * self._momentum + delta
        self._x = self._x - lr * (delta + mu * self._momentum)
        vector_to_parameters(self._x.clone(), self.module.parameters())  # which then share its memory


class WithGossamer(Trainer):
    """A method of Gossamer."""

    def __init__(self, *given: Any, graph: str, codec: Literal["auto", "fixed", "entropy"]) -> None:
        super().__init__(*given)
        more: dict[str, Any] = {}
        if "inner" in self.setting:
            more |= {"inner": self.local_optimizer(), "every": self.contender.steps}
            more["outer_momentum"] = outer_momentum(self.contender, self.setting)
        mixing, made = mixing_of(graph, dist.get_world_size()), method(self.contender, self.setting)
        parameters = self.module.parameters()
        more |= {"seed": self.seed, "codec": codec, "timeout": 600.0}
        self.optimizer = gs.DecentralizedOptimizer(parameters, made, mixing, **more)

    def step(self, k: int, drawn: Tensor) -> None:
        """The exchange is the optimiser's."""
        self.backward(self.module, k, drawn)
        self.optimizer.step()

    def waited(self) -> float:
        """In the account of each link."""
        return sum(account["waiting"] for account in self.optimizer.client.accounts())

    def payload(self) -> int:
        """In the account of each link."""
        return int(sum(account["bytes_sent"] for account in self.optimizer.client.accounts()))

    def close(self) -> None:
        """Take leave of the neighbours."""
        self.optimizer.close()


def trainer(
    found: ModuleProblem, contender: Contender, setting: Setting, seed: int, batch: int, **ours: Any
) -> Trainer:
    """The trainer of a contender; `ours` is for Gossamer's methods."""
    given = (found, contender, setting, seed, batch)
    if contender.kind == "ddp":
        return WithDDP(*given)
    return WithAllReduce(*given) if contender.kind == "all-reduce" else WithGossamer(*given, **ours)
