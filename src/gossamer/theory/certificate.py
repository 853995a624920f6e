"""Steps for BEER that the paper's proof certifies, found for one network and checked in exact arithmetic.

Step 2 of the proof needs weights s >= 0 with (eq. tbp)

    s'(A - I) + q'  <=  0        and        eta/2 - eta^2 L/2 - s'b1  >=  0,

and under PL, with constant mu, (eq. tbp-pl), whose first is s'(A - (1 - mu eta) I) + q' <= 0. The paper goes on to
constants that serve every network at once; here the inequalities themselves are solved, which allows larger steps.

No linear programme is needed for it, and a floating-point one is wrong at small rho, where its tolerance swallows the
inequalities. As linear inequalities in (s, 1) they have a 5 x 5 matrix whose entries off the diagonal are all 0 or
less, and which does not fall apart into blocks. Such a system has a solution s >= 0 exactly if elimination without
exchanges meets positive pivots only (a last one of 0 is allowed): then the first four rows are a nonsingular M-matrix,
and the solution of their equations is the least of all solutions, so it leaves the fifth inequality the most. With its
last row divided by eta, each entry of the matrix falls as eta grows, so at a given gamma what holds for one eta holds
for all smaller ones, and bisection finds the largest.
"""

from dataclasses import dataclass
from fractions import Fraction

from gossamer.errors import InputError, check_integer, check_positive, check_unit, settle
from gossamer.theory.inputs import check_c, check_mu
from gossamer.theory.search import Setting, is_refuted, largest_lr, proposed_gamma, weights_of
from gossamer.theory.system import four_numbers, recursion


@dataclass(frozen=True)
class Certificate:
    """Steps for BEER with the weights that prove them: everything that it takes to check the proof by hand.

    All numbers are floats, and it is their exact values, as fractions, for which the inequalities hold.
    """

    alpha: float
    rho: float
    C: float
    L: float
    mu: float | None
    gamma: float
    """Mixing step."""
    lr: float
    """eta."""
    weights: tuple[float, float, float, float]
    """n s_1 to n s_4: the weights of Omega_1 to Omega_4 in the Lyapunov function, times the number of clients."""

    def __post_init__(self) -> None:
        settle(self, alpha=check_unit("alpha", self.alpha), rho=check_unit("rho", self.rho), C=check_c(self.C))
        settle(self, L=check_positive("L", self.L), gamma=check_unit("gamma", self.gamma))
        settle(self, lr=check_positive("lr", self.lr), mu=check_mu(self.mu, self.L))
        settle(self, weights=four_numbers("weights", self.weights))

    @property
    def slack(self) -> tuple[float, float, float, float, float]:
        """By how much each of the five inequalities holds (for n = 1), Omega_1's to Omega_5's; negative where not."""
        one, two, three, four, five = map(float, self.exact_slack())
        return one, two, three, four, five

    def exact_slack(self) -> list[Fraction]:
        """`slack` before it is rounded: -(s'(A - (1 - mu eta) I) + q') and eta/2 - eta^2 L/2 - s'b1."""
        alpha, rho, C, L, gamma, lr = map(Fraction, (self.alpha, self.rho, self.C, self.L, self.gamma, self.lr))
        A, b1, _, q = recursion(alpha, rho, C, L, 1, gamma, lr)
        s = [Fraction(weight) for weight in self.weights]
        kept = 1 - Fraction(self.mu or 0) * lr
        rows = [kept * s[j] - q[j] - sum(s[i] * A[i][j] for i in range(4)) for j in range(4)]
        return [*rows, lr / 2 - lr**2 * L / 2 - sum((s[i] * b1[i] for i in range(4)), Fraction(0))]

    def check(self) -> bool:
        """Whether the proof closes with these steps and weights, in exact arithmetic.

        It evaluates Lemma omega-1's system, and shares nothing with the search that found them.
        """
        return min(self.exact_slack()) >= 0

    def refuses(self, lr: float) -> bool:
        """Whether it is proven, in exact arithmetic, that this lr has no weights, at any gamma in (0, 1].

        False also where the answer is not found: within a few ten-thousandths of the largest lr.

        >>> from gossamer.theory import certify
        >>> certificate = certify(alpha=0.7, rho=1.0, C=1.0, L=1.0)
        >>> certificate.refuses(1.02 * certificate.lr)
        True
        """
        return is_refuted(self._setting, check_positive("lr", lr))

    def weights_for(self, n: int) -> tuple[float, float, float, float]:
        """s_1 to s_4 for n clients, as `lyapunov` takes them."""
        clients = check_integer("n", n, 1)
        one, two, three, four = (weight / clients for weight in self.weights)
        return one, two, three, four

    @property
    def c(self) -> tuple[float, float, float, float]:
        """The weights as the theorems' c_1 to c_4 (eq. lynapunov_def)."""
        s1, s2, s3, s4 = self.weights
        return s1 / self.L, s2 * self.L / self.rho**2, s3 / self.L, s4 * self.L / self.rho**2

    @property
    def _setting(self) -> Setting:
        return Setting.of(self.alpha, self.rho, self.C, self.L, self.mu)


