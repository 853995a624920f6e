"""The figure: time per round against clients, coordinates and edges, with linear growth beside it."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.timing.results import Point
from gossamer.report.figure import drawing

# Okabe and Ito's colours, as in the other figures.
_CPU, _GPU, _LINEAR = "#0072B2", "#D55E00", "#7F7F7F"
_LABELS = {"clients": "clients", "coordinates": "coordinates per client", "edges": "edges of the graph"}


def draw(growth: Sequence[Point], path: Path) -> None:
    """One panel per axis, both axes logarithmic."""
    with drawing(path, 11, 3.9, "Time per round of BEER with gsgd_5") as figure:
        panels = figure.subplots(1, len(_LABELS))
        for panel, (axis, label) in zip(panels, _LABELS.items(), strict=True):
            points = sorted((one for one in growth if one.axis == axis), key=lambda one: (one.where, one.at))
            for where, colour, marker in (("cpu", _CPU, "o"), ("gpu", _GPU, "s")):
                some = [one for one in points if one.where == where]
                if some:
                    at, ms = [one.at for one in some], [one.ms for one in some]
                    panel.plot(at, ms, color=colour, marker=marker, linewidth=2, label=_name(some[0]))
                    linear = [ms[0] / at[0] * one for one in at]
                    once = "in proportion" if where == points[0].where else None
                    panel.plot(at, linear, "--", color=_LINEAR, linewidth=1.2, label=once, zorder=1)
            panel.set(xlabel=label, xscale="log", yscale="log")
            if points:
                panel.legend(frameon=False, fontsize=9)
        panels[0].set_ylabel("milliseconds per round")


def _name(one: Point) -> str:
    fixed = f"{one.clients:,} clients" if one.axis == "coordinates" else f"{one.coordinates:,} coordinates"
    extra = f", {one.clients:,} clients" if one.axis == "edges" else ""
    return f"{one.where.upper()}, {fixed}{extra}"
