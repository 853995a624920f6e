"""Who holds what, as a picture: one bar a client, one colour a label."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.errors import InputError
from gossamer.report.figure import LOOK, plain, save

_MOST_CLIENTS, _MOST_LABELS = 500, 60


def shares_figure(counts: Any, labels: list[str], path: Path, title: str = "") -> None:
    """Draw rows by client and label.

    Args:
        counts: (clients, labels): rows.
        labels: Their names.
        path: Where to save it (PNG, PDF, SVG).
        title: Above the picture.
    """
    counts = np.asarray(counts)
    if counts.shape[0] > _MOST_CLIENTS or counts.shape[1] > _MOST_LABELS:
        raise InputError(
            f"A picture shows at most {_MOST_CLIENTS} clients and {_MOST_LABELS} labels, got {counts.shape[0]} and "
            f"{counts.shape[1]}."
        )
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(LOOK), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sign that the font lacks: still a figure
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        axes: Any = figure.subplots()
        few = matplotlib.colormaps[
            "tab10" if len(labels) <= 10 else "tab20"
        ]  # colours without an order, while they last
        many = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.95, len(labels)))
        colours = few(range(len(labels))) if len(labels) <= 20 else many
        below = np.zeros(len(counts))
        for number, label in enumerate(labels):
            axes.bar(
                range(len(counts)),
                counts[:, number],
                0.85,
                bottom=below,
                color=colours[number],
                edgecolor="white",
                linewidth=0.4,
                label=plain(label),
            )
            below += counts[:, number]
        axes.set(xlabel="client", ylabel="rows", xlim=(-0.6, len(counts) - 0.4))
        axes.grid(visible=False, axis="x")
        if len(counts) <= 20:
            axes.set_xticks(range(len(counts)))
        if len(labels) <= 20:
            handles, names = axes.get_legend_handles_labels()
            figure.legend(handles[::-1], names[::-1], loc="outside right upper", title="label", frameon=False)
        if title:
            axes.set_title(plain(title), fontsize=12)
        save(figure, path)
