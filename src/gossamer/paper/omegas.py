"""What BEER's proof bounds, taken from a run: the errors Omega_1 to Omega_5, and the Lyapunov function Phi.

After step t the state holds X^(t+1), H^(t+1), V^t and G^t, so a row after t rounds takes X and H from the state as it
stands, and V and G from the state that the next round will leave.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gossamer.algorithms.base import Algorithm
from gossamer.algorithms.beer import BEER, BEERState
from gossamer.algorithms.schedules import Schedule
from gossamer.errors import DataError, InputError, check_unit
from gossamer.problems.base import Problem
from gossamer.problems.modules.module import ModuleProblem
from gossamer.records.record import OMEGAS, Record
from gossamer.runtime.measure import alpha_of
from gossamer.theory import Checked, Finding, certify, check_run, lyapunov
from gossamer.theory.certificate import strongest
from gossamer.theory.check import Verdict, measured_of
from gossamer.topology import MixingMatrix


def check_has_omegas(method: Algorithm) -> None:
    """Refuse a method that the proof does not speak of."""
    if not isinstance(method, BEER):
        raise InputError(f"The errors Omega_1 to Omega_5 are those of BEER's proof; {method.info.title} has none.")
    _check_tracker(method)


def _check_tracker(method: BEER) -> None:
    if method.tracker != "stored":
        raise InputError("The proof is that of BEER with tracker 'stored'; 'reevaluated' is another algorithm.")


def share_of(wish: str) -> float:
    """Of the largest certified lr: all of it for "certified", half for "certified:0.5"."""
    try:
        return check_unit("share", float(wish.partition(":")[2] or 1))
    except (ValueError, InputError):
        raise InputError(f"`lr` may be 'certified', or 'certified:0.5' for half the largest; got {wish!r}.") from None


def certified_steps(
    method: Algorithm, problem: Problem, mixing: MixingMatrix, share: float = 1.0, **given: float
) -> dict[str, float]:
    """A share of the largest lr that the proof allows, and its gamma; `gamma` or `lr` stay, if given.

    Where the problem is known to satisfy PL, they are those of Theorem 4.3, with which 4.1 holds, too.
    """
    if not isinstance(method, BEER):
        raise InputError(f"Steps are certified for BEER alone; give {method.info.title} numbers, or 'auto'.")
    _check_tracker(method)
    if isinstance(method.lr, Schedule):
        raise InputError("The proof is that of one lr for all rounds; a schedule's gamma cannot be certified.")
    L = _smoothness(problem)
    if L is None:
        raise InputError("Steps cannot be certified where L is not known, as of a network; give numbers, or 'auto'.")
    found = certify(alpha_of(method, problem.d), mixing.rho, mixing.C, L, problem.pl_constant(), **given)
    return {"lr": share * found.lr, "gamma": found.gamma}


def _smoothness(problem: Problem) -> float | None:
    """L where it is a bound; a network's own is that of one point."""
    return None if isinstance(problem, ModuleProblem) else problem.smoothness()


def errors_of_proof(now: BEERState, ahead: BEERState, clients: int) -> list[dict[str, float]]:
    """Omega_1 to Omega_5 of each seed, from the state after t rounds and the one after t + 1."""
    x, h = (part.double().view(-1, clients, part.shape[1]) for part in (now.x, now.h.own))
    v, g = (part.double().view(x.shape) for part in (ahead.v, ahead.g.own))
    x_bar, v_bar = x.mean(dim=1, keepdim=True), v.mean(dim=1, keepdim=True)
    squares = [part.square().sum(dim=(1, 2)) for part in (h - x, g - v, x - x_bar, v - v_bar, v_bar)]
    return [dict(zip(OMEGAS, values, strict=True)) for values in torch.stack(squares, dim=1).tolist()]


