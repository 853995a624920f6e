"""DESTRESS: variance reduction with accelerated mixing."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Needs, Round, count, method, unit
from gossamer.algorithms.surrogate import zeros_float64


@dataclass(frozen=True)
class DESTRESSState:
    """Models u and those of the step before; what the inner loop tracks (v) and the outer one (s), both float64."""

    x: Tensor
    old_x: Tensor
    v: Tensor
    s: Tensor
    old_full: Tensor
    """The full gradient of the last refresh."""


@method("destress")
class DESTRESS(Algorithm):
    """DESTRESS, Algorithm 1 of Li, Li, Chi: *DESTRESS: Computation-Optimal and Communication-Efficient Decentralized
    Nonconvex Finite-Sum Optimization*, SIAM Journal on Mathematics of Data Science 2022 (arXiv 2110.01165).

    A round is one step of the inner loop; every `period` rounds the outer loop refreshes the tracker first. Mixing with
    W_K = T_K(W/a) / T_K(1/a), T_K Chebyshev's polynomial and a = ||W - 11'/n||, takes K exchanges one after another.

    Args:
        lr: The step size.
        period: S, inner steps between two refreshes.
        inner_mixing: K_in, exchanges a mixing in the inner loop.
        outer_mixing: K_out, exchanges a mixing at a refresh.
        activation: p, the probability with which a client takes part in an inner estimate, scaled by 1/p.

    Deviations: the paper starts from the average model and the average gradient, which no decentralized run could take.
    Here s = W_out F(X^0), whose mean is that average. An inner estimate that the next refresh would throw away is not
    made. The activation was confirmed by its mean, and by p = 1, where the method reaches the exact minimiser.
    """

    lr: LR
    period: int = count(10)
    inner_mixing: int = count(2)
    outer_mixing: int = count(2)
    activation: float = unit(1.0)
    needs = Needs.FULL_GRADIENTS

    info = MethodInfo(
        title="DESTRESS",
        paper="Li et al., 2022 (arXiv 2110.01165)",
        messages=4,
        exchanges="2 K_in = 4 (K_in + K_out every S-th round)",
        gradients="2 (a full one every S-th round)",
        state=5,
        assumes="finite sums, mean-square smoothness",
        rate="||grad f||^2 <= eps after O(m + sqrt(m/n)/eps) gradients of rows per client",
        equations="""
            s  = (s + F(X) - F(X_last)) W_out         every S-th round, in full; then v = s
            X+ = (X - eta v) W_in
            v+ = (v + (F(X+; xi) - F(X; xi)) lambda/p) W_in
        """,
        step_pace=0.08,
        lr_may_differ=True,
    )
    examples = ({"lr": 0.05}, {"lr": 0.05, "period": 3, "inner_mixing": 1, "outer_mixing": 3, "activation": 0.7})

    def init(self, x: Tensor) -> DESTRESSState:
        """s = 0 and F(X_last) = 0."""
        zero = zeros_float64(x)
        return DESTRESSState(x, x, zero, zero, zero)

    def step(self, state: DESTRESSState, round: Round) -> DESTRESSState:
        """What v tracks, at this model; then the next model."""
        x, v, s, full = state.x, state.v, state.s, state.old_full
        if round.t % self.period == 0:
            new = round.oracle.full(x).double()
            v = s = chebyshev(s + new - full, round, self.outer_mixing, "s")
            full = new
        else:
            change = round.oracle(x) - round.oracle(state.old_x)
            if self.activation < 1:
                is_active = round.random("active").uniform(1) < self.activation
                change = change * is_active / self.activation
            v = chebyshev(v + change, round, self.inner_mixing, "v")
        new_x = chebyshev(x - round.lr * v, round, self.inner_mixing, "x").to(x)
        return DESTRESSState(new_x, x, v, s, full)


def chebyshev(z: Tensor, round: Round, times: int, purpose: str) -> Tensor:
    """z T_K(W/a) / T_K(1/a) in K exchanges, by the three-term recurrence in the form that stays finite as a -> 0."""
    a, omega = 1 - round.rho, 2.0
    before, now = z, round.mix(z, purpose)
    for _ in range(times - 1):
        omega = 1 / (1 - a * a * omega / 4)
        before, now = now, before + omega * (round.mix(now, purpose) - before)
    return now
