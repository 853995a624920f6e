"""`gossamer topology`: the properties of a graph and its weights."""

import argparse
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gossamer import registry
from gossamer.cli.lines import note, show_json
from gossamer.cli.output import check_picture, console, first_paragraph, headings, titled, waiting
from gossamer.errors import InputError, check_unit
from gossamer.registry import normal
from gossamer.report import network_figure
from gossamer.theory import theorem_gamma
from gossamer.topology import MixingMatrix, MixingSchedule, build_network, mixing_matrix
from gossamer.topology.base import checked
from gossamer.topology.changing import FAILURES
from gossamer.topology.graphs import build_graph

_LOOKS = 100  # rounds over which the packets of a random schedule are averaged


@dataclass(frozen=True)
class _Facts:
    """What is printed about a graph with its weights."""

    graph: str
    weights: str
    clients: int
    edges: int
    degree_min: int
    degree_mean: float
    degree_max: int
    rho: float
    C: float
    lambda_min: float
    nonnegative: bool
    alpha: float
    gamma: float | None
    """None on a schedule, which the theorem does not cover."""
    seconds: float
    period: int | None = None
    rho_period: float | None = None
    rho_square: float | None = None
    is_random: bool = False
    is_symmetric: bool = True
    per_round: float | None = None
    """Of a schedule: to how many clients a client sends in a round, on average."""


def topology(options: argparse.Namespace) -> int:
    """`gossamer topology`."""
    if options.graph is None:
        return _list(options.json)
    alpha = check_unit("alpha", options.alpha)
    picture = None if options.draw is None else check_picture(options.draw)
    if options.compare and options.weights is not None:
        raise InputError("--compare shows every weight rule; leave --weights out.")
    with waiting("Building the graph"):
        network = build_network(options.graph, options.clients, options.weights) if _changes(options.graph) else None
        if isinstance(network, MixingSchedule):
            return _show_schedule(options, network, alpha, picture)
        graph = checked(build_graph(options.graph, options.clients))
    if len(graph) < 2:
        raise InputError("A graph needs at least two clients, got one.")
    one = "metropolis" if options.weights is None else options.weights
    rules = registry.weights.names() if options.compare else [one]
    rows: list[_Facts] = []
    for rule in rules:
        with waiting(f"Computing the weights {rule}"):
            try:
                facts, mixing = _measured(options.graph, rule, alpha, partial(mixing_matrix, graph, rule))
            except InputError as error:
                if not options.compare:
                    raise
                note(f"gossamer: {error}")
                continue
            rows.append(facts)
    if picture is not None:
        with waiting("Drawing"):
            rule = max(rows, key=lambda row: row.rho).weights
            drawn = mixing_matrix(graph, rule) if options.compare else mixing
            _draw(drawn, f"{options.graph}, {rule} weights", picture)
    if options.json:
        return show_json([asdict(row) for row in rows] if options.compare else asdict(rows[0]))
    console().show(_comparison(rows) if options.compare else _page(rows[0]))
    if picture is not None and not options.compare:
        console().plain(f"Picture: {picture}")
    return 0


def _measured(graph: str, rule: str, alpha: float, build: Callable[[], MixingMatrix]) -> tuple[_Facts, MixingMatrix]:
    """The facts about a mixing matrix, with the time that it takes to build."""
    began = time.perf_counter()
    mixing = build()
    degrees = mixing.degrees
    facts = _Facts(
        graph=graph,
        weights=rule,
        clients=mixing.clients,
        edges=mixing.graph.number_of_edges(),
        degree_min=int(degrees.min()),
        degree_mean=float(degrees.mean()),
        degree_max=int(degrees.max()),
        rho=mixing.rho,
        C=mixing.C,
        lambda_min=mixing.lambda_min,
        nonnegative=mixing.is_nonnegative,
        alpha=alpha,
        gamma=theorem_gamma(alpha, mixing.rho, mixing.C),
        seconds=time.perf_counter() - began,
    )
    return facts, mixing


def _changes(graph: str) -> bool:
    """Whether a description is one of a network that changes, or unknown."""
    name, _, settings = graph.partition(":")
    failing = any(part.partition("=")[0].strip() in FAILURES for part in settings.split(","))
    return failing or normal(name) not in registry.graphs.names()


def _show_schedule(options: argparse.Namespace, mixing: MixingSchedule, alpha: float, picture: Path | None) -> int:
    """What is known of a network that changes."""
    if options.compare:
        raise InputError("--compare shows every weight rule of a graph that does not change.")
    degrees, up = mixing.degrees, mixing.sparse
    looks = range(_LOOKS if mixing.period is None else mixing.period)
    facts = _Facts(
        graph=options.graph,
        weights=options.weights or "its own",
        clients=mixing.clients,
        edges=mixing.graph.number_of_edges(),
        degree_min=int(degrees.min()),
        degree_mean=float(degrees.mean()),
        degree_max=int(degrees.max()),
        rho=mixing.rho,
        C=mixing.C,
        lambda_min=mixing.lambda_min,
        nonnegative=bool(up.data.min() >= 0),
        alpha=alpha,
        gamma=None,
        seconds=0.0,
        period=mixing.period,
        rho_period=mixing.rho_period,
        rho_square=mixing.rho_square if mixing.is_symmetric else None,
        is_random=mixing.period is None,
        is_symmetric=mixing.is_symmetric,
        per_round=float(sum(mixing.at(t).degrees.mean() for t in looks) / len(looks)),
    )
    if picture is not None:
        _draw(mixing.mean, f"{options.graph}, expected weights", picture)
    if options.json:
        return show_json(asdict(facts))
    console().show(_schedule_page(facts))
    if picture is not None:
        console().plain(f"Picture: {picture}")
    return 0