@dataclass(frozen=True)
class Proof:
    """What the proof needs to know of a run; None where it is not known, or not proven."""

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
    """Whether what is sent, or the gradients, are drawn: the proof then speaks of expectations."""
    weights: tuple[float, float, float, float] | None
    """s_1 to s_4 of Phi; None where the steps are not certified."""

    @classmethod
    def of(cls, method: BEER, problem: Problem, mixing: MixingMatrix, batch_size: int | None) -> "Proof":
        """Worked out, and the steps certified: by Theorem 4.3 where the problem is known to satisfy PL, else 4.1."""
        alpha = alpha_of(method, problem.d)
        lr = None if isinstance(method.lr, Schedule) else method.lr
        L, mu = _smoothness(problem), problem.pl_constant()
        found = None
        if lr is not None and L is not None:
            found, _ = strongest(alpha, mixing.rho, mixing.C, L, mu, method.gamma, lr)
        noise = 0.0 if batch_size is None else problem.noise_bound()
        return cls(
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

    def phi(self, row: dict[str, Any]) -> dict[str, float]:
        """Phi at a row of the record, if it has one."""
        errors = [row.get(name, math.inf) for name in OMEGAS[:4]]
        if self.weights is None or self.minimum is None or not all(map(math.isfinite, errors)):
            return {}
        gap = row["loss"] - self.minimum  # below 0 by rounding, or in a valley that f* was not looked for in
        return {"phi": gap + lyapunov(0.0, errors, self.weights)}

    def describe(self) -> dict[str, Any]:
        """For the header of a record."""
        return asdict(self)


def check_records(records: Sequence[Record]) -> Checked:
    """Records of one run with several seeds, or of one, held against the proof."""
    if not records:
        raise InputError("A check takes one record or more, and got none.")
    first = records[0]
    if any(_settings(record) != _settings(first) for record in records):
        raise InputError(f"The records of {first.label!r} differ in more than their seed; check them one by one.")
    said = first.header
    try:
        proof, mixing = Proof(**said["proof"]), said["mixing"]
        constants = {"rho": mixing["rho"], "C": mixing["C"], "n": mixing["clients"]}
        batch, is_float64 = said.get("batch_size"), said["problem"]["dtype"] == "float64"
    except (KeyError, TypeError):
        raise DataError(
            f"The record of {first.label!r} says nothing of the proof; record it with `omegas = true` in the spec, or "
            "in simulate."
        ) from None
    if proof.L is None or proof.lr is None:
        what = "L of its problem is not known" if proof.L is None else "its lr changes from round to round"
        raise InputError(f"The run of {first.label!r} cannot be held against the proof: {what}.")
    try:
        checked = check_run(
            measured_of([record.rows for record in records]),
            alpha=proof.alpha,
            **constants,
            L=proof.L,
            gamma=proof.gamma,
            lr=proof.lr,
            mu=proof.mu,
            minimum=proof.minimum,
            sigma=proof.sigma,
            batch=1 if batch is None else batch,
            is_random=proof.is_random,
            is_float64=is_float64,
        )
    except InputError as error:
        raise InputError(f"The record of {first.label!r} cannot be held against the proof: {error}") from None
    except OverflowError:
        raise DataError(f"The record of {first.label!r} holds a number that is too large for the proof.") from None
    lost = [record.diverged for record in records if record.diverged]
    if lost:
        verdict: Verdict = "cannot be told" if checked.certificate is None else "does not hold"
        checked.findings.append(Finding("Finite", "the models stay finite", verdict, lost[0]))
    return checked


def _settings(record: Record) -> dict[str, Any]:
    """All that a run says of itself but its seed, when and where it ran."""
    passing = (
        *("seed", "started", "command", "device", "torch", "python", "gossamer"),
        *("rounds", "network", "shares", "identity"),
    )
    said = {name: value for name, value in record.header.items() if name not in passing}
    if isinstance(said.get("proof"), dict):  # what was worked out ends in other digits on another machine
        said["proof"] = {name: _rounded(value) for name, value in said["proof"].items() if name != "weights"}
    return said


def _rounded(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value
