"""Looking at graphs and their weights: `gossamer topology`."""

import argparse
import inspect
import json
import math
import time
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gossamer import registry
from gossamer.cli.lines import note, results
from gossamer.cli.output import check_picture, console, first_paragraph, waiting
from gossamer.errors import InputError, check_unit
from gossamer.report import network_figure
from gossamer.theory import theorem_gamma
from gossamer.topology import MixingMatrix, mixing_matrix
from gossamer.topology.base import checked
from gossamer.topology.graphs import build_graph


def topology(options: argparse.Namespace) -> int:
    """`gossamer topology`."""
    if options.graph is None:
        return _list(options.json)
    alpha = check_unit("alpha", options.alpha)
    picture = None if options.draw is None else check_picture(options.draw)
    if options.compare and options.weights is not None:
        raise InputError("--compare tabulates every rule; leave --weights out.")
    with waiting("Building the graph"):
        graph = checked(build_graph(options.graph, options.clients))
    if len(graph) < 2:
        raise InputError("A graph of one client has nobody to talk to; give at least two.")
    rules = (
        registry.weights.names() if options.compare else ["metropolis" if options.weights is None else options.weights]
    )
    rows: list[dict[str, Any]] = []
    for rule in rules:
        with waiting(f"Working out the weights {rule}"):
            began = time.perf_counter()
            try:
                mixing = mixing_matrix(graph, rule)
            except InputError as error:
                if not options.compare:
                    raise
                note(f"gossamer: {error}")
                continue
            rows.append(_measured(options.graph, rule, mixing, alpha) | {"seconds": time.perf_counter() - began})
    if picture is not None:
        with waiting("Drawing"):
            rule = max(rows, key=lambda row: row["rho"])["weights"]  # of several, the best
            _draw(
                mixing_matrix(graph, rule) if options.compare else mixing, f"{options.graph}, {rule} weights", picture
            )
    with results():
        if options.json:
            print(json.dumps(rows if options.compare else rows[0], indent=2, allow_nan=False))
        elif options.compare:
            console().show(_comparison(rows))
        else:
            console().show(_page(rows[0]))
            if picture is not None:
                console().print(f"Picture: {escape(str(picture))}", highlight=False, soft_wrap=True)
    return 0


def _measured(graph: str, rule: str, mixing: MixingMatrix, alpha: float) -> dict[str, Any]:
    degrees = mixing.degrees
    return {
        "graph": graph,
        "weights": rule,
        "clients": mixing.clients,
        "edges": mixing.graph.number_of_edges(),
        "degree_min": int(degrees.min()),
        "degree_mean": float(degrees.mean()),
        "degree_max": int(degrees.max()),
        "rho": mixing.rho,
        "C": mixing.C,
        "lambda_min": mixing.lambda_min,
        "nonnegative": mixing.is_nonnegative,
        "alpha": alpha,
        "gamma": theorem_gamma(alpha, mixing.rho, mixing.C),
    }


def _page(row: dict[str, Any]) -> Table:
    table = Table(show_header=False, title=escape(f"{row['graph']}, {row['weights']} weights"))
    low, high = row["degree_min"], row["degree_max"]
    table.add_row("clients", f"{row['clients']:,}")
    table.add_row("edges", f"{row['edges']:,}")
    table.add_row("degrees", f"{low:,} each" if low == high else f"{low:,} to {high:,}, mean {row['degree_mean']:.3g}")
    table.add_row("spectral gap rho", f"{row['rho']:.4g}")
    table.add_row("C = ||W - I||^2", f"{row['C']:.4g}")
    table.add_row("smallest eigenvalue", f"{row['lambda_min']:.4g}")
    table.add_row("weights", "none below 0" if row["nonnegative"] else "some below 0")
    tenfold = 1 if row["rho"] >= 0.9 else math.ceil(math.log(0.1) / math.log1p(-row["rho"]))
    table.add_row("rounds for a tenth of the disagreement", f"{tenfold:,}")
    table.add_row(f"theorem's gamma at alpha = {row['alpha']:g}", f"{row['gamma']:.4g}  (proven; far more works)")
    return table


def _comparison(rows: list[dict[str, Any]]) -> Table:
    first = rows[0]
    table = Table(title=escape(f"{first['graph']}: {first['clients']:,} clients, {first['edges']:,} edges"))
    for heading in ("weights", "rho", "C", "smallest eigenvalue", "below 0", "theorem's gamma", "seconds"):
        table.add_column(heading, justify="left" if heading == "weights" else "right")
    best = max(row["rho"] for row in rows)
    for row in sorted(rows, key=lambda row: -row["rho"]):
        rho = f"{row['rho']:.4g}"
        table.add_row(
            row["weights"],
            f"[bold]{rho}[/bold]" if rho == f"{best:.4g}" else rho,
            f"{row['C']:.4g}",
            f"{row['lambda_min']:.4g}",
            "no" if row["nonnegative"] else "yes",
            f"{row['gamma']:.3g}",
            f"{row['seconds']:.2f}",
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
    """The graphs and the rules."""
    rows: dict[str, list[dict[str, Any]]] = {
        kind: [
            {"name": name, "settings": _settings(known.get(name)), "about": first_paragraph(known.get(name))}
            for name in known
        ]
        for kind, known in (("graphs", registry.graphs), ("weights", registry.weights))
    }
    with results():
        if as_json:
            print(json.dumps(rows, indent=2))
            return 0
        for kind, things in rows.items():
            table = Table(title=kind, header_style="bold", title_justify="left")
            table.add_column("name", no_wrap=True)
            if kind == "graphs":
                table.add_column("settings")
            table.add_column("what it is")
            for thing in things:
                takes = [", ".join(thing["settings"])] if kind == "graphs" else []
                table.add_row(thing["name"], *map(escape, takes), escape(thing["about"]))
            console().show(table)
        console().print("Any rule is made lazy, (W + I)/2, as in lazy:fdla; --weights also takes a .csv or .npy file.")
    return 0


def _settings(factory: Any) -> list[str]:
    parameters = inspect.signature(factory).parameters.values()
    return [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]