def _schedule_page(row: _Facts) -> Table:
    table = Table(show_header=False, title=escape(row.graph))
    table.add_row("clients", f"{row.clients:,}")
    table.add_row("rounds until it repeats", "never, it is random" if row.period is None else f"{row.period:,}")
    table.add_row("edges in all rounds together", f"{row.edges:,}")
    low, high = row.degree_min, row.degree_max
    each = f"{low:,} per client" if low == high else f"{low:,} to {high:,} per client"
    table.add_row("possible neighbours", f"{each}, each with surrogates of its own")
    table.add_row("packets per client and round", f"{row.per_round:.3g}")
    table.add_row("weights", "symmetric" if row.is_symmetric else "doubly stochastic, not symmetric")
    table.add_row("rho of the expected W" if row.is_random else "rho of the mean W", f"{row.rho:.4g}")
    gap, rounds = row.rho if row.rho_square is None else row.rho_square, 1
    if row.rho_period is not None and row.period is not None:
        gap, rounds = row.rho_period, row.period
        table.add_row("rho of the product over a period", f"{gap:.4g}{'  (exact averages)' if gap > 1 - 1e-9 else ''}")
    elif row.rho_square is not None:
        table.add_row("1 - sqrt(second eigenvalue of the expected W^2)", f"{gap:.4g}")
    table.add_row("smallest eigenvalue of any W", f"{row.lambda_min:.4g}")
    tenfold = rounds * (1 if gap >= 0.9 else math.ceil(math.log(0.1) / math.log1p(-gap)))
    table.add_row("rounds to reduce disagreement tenfold", f"{tenfold:,}")
    table.add_row("theorem's gamma", "none: BEER's theory covers a fixed graph")
    return table


def _page(row: _Facts) -> Table:
    table = Table(show_header=False, title=escape(f"{row.graph}, {row.weights} weights"))
    low, high = row.degree_min, row.degree_max
    table.add_row("clients", f"{row.clients:,}")
    table.add_row("edges", f"{row.edges:,}")
    table.add_row("degrees", f"{low:,} each" if low == high else f"{low:,} to {high:,}, mean {row.degree_mean:.3g}")
    table.add_row("spectral gap rho", f"{row.rho:.4g}")
    table.add_row("C = ||W - I||^2", f"{row.C:.4g}")
    table.add_row("smallest eigenvalue", f"{row.lambda_min:.4g}")
    table.add_row("weights", "none below 0" if row.nonnegative else "some below 0")
    tenfold = 1 if row.rho >= 0.9 else math.ceil(math.log(0.1) / math.log1p(-row.rho))
    table.add_row("rounds to reduce disagreement tenfold", f"{tenfold:,}")
    assert row.gamma is not None
    table.add_row(
        f"theorem's gamma at alpha = {row.alpha:g}", f"{row.gamma:.4g}  (proven; larger values work in practice)"
    )
    return table


def _comparison(rows: list[_Facts]) -> Table:
    first = rows[0]
    numbers = headings(">rho", ">C", ">smallest eigenvalue", ">below 0", ">theorem's gamma", ">seconds")
    title = escape(f"{first.graph}: {first.clients:,} clients, {first.edges:,} edges")
    table = Table("weights", *numbers, title=title)
    best = max(row.rho for row in rows)
    for row in sorted(rows, key=lambda row: -row.rho):
        rho = f"{row.rho:.4g}"
        table.add_row(
            row.weights,
            f"[bold]{rho}[/bold]" if rho == f"{best:.4g}" else rho,
            f"{row.C:.4g}",
            f"{row.lambda_min:.4g}",
            "no" if row.nonnegative else "yes",
            f"{row.gamma or 0:.3g}",
            f"{row.seconds:.2f}",
        )
    return table


def _draw(mixing: MixingMatrix, title: str, path: Path) -> None:
    entries = mixing.sparse.tocoo()
    weights = dict.fromkeys(sorted((min(edge), max(edge)) for edge in mixing.graph.edges), 0.0)
    for i, j, w in zip(*(part.tolist() for part in (*entries.coords, entries.data)), strict=True):
        if i < j and (i, j) in weights:
            weights[i, j] = w
    about = f"{title}\n{mixing.clients} clients, {len(weights)} edges, rho = {mixing.rho:.4g}, C = {mixing.C:.4g}"
    network_figure(mixing.clients, weights, mixing.sparse.diagonal(), path, about)


def _list(as_json: bool) -> int:
    """List the graphs and the weight rules."""
    rows: dict[str, list[dict[str, Any]]] = {
        kind: [
            {"name": name, "settings": _settings(known.get(name)), "about": first_paragraph(known.get(name))}
            for name in known
        ]
        for kind, known in (
            ("graphs", registry.graphs),
            ("graphs that change", registry.networks),
            ("weights", registry.weights),
        )
    }
    if as_json:
        return show_json(rows)
    for kind, entries in rows.items():
        names = ("name", "settings", "description") if kind != "weights" else ("name", "description")
        table = titled(kind, *names)
        table.columns[0].no_wrap = True
        for entry in entries:
            settings = [", ".join(entry["settings"])] if kind != "weights" else []
            table.add_row(entry["name"], *map(escape, settings), escape(entry["about"]))
        console().show(table)
    console().print(
        "The prefix lazy: gives (W + I)/2 for any rule, as in lazy:fdla; --weights also takes a .csv or .npy file.\n"
        "Any graph may have failing edges and clients: ring:dropout=0.2, ring:sleeping=0.1,failure_seed=3."
    )
    return 0


def _settings(factory: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(factory).parameters.values()
    return [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]