def certify(
    alpha: float,
    rho: float,
    C: float,
    L: float,
    mu: float | None = None,
    *,
    gamma: float | None = None,
    lr: float | None = None,
) -> Certificate:
    """The largest lr of BEER that the paper's proof allows on this network, with its gamma and weights.

    To a thousandth: nearer to the edge the weights, and with them every prediction, grow fast. At half of that lr they
    are hundreds of times smaller, so that a certificate for it may well predict fewer rounds.

    Args:
        alpha: Of the compressor, `compressor.alpha(d)`.
        rho: Of the mixing matrix, `mixing.rho`.
        C: Of the mixing matrix, `mixing.C`.
        L: Smoothness of every client's objective.
        mu: Of the PL condition, for linear convergence (Theorem 4.3); None for Theorem 4.1.
        gamma: To be kept, if given; otherwise the one that allows the largest lr.
        lr: To be kept, if given; the weights are then the least that there are for it.

    Raises:
        InputError: Where the proof does not close with the given gamma or lr.

    >>> from gossamer.theory import certify
    >>> certificate = certify(alpha=1.0, rho=0.174, C=3.3, L=1.0)
    >>> print(f"{certificate.lr:.3g} {certificate.gamma:.3g}", certificate.check())
    1.35e-06 0.00254 True
    """
    alpha, rho, C, L = check_unit("alpha", alpha), check_unit("rho", rho), check_c(C), check_positive("L", L)
    mu = check_mu(mu, L)
    setting = Setting.of(alpha, rho, C, L, mu)
    gamma = check_unit("gamma", gamma) if gamma is not None else proposed_gamma(setting)
    most = largest_lr(setting, gamma)
    if most is None:
        raise InputError(
            f"The proof does not close at gamma = {gamma!r} with any lr; leave gamma out to have one found."
        )
    lr = most if lr is None else check_positive("lr", lr)
    weights = weights_of(setting, gamma, lr)
    if weights is None:
        raise InputError(f"The proof does not close at lr = {lr!r} and gamma = {gamma!r}; it does at lr = {most:.6g}.")
    return Certificate(alpha, rho, C, L, mu, gamma, lr, weights)


def strongest(
    alpha: float, rho: float, C: float, L: float, mu: float | None, gamma: float, lr: float
) -> tuple[Certificate | None, str]:
    """The certificate of these steps for PL, with which Theorem 4.1 holds too, else for 4.1; or None, and why."""
    why = ""
    for one in dict.fromkeys((mu, None)):
        try:
            return certify(alpha, rho, C, L, one, gamma=gamma, lr=lr), ""
        except InputError as error:
            why = str(error)
    return None, why
