"""A training loop's half of a round: its gradients, or the steps of its own optimiser, into a client's method."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.algorithms.round import Oracle
from gossamer.kernels import begin, tensors
from gossamer.records.checkpoint import Checkpoint
from gossamer.records.typed import Settings
from gossamer.runtime.gradients.oracle import GivenOracle, LoopOracle, SameOracle
from gossamer.runtime.processes.contract import TrainingClient
from gossamer.runtime.training.inner import Inner
from gossamer.runtime.training.parameters import Parameters


class TrainingLoop:
    """A client whose gradients are those that `backward` leaves in a model's parameters."""

    def __init__(self, client: TrainingClient, parameters: Parameters, inner: Inner | None) -> None:
        self._client, self._parameters, self._inner = client, parameters, inner
        self._correction: Tensor | None = None
        self._last: Tensor | None = None
        parameters.place(client.state.x)

    def step(self, closure: Callable[[], Any] | None, *, measure: bool = False) -> None:
        """A round; with an inner optimiser one of its steps, and a round where one is due."""
        if self._inner is None:
            self._parameters.copy_to(self._client.state.x)  # which may have been loaded or changed since
            self._round(self._oracle(closure), measure=measure)
            return
        self._client.listen()
        correction = self._corrected_by()
        self._inner.step(None if correction is None else self._gradient(self._client.state.x), correction)
        if self._inner.is_due:
            self._exchange_steps(self._inner, measure=measure)

    def idle(self) -> None:
        """A round without data: the last gradient stays in the tracker; without a tracker it is zero."""
        is_tracking = self._client.method.is_tracking
        if self._inner is None:
            self._round(SameOracle(self._last if is_tracking else None))
            return
        taken = self._inner.idle(self._corrected_by(), is_tracking=is_tracking)
        if taken is None:
            self._exchange_steps(self._inner)
        else:
            self._round(GivenOracle(self._client.method.info.title, taken))

    def save(self) -> tuple[dict[str, Tensor], Settings]:
        """Tensors and facts from which `restore` goes on."""
        saved, facts = self._client.save()
        saved |= {} if self._last is None else {"last": self._last}
        more, known = ({}, {}) if self._inner is None else self._inner.save()
        return saved | more, {**facts, **known}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be where a loop with the same settings was when it was saved."""
        self._client.restore(checkpoint)
        last = checkpoint.tensors.get("last")
        self._correction, self._last = None, None if last is None else last.to(self._client.state.x.device)
        self._parameters.place(self._client.state.x)
        if self._inner is not None:
            self._inner.restore(checkpoint.tensors, checkpoint.facts)

    def _round(self, oracle: Oracle, *, measure: bool = False) -> None:
        self._client.step(oracle, self._parameters.of_groups("lr"), measure=measure)
        self._correction = None
        self._parameters.place(self._client.state.x)

    def _exchange_steps(self, inner: Inner, *, measure: bool = False) -> None:
        taken = inner.taken(self._client.state.x, self._parameters.row())
        self._round(GivenOracle(self._client.method.info.title, taken), measure=measure)

    def _corrected_by(self) -> Tensor | None:
        """What the method adds to the gradients of this round; it needs the neighbours' last packets."""
        if self._correction is None:
            correction = self._client.method.correction(self._client.state)
            self._correction = None if correction is None else tensors(begin(correction))[0]
        return self._correction

    def _oracle(self, closure: Callable[[], Any] | None) -> LoopOracle:
        own, title = self._client.state.x, self._client.method.info.title

        def here(x: Tensor) -> Tensor:
            gradient = self._gradient(x)
            if self._client.method.is_tracking:
                self._last = gradient
            return gradient

        def elsewhere(x: Tensor) -> Tensor:
            assert closure is not None
            self._parameters.place(x)
            with torch.enable_grad():
                closure()
            gradient = self._gradient(x)
            self._parameters.place(own)
            return gradient

        return LoopOracle(title, own, here, elsewhere if closure is not None else None)

    def _gradient(self, x: Tensor) -> Tensor:
        """(1, d): what the parameters' gradients are, with weight decay."""
        gradient = self._parameters.gradient(self._client.t, self._client.rank)
        decay = self._parameters.of_groups("weight_decay")
        return gradient + decay * x if isinstance(decay, Tensor) or decay else gradient
