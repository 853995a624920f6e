"""What a record holds, as types: a header, a row for each evaluation, and how the run ended."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from gossamer.errors import DataError
from gossamer.records.typed import Settings, is_number, wrong

_NOT_NEGATIVE = ("round", "bits", "bits_nominal", "seconds")


def is_higher_better(column: str) -> bool:
    """Whether a column should be large: accuracies; all others should be small."""
    return column.endswith("accuracy")


def _column(about: str) -> Any:
    """A column that may be missing."""
    return field(default=None, metadata={"about": about})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One evaluation. None stands for what was not measured.

    A measurement may be NaN or infinite. On the disk that is null, which is read as NaN.
    """

    round: int = field(metadata={"about": "rounds done"})
    packets: int | None = _column("packets sent on one link so far")
    bits: float | None = _column("bits sent on one link so far: 8 x the packets' bytes, averaged over clients")
    bits_total: float | None = _column("bits sent so far over all directed edges")
    bits_nominal: float | None = _column(
        "nominal bits on one link so far: b per coordinate and message, without norms, indices and headers"
    )
    loss: float | None = _column("f at the average model")
    grad_norm: float | None = _column("norm of the gradient of f at the average model")
    accuracy: float | None = _column("test accuracy of the average model")
    mean_accuracy: float | None = _column("test accuracy of a client's own model, mean over clients")
    worst_accuracy: float | None = _column("test accuracy of the worst client's own model")
    test_loss: float | None = _column("loss of the average model on the test rows")
    mean_loss: float | None = _column(
        "loss of a client's own model on the test rows (f, where there are none), mean over clients"
    )
    worst_loss: float | None = _column(
        "loss of the worst client's own model on the test rows (f, where there are none)"
    )
    compression_error: float | None = _column(
        "share of its messages that the compressor left out, ||C(z) - z||^2 / ||z||^2, in the last round; "
        "mean over messages and clients"
    )
    consensus: float | None = _column("mean over clients of ||x_i - average||^2")
    seconds: float | None = _column(
        "wall time of the rounds so far, without evaluation; of the slowest client, where each is a process"
    )
    waiting: float | None = _column(
        "seconds that a client waited for packets of its neighbours so far, mean over clients"
    )
    hidden: float | None = _column("seconds that packets were under way while a client computed, mean over links")
    extra: Mapping[str, float] = field(default_factory=dict)
    """Columns by name that a `Measure` or the problem added."""

    @classmethod
    def of(cls, values: Mapping[str, float]) -> "Row":
        """A row from its columns; names that are not in `COLUMNS` go into `extra`."""
        known = {name: value for name, value in values.items() if name in COLUMNS}
        extra = {name: value for name, value in values.items() if name not in COLUMNS}
        return cls(**known, extra=extra)  # type: ignore[arg-type]

    def __getitem__(self, name: str) -> float | None:
        """A column by its name, NaN and infinity included."""
        value: float | None = getattr(self, name) if name in COLUMNS else self.extra.get(name)
        return value

    def value(self, name: str) -> float | None:
        """A column by its name; None if it is not there, or not finite."""
        value = self[name]
        return value if value is not None and math.isfinite(value) else None

    def columns(self) -> dict[str, float]:
        """What was measured, by name."""
        known = {name: value for name in COLUMNS if (value := self[name]) is not None}
        return {**known, **self.extra}


COLUMNS = {column.name: str(column.metadata["about"]) for column in fields(Row) if column.name != "extra"}
"""What the columns of a row hold."""


def read_row(table: Mapping[str, object]) -> Row:
    """The row of one line of a record; a column that this version does not know is kept if it holds numbers."""
    values: dict[str, float] = {}
    for name, value in table.items():
        if value is None and name != "round":
            values[name] = math.nan
        elif is_number(value):
            values[name] = value  # type: ignore[assignment]
        elif name in COLUMNS:
            raise wrong(name, value, "a number")
    if type(values.get("round")) is not int:
        raise DataError("it has no `round` that is an integer.")
    for name in _NOT_NEGATIVE:
        if values.get(name, 0) < 0:
            raise DataError(f"its `{name}` is below zero.")
    return Row.of(values)


