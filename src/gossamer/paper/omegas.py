"""What BEER's proof bounds, measured on a run: the errors Omega_1 to Omega_5, and the Lyapunov function Phi.

After step t the state holds X^(t+1), H^(t+1), V^t and G^t, so a row after t rounds takes X and H from the state as it
is, and V and G from the state that the next round will leave.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import numpy as np
import torch

from gossamer.algorithms.base import Algorithm, State
from gossamer.algorithms.beer import BEER, BEERState
from gossamer.algorithms.schedules import Schedule
from gossamer.errors import DataError, InputError
from gossamer.problems.base import Problem
from gossamer.records.identity import alpha_of
from gossamer.records.record import Record
from gossamer.records.schema import Header, Row
from gossamer.records.typed import Settings, read_as
from gossamer.runtime.tuning.certified import check_tracker, proven_smoothness
from gossamer.theory import Checked, Finding, Measured, check_run, lyapunov
from gossamer.theory.certificate import strongest
from gossamer.theory.verdict import Verdict
from gossamer.topology import Mixing, MixingSchedule

OMEGAS = ("omega_1", "omega_2", "omega_3", "omega_4", "omega_5")
_MOST = 1e100  # a run with larger numbers in it has diverged


class Omegas:
    """A measure for `simulate(measures=[Omegas()])`: Omega_1 to Omega_5, and Phi where the steps are certified."""

    name = "omegas"
    columns: Mapping[str, str] = {
        "omega_1": "||H - X||^2, the error of the surrogates of the models",
        "omega_2": "||G - V||^2, the same for the trackers",
        "omega_3": "||X - average||^2, how far the models are apart",
        "omega_4": "||V - average||^2, the same for the trackers",
        "omega_5": "||average of V||^2",
        "phi": "the Lyapunov function of BEER's proof, where the steps are certified",
    }

    def check(self, method: Algorithm) -> None:
        """Refuse a method that the proof does not cover."""
        if not isinstance(method, BEER):
            raise InputError(f"The errors Omega_1 to Omega_5 are those of BEER's proof; {method.info.title} has none.")
        check_tracker(method)

    def start(self, method: Algorithm, problem: Problem, mixing: Mixing, batch_size: int | None) -> "Proof":
        """Work out what the proof needs, and certify the steps.

        That is by Theorem 4.3 where the problem is known to satisfy PL, else by 4.1.
        """
        assert isinstance(method, BEER)
        if isinstance(mixing, MixingSchedule):
            raise InputError("BEER's proof covers a fixed graph, and no graph that changes; leave `omegas` out.")
        alpha = alpha_of(method, problem.d)
        lr = None if isinstance(method.lr, Schedule) else method.lr
        L, mu = proven_smoothness(problem), problem.pl_constant()
        found = None
        if lr is not None and L is not None:
            found, _ = strongest(alpha, mixing.rho, mixing.C, L, mu, method.gamma, lr)
        noise = 0.0 if batch_size is None else problem.noise_bound()
        return Proof(
            problem.clients,
            alpha,
            method.gamma,
            lr,
            L,
            mu,
            problem.minimum(),
            None if noise is None else noise**0.5,
            batch_size is not None or not method.compressor.is_deterministic,
            None if found is None else found.weights_for(problem.clients),
        )


@dataclass(frozen=True)
class Proof:
    """What the proof needs to know of a run; None where it is not known, or not proven."""

    clients: int
    alpha: float
    gamma: float
    lr: float | None
    """None where it changes from round to round."""
    L: float | None
    mu: float | None
    minimum: float | None
    """f*, or the lowest value that was found."""
    sigma: float | None
    """sigma^2 bounds the variance of a client's gradient from one row, at every point; 0 for full gradients."""
    is_random: bool
    """Whether messages or gradients are random: the proof is then about expectations."""
    weights: tuple[float, float, float, float] | None
    """s_1 to s_4 of Phi; None where the steps are not certified."""

    def facts(self) -> Settings:
        """For the header of a record."""
        return asdict(self)

    def of_states(self, now: State, ahead: State) -> list[dict[str, float]]:
        """Omega_1 to Omega_5 of each seed, from the state after t rounds and the one after t + 1."""
        here, there = cast(BEERState, now), cast(BEERState, ahead)
        x, h = (part.double().view(-1, self.clients, part.shape[1]) for part in (here.x, here.h.own))
        v, g = (part.double().view(x.shape) for part in (there.v, there.g.own))
        x_bar, v_bar = x.mean(dim=1, keepdim=True), v.mean(dim=1, keepdim=True)
        squares = [part.square().sum(dim=(1, 2)) for part in (h - x, g - v, x - x_bar, v - v_bar, v_bar)]
        return [dict(zip(OMEGAS, values, strict=True)) for values in torch.stack(squares, dim=1).tolist()]

    def of_row(self, row: Row) -> dict[str, float]:
        """Phi at a row of the record, if it has one."""
        errors = [row.extra.get(name, math.inf) for name in OMEGAS[:4]]
        if self.weights is None or self.minimum is None or row.loss is None or not all(map(math.isfinite, errors)):
            return {}
        gap = row.loss - self.minimum  # negative by rounding, or in a valley where f* was not searched
        return {"phi": gap + lyapunov(0.0, errors, self.weights)}


