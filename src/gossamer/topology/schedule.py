"""Networks that change: a schedule t -> W_t of mixing weights."""

from collections.abc import Sequence
from functools import cached_property
from math import gcd

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy import sparse

from gossamer.errors import InputError
from gossamer.topology.base import Graph, Matrix, from_edges
from gossamer.topology.mixing import MixingMatrix
from gossamer.topology.plans import Content, Plan, Repeated
from gossamer.topology.rounds import RoundWeights
from gossamer.topology.spectrum import ends

_PRODUCT_UP_TO = 1000  # clients for which W_t are multiplied
_NARROWEST = 1e-11  # a smaller gap is a rounding error
_RECENT = 8  # rounds of a random schedule that are kept
_LOOKS = 32  # rounds from which the spread of news is followed


class MixingSchedule:
    """The network of round t is W_t. The union of all graphs must be connected, each of them need not be.

    Args:
        rounds: The weights of each round, which then repeat: W_t = rounds[t mod period]. Or a plan, as made by
            `topology.random_matchings` and others.
        directed: Whether the rounds may be doubly stochastic and not symmetric. Few methods allow this.

    On a schedule a method keeps surrogates for each edge. BEER's theory covers a fixed W only.
    """

    def __init__(
        self, rounds: Sequence[npt.ArrayLike | sparse.sparray | MixingMatrix] | Plan, *, directed: bool = False
    ) -> None:
        if not isinstance(rounds, Sequence):
            self.plan: Plan = rounds
        else:
            given = [w.sparse if isinstance(w, MixingMatrix) else w for w in rounds]
            self.plan = Repeated(tuple(RoundWeights(w, directed=directed) for w in given))
        self.clients, self.period = self.plan.clients, self.plan.period
        self._recent: dict[int, RoundWeights] = {}
        self.is_symmetric = self.period is None or all(self.at(t).is_symmetric for t in range(self.period))
        """Whether edges are always used in both directions."""
        mean, graph = self.plan.mean(), from_edges(self.clients, self.plan.edges)
        _check_ever_connected(graph)
        self.mean = MixingMatrix((mean + mean.T) / 2, graph)
        """The expected W_t, which must mix; of directed weights, their symmetric part."""
        self.graph: Graph = self.mean.graph
        """All edges that any round may use. A method with surrogates keeps some for each of them."""
        self.degrees, self.sparse, self.C = self.mean.degrees, self.mean.sparse, self.mean.C
        self.rho = self.mean.rho if self.is_symmetric else 1 - ends(sparse.csr_array(mean.T @ mean))[0] ** 0.5
        """The spectral gap of the expected W_t, averaged over a period."""
        if not self._surely_mixes and self.rho_period is not None and self.rho_period <= _NARROWEST:
            raise InputError(
                "The schedule does not mix: the product of its weights over a period leaves some disagreement as it "
                "is; give every client a weight above 0 for itself."
            )

    def content(self) -> Content:
        """What tells the schedule from any other."""
        return self.plan.content()

    def at(self, t: int) -> RoundWeights:
        """W_t."""
        if self.period is not None:
            t %= self.period
            if isinstance(self.plan, Repeated):
                return self.plan.at(t)
        found = self._recent.get(t)
        if found is None:
            found = self.plan.at(t)
            if len(self._recent) >= _RECENT:
                self._recent = {}
            self._recent[t] = found
        return found

    @property
    def rounds(self) -> list[RoundWeights]:
        """The weights of a period; an InputError for a random schedule, which has none."""
        if self.period is None:
            raise InputError("A random schedule has no period; ask for the weights of a round t with `at(t)`.")
        return [self.at(t) for t in range(self.period)]

    @property
    def _surely_mixes(self) -> bool:
        """Whether no weight is below 0 and every client keeps a share; a connected union is then enough."""
        return self.period is None or all(
            w.sparse.data.min(initial=0) >= 0 and w.sparse.diagonal().min() > 0 for w in self.rounds
        )

    @property
    def matrix(self) -> Matrix:
        """The expected W_t, dense."""
        return self.mean.matrix

    @cached_property
    def lambda_min(self) -> float:
        """A lower bound of the eigenvalues of all W_t: the smallest one, except where edges are random."""
        return self.plan.least()

    @cached_property
    def rho_period(self) -> float | None:
        """1 - ||W_(P-1) ... W_1 W_0 - J||, where P is the period and J averages; None if random or too large."""
        if self.period is None or self.clients > _PRODUCT_UP_TO:
            return None
        product = np.eye(self.clients)
        for w in self.rounds:
            product = w.sparse @ product
        return 1.0 - float(np.linalg.norm(product - 1 / self.clients, 2))

    @cached_property
    def rho_square(self) -> float:
        """1 - sqrt of the second eigenvalue of the expected W_t^2: how much disagreement a random round removes."""
        if not self.is_symmetric:
            raise InputError("The expected W_t^2 is that of symmetric weights; see `rho_period`.")
        return float(1 - max(0.0, ends(self.plan.mean_square())[0]) ** 0.5)

    def reach(self, t: int, every: int = 1) -> int:
        """Rounds after round t until news of any client has reached all, where packets leave in every n-th round."""
        known, after = np.eye(self.clients, dtype=bool), t
        while not known.all():
            after += 1
            if (after + 1) % every == 0:
                known |= (self.at(after).sparse != 0).astype(np.float64) @ known > 0
        return after - t

    @cached_property
    def diameter(self) -> int:
        """Rounds after which news has reached everyone, at most; of a random schedule, twice what was seen in some."""
        if self.period is not None:
            return self.mean.diameter * self.period if self.is_symmetric else max(map(self.reach, range(self.period)))
        return 2 * max(self.reach(t) for t in range(_LOOKS))

    def connects(self, every: int) -> bool:
        """Whether the graph is connected by the rounds in which a method with `every - 1` silent rounds speaks."""
        if self.period is None or gcd(every, self.period) == 1:
            return True
        graph = nx.empty_graph(self.clients)
        for t in range(every - 1, every * self.period, every):
            graph.add_edges_from(self.at(t).edges.tolist())
        return bool(nx.is_connected(graph))

    def __repr__(self) -> str:
        rounds = "random" if self.period is None else self.period
        edges = self.graph.number_of_edges()
        return f"MixingSchedule(clients={self.clients}, rounds={rounds}, edges={edges}, rho={self.rho:.4g})"


Mixing = MixingMatrix | MixingSchedule


def _check_ever_connected(graph: Graph) -> None:
    if not nx.is_connected(graph):
        part = min((sorted(one) for one in nx.connected_components(graph)), key=len)
        shown = f"client{'s' if len(part) > 1 else ''} {', '.join(map(str, part[:5]))}"
        raise InputError(
            f"The schedule is never connected: no round lets {shown} reach the rest; add a round with such an edge."
        )
