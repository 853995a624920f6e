"""A figure of the rows that each client holds: one bar per client, one colour per label."""

from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import InputError
from gossamer.report.figure import drawing, plain

_MOST_CLIENTS, _MOST_LABELS = 500, 60


def shares_figure(counts: Any, labels: list[str], path: Path, title: str = "") -> None:
    """Draw how many rows of each label every client holds: `counts`, (clients, labels)."""
    counts = np.asarray(counts)
    if counts.shape[0] > _MOST_CLIENTS or counts.shape[1] > _MOST_LABELS:
        raise InputError(
            f"A picture shows at most {_MOST_CLIENTS} clients and {_MOST_LABELS} labels, got {counts.shape[0]} and "
            f"{counts.shape[1]}."
        )
    import matplotlib

    with drawing(path, 9, 4.2, title) as figure:
        axes: Any = figure.subplots()
        few = matplotlib.colormaps["tab10" if len(labels) <= 10 else "tab20"]  # colours without an order
        many = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.95, len(labels)))
        colours = few(range(len(labels))) if len(labels) <= 20 else many
        below = np.zeros(len(counts))
        for number, label in enumerate(labels):
            style = {"color": colours[number], "edgecolor": "white", "linewidth": 0.4, "label": plain(label)}
            axes.bar(range(len(counts)), counts[:, number], 0.85, bottom=below, **style)
            below += counts[:, number]
        axes.set(xlabel="client", ylabel="rows", xlim=(-0.6, len(counts) - 0.4))
        axes.grid(visible=False, axis="x")
        if len(counts) <= 20:
            axes.set_xticks(range(len(counts)))
        if len(labels) <= 20:
            handles, names = axes.get_legend_handles_labels()
            figure.legend(handles[::-1], names[::-1], loc="outside right upper", title="label", frameon=False)
