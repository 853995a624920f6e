"""Tables and the figure of time to target, from the files of results."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.links.contenders import CONTENDERS
from benchmarks.links.progress import VANILLA
from benchmarks.links.search import FINAL, Problem, Row, read
from gossamer.files import replacing, write_text
from gossamer.report.figure import LOOK

DDP = "DDP float32"
SMALL, WHOLE = "BEER, gsgd_5", "CHOCO-SGD, gsgd_5"
LINES = {
    DDP: ("#000000", "o"),
    "DDP fp16": ("#999999", "v"),
    "DDP PowerSGD 4": ("#E69F00", "s"),
    "all-reduce, H 50": ("#CC79A7", "D"),
    "CHOCO-SGD, blockwise_gsgd_3,256, H 20": ("#0072B2", "o"),
    "CHOCO-SGD, blockwise_gsgd_3,256, H 50": ("#56B4E9", "^"),
}
"""The contenders of the figure."""
_RATES = (1.0, 10.0, 20.0, 100.0)


class Results:
    """All that was searched, measured and confirmed."""

    def __init__(self, folder: Path) -> None:
        self.searched = read(folder / "links_search.jsonl")
        self.measured: list[Row] = json.loads((folder / "links.json").read_text())
        confirmed = folder / "links_confirmed.json"
        self.confirmed: list[Row] = json.loads(confirmed.read_text()) if confirmed.exists() else []

    def rounds(self, problem: Problem, contender: str) -> float | None:
        """The median of the rounds to the target; None where a seed did not reach it."""
        key = vars(problem) | {"contender": contender}
        found = next((row for row in self.searched if key.items() <= row.items()), None)
        known = [] if found is None else [one["rounds"] for one in found["final"] if one["rounds"] is not None]
        return statistics.median(known) if len(known) == len(FINAL) else None

    def cell(self, problem: Problem, contender: str, mbit: float | None, delay_ms: float = 10.0) -> Row | None:
        """What was measured; the traffic of an all-reduce does not depend on the split."""
        key = vars(problem) | {"contender": contender, "mbit": mbit, "delay_ms": delay_ms, "codec": "auto"}
        is_ours = CONTENDERS[contender].kind == "gossip"
        keys = [key] if is_ours else [key, {name: value for name, value in key.items() if name != "split"}]
        return next((row for one in keys for row in self.measured if one.items() <= row.items()), None)

    def seconds(self, problem: Problem, contender: str, mbit: float | None, delay_ms: float = 10.0) -> float | None:
        """Per round."""
        row = self.cell(problem, contender, mbit, delay_ms)
        return None if row is None else row["seconds"]

    def time(self, problem: Problem, contender: str, mbit: float | None, delay_ms: float = 10.0) -> float | None:
        """To the target; for Gossamer's methods with one average of all models, which takes as long as a DDP step."""
        time = self.product(problem, contender, self.rounds(problem, contender), mbit, delay_ms)
        average = self.seconds(problem, DDP, mbit, delay_ms) if CONTENDERS[contender].kind == "gossip" else 0.0
        return None if average is None or time is None else time + average

    def product(
        self, problem: Problem, contender: str, rounds: float | None, mbit: float | None, delay_ms: float = 10.0
    ) -> float | None:
        """Seconds per round, times rounds. The first two steps of PowerSGD are those of DDP."""
        seconds = self.seconds(problem, contender, mbit, delay_ms)
        if seconds is None or rounds is None:
            return None
        if not CONTENDERS[contender].powersgd:
            return seconds * rounds
        dense = self.seconds(problem, DDP, mbit, delay_ms)
        return None if dense is None else VANILLA * dense + (rounds - VANILLA) * seconds

    def best(self, problem: Problem, names: Iterable[str], mbit: float) -> tuple[str, float] | None:
        """The fastest of these to the target."""
        times = {name: time for name in names if (time := self.time(problem, name, mbit)) is not None}
        return min(times.items(), key=lambda one: one[1]) if times else None


OURS = [name for name, one in CONTENDERS.items() if one.kind == "gossip"]
FLOAT32 = [DDP, *(name for name in CONTENDERS if name.startswith("all-reduce"))]
OTHERS = [name for name, one in CONTENDERS.items() if one.kind != "gossip"]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join("-" if one is None else str(one) for one in row) + " |" for row in rows]
    return "\n".join(lines)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bars(found: Results) -> str:
    """Time to the target against the others, by split and bandwidth."""
    rows = []
    for split in ("dirichlet", "digit"):
        problem = Problem(split=split)
        for mbit in (20.0, 1.0):
            ours = found.best(problem, OURS, mbit)
            compared = [found.best(problem, names, mbit) for names in ([DDP], FLOAT32, OTHERS)]
            cells = [None if one is None else f"{one[0]}, {_number(one[1])} s" for one in (ours, *compared)]
            factors = [None if one is None or ours is None else f"{one[1] / ours[1]:.3g}x" for one in compared]
            mixed = [f"{cell} ({factor})" for cell, factor in zip(cells[1:], factors, strict=True)]
            rows.append([f"{split}, {problem.target:g}", f"{mbit:g} Mbit/s", cells[0], *mixed])
    head = ["split, target", "links", "best of Gossamer", DDP, "best float32 all-reduce, any H", "best of all others"]
    return _table(head, rows)


