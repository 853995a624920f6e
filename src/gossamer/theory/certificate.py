"""Steps for BEER that the paper's proof certifies, found for one network and checked in exact arithmetic.

Step 2 of the proof needs weights s >= 0 with (eq. tbp)

    s'(A - I) + q'  <=  0        and        eta/2 - eta^2 L/2 - s'b1  >=  0,

and under PL, with constant mu, (eq. tbp-pl), where the first one is s'(A - (1 - mu eta) I) + q' <= 0. The paper derives
constants that hold for every network; here the inequalities are solved for one network, which allows larger steps.

This needs no linear program. (A floating-point one fails at small rho, where the inequalities are smaller than its
tolerance.) As linear inequalities in (s, 1) they have an irreducible 5 x 5 matrix without positive entries off the
diagonal. Such a system has a solution s >= 0 exactly if elimination without row exchanges finds only positive pivots
(the last may be 0). The first four rows are then a nonsingular M-matrix. The solution of their equations is the
smallest of all solutions, so it leaves the most room in the fifth inequality. With its last row divided by eta, every
entry of the matrix decreases in eta. At a given gamma, what holds for one eta therefore holds for all smaller ones, and
bisection finds the largest.
"""

from dataclasses import dataclass
from fractions import Fraction

from gossamer.errors import InputError, check_integer, check_positive, check_unit, settle
from gossamer.theory.inputs import check_c, check_mu
from gossamer.theory.search import Setting, is_refuted, largest_lr, proposed_gamma, weights_of
from gossamer.theory.system import four_numbers, recursion


@dataclass(frozen=True)
class Certificate:
    """Steps for BEER with the weights that prove them: all that is needed to check the proof by hand.

    All numbers are floats. The inequalities hold for their exact values, as fractions.
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
        """The slack of the inequalities of Omega_1 to Omega_5, for n = 1; negative where one is violated."""
        one, two, three, four, five = map(float, self.exact_slack())
        return one, two, three, four, five

    def exact_slack(self) -> list[Fraction]:
        """`slack` without rounding: -(s'(A - (1 - mu eta) I) + q') and eta/2 - eta^2 L/2 - s'b1."""
        alpha, rho, C, L, gamma, lr = map(Fraction, (self.alpha, self.rho, self.C, self.L, self.gamma, self.lr))
        A, b1, _, q = recursion(alpha, rho, C, L, 1, gamma, lr)
        s = [Fraction(weight) for weight in self.weights]
        kept = 1 - Fraction(self.mu or 0) * lr
        rows = [kept * s[j] - q[j] - sum(s[i] * A[i][j] for i in range(4)) for j in range(4)]
        return [*rows, lr / 2 - lr**2 * L / 2 - sum((s[i] * b1[i] for i in range(4)), Fraction(0))]

    def check(self) -> bool:
        """Whether the proof closes with these steps and weights, in exact arithmetic.

        This evaluates the system of Lemma omega-1 and shares no code with the search that found the weights.
        """
        return min(self.exact_slack()) >= 0

    def refuses(self, lr: float) -> bool:
        """Whether exact arithmetic proves that this lr has no weights at any gamma in (0, 1].

        Also False if no proof is found, which happens within a few ten-thousandths of the largest lr.

        >>> from gossamer.theory import certify
        >>> certificate = certify(alpha=0.7, rho=1.0, C=1.0, L=1.0)
        >>> certificate.refuses(1.02 * certificate.lr)
        True
        """
        setting = Setting.of(self.alpha, self.rho, self.C, self.L, self.mu)
        return is_refuted(setting, check_positive("lr", lr))

    def weights_for(self, n: int) -> tuple[float, float, float, float]:
        """s_1 to s_4 for n clients, for `lyapunov`."""
        clients = check_integer("n", n, 1)
        one, two, three, four = (weight / clients for weight in self.weights)
        return one, two, three, four

    @property
    def c(self) -> tuple[float, float, float, float]:
        """The weights as the theorems' c_1 to c_4 (eq. lynapunov_def)."""
        s1, s2, s3, s4 = self.weights
        return s1 / self.L, s2 * self.L / self.rho**2, s3 / self.L, s4 * self.L / self.rho**2


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

    The lr is 0.1 % below the limit, because near the limit the weights, and with them all predictions, grow fast. At
    half of that lr they are hundreds of times smaller, so a certificate for it may predict fewer rounds.

    Args:
        alpha: The contraction constant of the compressor, `compressor.alpha(d)`.
        rho: The spectral gap, `mixing.rho`.
        C: ||W - I||^2, `mixing.C`.
        L: Smoothness of every client's objective.
        mu: The PL constant, for linear convergence (Theorem 4.3); None for Theorem 4.1.
        gamma: A fixed mixing step; by default the one that allows the largest lr.
        lr: A fixed step size; the weights are then the smallest for it.

    Raises:
        InputError: If the proof does not close with the given gamma or lr.

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
        raise InputError(f"The proof does not close at gamma = {gamma!r} with any lr; omit gamma to search for one.")
    lr = most if lr is None else check_positive("lr", lr)
    weights = weights_of(setting, gamma, lr)
    if weights is None:
        raise InputError(f"The proof does not close at lr = {lr!r} and gamma = {gamma!r}; use lr = {most:.6g}.")
    return Certificate(alpha, rho, C, L, mu, gamma, lr, weights)


def strongest(
    alpha: float, rho: float, C: float, L: float, mu: float | None, gamma: float, lr: float
) -> tuple[Certificate | None, str]:
    """The certificate of these steps under PL, which implies Theorem 4.1, or else for 4.1; or None and the reason."""
    reason = ""
    for constant in dict.fromkeys((mu, None)):
        try:
            return certify(alpha, rho, C, L, constant, gamma=gamma, lr=lr), ""
        except InputError as error:
            reason = str(error)
    return None, reason
