"""K-GT: gradient tracking with local steps."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.algorithms.base import LR, Algorithm, MethodInfo, Round, method
from gossamer.algorithms.surrogate import zeros_float64


@dataclass(frozen=True)
class KGTState:
    """Models, and corrections (in float64: sums that never forget)."""

    x: Tensor
    c: Tensor


@method("kgt")
class KGT(Algorithm):
    """K-GT, Algorithm 1 of Liu, Lin, Koloskova, Stich: *Decentralized Gradient Tracking with Local Steps*, 2023
    (arXiv 2301.01313).

    =======  ==============  ==================================================================
    here     paper           meaning
    =======  ==============  ==================================================================
    x        x               models
    c        c               what a client adds to each of its gradients; the mean of c is zero
    change   K eta_c z       models before the local steps minus models after them
    z        z               the mean corrected gradient on the way
    lr       eta_s           the step size of the whole
    =======  ==============  ==================================================================

    The local steps are those of the run: `local=gossamer.LocalSteps(torch.optim.SGD, steps=K, lr=eta_c)`. The paper
    takes plain SGD; with another optimiser z is still the mean corrected gradient. Without `local` there is one step,
    K = 1 and eta_c = 1, which leaves gradient tracking with the step size `lr`.

    Args:
        lr: The step size of the sum of all local steps, 1 in most runs.

    Deviations: c starts at zero, and not at the difference between the average gradient and the client's own, which
    would take an exchange between all clients. The first round is then uncorrected.
    """

    lr: LR

    info = MethodInfo(
        title="K-GT",
        paper="Liu et al., 2023 (arXiv 2301.01313)",
        messages=2,
        gradients="1 (K with local steps)",
        state=2,
        assumes="nothing more: any difference between the clients",
        rate="O(sigma/sqrt(nKT)) and O(1/T) beside it, with plain SGD as the local steps",
        equations="""
            Y = X - eta_c sum_k (F(Y_k) + C)          K local steps; Z the mean of F(Y_k) + C
            C+ = C + Z (W - I)
            X+ = (X - eta_s (X - Y)) W                C = 0 at the start
        """,
        step_pace=0.2,
        lr_may_differ=True,
    )

    @property
    def is_tracking(self) -> bool:
        """The corrections are its tracker."""
        return True

    def init(self, x: Tensor) -> KGTState:
        """C^0 = 0."""
        return KGTState(x, zeros_float64(x))

    def correction(self, state: KGTState) -> Tensor:
        """C."""
        return state.c

    def step(self, state: KGTState, round: Round) -> KGTState:
        """Local steps, then one exchange of models and mean gradients."""
        x, c = state.x, state.c
        change, gradient = round.oracle.corrected(x, c)
        sent = round.send(x=x - round.lr * change, z=gradient + c)
        return KGTState(sent.mixed()[0].to(x), c + sent.pulls()[1])
