"""A figure of a graph, with its weights as line widths."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from gossamer.errors import InputError
from gossamer.report.figure import drawing

_MOST, _MOST_EDGES = 2000, 50_000
_POSITIVE, _NEGATIVE = "#0072B2", "#D55E00"


def network_figure(
    clients: int, weights: Mapping[tuple[int, int], float], diagonal: Any, path: Path, title: str = ""
) -> None:
    """Draw the clients, coloured by the weight they keep for themselves, and the edges, as wide as their weight.

    `weights` are those of the edges, and `diagonal` has the weight that each client gives itself.
    """
    if clients > _MOST or len(weights) > _MOST_EDGES:
        raise InputError(
            f"A drawing shows at most {_MOST:,} clients and {_MOST_EDGES:,} edges, "
            f"got {clients:,} and {len(weights):,}."
        )
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    graph: nx.Graph[Any] = nx.empty_graph(clients)
    graph.add_edges_from(weights)
    points = _layout(graph)
    edges, w = np.array(list(weights), int).reshape(-1, 2), np.array(list(weights.values()))
    largest = np.abs(w).max(initial=1e-12)
    widest = float(np.clip(60 / np.sqrt(max(1, len(w))), 0.6, 6))
    with drawing(path, 7.2, 6, title) as figure:
        axes: Any = figure.subplots()
        for sign, colour, dashes in ((w >= 0, _POSITIVE, "-"), (w < 0, _NEGATIVE, "--")):
            widths = np.maximum(0.15, widest * np.abs(w[sign]) / largest)
            lines = LineCollection(
                list(points[edges[sign]]), linewidths=widths, colors=colour, linestyles=dashes, alpha=0.75, zorder=1
            )
            axes.add_collection(lines)
        size = float(np.clip((600 / clients) ** 2, 4, 420))  # on a ring, clients leave as much room between them
        shade = np.asarray(diagonal, float)
        dots = axes.scatter(
            points[:, 0], points[:, 1], s=size, c=shade, cmap="cividis", edgecolors="white", linewidths=0.8, zorder=2
        )
        if clients <= 60:
            for i, (x, y) in enumerate(points):
                bright = dots.norm(shade[i]) > 0.6
                axes.text(x, y, str(i), ha="center", va="center", fontsize=8, color="black" if bright else "white")
        if np.ptp(shade) > 1e-9:
            figure.colorbar(dots, ax=axes, shrink=0.6, label="weight kept for itself", format="%.3g")
        ends: list[tuple[float, Any, Any]] = [(w.max(), _POSITIVE, "-")] if len(w) and w.max() >= 0 else []
        if len(w) and w.min() < w.max():
            ends.append((w.min(), *((_POSITIVE, "-") if w.min() >= 0 else (_NEGATIVE, "--"))))
        handles = [
            Line2D([], [], color=colour, linestyle=style, linewidth=max(0.3, widest * abs(value) / largest))
            for value, colour, style in ends
        ]
        names = ("largest", "smallest") if len(ends) > 1 else ("every",)
        labels = [f"{name} weight {value:.3g}" for name, (value, *_) in zip(names, ends, strict=False)]
        axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0), frameon=False, ncols=2)
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.08)
        axes.set_axis_off()


def _layout(graph: "nx.Graph[Any]") -> "np.ndarray[Any, np.dtype[np.float64]]":
    """A position for each client: springs, started at the Laplacian's slowest modes, so that a grid is not twisted."""
    n = len(graph)
    if graph.number_of_edges() == n * (n - 1) // 2:
        return np.array(list(nx.circular_layout(graph).values()))
    jitter = np.random.default_rng(0).normal(scale=1e-3, size=(n, 2))  # modes of a star put many into one place
    begin = {i: point + jitter[i] for i, point in nx.spectral_layout(graph).items()}
    place = nx.kamada_kawai_layout(graph, pos=begin) if n <= 200 else nx.spring_layout(graph, pos=begin, seed=0)
    return np.array([place[i] for i in range(n)])
