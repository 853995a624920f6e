"""A run and its proof in one figure: what was measured, and its bounds."""

from pathlib import Path
from typing import Any

import numpy as np

from gossamer.report.figure import LOOK, Style, drawing
from gossamer.theory import Checked

_MEASURED: Style = {"color": "#0072B2", "linestyle": "-", "linewidth": 2.2}
_BOUND: Style = {"color": "#D55E00", "linestyle": "--", "linewidth": 1.6}
_TITLES = {
    "Omega_1": r"$\Omega_1 = \|H - X\|^2$",
    "Omega_2": r"$\Omega_2 = \|G - V\|^2$",
    "Omega_3": r"$\Omega_3 = \|X - \bar{x}\|^2$",
    "Omega_4": r"$\Omega_4 = \|V - \bar{v}\|^2$",
    "f": r"fall of $f$ (+ $q^\top\Omega$ + noise)",
    "Phi": r"fall of $\Phi$ (+ noise)",
    "Theorem 4.1, 4.2": r"mean of $\|\nabla f\|^2$ so far",
    "Phi_t": r"$\Phi$ and where it started",
    "Theorem 4.3, 4.4": r"$\Phi$ and its linear bound",
}
_WIDE = 20  # a log axis over less has too few numbers on it
_FALLS = ("f", "Phi")  # here the proof bounds what is measured from below


def proof_figure(checked: Checked, path: Path, title: str = "") -> None:
    """Draw both sides of each inequality that could be checked, round by round."""
    drawn = [finding for finding in checked.findings if finding.left is not None]
    columns = 4 if len(drawn) > 3 else max(1, len(drawn))
    rows = max(1, -(-len(drawn) // columns))
    look = LOOK | {"font.size": 10, "axes.titlesize": 10.5, "figure.titlesize": 12}
    with drawing(path, 3.4 * columns, 2.9 * rows, title, look) as figure:
        panels: Any = figure.subplots(rows, columns, squeeze=False)
        for panel in panels.flat[len(drawn) :]:
            panel.set_visible(False)
        for panel, finding in zip(panels.flat, drawn, strict=False):
            is_fall = finding.name in _FALLS
            measured, bound = (finding.right, finding.left) if is_fall else (finding.left, finding.right)
            panel.plot(finding.rounds, measured, label="measured", **_MEASURED)
            panel.plot(finding.rounds, bound, label="at least" if is_fall else "at most", **_BOUND)
            panel.set_title(_TITLES.get(finding.name, finding.name))
            panel.set_xlabel("rounds")
            both = np.concatenate([measured, bound])
            if both.min() > 0 and both.max() > _WIDE * both.min():
                panel.set_yscale("log")
            panel.legend(frameon=False, fontsize=9)
