"""A run against its proof: each recursion of the lemma at every round, and the theorems' bounds.

The recursions hold for any steps; what Phi does, and the theorems, only where the steps are certified. With a
deterministic compressor and full gradients each run must obey them to rounding. Otherwise they speak of expectations: a
mean over seeds stands for one, and does not hold only where all of its confidence interval is beyond the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gossamer.errors import InputError, check_integer, check_nonnegative, check_positive, check_unit
from gossamer.theory.certificate import Certificate, certify
from gossamer.theory.inputs import check_c, check_mu
from gossamer.theory.system import linear_system

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

Verdict = Literal["holds", "does not hold", "cannot be told"]
CONFIDENCE = 0.95
# What rounding in float64 may come to: of a bound; of numbers whose small difference is taken; of a square that is 0.
_ROUNDING, _DIFFERENCE, _TINY = 1e-9, 1e-13, 1e-28


@dataclass(frozen=True)
class Measured:
    """Runs that differ in their seed alone, each with what was measured after the same rounds."""

    rounds: "Array"
    """(T,), rising."""
    omegas: "Array"
    """(seeds, T, 5): Omega_1 to Omega_5."""
    loss: "Array"
    """(seeds, T): f at the average model."""
    grad_norm: "Array"
    """(seeds, T): ||grad f|| there."""


@dataclass(frozen=True)
class Finding:
    """One inequality, `left <= right`, at every round at which it could be looked at."""

    name: str
    says: str
    """The inequality in words and symbols."""
    verdict: Verdict
    why: str = ""
    """Why it cannot be told, or where it fails."""
    rounds: "Array | None" = None
    left: "Array | None" = None
    """(T,): means over the seeds."""
    right: "Array | None" = None
    above: int = 0
    """Rounds at which the mean itself is above its bound, be it within its confidence interval."""
    tightest: float | None = None
    """The largest left / right of all rounds, of the means; 1 where the bound is just met. Where rounding is all that
    there is to see, it is not looked for."""


class Checked(NamedTuple):
    """All that came of a check."""

    findings: list[Finding]
    certificate: Certificate | None
    """The one with the weights of Phi; None where the steps are not certified."""
    phi: "Array | None"
    """(T,): Phi, mean over the seeds."""

    @property
    def verdict(self) -> Verdict:
        """Of all findings together."""
        verdicts = {finding.verdict for finding in self.findings}
        for one in ("does not hold", "cannot be told"):
            if one in verdicts:
                return one
        return "holds"


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
) -> Checked:
    """Hold measured runs of BEER against the lemma's four recursions, the descent of f, and the theorems.

    Args:
        measured: What was measured; the recursions are looked at between rounds that follow one another.
        alpha: Of the compressor.
        rho: Of the mixing matrix.
        C: Of the mixing matrix.
        L: Smoothness of every client's objective.
        n: Clients.
        gamma: The mixing step of the run.
        lr: Its step size.
        mu: Of the PL condition, if the objective is known to satisfy it.
        minimum: f*, or the lowest value known; where a run went lower, that is taken.
        sigma: sigma^2 bounds the variance of a gradient from one row; 0 for full gradients, None if nothing is known.
        batch: Rows a minibatch.
        is_random: Whether messages or gradients are drawn, so that the proof speaks of expectations.
    """
    import numpy as np

    alpha, rho, C, L = check_unit("alpha", alpha), check_unit("rho", rho), check_c(C), check_positive("L", L)
    n, batch, mu = check_integer("n", n, 1), check_integer("batch", batch, 1), check_mu(mu, L)
    gamma, lr = check_unit("gamma", gamma), check_positive("lr", lr)
    variance = None if sigma is None else check_nonnegative("sigma", sigma) ** 2 / batch
    rounds, omegas, loss = measured.rounds, measured.omegas, measured.loss
    if omegas.shape != (*loss.shape, 5) or loss.shape[1:] != rounds.shape or measured.grad_norm.shape != loss.shape:
        raise InputError("A check takes (seeds, rounds, 5) Omegas, and losses and gradient norms beside them.")
    look = _Look(rounds, is_random, is_known=variance is not None)
    A, b1, b2, q = linear_system(alpha, rho, C, L, n, gamma, lr)
    four, five, squares = omegas[..., :4], omegas[..., 4], measured.grad_norm**2
    variance = variance or 0.0

    bound = four @ A.T + five[..., None] * b1 + b2 * variance
    findings = [
        look.each_round(f"Omega_{i + 1}", _RECURSION.format(i + 1), four[:, 1:, i], bound[:, :-1, i]) for i in range(4)
    ]
    noise = lr / (2 * n) * variance
    fall = lr / 2 * squares + (lr / 2 - lr**2 * L / 2) * five - four @ q - noise
    size = float(np.abs(loss).max())
    findings.append(look.each_round("f", _DESCENT, fall[:, :-1], loss[:, :-1] - loss[:, 1:], size))

    certificate, why = _certificate(alpha, rho, C, L, mu, gamma, lr)
    if certificate is None:
        findings += [Finding(name, says, "cannot be told", why) for name, says in (_PHI, _NONCONVEX, _START)]
        return Checked(findings, None, None)
    weights = np.array(certificate.weights_for(n))
    phi = loss - min([float(loss.min()), *([] if minimum is None else [minimum])]) + four @ weights
    noise += float(weights @ b2) * variance
    size = float(phi.max())
    findings.append(look.each_round(*_PHI, lr / 2 * squares[:, :-1] - noise, phi[:, :-1] - phi[:, 1:], size))
    findings.append(look.mean_so_far(*_NONCONVEX, squares, 2 * phi[:, :1] / lr, 2 * noise / lr))
    passed = rounds[1:] - rounds[0]
    if certificate.mu is None:
        findings.append(look.each(*_START, rounds[1:], phi[:, 1:], phi[:, :1] + passed * noise, size))
    else:
        shrinks = certificate.mu * lr
        findings.append(
            look.each(*_LINEAR, rounds[1:], phi[:, 1:], phi[:, :1] * (1 - shrinks) ** passed + noise / shrinks, size)
        )
    return Checked(findings, certificate, phi.mean(axis=0))


_RECURSION = "Omega_{0} after a round <= (A Omega + b1 Omega_5 + b2 sigma^2/b)_{0}"
_DESCENT = "lr/2 ||grad f||^2 + (lr/2 - lr^2 L/2) Omega_5 - q' Omega - noise <= what f falls by in a round"
_PHI = ("Phi", "lr/2 ||grad f||^2 - noise <= what Phi falls by in a round")
_NONCONVEX = ("Theorem 4.1, 4.2", "mean of ||grad f||^2 over T rounds <= 2 Phi_0 / (lr T) + noise")
_START = ("Phi_t", "Phi_t <= Phi_0 + t noise")
_LINEAR = ("Theorem 4.3, 4.4", "Phi_t <= (1 - mu lr)^t Phi_0 + noise")
_NO_SIGMA = "No bound of the gradients' noise is known for this problem."
_NO_PAIRS = "It takes one round after another from the first: record with eval_every = 1."


def _certificate(
    alpha: float, rho: float, C: float, L: float, mu: float | None, gamma: float, lr: float
) -> tuple[Certificate | None, str]:
    """For PL if that can be had; and why there is none."""
    reasons = []
    for one in dict.fromkeys((mu, None)):
        try:
            return certify(alpha, rho, C, L, one, gamma=gamma, lr=lr), ""
        except InputError as error:
            reasons.append(str(error))
    return None, f"The steps are not certified. {reasons[-1]}"


class _Look:
    """How an inequality is looked at: where, and what may be said of it."""

    def __init__(self, rounds: "Array", is_random: bool, is_known: bool) -> None:
        import numpy as np

        self.rounds, self.is_random, self.is_known = rounds, is_random, is_known
        self.follows = np.diff(rounds) == 1

    def each_round(self, name: str, says: str, left: "Array", right: "Array", size: float = 0.0) -> Finding:
        """(seeds, T - 1) each: from one round to the next, where both were measured."""
        if not self.follows.any():
            return Finding(name, says, "cannot be told", _NO_PAIRS)
        at = self.follows
        return self.each(name, says, self.rounds[1:][at], left[:, at], right[:, at], size)

    def mean_so_far(self, name: str, says: str, squares: "Array", over: "Array", more: float) -> Finding:
        """The mean of `squares` over the first T rounds against over / T + more, for every T."""
        import numpy as np

        if self.rounds[0] != 0 or not self.follows[:1].any():
            return Finding(name, says, "cannot be told", _NO_PAIRS)
        whole = len(self.rounds) if self.follows.all() else int(np.argmin(self.follows)) + 1
        many = np.arange(1.0, whole + 1)
        return self.each(name, says, many, np.cumsum(squares[:, :whole], axis=1) / many, over / many + more)

    def each(self, name: str, says: str, rounds: "Array", left: "Array", right: "Array", size: float = 0.0) -> Finding:
        """(seeds, T) each; `size` is that of the numbers of which both sides are small differences."""
        import numpy as np

        if not self.is_known or not len(rounds):
            why = _NO_PAIRS if self.is_known else _NO_SIGMA
            return Finding(name, says, "cannot be told", why)
        blur = _DIFFERENCE * size + _TINY
        excess = left - right - _ROUNDING * np.abs(right) - blur
        if self.is_random:
            above = excess.mean(axis=0) > 0
            beyond = excess.mean(axis=0) > (_half_width(excess) if len(excess) > 1 else 0.0)
        else:
            above = beyond = (excess > 0).any(axis=0)
        verdict: Verdict = "holds"
        why = ""
        if beyond.any() and self.is_random and len(excess) == 1:
            verdict = "cannot be told"
            why = f"In {_places(beyond, rounds)}, but of an expectation one run says little: take several seeds."
        elif beyond.any():
            verdict, why = "does not hold", f"In {_places(beyond, rounds)}."
        left, right = left.mean(axis=0), right.mean(axis=0)
        is_clear = right > 1000 * blur
        tightest = float((left[is_clear] / right[is_clear]).max()) if is_clear.any() else None
        return Finding(name, says, verdict, why, rounds, left, right, int(above.sum()), tightest)


def _places(which: "npt.NDArray[np.bool_]", rounds: "Array") -> str:
    return f"{int(which.sum()):,} of {len(rounds):,} rounds, first in {int(rounds[which.argmax()]):,}, it is broken"


def _half_width(values: "Array") -> "Array":
    """Of the confidence interval of the mean over seeds, by Student's t."""
    import numpy as np
    from scipy.stats import t

    seeds = len(values)
    width: Array = t.ppf((1 + CONFIDENCE) / 2, seeds - 1) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return width


def measured_of(rows: Sequence[Sequence[dict[str, Any]]]) -> Measured:
    """From the rows of records, one list a seed: the rounds that all have, with all that is needed in them."""
    import numpy as np

    names = ("omega_1", "omega_2", "omega_3", "omega_4", "omega_5", "loss", "grad_norm")
    by_round = [
        {row["round"]: [row[name] for name in names] for row in one if all(row.get(name) is not None for name in names)}
        for one in rows
    ]
    common = sorted(set.intersection(*(set(one) for one in by_round))) if by_round else []
    if not common:
        raise InputError(
            "No round has Omega_1 to Omega_5; record them with `omegas = true` in the spec, or in simulate."
        )
    table = np.array([[one[number] for number in common] for one in by_round], dtype=np.float64)
    return Measured(np.array(common, dtype=np.float64), table[..., :5], table[..., 5], table[..., 6])
