"""Clients that leave and come back: how soon BEER is at its floor again, with and without the rule of flows.

    python benchmarks/membership.py [--results docs/results] [--seeds 0 1 2]

a9a sorted by label, a ring of 8, batch 100. Clients 3 and 4 leave at round 500, and client 3 returns at round 1,000.
The gradient norm is that of the mean objective of the clients that are present, at the mean of their models. The floor is
that of a fresh run among the same clients, averaged over its last 300 rounds. "Rounds" says how many rounds after a
change the average over the next 50 rounds is at most 1.2 times the floor, and stays there. In "no rule", neighbours of
lost clients keep what their edges have added to the tracker. The models are computed by replaying histories.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

import gossamer as gs
from gossamer.files import write_text
from gossamer.runtime.open.history import Close, Event, Release, Step
from gossamer.runtime.open.replaying import Replay
from gossamer.runtime.open.timetable import Happens, Joins, Leaves, Lost, timetable

CLIENTS, ROUNDS, LEAVE, RETURN, NEAR, WINDOW, FLOOR = 8, 1500, 500, 1000, 1.2, 50, 300
GONE = (3, 4)
METHOD = gs.BEER(lr=0.1, gamma=0.5, compressor=gs.gsgd(5))
Curve = np.ndarray[Any, Any]


def norms(problem: Any, mixing: gs.MixingMatrix, history: dict[int, list[Event]], seed: int) -> Curve:
    """After each round, the gradient norm at the mean model of those who are present."""
    players = Replay(METHOD, problem, mixing, history, batch_size=100, seed=seed)
    models: defaultdict[int, dict[int, torch.Tensor]] = defaultdict(dict)
    each = {i: problem.only(i) for i in range(CLIENTS)}
    with torch.no_grad():
        moved = True
        while moved:
            moved = False
            for client in history:
                while isinstance(event := players.next_event(client), object) and players.advance(client):
                    moved = True
                    if isinstance(event, Step):
                        member = players.members[client]
                        models[member.t][client] = member.state.x
        assert all(players.next_event(client) is None for client in history)
        found = np.full(ROUNDS + 1, np.nan)
        for t, present in sorted(models.items()):
            mean = torch.cat(list(present.values())).double().mean(dim=0, keepdim=True)
            every = [each[i].gradient(mean.to(problem.dtype), None) for i in present]
            found[t] = float(torch.cat(list(every)).double().mean(dim=0).norm())
    return found


def without_rule(history: dict[int, list[Event]]) -> dict[int, list[Event]]:
    """The same, but what an edge has added stays where it is."""
    return {
        i: [Release(event.neighbor, i, False) if isinstance(event, Close) else event for event in events]
        for i, events in history.items()
    }


def measure(seed: int) -> dict[str, Curve]:
    """The curves of one seed."""
    problem = gs.logistic_regression("a9a", clients=CLIENTS, partition="sorted", nonconvex=0.05)
    mixing = gs.mixing_matrix(gs.topology.ring(CLIENTS))
    back = [Joins(GONE[0], RETURN + 0.25)]
    leave: list[Happens] = [*(Leaves(i, LEAVE - 0.75) for i in GONE), *back]
    lost: list[Happens] = [*(Lost(i, LEAVE - 0.75) for i in GONE), *back]

    def play(events: list[Happens], absent: tuple[int, ...] = (), *, rule: bool = True) -> Curve:
        history = timetable(mixing, rounds=ROUNDS, events=events, absent=absent, gone_after=2.0)
        return norms(problem, mixing, history if rule else without_rule(history), seed)

    return {
        "fresh, 6 clients": play([], GONE),
        "fresh, 7 clients": play([], GONE[1:]),
        "leave": play(leave),
        "lost": play(lost),
        "lost, no rule": play(lost, rule=False),
    }


def verdict(curve: Curve, change: int, end: int, floor: float) -> tuple[int | None, float]:
    """Rounds until the curve is near the floor and stays there; and its mean from 200 rounds on, over the floor."""
    means = np.array([np.nanmean(curve[t : min(t + WINDOW, end)]) for t in range(change, end - WINDOW)])
    far = np.nonzero(means > NEAR * floor)[0]
    rounds = 0 if not len(far) else int(far[-1]) + 1
    return (rounds if rounds < len(means) else None), float(np.nanmean(curve[change + 200 : end])) / floor


def main() -> int:
    """Measure, print, and write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    curves = {seed: measure(seed) for seed in options.seeds}
    rows = []
    for name in ("leave", "lost", "lost, no rule"):
        for what, change, end, fresh in (
            ("two go", LEAVE, RETURN, "fresh, 6 clients"),
            ("one returns", RETURN, ROUNDS, "fresh, 7 clients"),
        ):
            for seed, found in curves.items():
                floor = float(np.nanmean(found[fresh][-FLOOR:]))
                rounds, ratio = verdict(found[name], change, end, floor)
                facts = {"rounds": rounds, "ratio": ratio, "floor": floor}
                rows.append({"run": name, "change": what, "seed": seed} | facts)
    lines = [
        "| run | change | seed | floor of a fresh run | rounds until within 1.2 times | after 200 rounds, over the floor |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        rounds = "never" if row["rounds"] is None else str(row["rounds"])
        lines.append(
            f"| {row['run']} | {row['change']} | {row['seed']} | {row['floor']:.2e} | {rounds} | {row['ratio']:.2f} |"
        )
    print("\n".join(lines))
    ruled = [row for row in rows if row["run"] != "lost, no rule"]
    good = all(row["rounds"] is not None and int(row["rounds"]) <= 200 for row in ruled)
    bad = min(float(row["ratio"]) for row in rows if row["run"] == "lost, no rule")
    print(f"\nWith the rule, within {NEAR} times the floor after at most 200 rounds: {'yes' if good else 'NO'}.")
    print(f"Without it, at least {bad:.1f} times the floor.")
    write_text(options.results / "membership.md", "\n".join(lines) + "\n")
    write_text(options.results / "membership.json", json.dumps(rows, indent=1) + "\n")
    draw(curves[options.seeds[0]], options.results / "membership.png")
    return 0 if good and bad >= 10 else 1


def draw(curves: dict[str, Curve], path: Path) -> None:
    """The gradient norm of one seed, as means over 10 rounds."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    kernel = np.ones(10) / 10
    styles = {"lost, no rule": "C3", "lost": "C0", "leave": "C2"}
    for name, color in styles.items():
        axes.semilogy(np.convolve(curves[name][1:], kernel, "valid"), color=color, label=name, lw=1.2)
    for fresh, (begin, end) in {"fresh, 6 clients": (LEAVE, RETURN), "fresh, 7 clients": (RETURN, ROUNDS)}.items():
        floor = float(np.nanmean(curves[fresh][-FLOOR:]))
        label = "floor of a fresh run" if begin == LEAVE else None
        axes.hlines(floor, begin, end, color="k", ls="--", lw=1, label=label)
    for t, text in ((LEAVE, "two go"), (RETURN, "one returns")):
        axes.axvline(t, color="0.7", lw=0.8)
        axes.annotate(text, (t, 1), (4, -12), xycoords=("data", "axes fraction"), textcoords="offset points")
    axes.set(xlabel="round", ylabel="gradient norm", title="BEER on a9a sorted by label, ring of 8, batch 100")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    raise SystemExit(main())
