"""A method under way: its state, the round it is in, and how it is saved."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import torch
from torch import Tensor

from gossamer.algorithms.base import Algorithm, State, map_state
from gossamer.algorithms.round import Exchange, Oracle, Round
from gossamer.compression.base import DeferredCheck, checking_later
from gossamer.errors import DataError, InputError, NonFiniteError, check_choice
from gossamer.kernels import Line, are_finite, tensors
from gossamer.streams import Streams

Surrogates = Literal["float64", "float32"]
"""The type of what a method adds up from round to round: surrogates, their neighbour sums, and trackers."""


def check_surrogates(value: object, dtype: torch.dtype) -> Surrogates:
    """One of the two types; float32 only for models in float32."""
    check_choice("surrogates", value, get_args(Surrogates))
    if value == "float32" and dtype != torch.float32:
        raise InputError(f"Surrogates in float32 need models in float32, got {str(dtype)[6:]}; change one of the two.")
    return cast(Surrogates, value)


def _narrow(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x


class RoundExchange(Exchange, Protocol):
    """An exchange as a session sees it: it is told the round, and may keep surrogates in a form of its own."""

    rho: float

    def begin(self, t: int) -> None:
        """Round t begins: what is sent from now on goes over the graph of that round."""

    def adopt(self, state: State) -> State:
        """The first state of a method, with its surrogates in the form that this exchange moves."""


class Ahead(NamedTuple):
    """The result of a round."""

    state: State
    errors: list[Tensor] | None


class Session:
    """A method and its state over an exchange. A step is pure: a simulation may look at a round before it takes it."""

    def __init__(
        self,
        method: Algorithm,
        exchange: RoundExchange,
        streams: Streams,
        x: Tensor,
        surrogates: Surrogates = "float64",
    ) -> None:
        self.method, self.exchange, self.streams = method, exchange, streams
        self.t = 0
        self._are_narrow = surrogates == "float32"
        self.state: State = exchange.adopt(self._kept(method.init(x)))
        self.compression_error: Tensor | None = None
        """(rows,): the share of its messages that the compressor left out, when it was last measured."""

    def look_ahead(self, oracle: Oracle, lr: float | Tensor, *, measure: bool = False) -> Ahead:
        """The state after the next round; a NonFiniteError with the bad rows if the models do not stay finite."""
        errors: list[Tensor] | None = [] if measure else None
        state, doubts = self.attempt(oracle, lr, self.t, self.t, errors)
        # One number to look at; the rows are looked for only when it is bad.
        if not are_finite(state.x, *(numbers for numbers, _ in doubts)):
            for _, refuse in doubts:
                refuse()
            bad = (~torch.isfinite(state.x).all(dim=1)).nonzero()[:, 0].tolist()
            if bad:
                raise NonFiniteError("The models are no longer finite.", bad)
        return Ahead(state, errors)

    def attempt(
        self, oracle: Oracle, lr: float | Tensor, t: int, at: int | Tensor, errors: list[Tensor] | None = None
    ) -> tuple[State, list[DeferredCheck]]:
        """The state after round t, unchecked, and what else than its models must be finite.

        Random numbers are those of round `at`: t itself, or a tensor on the device with its number.
        """
        self.exchange.begin(self.t)
        round = Round(
            t=t,
            lr=lr,
            oracle=oracle,
            random=lambda purpose: self.streams.at(at, purpose),
            exchange=self.exchange,
            dtype=self.state.x.dtype,
            rho=self.exchange.rho,
            errors=errors,
        )
        doubts: list[DeferredCheck] = []
        with checking_later(doubts) if _is_slow_to_ask(self.state.x) else nullcontext():
            state = _computed(self.method.step(self.state, round))
        return self._kept(state), doubts

    def _kept(self, state: State) -> State:
        """The state as it is kept from round to round: with float32 surrogates, every sum is rounded to float32."""
        return map_state(state, _narrow) if self._are_narrow else state

    def take(self, ahead: Ahead) -> None:
        """Make the state that `look_ahead` returned the current one."""
        self.state = ahead.state
        if ahead.errors is not None:
            self.compression_error = torch.stack(ahead.errors).mean(dim=0) if ahead.errors else None
        self.t += 1

    def settle(self) -> None:
        """Wait for what is under way."""
        self.state = map_state(self.state, lambda x: x)

    def save(self) -> dict[str, Tensor]:
        """The tensors of the state by name; what is under way is waited for, and saved as arrived."""
        packed: dict[str, Tensor] = {}
        for name, value in _parts(self.state):
            if isinstance(value, Tensor):
                packed[name] = value
            else:
                packed |= {f"{name}.{part}": tensor for part, tensor in _tensors(value.settled()).items()}
        return packed

    def restore(self, t: int, tensors: Mapping[str, Tensor]) -> None:
        """Continue from the tensors that a session with the same settings saved after t rounds."""
        self.settle()  # what is under way belongs to the state that is given up
        device, new = self.state.x.device, {}
        try:
            for name, value in _parts(self.state):
                field = name.removeprefix("state.")
                if isinstance(value, Tensor):
                    new[field] = tensors[name].to(device)
                else:
                    parts = {part: tensors[f"{name}.{part}"].to(device) for part in _tensors(value)}
                    new[field] = replace(value, arriving=None, **parts)
        except KeyError as error:
            raise DataError(f"The checkpoint lacks {error.args[0]!r} of the method's state.") from None
        self.state = replace(self.state, **new)
        self.t = t


class UnderWay:
    """What drives a session shows its method and where that stands."""

    session: Session

    @property
    def method(self) -> Algorithm:
        """The method."""
        return self.session.method

    @property
    def t(self) -> int:
        """Rounds done."""
        return self.session.t

    @property
    def streams(self) -> Streams:
        """Where randomness comes from."""
        return self.session.streams

    @property
    def state(self) -> State:
        """The method's state."""
        return self.session.state

    @state.setter
    def state(self, state: State) -> None:
        self.session.state = state


def _is_slow_to_ask(x: Tensor) -> bool:
    """Whether looking at a number makes the program wait for the device."""
    return x.is_cuda


def _computed(state: State) -> State:
    """The state with its lines as tensors."""
    waiting = {name: value for name, value in vars(state).items() if isinstance(value, Line)}
    return replace(state, **dict(zip(waiting, tensors(*waiting.values()), strict=True))) if waiting else state


def _parts(state: State) -> list[tuple[str, Any]]:
    """The fields of a state, which are tensors or surrogates; anything else would be lost, and is an error."""
    parts = [(f"state.{field.name}", getattr(state, field.name)) for field in fields(state)]
    for name, value in parts:
        if not (isinstance(value, Tensor) or (is_dataclass(value) and hasattr(value, "settled"))):
            raise TypeError(f"`{name}` is a {type(value).__name__}; a state holds tensors and surrogates only.")
    return parts


def _tensors(surrogate: Any) -> dict[str, Tensor]:
    every = {field.name: getattr(surrogate, field.name) for field in fields(surrogate)}
    return {name: value for name, value in every.items() if isinstance(value, Tensor)}
