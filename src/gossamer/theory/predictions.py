"""Predictions of the theorems: rounds and bits to a target, and the error that noisy gradients leave.

From Step 2 of the proof, with the weights s of a certificate,

    Phi_{t+1}  <=  Phi_t - eta/2 ||grad f(x-bar^t)||^2 + N,        N = (eta/(2n) + s'b2) sigma^2 / b,

so the mean of ||grad f||^2 over T rounds is at most 2 Phi_0 / (eta T) + 2 N / eta; under PL, Phi_T is at most
(1 - mu eta)^T Phi_0 + N / (mu eta). In Theorems 4.2 and 4.4 the last terms are N itself, in the form of its bound
36 c_4 sigma^2 / (c_gamma L b alpha), without the factors 2/eta and 1/(mu eta). They are included here.
"""

import math
import sys
from fractions import Fraction

from gossamer.errors import InputError, check_integer, check_nonnegative, check_positive
from gossamer.theory.certificate import Certificate
from gossamer.theory.system import recursion


def neighbourhood(sigma: float, batch: int, certificate: Certificate, n: int = 1) -> float:
    """The error that noisy gradients leave, however many rounds are run.

    It bounds the mean of ||grad f(x-bar)||^2 over the rounds (Theorem 4.2, corrected: 2 N / eta). With a certificate
    for PL it bounds Phi, which bounds f(x-bar) - f* (Theorem 4.4, corrected: N / (mu eta)).

    Args:
        sigma: sigma^2 bounds the variance of a client's gradient from one row.
        batch: b, rows per minibatch.
        certificate: From `certify`.
        n: Clients; 1 gives a bound for any number.
    """
    try:
        return float(_floor(sigma, batch, certificate, n))
    except OverflowError:
        raise InputError(f"`sigma` = {sigma!r} gives a neighbourhood too large for a float; scale f down.") from None


def rounds_to(
    epsilon: float, certificate: Certificate, phi: float, *, sigma: float = 0.0, batch: int = 1, n: int = 1
) -> int:
    """The rounds T after which the proof guarantees mean_{t<T} ||grad f(x-bar^t)||^2 <= epsilon^2.

    With a certificate for PL, the rounds T after which Phi_T <= epsilon, so that f(x-bar^T) - f* <= epsilon.

    `phi` is Phi_0, from `lyapunov` with `certificate.weights_for(n)`. The other arguments are those of `neighbourhood`;
    `sigma` is 0 for full gradients.

    Raises:
        InputError: If the noise alone exceeds the target.

    >>> from gossamer.theory import certify, rounds_to
    >>> certificate = certify(alpha=1.0, rho=1.0, C=1.0, L=1.0)
    >>> print(f"{rounds_to(0.1, certificate, phi=1.0):.3g} {rounds_to(0.05, certificate, phi=1.0):.3g}")
    1.41e+05 5.63e+05
    """
    target, start = check_positive("epsilon", epsilon), Fraction(check_nonnegative("phi", phi))
    floor = _floor(sigma, batch, certificate, n)
    room = (Fraction(target) ** 2 if certificate.mu is None else Fraction(target)) - floor
    if room <= 0:
        what = "the mean of ||grad f||^2" if certificate.mu is None else "Phi"
        shown = f"{float(floor):.3g}" if floor <= sys.float_info.max else "a number too large for a float"
        raise InputError(
            f"`epsilon` = {epsilon!r} cannot be guaranteed: noise may keep {what} at {shown}; "
            f"use batches larger than {batch} or full gradients."
        )
    if certificate.mu is None:
        return max(1, math.ceil(2 * start / (Fraction(certificate.lr) * room)))
    if start <= room:
        return 0
    try:
        ratio = start / room
        log = math.log1p(float(ratio - 1)) if ratio < 2 else math.log(ratio.numerator) - math.log(ratio.denominator)
        return math.ceil(log / -math.log1p(-certificate.mu * certificate.lr))
    except (OverflowError, ZeroDivisionError):
        raise InputError(f"`mu` = {certificate.mu!r} is too small to compute the rounds; omit it.") from None


def bits_to(
    epsilon: float, certificate: Certificate, phi: float, bits: float, *, sigma: float = 0.0, batch: int = 1, n: int = 1
) -> int:
    """The bits that a client sends on one link in `rounds_to` rounds.

    `bits` are those of one round on one link, for both messages together. The other arguments are those of `rounds_to`.
    """
    per_round = Fraction(check_positive("bits", bits))
    return math.ceil(per_round * rounds_to(epsilon, certificate, phi, sigma=sigma, batch=batch, n=n))


def _floor(sigma: float, batch: int, certificate: Certificate, n: int) -> Fraction:
    """2 N / eta, or N / (mu eta) under PL, exactly."""
    if not isinstance(certificate, Certificate):
        raise InputError(f"`certificate` must be a Certificate from `certify`, got {str(certificate)[:80]!r}.")
    variance = Fraction(check_nonnegative("sigma", sigma)) ** 2 / check_integer("batch", batch, 1)
    n, of = check_integer("n", n, 1), certificate
    alpha, rho, C, L, gamma, lr = map(Fraction, (of.alpha, of.rho, of.C, of.L, of.gamma, of.lr))
    _, _, b2, _ = recursion(alpha, rho, C, L, 1, gamma, lr)  # for n = 1: s scales as 1 / n, and b2 as n
    noise = (lr / (2 * n) + sum(Fraction(s) * b for s, b in zip(of.weights, b2, strict=True))) * variance
    return 2 * noise / lr if of.mu is None else noise / (Fraction(of.mu) * lr)
