"""Check a run against BEER's proof: each recursion of the lemma at every round, and the theorems' bounds.

The recursions hold for any steps; the descent of Phi and the theorems hold where the steps are certified. With a
deterministic compressor and full gradients each run must satisfy them to rounding. Otherwise they are about
expectations, which means over seeds estimate: an inequality does not hold if a confidence interval of the mean, wide
enough to cover all rounds at once, lies beyond the bound.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.errors import InputError, check_bool, check_integer, check_nonnegative, check_positive, check_unit
from gossamer.theory.certificate import Certificate, strongest
from gossamer.theory.inputs import check_c, check_mu
from gossamer.theory.system import linear_system
from gossamer.theory.verdict import Verdict

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95
# Rounding errors in float64: of a bound; of numbers whose small difference is taken; of a square that is 0.
_ROUNDING, _DIFFERENCE, _TINY = 1e-9, 1e-13, 1e-28
_MOST = 1e100  # a run with larger numbers in it has diverged


@dataclass(frozen=True)
class Measured:
    """Runs that differ in their seed alone, each with what was measured after the same rounds."""

    rounds: Array
    """(T,), increasing."""
    omegas: Array
    """(seeds, T, 5): Omega_1 to Omega_5."""
    loss: Array
    """(seeds, T): f at the average model."""
    grad_norm: Array
    """(seeds, T): ||grad f|| there."""


@dataclass(frozen=True)
class Finding:
    """One inequality, `left <= right`, at every round at which it could be checked."""

    name: str
    says: str
    """The inequality in words and symbols."""
    verdict: Verdict
    why: str = ""
    """Why it is inconclusive, or where it fails."""
    rounds: Array | None = None
    left: Array | None = None
    """(T,): means over the seeds."""
    right: Array | None = None
    above: int = 0
    """Rounds at which the mean itself is above its bound, be it within its confidence interval."""
    tightest: float | None = None
    """The largest left / right, of the means: 1 where the bound is just met. Rounds at which the right side is lost in
    rounding are left out of it."""

    @property
    def many(self) -> int:
        """Rounds at which it was checked."""
        return 0 if self.rounds is None else len(self.rounds)


class Checked(NamedTuple):
    """The result of a check."""

    findings: list[Finding]
    certificate: Certificate | None
    """The one with the weights of Phi; None where the steps are not certified."""
    phi: Array | None
    """(T,): Phi, mean over the seeds."""

    @property
    def verdict(self) -> Verdict:
        """Of all findings together."""
        worst_first: tuple[Verdict, ...] = ("does not hold", "inconclusive")
        verdicts = {finding.verdict for finding in self.findings}
        return next((verdict for verdict in worst_first if verdict in verdicts), "holds")


def check_run(
    measured: Measured,
    *,
    alpha: float,
    rho: float,
    C: float,
    L: float,
    n: int,
    gamma: float,
    lr: float,
    mu: float | None = None,
    minimum: float | None = None,
    sigma: float | None = 0.0,
    batch: int = 1,
    is_random: bool = False,
    is_float64: bool = True,
) -> Checked:
    """Check measured runs of BEER against the lemma's four recursions, the descent of f, and the theorems.

    The constants are those of `certify`, for n clients and with the steps of the run. Where rounds are missing from
    `measured`, what is there can break an inequality, and cannot prove it. `minimum` is f*, or the lowest value known;
    where a run went lower, that is taken. sigma^2 bounds the variance of a gradient from one row (0 for full gradients,
    None if nothing is known), and `batch` is the rows per minibatch. `is_random` says whether messages or gradients are
    random, so that the proof is about expectations. `is_float64` says whether the models were in float64; in float32
    rounding alone can break what holds.
    """
    alpha, rho, C, L = check_unit("alpha", alpha), check_unit("rho", rho), check_c(C), check_positive("L", L)
    n, batch, mu = check_integer("n", n, 1), check_integer("batch", batch, 1), check_mu(mu, L)
    gamma, lr = check_unit("gamma", gamma), check_positive("lr", lr)
    known = None if sigma is None else check_nonnegative("sigma", sigma) ** 2 / batch
    check_bool("is_random", is_random)
    if minimum is not None and not (isinstance(minimum, int | float) and math.isfinite(minimum)):
        raise InputError(f"`minimum` must be a finite number, got {str(minimum)[:80]!r}.")
    _check_measured(measured)
    rounds, omegas, loss = measured.rounds, measured.omegas, measured.loss
    look = _Look(rounds, is_random, is_float64, is_known=known is not None)
    A, b1, b2, q = linear_system(alpha, rho, C, L, n, gamma, lr)
    four, five, squares = omegas[..., :4], omegas[..., 4], measured.grad_norm**2
    variance = known or 0.0

    bound = four @ A.T + five[..., None] * b1 + b2 * variance
    findings = [
        look.each_round(f"Omega_{i + 1}", _RECURSION.format(i + 1), four[:, 1:, i], bound[:, :-1, i]) for i in range(4)
    ]
    noise = lr / (2 * n) * variance
    left, more = lr / 2 * squares + (lr / 2 - lr**2 * L / 2) * five, four @ q + noise
    fall = loss[:, :-1] - loss[:, 1:] + more[:, :-1]
    findings.append(look.each_round("f", _DESCENT, left[:, :-1], fall, float(np.abs(loss).max())))

    certificate, why = strongest(alpha, rho, C, L, mu, gamma, lr)
    if certificate is None:
        why = f"The steps are not certified. {why}"
        findings += [Finding(name, says, "inconclusive", why) for name, says in (_PHI, _NONCONVEX, _START)]
        return Checked(findings, None, None)
    weights = np.array(certificate.weights_for(n))
    phi = loss - min([float(loss.min()), *([] if minimum is None else [minimum])]) + four @ weights
    noise += float(weights @ b2) * variance
    size, passed = float(phi.max()), rounds[1:] - rounds[0]
    findings.append(look.each_round(*_PHI, lr / 2 * squares[:, :-1], phi[:, :-1] - phi[:, 1:] + noise, size))
    means = np.cumsum(squares, axis=1)[:, :-1] / np.arange(1, len(rounds))
    promised = 2 * (phi[:, :1] - phi[:, 1:]) / (lr * np.maximum(passed, 1)) + 2 * noise / lr
    findings.append(look.from_the_first(*_NONCONVEX, means, promised, 2 * size / lr))
    if certificate.mu is None:
        findings.append(look.each(*_START, rounds[1:], phi[:, 1:], phi[:, :1] + passed * noise, size))
        if mu is not None:
            findings.append(Finding(*_LINEAR, "inconclusive", "The steps are certified for Theorem 4.1 alone."))
    else:
        shrinks = certificate.mu * lr
        promised = phi[:, :1] * (1 - shrinks) ** passed + noise / shrinks
        findings.append(look.each(*_LINEAR, rounds[1:], phi[:, 1:], promised, size))
    return Checked(findings, certificate, phi.mean(axis=0))


_RECURSION = "Omega_{0} after a round <= (A Omega + b1 Omega_5 + b2 sigma^2/b)_{0}"
_DESCENT = "lr/2 ||grad f||^2 + (lr/2 - lr^2 L/2) Omega_5 <= fall of f in a round + q' Omega + noise"
_PHI = ("Phi", "lr/2 ||grad f||^2 <= fall of Phi in a round + noise")
_NONCONVEX = ("Theorem 4.1, 4.2", "mean of ||grad f||^2 over T rounds <= 2 (Phi_0 - Phi_T) / (lr T) + noise")
_START = ("Phi_t", "Phi_t <= Phi_0 + t noise")
_LINEAR = ("Theorem 4.3, 4.4", "Phi_t <= (1 - mu lr)^t Phi_0 + noise")


def _check_measured(measured: Measured) -> None:
    rounds, omegas, loss, norms = measured.rounds, measured.omegas, measured.loss, measured.grad_norm
    if omegas.shape != (*loss.shape, 5) or loss.shape[1:] != rounds.shape or norms.shape != loss.shape:
        raise InputError("A check takes (seeds, rounds, 5) Omegas, and losses and gradient norms of (seeds, rounds).")
    if len(rounds) < 2 or not len(loss):
        raise InputError("A check takes two rounds or more of one run or more.")
    for part in (omegas, loss, norms):
        if not (np.abs(part) <= _MOST).all():
            raise InputError(f"What was measured must be finite and at most {_MOST:g}; check the rounds before.")


class _Look:
    """Checks inequalities at the measured rounds."""

    def __init__(self, rounds: Array, is_random: bool, is_float64: bool, is_known: bool) -> None:
        self.rounds, self.is_random, self.is_float64, self.is_known = rounds, is_random, is_float64, is_known
        self.follows = np.diff(rounds) == 1
        self.is_whole = bool(rounds[0] == 0 and self.follows.all())

    def each_round(self, name: str, says: str, left: Array, right: Array, size: float = 0.0) -> Finding:
        """(seeds, T - 1) each: from one round to the next, where both were measured."""
        at = self.follows
        return self._if_whole(self.each(name, says, self.rounds[1:][at], left[:, at], right[:, at], size))

    def from_the_first(self, name: str, says: str, left: Array, right: Array, size: float) -> Finding:
        """(seeds, T - 1) each: over the first 1, 2, ... rounds, as far as none is missing."""
        whole = len(self.follows) if self.follows.all() else int(self.follows.argmin())
        whole = whole if self.rounds[0] == 0 else 0
        found = self.each(name, says, self.rounds[1 : whole + 1], left[:, :whole], right[:, :whole], size)
        return self._if_whole(found)

    def _if_whole(self, finding: Finding) -> Finding:
        """Rounds that are missing leave open whether an inequality holds in them."""
        if self.is_whole or finding.verdict != "holds":
            return finding
        return replace(finding, verdict="inconclusive", why=_NOT_WHOLE)

    def each(self, name: str, says: str, rounds: Array, left: Array, right: Array, size: float = 0.0) -> Finding:
        """(seeds, T) each; `size` is that of the numbers of which both sides are small differences."""
        if not self.is_known or not len(rounds):
            return Finding(name, says, "inconclusive", _NOT_WHOLE if self.is_known else _NO_SIGMA)
        blur = _DIFFERENCE * size + _TINY
        excess = left - right - _ROUNDING * np.abs(right) - blur
        if self.is_random:
            above = excess.mean(axis=0) > 0
            beyond = excess.mean(axis=0) > (_half_width(excess) if len(excess) > 1 else 0.0)
        else:
            above = beyond = (excess > 0).any(axis=0)
        verdict, why = self._verdict(beyond, rounds, len(excess))
        left, right = left.mean(axis=0), right.mean(axis=0)
        is_clear = right > 1000 * blur
        tightest = float((left[is_clear] / right[is_clear]).max()) if is_clear.any() else None
        return Finding(name, says, verdict, why, rounds, left, right, int(above.sum()), tightest)

    def _verdict(self, beyond: npt.NDArray[np.bool_], rounds: Array, seeds: int) -> tuple[Verdict, str]:
        broken = ""
        if beyond.any():
            first = int(rounds[beyond.argmax()])
            broken = f"Broken in {int(beyond.sum()):,} of {len(rounds):,} rounds, first in {first:,}"
        if self.is_random and seeds == 1:
            return "inconclusive", f"{broken}; but of {_ONE_SEED}" if broken else f"Of {_ONE_SEED}"
        if broken and not self.is_float64:
            return "inconclusive", f"{broken}; but in float32 rounding may do that: run it in float64."
        return ("does not hold", f"{broken}.") if broken else ("holds", "")


_NO_SIGMA = "No bound of the gradients' noise is known for this problem."
_NOT_WHOLE = "Rounds are missing: record every one, with eval_every = 1."
_ONE_SEED = "an expectation one run says little: take several seeds."


def _half_width(values: Array) -> Array:
    """Of an interval for the mean over seeds that covers all rounds at once (Student's t, Bonferroni)."""
    from scipy.stats import t

    seeds, rounds = values.shape
    quantile = t.ppf(1 - (1 - CONFIDENCE) / (2 * rounds), seeds - 1)
    width: Array = quantile * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return width
