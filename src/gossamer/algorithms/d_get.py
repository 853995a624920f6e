"""D-GET: gradient estimation and tracking."""

from gossamer.algorithms.base import MethodInfo, Round, method
from gossamer.algorithms.gt_sarah import GTSARAH, SARAHState, recursive_tracking


@method("d_get")
class DGET(GTSARAH):
    """D-GET, Algorithm 1 of Sun, Lu, Hong: *Improving the Sample and Communication Complexity for Decentralized
    Non-Convex Optimization: A Joint Gradient Estimation and Tracking Approach*, ICML 2020 (arXiv 1910.05857).

    The paper moves the model first and the tracker after it: with Y^0 = v^0 = F(X^0), X^(t+1) = X^t W - lr Y^t and then
    Y^(t+1) = Y^t W + v^(t+1) - v^t. Begun at a gradient, as every round here, that is GT-SARAH's round with its tracker
    numbered one lower: from the same start the two take the same course, which a test shows against both papers'
    own orders. So they share their settings, their state and their step.

    Args:
        lr: The step size.
        period: q; the full gradient is taken every q rounds. (GT-SARAH's q counts the recursive steps alone, so q here
            is q - 1 there.)

    Deviations: none. The equations were confirmed by their fixed point and by the equality with GT-SARAH.
    """

    info = MethodInfo(
        title="D-GET",
        paper="Sun et al., 2020 (arXiv 1910.05857)",
        messages=2,
        gradients="2 (a full one every q-th round)",
        state=4,
        assumes="finite sums, mean-square smoothness",
        rate="||grad f||^2 <= eps after O(m + sqrt(m)/eps) gradients of rows per client",
        equations="""
            X+ = X W - eta Y                          Y = v = F(X) full at the start
            v+ = F(X+) full, every q-th round; else F(X+; xi) - F(X; xi) + v
            Y+ = Y W + v+ - v
        """,
        step_pace=0.2,
        lr_may_differ=True,
    )

    def step(self, state: SARAHState, round: Round) -> SARAHState:
        """v and Y at this model, then the next model."""
        return recursive_tracking(state, round, is_full=round.t % self.period == 0)