def per_step(found: Results) -> str:
    """Seconds of one step against a step of DDP, and against what computing and the link take alone."""
    rows = []
    for task, ours in (
        ("hidden", SMALL),
        ("cnn", SMALL),
        ("million", SMALL),
        ("million", WHOLE),
        ("ten million", SMALL),
    ):
        for mbit, delay_ms in ((1.0, 10.0), (20.0, 10.0), (20.0, 0.0), (None, 0.0)):
            mine, theirs = (found.cell(Problem(task), name, mbit, delay_ms) for name in (ours, DDP))
            if mine is None:
                continue
            rate = "unlimited" if mbit is None else f"{mbit:g} Mbit/s, {delay_ms:g} ms"
            free = found.cell(Problem(task), ours, None, 0.0)
            link = None if mbit is None else 8 * mine["wire"] / (mbit * 1e6)
            floor = None if free is None or link is None or delay_ms else mine["seconds"] / max(free["seconds"], link)
            factor = None if theirs is None else f"{theirs['seconds'] / mine['seconds']:.3g}x"
            times = [_number(None if one is None else one["seconds"]) for one in (theirs, mine)]
            rows.append([task, rate, ours, *times, factor, _number(link), None if floor is None else f"{floor:.2f}"])
    head = ["task", "links", "contender", "s, DDP", "s, ours", "DDP / ours", "bytes / bandwidth", "of the longer one"]
    return _table(head, rows)


def reference(found: Results) -> str:
    """Every contender in the reference cell, from the fastest to the slowest."""
    problem, rows = Problem(), []
    for name in CONTENDERS:
        cell, time, by_digit = found.cell(problem, name, 20.0), found.time(problem, name, 20.0), Problem(split="digit")
        if cell is not None:
            digit = found.rounds(by_digit, name)
            numbers = [found.rounds(problem, name), digit, cell["seconds"], cell["wire"] / 1e3]
            shown = [*map(_number, numbers), f"{cell['waiting']:.0%}", _number(time)]
            rows.append((float("inf") if time is None else time, [name, *shown]))
    head = ["contender", "rounds", "rounds by digit", "s per round", "kB on the wire", "waiting", "s to the target"]
    return _table(head, [row for _, row in sorted(rows, key=lambda one: one[0])])


def by_rate(found: Results) -> str:
    """Seconds to the target by bandwidth."""
    rows = [[name, *(_number(found.time(Problem(), name, mbit)) for mbit in _RATES)] for name in LINES]
    return _table(["contender", *(f"{mbit:g} Mbit/s" for mbit in _RATES)], rows)


def others(found: Results) -> str:
    """Every other cell."""
    rows = []
    for row in found.measured:
        where = Problem(row["task"], row["split"], row["hosts"], row["graph"])
        is_plain = where == Problem() and row["codec"] == "auto" and row["delay_ms"] == 10
        if is_plain and row["mbit"] == 20:
            continue
        rate = "unlimited" if row["mbit"] is None else f"{row['mbit']:g} Mbit/s, {row['delay_ms']:g} ms"
        codec = "" if row["codec"] == "auto" else f", {row['codec']}"
        time = found.time(where, row["contender"], row["mbit"], row["delay_ms"]) if row["codec"] == "auto" else None
        about = f"{row['task']}, {row['split']}, {row['graph']} of {row['hosts']}"
        shown = [_number(row["seconds"]), _number(row["wire"] / 1e3), f"{row['waiting']:.0%}", _number(time)]
        rows.append([about, rate, row["contender"] + codec, *shown])
    return _table(["task", "links", "contender", "s per round", "kB on the wire", "waiting", "s to the target"], rows)


def whole(found: Results) -> str:
    """Whole runs against the product of rounds and seconds per round, without the average at the end."""
    rows = []
    for row in found.confirmed:
        where = Problem(row["task"], row["split"], row["hosts"], row["graph"])
        product = found.product(where, row["contender"], row["simulated"], row["mbit"], row["delay_ms"])
        ratio = None if product is None or row["time"] is None else f"{row['time'] / product - 1:+.0%}"
        cell = f"{row['task']}, {row['split']}, {row['mbit']:g} Mbit/s"
        shown = [_number(row["simulated"]), _number(row["rounds"]), _number(product), _number(row["time"]), ratio]
        rows.append([cell, row["contender"], *shown])
    head = ["cell", "contender", "rounds, simulated", "rounds, real", "s, product", "s, real", "difference"]
    return _table(head, rows)


def figure(found: Results, path: Path) -> None:
    """Time to the target against bandwidth."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with mpl.rc_context(LOOK | {"font.size": 11}):
        shown, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
        for name, (color, marker) in LINES.items():
            points = [(mbit, time) for mbit in _RATES if (time := found.time(Problem(), name, mbit)) is not None]
            dash = "-" if CONTENDERS[name].kind == "gossip" else "--"
            axes.plot(*zip(*points, strict=True), dash, color=color, marker=marker, label=name.replace("_", " "))
        axes.set(xscale="log", yscale="log", xlabel="Mbit/s per host", ylabel="seconds to 95 % accuracy")
        axes.set_xticks(_RATES, [f"{mbit:g}" for mbit in _RATES])
        axes.minorticks_off()
        axes.set_title("MNIST by Dirichlet(0.3), a million parameters, ring of 4 hosts, 10 ms", fontsize=11)
        axes.legend(fontsize=9)
        with replacing(path) as new:
            shown.savefig(new, format="png")
        plt.close(shown)


def draw(folder: Path) -> None:
    """Write the tables and the figure."""
    found = Results(folder)
    parts = {
        "Against all-reduce": bars(found),
        "Seconds per step": per_step(found),
        "Every contender at 20 Mbit/s and 10 ms": reference(found),
        "By bandwidth: seconds to the target": by_rate(found),
        "Whole runs": whole(found),
        "All other cells": others(found),
    }
    text = "\n\n".join(f"**{title}**\n\n{table}" for title, table in parts.items())
    write_text(folder / "links.md", text + "\n")
    figure(found, folder / "links.png")
    print(text)
