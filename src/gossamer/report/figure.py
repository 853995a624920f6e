"""Figures of records: gradient norm against rounds and against bits."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.files import replacing
from gossamer.records.record import Record, by_label

# Okabe and Ito's colours, which colour-blind readers can distinguish; line styles distinguish them in print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
Style = Mapping[str, Any]
"""Arguments of matplotlib for a line."""
LOOK: dict[Any, Any] = {
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.axisbelow": True,
    "figure.dpi": 200,
    "figure.titlesize": 13,
    "figure.titleweight": "normal",
}


PRINT: dict[Any, Any] = LOOK | {
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8.5,
    "pdf.fonttype": 42,  # letters stay letters, as journals ask
    "figure.dpi": 300,
    "figure.titlesize": 10,
}
_X = {"round": "rounds", "bits": "bits sent on one link", "bits_nominal": "nominal bits on one link"}
_Y = {"grad_norm": r"gradient norm  $\|\nabla f(\bar{x})\|$", "accuracy": "test accuracy"}


def panels_figure(records: Sequence[Record], *paths: Path, title: str = "") -> None:
    """Draw gradient norm and test accuracy against rounds, bits sent and nominal bits; for print, in any formats."""
    columns = [y for y in _Y if any(row.value(y) is not None for record in records for row in record.rows)]
    with drawing(paths, 7.2, 7.2, title, PRINT) as figure:
        panels: Any = figure.subplots(len(_X), max(1, len(columns)), squeeze=False, sharey="col", sharex="row")
        cells = [(panels[row][column], x, y) for row, x in enumerate(_X) for column, y in enumerate(columns)]
        for number, (label, lines) in enumerate(_by_label(records)):
            for panel, x, y in cells:
                _draw(panel, lines, x, plain(label), _style(number, width=1.5), y)
        for panel, x, y in cells:
            panel.set(xlabel=_X[x], ylabel=_Y[y], **({"yscale": "log"} if y == "grad_norm" else {}))
            if x == "round":
                panel.set_xlim(left=0)
            elif _is_wide(records, x):
                panel.set_xscale("log")
        for panel in panels.flat:
            label_few_decades(panel.yaxis)
        handles, labels = panels[0][0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, handlelength=3)


def label_few_decades(axis: Any) -> None:
    """Write 0.2, 1 and 3, and no powers of ten, on a log axis that is near 1 and not long."""
    from matplotlib.ticker import LogFormatterSciNotation

    class Plain(LogFormatterSciNotation):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""  # labels that it would leave out stay out

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and low > 1e-3 and high < min(100 * low, 1e4):
        axis.set_major_formatter(Plain())
        axis.set_minor_formatter(Plain(minor_thresholds=(2, 0.4)))


def _is_wide(records: Sequence[Record], x: str) -> bool:
    """Whether a log axis has enough decades to be labelled."""
    last, first = ([record.rows[at][x] or 0 for record in records if len(record.rows) > 1] for at in (-1, 1))
    return bool(last) and max(last) > 30 * max(1, min(first))


def _by_label(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """The runs of each method that can be drawn: those that did not diverge, or one that did."""
    long = by_label(record for record in records if len(record.rows) > 1)
    return [(label, [run for run in runs if run.diverged is None] or runs[:1]) for label, runs in long.items()]


def _style(number: int, width: float) -> Style:
    colour, line = _COLOURS[number % len(_COLOURS)], _STYLES[number % len(_STYLES)]
    return {"color": colour, "linestyle": line, "linewidth": width}


def convergence_figure(records: Sequence[Record], path: Path, title: str = "") -> None:
    """Draw every method's gradient norm, mean and range over its seeds, and save it under `path` (PNG, PDF, SVG)."""
    with drawing(path, 11, 4.2, title) as figure:
        by_round, by_bits = figure.subplots(1, 2, sharey=True)
        for number, (label, lines) in enumerate(_by_label(records)):
            style = _style(number, width=2)
            _draw(by_round, lines, "round", plain(label), style)
            _draw(by_bits, lines, "bits", plain(label), style)
        by_round.set(xlabel="rounds", ylabel=r"gradient norm  $\|\nabla f(\bar{x})\|$", yscale="log")
        by_bits.set(xlabel="bits sent on one link", xscale="log")
        by_round.set_xlim(left=0)
        label_few_decades(by_round.yaxis)
        handles, labels = by_bits.get_legend_handles_labels()
        if len(handles) > 6:
            figure.legend(handles, labels, loc="outside right upper", frameon=False, handlelength=3)
        elif handles:
            by_bits.legend(handles, labels, frameon=False, handlelength=3)


def plain(text: str) -> str:
    """Text that is not read as a formula, nor hidden from the legend."""
    return text.replace("$", r"\$") if not text.startswith("_") else " " + text.replace("$", r"\$")


def _draw(axes: Any, records: Sequence[Record], x: str, label: str, style: Style, column: str = "grad_norm") -> None:
    rows = min(len(record.rows) for record in records)
    first = 0 if x == "round" else 1  # nothing was sent before the first round, and log axes have no zero
    table = [record.rows[first:rows] for record in records]
    y = np.array([[row.value(column) for row in one] for one in table], float)  # None becomes NaN
    place = np.mean(np.array([[row[x] for row in one] for one in table], float), axis=0)
    axes.plot(place, y.mean(axis=0), label=label, **style)
    if len(records) > 1:
        axes.fill_between(place, y.min(axis=0), y.max(axis=0), color=style["color"], alpha=0.18, linewidth=0)


@contextlib.contextmanager
def drawing(
    path: Path | Sequence[Path], width: float, height: float, title: str = "", look: dict[Any, Any] = LOOK
) -> Iterator[Any]:
    """Give a figure to draw on, and save it as a whole at the end (PNG, PDF, SVG), under one path or several."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(look), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a character that the font lacks, an axis with nothing on it: still a figure
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        if title:
            figure.suptitle(plain(title))
        engine = figure.get_layout_engine()
        assert engine is not None
        engine.execute(figure)
        figure.set_layout_engine("none")  # the layout is found; every file would find it again
        for one in [path] if isinstance(path, Path) else path:
            with replacing(one, alone=False) as beside:
                figure.savefig(beside, format=one.suffix.lstrip(".") or "png")
