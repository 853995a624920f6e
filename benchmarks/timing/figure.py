"""The figure: time per round against clients, coordinates and edges, with linear growth beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing.results import Point
from gossamer.report.figure import drawing

# Okabe and Ito's colours, as in the other figures; markers distinguish them in print.
_LOOKS = {"cpu": ("#0072B2", "o"), "gpu": ("#D55E00", "s")}
_LINEAR = "#7F7F7F"
_LABELS = {"clients": "clients", "coordinates": "coordinates per client", "edges": "edges of the graph"}


def draw(growth: Sequence[Point], path: Path) -> None:
    """One panel per axis, both axes logarithmic."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    with drawing(path, 11, 4.2, "Time per round of BEER with gsgd_5") as figure:
        panels = figure.subplots(1, len(_LABELS), sharey=True)
        for panel, (axis, label) in zip(panels, _LABELS.items(), strict=True):
            panel.set(xlabel=label, xscale="log", yscale="log")
            points = sorted((one for one in growth if one.axis == axis), key=lambda one: one.at)
            curves = [[one for one in points if one.where == where] for where in _LOOKS]
            for curve in filter(None, curves):
                _curve(panel, curve)
            if points:
                panel.plot([], [], "--", color=_LINEAR, label="straight line" if axis == "edges" else "in proportion")
                panel.legend(frameon=False, fontsize=9, loc="upper left")
                panel.set_xticks(_apart([one.at for one in points]))
                panel.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:,.0f}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
        panels[0].set_ylabel("time per round")
        panels[0].yaxis.set_major_formatter(
            FuncFormatter(lambda ms, _: f"{ms / 1e3:g} s" if ms >= 1e3 else f"{ms:g} ms")
        )
        panels[0].yaxis.set_minor_formatter(NullFormatter())
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(low, high * (high / low) ** 0.25)  # room for the legends


def _curve(panel: Any, curve: Sequence[Point]) -> None:
    colour, marker = _LOOKS[curve[0].where]
    at, ms = np.array([one.at for one in curve], float), np.array([one.ms for one in curve])
    panel.plot(at, ms, color=colour, marker=marker, linewidth=2, label=_name(curve[0]))
    linear = ms[0] / at[0] * at
    if curve[0].axis == "edges" and len(curve) > 1:
        slope, start = np.polyfit(at, ms, 1)
        linear = start + slope * at
    panel.plot(at, linear, "--", color=_LINEAR, linewidth=1.2, zorder=1)


def _apart(places: Sequence[int]) -> list[int]:
    """Places whose labels do not touch."""
    kept: list[int] = []
    apart = max(2.5, (places[-1] / places[0]) ** 0.22)
    for at in places:
        if not kept or at >= apart * kept[-1]:
            kept.append(at)
    return kept


def _name(one: Point) -> str:
    coordinates, clients = f"{one.coordinates:,} coordinates", f"{one.clients:,} clients"
    fixed = {"clients": coordinates, "coordinates": clients, "edges": f"{clients}, d = {one.coordinates:,}"}[one.axis]
    return f"{one.where.upper()}, {fixed}"
