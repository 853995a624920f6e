"""A plan: what each way of training would cost on a network that is only described, and which one to take."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from torch import nn

from gossamer.errors import InputError, check_choice, check_integer, check_positive
from gossamer.runtime.planning.progress import Differing, fitted, rounds_ratio
from gossamer.runtime.planning.quantities import (
    bits_of,
    count_of,
    seconds_of,
    shown_bits,
    shown_bytes,
    shown_count,
    shown_seconds,
)
from gossamer.runtime.planning.recipe import Steps, code, spec, steps_of
from gossamer.runtime.planning.seconds import Cost, Network, cost, square_matrices
from gossamer.runtime.planning.software import flops
from gossamer.runtime.planning.ways import METHODS, Way, ways
from gossamer.runtime.tuning.auto import formula_steps
from gossamer.topology import MixingMatrix, mixing_matrix
from gossamer.topology.graphs import build_graph

if TYPE_CHECKING:
    import pandas as pd

_MEASURED_HOSTS, _MEASURED_PARAMETERS = 8, 10_000_000
_SHOWN = 12  # rows of a table
_SLOW = 0.01  # a spectral gap below it makes for slow mixing
_REDUCTION = 18.0  # an error of 0.9, that of guessing ten classes, to 0.05
_DIFFERING = ("little", "much")


@dataclass(frozen=True)
class PlanRow:
    """What one way of training costs.

    Args:
        way: How the hosts train.
        cost: Seconds and bytes of a round.
        rounds: To the target; not a whole number, so that ways with many local steps compare fairly.
    """

    way: Way
    cost: Cost
    rounds: float

    @property
    def time(self) -> float:
        """Seconds to the target."""
        return self.cost.seconds * self.rounds

    def cells(self) -> tuple[str, ...]:
        """As in tables; see `HEADINGS`."""
        is_ours = self.way.kind == "gossip"
        operator = self.way.compressor if is_ours else "-"
        return (
            *(self.way.title, operator, self.way.codec if is_ours else "-", str(self.way.steps)),
            *(shown_seconds(self.cost.seconds), shown_bytes(self.cost.sent), f"{math.ceil(self.rounds):,}"),
            *(shown_seconds(self.time), shown_bytes(self.rounds * self.cost.sent)),
        )


HEADINGS = ("method", "operator", "codec", ">H", ">per round", ">sent per round", ">rounds", ">time", ">sent")
"""Of the columns of a plan; > is for numbers, and H the local steps per round."""


@dataclass(frozen=True)
class Plan:
    """What `plan` predicts. `print` shows a table, the recommendation and its code."""

    parameters: int
    network: Network
    graph: str | None
    """As in spec files; None for a network of one's own."""
    gradient: float
    """Seconds of one gradient."""
    batch: int
    differing: Differing
    rows: tuple[PlanRow, ...]
    """The fastest to the target first."""
    steps: Steps
    """Those of the best."""

    @property
    def best(self) -> PlanRow:
        """The fastest to the target."""
        return self.rows[0]

    @property
    def frame(self) -> "pd.DataFrame":
        """All rows, with numbers in seconds and bytes."""
        import pandas as pd

        return pd.DataFrame(
            [{**asdict(row.way), **asdict(row.cost), "rounds": row.rounds, "time": row.time} for row in self.rows]
        )

    @property
    def code(self) -> str:
        """Python for the recommended way."""
        return code(self.best.way, self.steps, self.graph, self.network.hosts)

    def spec(self, module: str | None = None) -> str:
        """A spec file for `gossamer run` and `gossamer launch`; `module` is as in spec files.

        Where DistributedDataParallel is best, which Gossamer does not run, the best of Gossamer's methods.
        """
        row = next((row for row in self.rows if row.way.kind != "ddp"), None)
        if row is None:
            raise InputError("No method that spec files know was planned for; give more of `methods`.")
        steps = steps_of(row.way, self.differing, _gamma(row.way, self.parameters, None))
        graph = "ring" if self.graph is None else self.graph
        return spec(row.way, steps, graph, self.network.hosts, math.ceil(row.rounds), self.batch, module)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of these predictions, one sentence each."""
        best, found = self.best, []
        ddp = next((row for row in self.rows if row.way == Way("ddp")), None)
        if best.way.kind != "gossip":
            found.append("All-reduce is predicted to be fastest here: this network does not need Gossamer.")
        elif ddp is not None:
            found.append(
                f"DistributedDataParallel in float32 is predicted to take {ddp.time / best.time:,.1f} times as long."
            )
        if self.network.hosts > _MEASURED_HOSTS or self.parameters > _MEASURED_PARAMETERS:
            found.append(
                f"Nothing above {_MEASURED_HOSTS} hosts or {shown_count(_MEASURED_PARAMETERS)} parameters was "
                "measured: these numbers are predictions outside of what was measured."
            )
        if self.network.rho < _SLOW:
            found.append(
                f"The graph mixes slowly (rho = {self.network.rho:.2g}); a graph with more edges, such as exponential, "
                "needs fewer rounds."
            )
        found.append(
            "Rounds are relative to all-reduce, by a model that is usually right within a factor of "
            f"{fitted().error:.2g}; how many your task takes is known only when it runs."
        )
        return tuple(found)

    def title(self) -> str:
        """What was asked, in one line."""
        net = self.network
        graph = "a network of your own" if self.graph is None else self.graph
        return (
            f"{shown_count(self.parameters)} parameters, {net.hosts:,} hosts ({graph}), {shown_bits(net.bandwidth)}, "
            f"delay {shown_seconds(net.delay)}, gradient {shown_seconds(self.gradient)}, data differ {self.differing}"
        )

    def __str__(self) -> str:
        names = [name.removeprefix(">") for name in HEADINGS]
        lines = [names, *(list(row.cells()) for row in self.rows[:_SHOWN])]
        widths = [max(len(line[k]) for line in lines) for k in range(len(names))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([self.title(), *table, f"Best: {self.best.way.name}", *self.notes, "", self.code])


def plan(
    parameters: int | float | str | nn.Module,
    bandwidth: float | str | None,
    delay: float | str = 0.0,
    hosts: int = 4,
    *,
    graph: str | MixingMatrix = "ring",
    compute: float | str | None = None,
    batch: int = 32,
    differing: Differing = "little",
    local: Sequence[int] = (1, 5, 10, 20, 50),
    methods: Sequence[str] = METHODS,
    reduction: float = _REDUCTION,
    cores: float = 1.0,
) -> Plan:
    """Predict what training would cost over a network, for each method, operator and codec; nothing is trained.

    Software is timed on this machine, on messages of some hundred thousand coordinates (two seconds, once per
    process). Bytes are those of real packets of Gaussian values. Both are extended to the size of the model. Rounds to
    the target follow from a model that was fitted to searches. The documentation ("Choosing for your network") says
    how good these predictions were.

    Args:
        parameters: How many the model has: a number, "10M", or a module, which may be on the device "meta".
        bandwidth: Of each host towards all others: bits per second, "20Mbit"; None is unlimited.
        delay: One way: seconds, "10ms".
        hosts: How many train together.
        graph: Who talks to whom in Gossamer's methods: a name as in spec files, or a mixing matrix.
        compute: Seconds of one gradient on a host. By default 6 x parameters x batch operations at the speed of this
            machine.
        batch: Data rows of a gradient.
        differing: How much the hosts' data differ: "little", from equal shares to Dirichlet(0.3), or "much", where
            each host has classes of its own.
        local: Numbers of local steps per round to consider, from 1 to 50.
        methods: Of "DDP", "PowerSGD", "all-reduce", "CHOCO-SGD", "BEER", "MoTEF" and "K-GT".
        reduction: How many times smaller the error is to become, for the number of rounds.
        cores: That each host has for its software; below 1 if several hosts share one.

    >>> import gossamer as gs
    >>> found = gs.plan("1M", "10Mbit", "10ms", hosts=8, compute=0.01)
    >>> found.best.way.kind, found.best.way.steps >= 20
    ('gossip', True)
    """
    shapes = _shapes(parameters)
    d, (mixing, name) = sum(math.prod(shape) for shape in shapes), _network(graph, hosts)
    check_choice("differing", differing, _DIFFERING)
    steps = sorted({check_integer("local", one, 1, 50) for one in local})
    if not steps:
        raise InputError("`local` must list numbers of local steps such as (1, 20), got none.")
    batch, cores = check_integer("batch", batch, 1), check_positive("cores", cores)
    if check_positive("reduction", reduction) <= 1:
        raise InputError(f"`reduction` must be above 1, got {reduction:g}; 10 means a tenth of the error.")
    gradient = 6 * d * batch / flops() if compute is None else check_positive("compute", seconds_of("compute", compute))
    neighbors = int(mixing.degrees.max())
    network = Network(
        mixing.clients, neighbors, mixing.rho, bits_of("bandwidth", bandwidth), seconds_of("delay", delay)
    )
    baseline, rows = fitted().fold * math.log(reduction), []
    for way in ways(steps, methods):
        needed = max(1.0, baseline * rounds_ratio(way, d, network.rho, differing))
        rows.append(PlanRow(way, cost(way, shapes, network, gradient, cores), needed))
    if not rows:
        raise InputError(f"Nothing is left to compare: `methods` is {list(methods)!r} and `local` {steps}; give more.")
    rows.sort(key=lambda row: row.time)
    found = steps_of(rows[0].way, differing, _gamma(rows[0].way, d, mixing))
    return Plan(d, network, name, gradient, batch, differing, tuple(rows), found)


def _shapes(parameters: object) -> Sequence[Sequence[int]]:
    if not isinstance(parameters, nn.Module):
        return square_matrices(count_of("parameters", parameters))
    shapes = [tuple(one.shape) for one in parameters.parameters() if one.requires_grad and one.numel()]
    if not shapes:
        raise InputError(
            "`parameters` is a module without parameters to train; set requires_grad=True on those to train."
        )
    return [shape or (1,) for shape in shapes]


def _network(graph: str | MixingMatrix, hosts: int) -> tuple[MixingMatrix, str | None]:
    """The network, and its name in spec files if it has one."""
    if isinstance(graph, MixingMatrix):
        return graph, None
    if not isinstance(graph, str):
        raise InputError(f"`graph` must be a name such as 'ring' or a mixing matrix, got {type(graph).__name__}.")
    hosts = check_integer("hosts", hosts, 2)
    return mixing_matrix(build_graph(graph, hosts)), graph


def _gamma(way: Way, d: int, mixing: MixingMatrix | None) -> float | None:
    """The formula's, for a method of Gossamer."""
    if way.kind != "gossip":
        return None
    network = mixing_matrix(build_graph("ring", 4)) if mixing is None else mixing
    return round(formula_steps(way.build(1.0, 1.0), d, network, 1.0, 1.0)[0], 3)