def proof_of(record: Record) -> Proof:
    """What the proof needs to know of a recorded run."""
    try:
        return read_as(Proof, record.header.facts[Omegas.name])
    except (KeyError, DataError):
        raise DataError(
            f'The record of {record.label!r} says nothing of the proof; record it with `measures = ["omegas"]` in the '
            "spec, or `measures=[Omegas()]` in simulate."
        ) from None


def measured_of(rows: Sequence[Sequence[Row]]) -> Measured:
    """From the rows of records, one list per seed: the rounds that all have, with all that is needed in them."""
    names = (*OMEGAS, "loss", "grad_norm")
    by_round = []
    for one in rows:
        values = {row.round: [row.value(name) for name in names] for row in one}
        by_round.append({t: v for t, v in values.items() if all(x is not None and abs(x) <= _MOST for x in v)})
    common = sorted(set.intersection(*(set(one) for one in by_round))) if by_round else []
    if not common:
        raise InputError('No round has Omega_1 to Omega_5; record them with `measures = ["omegas"]` in a spec.')
    table = np.array([[one[number] for number in common] for one in by_round], dtype=np.float64)
    return Measured(np.array(common, dtype=np.float64), table[..., :5], table[..., 5], table[..., 6])


def check_records(records: Sequence[Record]) -> Checked:
    """Check the records of one run, with one seed or several, against the proof."""
    if not records:
        raise InputError("A check takes one record or more, and got none.")
    first = records[0]
    if any(_settings(record) != _settings(first) for record in records):
        raise InputError(f"The records of {first.label!r} differ in more than their seed; check them one by one.")
    proof, mixing = proof_of(first), first.header.mixing
    if mixing is None:
        raise DataError(f"The record of {first.label!r} does not describe its mixing matrix.")
    if proof.L is None or proof.lr is None:
        what = "L of its problem is not known" if proof.L is None else "its lr changes from round to round"
        raise InputError(f"The run of {first.label!r} cannot be checked against the proof: {what}.")
    try:
        checked = check_run(
            measured_of([record.rows for record in records]),
            alpha=proof.alpha,
            rho=mixing.rho,
            C=mixing.C,
            n=mixing.clients,
            L=proof.L,
            gamma=proof.gamma,
            lr=proof.lr,
            mu=proof.mu,
            minimum=proof.minimum,
            sigma=proof.sigma,
            batch=1 if first.header.batch_size is None else first.header.batch_size,
            is_random=proof.is_random,
            is_float64=first.header.problem.get("dtype") == "float64",
        )
    except InputError as error:
        raise InputError(f"The record of {first.label!r} cannot be checked against the proof: {error}") from None
    except OverflowError:
        raise DataError(f"The record of {first.label!r} holds a number that is too large for the proof.") from None
    lost = [record.diverged for record in records if record.diverged]
    if lost:
        verdict: Verdict = "inconclusive" if checked.certificate is None else "does not hold"
        checked.findings.append(Finding("Finite", "the models stay finite", verdict, lost[0]))
    return checked


def _settings(record: Record) -> Header:
    """The header without the seed, and without when and where it ran."""
    facts = {
        # What was worked out ends in other digits on another machine.
        name: {
            key: float(f"{value:.6g}") if isinstance(value, float) else value
            for key, value in table.items()
            if key != "weights"
        }
        for name, table in record.header.facts.items()
    }
    same = replace(record.header, seed=0, gossamer="", identity={}, facts=facts, rounds=None, network=None, shares=None)
    return replace(same, started=None, command=None, device=None, torch=None, python=None)