@dataclass(frozen=True)
class Network:
    """Who exchanges packets with whom, for a picture."""

    edges: tuple[tuple[int, int, float], ...]
    """Two clients, and the weight of their edge."""
    self: tuple[float, ...]
    """The weight that each client gives itself."""

    def __post_init__(network) -> None:
        clients = len(network.self)
        if not clients or any(not (0 <= i < clients and 0 <= j < clients) or i == j for i, j, _ in network.edges):
            raise DataError("its `network` has edges between clients that do not exist.")


@dataclass(frozen=True)
class Shares:
    """How many rows of each label every client holds."""

    labels: tuple[str, ...]
    counts: tuple[tuple[float, ...], ...]
    """(clients, labels)."""

    def __post_init__(self) -> None:
        if not self.labels or not self.counts or any(len(row) != len(self.labels) for row in self.counts):
            raise DataError("its `shares` do not have one count per client and label.")
        if any(count < 0 for row in self.counts for count in row):
            raise DataError("its `shares` have a count below zero.")


@dataclass(frozen=True)
class Mixing:
    """The mixing matrix, in numbers."""

    clients: int
    edges: int
    rho: float
    C: float


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first line of a record: what was run, where and when."""

    gossamer: str
    """The version that wrote the record."""
    label: str
    """The name of the method in tables and figures."""
    seed: int
    rounds: int | None = None
    batch_size: int | None = None
    eval_every: int | None = None
    codec: str | None = None
    surrogates: str | None = None
    """The type of what a method adds up from round to round."""
    local: str | None = None
    """The local steps in place of a gradient."""
    x0: str | None = None
    measures: tuple[str, ...] = ()
    """Names of what was measured beside the usual columns."""
    method: Settings = field(default_factory=dict)
    alpha: float | None = None
    problem: Settings = field(default_factory=dict)
    mixing: Mixing | None = None
    identity: Settings = field(default_factory=dict)
    """Digests and versions on which the numbers depend."""
    device: str | None = None
    torch: str | None = None
    python: str | None = None
    started: str | None = None
    command: str | None = None
    network: Network | None = None
    """None if it is too large for a page."""
    shares: Shares | None = None
    processes: int | None = None
    facts: Mapping[str, Settings] = field(default_factory=dict)
    """What each measure notes of the run, by its name."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """What the measures' columns hold."""

    def __post_init__(self) -> None:
        if not self.label.strip():
            raise DataError("its `label` is empty.")


@dataclass(frozen=True)
class LinkCount:
    """What went over one link of a run across processes, as one of its two clients counted it."""

    client: int
    neighbor: int
    packets_sent: int
    bytes_sent: int
    packets_received: int
    bytes_received: int
    waiting: float
    hidden: float


@dataclass(frozen=True)
class ClientCount:
    """What one client of a run across processes counted."""

    client: int
    seconds: float | None = None
    waiting: float | None = None
    hidden: float | None = None
    compression_error: float | None = None


@dataclass(frozen=True)
class End:
    """The last line of a record: how the run ended."""

    status: Literal["finished", "diverged", "diverging"]
    round: int
    reason: str | None = None
    """A sentence, if the run diverged."""
    links: tuple[LinkCount, ...] = ()
    clients: tuple[ClientCount, ...] = ()

    def __post_init__(self) -> None:
        if self.status != "finished" and self.reason is None:
            raise DataError("it has no `reason`, though the run diverged.")


def plain(line: Header | End) -> dict[str, object]:
    """A header or an end as JSON holds it, without empty values."""
    empty: tuple[object, ...] = (None, (), {})
    return {name: value for name, value in asdict(line).items() if value not in empty}
